"""Analyses of the ranks of a made-up job: when each rank comes to each collective is given, all else follows."""

from __future__ import annotations

import msgspec

from bucketlab.schema.analysis import CollectiveEvent, RankAnalysis, StepAnalysis, Totals

STEP_NS = 100_000_000
TRANSFER_NS = 1_000_000


def collective(start_ns, end_ns, elements=1000, op="allreduce", group="0", sequence=None, ready_ns=None):
    return CollectiveEvent(
        op=op,
        elements=elements,
        bytes=4 * elements,
        dtype="float32",
        group=group,
        group_size=None,
        sequence=sequence,
        bucket=None,
        ready_ns=ready_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        overlap_ns=0,
        exposed_ns=end_ns - start_ns,
        bus_gb_s=None,
    )


def step(number, events, clock_ns=0, compute_ns=50_000_000, input_ns=0):
    return StepAnalysis(
        name=f"ProfilerStep#{number}",
        start_ns=number * STEP_NS + clock_ns,
        wall_ns=STEP_NS,
        communication_ns=0,
        compute_ns=compute_ns,
        memory_ns=0,
        overlap_ns=0,
        exposed_ns=0,
        busy_ns=0,
        kernels=100,
        collectives=len(events),
        idle_ns=0,
        input_ns=input_ns,
        events=events,
    )


def rank(number, steps, world_size=None, host=None, source=None, kernels=1000):
    total = Totals(
        communication_ns=0,
        compute_ns=0,
        memory_ns=0,
        overlap_ns=0,
        exposed_ns=0,
        busy_ns=0,
        kernels=kernels,
        collectives=0,
    )
    return RankAnalysis(
        source=source or f"rank{number}.json",
        rank=number,
        world_size=world_size,
        backend="nccl",
        host=host,
        total=total,
        steps=steps,
        unattributed_kernels=0,
        warnings=[],
    )


def job(lags_ns, *, clocks_ns=None, hosts=None, buckets=3, compute_ns=None, input_ns=None, sequences=False):
    """Ranks that come to all collectives of step s late by `lags_ns[rank][s]`; all leave together.

    `compute_ns` and `input_ns` are by rank, `clocks_ns` what each rank's clock is ahead.
    """
    ranks = []
    for number, lags in enumerate(lags_ns):
        steps = []
        for s, lag in enumerate(lags):
            last = max(of_rank[s] for of_rank in lags_ns)
            # far enough apart that a rank's lag at one is not hidden behind the end of the one before
            arrivals = [(k + 1) * 20_000_000 for k in range(buckets)]
            events = [
                collective(
                    arrival + lag,
                    arrival + last + TRANSFER_NS,
                    elements=1000 + k,
                    sequence=s * buckets + k if sequences else None,
                )
                for k, arrival in enumerate(arrivals)
            ]
            steps.append(
                step(
                    s,
                    events,
                    clocks_ns[number] if clocks_ns else 0,
                    compute_ns[number] if compute_ns else 50_000_000,
                    input_ns[number] if input_ns else 0,
                )
            )
        ranks.append(rank(number, steps, len(lags_ns), hosts[number] if hosts else None))
    return ranks


def without(analysis, number, event):
    """The analysis with one collective missing from one step, as a truncated trace has it."""
    steps = [
        msgspec.structs.replace(one, events=one.events[:event] + one.events[event + 1 :])
        if one.name == f"ProfilerStep#{number}"
        else one
        for one in analysis.steps
    ]
    return msgspec.structs.replace(analysis, steps=steps)
