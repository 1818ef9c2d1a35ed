"""Traces that no run of ours left -> a profile of what they tell; its other parts are missing, and it says so."""

from __future__ import annotations

import shlex
from pathlib import Path

from bucketlab import units
from bucketlab.analysis.buckets import buckets_in
from bucketlab.analysis.files import analyze_paths, runs_apart
from bucketlab.analysis.profile import median_breakdown
from bucketlab.errors import BadInput
from bucketlab.medians import median_known, median_ns
from bucketlab.schema.analysis import CollectiveEvent, RankAnalysis
from bucketlab.schema.profile import Breakdown, Bucket, Profile, RankSummary


def profile_of_traces(path: Path) -> Profile:
    """What traces alone tell, as a profile whose other parts are missing and say so.

    Each collective of a step stands as a bucket; what is known of it in place of its parameters is its operation.

    Raises:
        BadInput: no trace there can be read, or none has a step.
    """
    apart = runs_apart(analyze_paths([path]))
    if len(apart) > 1:
        raise BadInput(f"{path} holds several runs: give the folder of one, such as {next(iter(apart))}")
    analysis = next(iter(apart.values()))
    first = next((one for one in analysis.ranks if one.steps), None)
    if first is None:
        raise BadInput(f"{path}: no trace here has a step (ProfilerStep#N): profile with torch.profiler's schedule")
    steps = [step for one in analysis.ranks for step in one.steps]
    world_size = first.world_size or len(analysis.ranks)
    breakdown, collectives = median_breakdown(steps), _collectives(first)
    assert breakdown is not None  # there are steps
    return Profile(
        run=path.name,
        created="",
        script=str(path),
        command=[],
        versions={},
        world_size=world_size,
        nodes=len({one.host for one in analysis.ranks if one.host}) if len(analysis.ranks) == world_size else 0,
        backend=first.backend or "",
        device="",
        accumulation=1,
        modules=[],
        optimizers=[],
        step=None,
        breakdown=breakdown,
        ranks=[_rank(one, at) for at, one in enumerate(analysis.ranks)],
        buckets=collectives,
        gradients=[],
        forward_ns=None,
        backward_ns=None,
        optimizer_ns=None,
        input_ns=None,
        link=None,
        stragglers=analysis.stragglers if len(analysis.ranks) > 1 else None,
        memory=None,
        prediction=None,
        missing=["steps without a profiler, link, ready times of gradients and memory: these are traces alone"],
        notes=[
            f"each collective of rank {first.rank if first.rank is not None else 'unknown'} stands as a bucket, "
            "named by its operation; medians over its steps where all have as many, else its last step",
            *dict.fromkeys([*analysis.warnings, *(line for one in analysis.ranks for line in one.warnings)]),
        ],
        advice=_advice(path, breakdown, collectives, any(map(buckets_in, steps))),
        seconds={},
    )


def _advice(path: Path, breakdown: Breakdown, collectives: list[Bucket], of_ddp: bool) -> list[str]:
    """What to look at next: of traces alone little is sure.

    Args:
        of_ddp: some of the collectives carry DDP's buckets.
    """
    if not breakdown.communication_ns:
        return ["These steps show no communication: trace two ranks or more, with ProfilerActivity.CUDA on GPUs."]
    lines = []
    worst = max(collectives, key=lambda one: one.exposed_ns or 0, default=None)
    if worst is not None and worst.exposed_ns:
        exposed = f"{units.duration(worst.exposed_ns)} of a step, {units.share(worst.exposed_ns, breakdown.wall_ns)}"
        lines.append(f"Most exposed is collective {worst.index}, {worst.parameters[0]}: {exposed}.")
    if of_ddp:
        lines.append(
            f"`bucketlab predict {shlex.quote(str(path.absolute()))}` says how far other bucket sizes could move the "
            "step; `bucketlab profile train.py` measures what figures need in place of ranges."
        )
    else:
        lines.append("None of the collectives carries a bucket of DDP's: bucket sizes are not what to change here.")
    return lines


def _rank(one: RankAnalysis, position: int) -> RankSummary:
    return RankSummary(
        rank=position if one.rank is None else one.rank,
        host=one.host or "",
        device="",
        step_median_ns=median_ns(step.wall_ns for step in one.steps),
        breakdown=median_breakdown(one.steps),
        peak_bytes=0,
    )


def _collectives(rank: RankAnalysis) -> list[Bucket]:
    steps = [step for step in rank.steps if step.events]
    if not steps:
        return []
    alike = len({len(step.events) for step in steps}) == 1
    rows = list(zip(*(step.events for step in (steps if alike else steps[-1:])), strict=True))
    return [_as_bucket(index, list(row)) for index, row in enumerate(rows)]


def _as_bucket(index: int, events: list[CollectiveEvent]) -> Bucket:
    return Bucket(
        module=0,
        index=index,
        parameters=[" ".join(filter(None, [events[0].op, events[0].dtype]))],
        bytes=events[0].bytes or 0,
        ready_ns=median_ns(event.ready_ns for event in events),
        start_ns=median_ns(event.start_ns for event in events),
        end_ns=median_ns(event.end_ns for event in events),
        overlap_ns=median_ns(event.overlap_ns for event in events),
        exposed_ns=median_ns(event.exposed_ns for event in events),
        bus_gb_s=median_known(event.bus_gb_s for event in events),
    )
