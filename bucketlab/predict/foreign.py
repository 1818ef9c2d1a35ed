"""Step time against bucket size from traces of a job that bucketlab did not profile: ranges, not figures.

A trace tells when each bucket was ready and how long it travelled, not when each gradient inside it was. So a gradient
was ready after the bucket before its own and no later than its own: with these bounds, and with buckets that DDP
closes once they hold their capacity, a step ends within a range. Needs no torch, measures nothing.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from bucketlab.analysis.buckets import buckets_in
from bucketlab.errors import BadInput
from bucketlab.link.curve import Float64s, LinkCurve
from bucketlab.link.measured import lone_point
from bucketlab.predict.assignment import MIB
from bucketlab.schema.analysis import Analysis, RankAnalysis, StepAnalysis

_POINTS = 24
_SMALLEST_CAP_MB = 0.25


class Range(msgspec.Struct, kw_only=True):
    """One capacity for all buckets. A step takes no less than `low_ns` and no more than `high_ns`, predicted."""

    bucket_cap_mb: float
    low_ns: int
    high_ns: int


class TracePrediction(msgspec.Struct, kw_only=True):
    """What one rank's trace says of other bucket sizes."""

    kind: Literal["predicted"] = "predicted"
    source: str
    ranks: int | None
    steps: int
    measured_step_ns: int
    bucket_bytes: list[int]  # as traced
    latency_ns: int  # of one all-reduce: latency + bytes / bandwidth through what the trace shows
    bandwidth_gb_s: float
    floor_ns: int  # no buckets, of whatever gradients, are done earlier
    ranges: list[Range]  # by rising capacity
    notes: list[str]


@dataclass(frozen=True, eq=False)
class Traced:
    """One step's buckets, medians over the steps of a trace. Columns have one row per bucket, in the order of launch.

    Times count from the step's start.
    """

    bytes: Float64s
    ready_ns: Float64s  # never falling
    over_ns: float  # when the last one had arrived
    step_ns: float


def predict_trace(analysis: Analysis) -> TracePrediction:
    """Ranges of the step time of the first rank that shows DDP's all-reduces.

    Raises:
        BadInput: no rank does, or their sizes are not in the trace; the message says which.
    """
    rank, steps = _rank_with_buckets(analysis)
    traced = _traced(steps)
    quickest, usual = _lines(steps)
    caps_mb = np.geomspace(_SMALLEST_CAP_MB, max(2 * _SMALLEST_CAP_MB, traced.bytes.sum() / MIB), _POINTS).tolist()
    bounds = [(cap_mb, *bounds_ns(traced, cap_mb * MIB, quickest, usual)) for cap_mb in caps_mb]
    return TracePrediction(
        source=rank.source,
        ranks=rank.world_size,
        steps=len(steps),
        measured_step_ns=round(traced.step_ns),
        bucket_bytes=[int(size) for size in traced.bytes],
        latency_ns=usual.latency_ns,
        bandwidth_gb_s=usual.bandwidth_gb_s,
        floor_ns=round(_as_step(traced, _earliest_ns(traced, quickest))),
        ranges=[
            Range(bucket_cap_mb=float(f"{cap_mb:.3g}"), low_ns=round(low), high_ns=round(high))
            for cap_mb, low, high in bounds
        ],
        notes=_notes(steps, rank),
    )


def bounds_ns(traced: Traced, cap_bytes: float, quickest: LinkCurve, usual: LinkCurve) -> tuple[float, float]:
    """Least and most time of a step with this capacity for every bucket, on a link that moves one at a time.

    Both are bounds for all gradients that the traced buckets may hold. With r(k) the time from which traced bucket k
    was ready, R(k) the bytes of it and all after it, and a + b M the time of an all-reduce of M bytes:

    - bucket k's gradients were not ready before r(k-1), and what is sent from then on is at least R(k):
      over >= r(k-1) + a + b R(k), for every k, and over >= r(last) + a;
    - the last time that the link stood idle ended when some gradient of a traced bucket k became ready, at r(k) or
      before, and its bucket held less than a capacity from before. Each bucket but the last holds a capacity:
      over <= r(k) + a N + b (R(k) + capacity), with N = 1 + (R(k) + capacity) / capacity, for some k.
    """
    still = np.cumsum(traced.bytes[::-1])[::-1]
    total = traced.bytes.sum()
    latest = np.minimum(still + cap_bytes, total)
    buckets = 1 + np.floor(latest / cap_bytes)
    over_ns = traced.ready_ns + buckets * usual.latency_ns + latest / usual.bandwidth_gb_s
    low_ns = _as_step(traced, _earliest_ns(traced, quickest))
    return low_ns, max(low_ns, _as_step(traced, float(over_ns.max())))


def _earliest_ns(traced: Traced, curve: LinkCurve) -> float:
    still = np.cumsum(traced.bytes[::-1])[::-1]
    # Nothing is known of when the first bucket's first gradient was ready; it alone would not end a step.
    ends = traced.ready_ns[:-1] + curve.latency_ns + still[1:] / curve.bandwidth_gb_s
    return float(max([traced.ready_ns[-1] + curve.latency_ns, *ends]))


def _as_step(traced: Traced, over_ns: float) -> float:
    """What follows the last bucket takes as long as in the trace, whose host and device may be out of step."""
    return traced.step_ns + over_ns - traced.over_ns


# ---- what the trace shows -----------------------------------------------------------------------------------------


def _rank_with_buckets(analysis: Analysis) -> tuple[RankAnalysis, list[StepAnalysis]]:
    for rank in analysis.ranks:
        steps = [step for step in rank.steps if buckets_in(step)]
        if not steps:
            continue
        usual = statistics.mode(len(buckets_in(step)) for step in steps)
        steps = [step for step in steps if len(buckets_in(step)) == usual]
        if any(event.bytes is None for step in steps for event in buckets_in(step)):
            raise BadInput(f"{rank.source}: its all-reduces have no sizes, so nothing can be said of other buckets")
        return rank, steps
    source = analysis.ranks[0].source if analysis.ranks else "the trace"
    raise BadInput(f"{source}: no step has all-reduces of DDP's buckets, so nothing can be said of other buckets")


def _traced(steps: Sequence[StepAnalysis]) -> Traced:
    rows = [buckets_in(step) for step in steps]
    ready = [[event.start_ns if event.ready_ns is None else event.ready_ns for event in row] for row in rows]
    ready_ns = np.maximum.accumulate(np.median(np.array(ready, dtype=np.float64), axis=0))
    return Traced(
        bytes=np.median(np.array([[event.bytes or 0 for event in row] for row in rows], dtype=np.float64), axis=0),
        ready_ns=ready_ns,
        over_ns=max(float(np.median([row[-1].end_ns for row in rows])), float(ready_ns[-1])),
        step_ns=float(np.median([step.wall_ns for step in steps])),
    )


def _lines(steps: Sequence[StepAnalysis]) -> tuple[LinkCurve, LinkCurve]:
    """latency + bytes / bandwidth, no more than the shortest time of any size; and no less than any median one."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for step in steps:
        for event in buckets_in(step):
            moved_ns = event.end_ns - event.start_ns if event.transfer_ns is None else event.transfer_ns
            if event.bytes and moved_ns > 0:
                by_size[event.bytes].append(moved_ns)
    if not by_size:
        raise BadInput("the trace's all-reduces take no time, so nothing can be said of other buckets")
    quickest = {size: min(times) for size, times in by_size.items()}
    usual = {size: statistics.median(times) for size, times in by_size.items()}
    return _line(quickest, min), _line(usual, max)


def _line(times_ns: Mapping[int, float], outermost: Callable[[Float64s], float]) -> LinkCurve:
    """The fitted line, moved so that no point lies beyond it."""
    points = [lone_point(size, ns, ranks=1, repetitions=1) for size, ns in times_ns.items()]  # of no rank in particular
    fitted = LinkCurve.fit(points)
    sizes = np.array(list(times_ns), dtype=np.float64)
    ratios = np.array(list(times_ns.values())) / (fitted.latency_ns + sizes / fitted.bandwidth_gb_s)
    factor = float(outermost(ratios))
    return LinkCurve.straight(round(fitted.latency_ns * factor), fitted.bandwidth_gb_s / factor)


def _notes(steps: Sequence[StepAnalysis], rank: RankAnalysis) -> list[str]:
    notes = [
        "a trace shows when buckets were ready, not gradients: ranges hold for all gradients that these buckets may "
        "hold, as far as compute takes the time it took while these buckets travelled",
        "the first bucket's capacity is taken to be that of all others, as with an explicit bucket_cap_mb in torch "
        "2.13; bucketlab profile gives figures in place of ranges",
    ]
    events = [event for step in steps for event in buckets_in(step)]
    if all(event.transfer_ns is None for event in events):
        notes.append("one rank's all-reduces include the wait for late ranks: give the traces of all ranks")
    if len({event.bytes for event in events}) == 1:
        notes.append("all buckets have one size, so latency could not be told from bandwidth and is taken to be 0")
    if rank.backend == "gloo":
        notes.append("gloo moves two all-reduces at a time, which is not taken into account")
    return notes
