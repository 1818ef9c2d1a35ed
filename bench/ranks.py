"""What a thousand ranks cost rank 0 of a profiled job: their reports over the store, decoded, merged into one profile.

    python -m bench.ranks

One process plays rank 0; the reports are those of the shipped two-rank trace, renumbered, and pass a real TCPStore.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import msgspec
import torch.distributed as dist

from bench.figures import Figure, Wanted
from bucketlab.analysis import analyze_trace
from bucketlab.analysis.profile import build_profile
from bucketlab.schema.analysis import RankAnalysis
from bucketlab.schema.profile import Memory
from bucketlab.schema.rank import RankReport, RunFacts, TimedStep
from bucketlab.trace.kineto import read_trace
from bucketlab.worker.exchange import Exchange

_RANKS = 1000
_TRACES = Path(__file__).parents[1] / "traces" / "gloo-2ranks"
_STEPS = 200


class Cost(msgspec.Struct):
    """Of all ranks' reports."""

    sent_s: float  # all by this one process
    received_s: float
    built_s: float  # the profile made of them
    peak_mib: float


def figures(_: Wanted) -> list[Figure]:
    """Receiving and merging, over what one process needs to send as much."""
    cost = measure()
    rank_0_s = cost.received_s + cost.built_s
    return [
        Figure(
            name=f"rank 0, {_RANKS:,} reports",
            value=rank_0_s,
            unit="s",
            ratio=rank_0_s / cost.sent_s,
            over="sending them from one process",
        ),
        Figure(name=f"peak memory, {_RANKS:,} reports", value=cost.peak_mib, unit="MiB"),
    ]


def measure() -> Cost:
    analyses = [analyze_trace(read_trace(path)) for path in sorted(_TRACES.glob("*.json.gz"))]
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    began = time.perf_counter()
    for rank in range(_RANKS):
        analysis = msgspec.structs.replace(analyses[rank % 2], rank=rank, world_size=_RANKS, host=f"host{rank // 8}")
        Exchange(store, rank, _RANKS).report("report", _report(rank, analysis))
    sent = time.perf_counter()
    reports = Exchange(store, 0, _RANKS).reports("report", RankReport, seconds=60)
    received = time.perf_counter()
    profile = build_profile(_facts(), reports)
    built = time.perf_counter()
    assert len(profile.ranks) == _RANKS
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(sent - began, received - sent, built - received, peak_mib)


def main() -> None:
    cost = measure()
    print(f"{_RANKS} ranks: sent {cost.sent_s:.2f} s (all by one process), received {cost.received_s:.2f} s,")
    print(f"profile built {cost.built_s:.2f} s; {cost.peak_mib:.0f} MiB at most")


def _report(rank: int, analysis: RankAnalysis) -> RankReport:
    step = TimedStep(wall_ns=10**8, input_ns=10**6, forward_ns=4 * 10**7, backward_ns=5 * 10**7, regular=True)
    return RankReport(
        rank=rank,
        host=f"host{rank // 8}",
        device="cpu",
        steps=[step] * _STEPS,
        analysis=analysis,
        memory=Memory(
            parameters_bytes=1,
            gradients_bytes=1,
            bucket_buffers_bytes=1,
            saved_by_view_bytes=1,
            optimizer_bytes=1,
            buffers_bytes=0,
            peak_bytes=1,
            capacity_bytes=1,
            largest_model_parameters=1,
        ),
        nccl=None,
        not_valid=None,
        contradictions=[],
        missing=[],
        seconds={},
    )


def _facts() -> RunFacts:
    return RunFacts(
        run="bench",
        created="",
        script="train.py",
        command=[],
        versions={},
        world_size=_RANKS,
        backend="gloo",
        accumulation=1,
        modules=[],
        bucket_parameters=[],
        optimizers=[],
        gradients=[],
        link_points=[],
        link_dtype="",
        emulated=None,
        wanted_link="",
        missing=[],
        notes=[],
    )


if __name__ == "__main__":
    main()
