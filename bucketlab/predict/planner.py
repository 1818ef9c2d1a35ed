"""The best buckets there are: which consecutive gradients should travel together, and the floor nothing can beat.

For one dtype in one module on a link that moves one collective at a time. Predicts; measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from bucketlab.link.curve import Float64s, LinkCurve
from bucketlab.predict.assignment import MIB, Buckets, spans
from bucketlab.predict.replay import NO_SLOWDOWN, Slowdown

Spans = list[tuple[int, int]]  # of each bucket its first gradient, and one past its last


def best_partition(sizes_bytes: Sequence[int], ready_ns: Sequence[float], curve: LinkCurve) -> Spans:
    """The partition into consecutive buckets whose last all-reduce ends first: exact, by dynamic programming.

    With S the running sum of bytes, r the time from which gradients 1..i are all ready, and T the link's curve, the
    earliest end of a schedule for the first i gradients is

        f(i) = min over j < i of  max(r(i), f(j)) + T(S(i) - S(j)).

    f never falls, so of all j whose buckets end before r(i) only the last can be the best. O(n^2) at worst, in n
    vector operations.

    Args:
        sizes_bytes: of each gradient, in the order in which they are ready.
        ready_ns: of each gradient.
        curve: time of one all-reduce; it must not fall with size, which a LinkCurve never does.
    """
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(sizes_bytes, dtype=np.float64))])
    ready = np.maximum.accumulate(np.asarray(ready_ns, dtype=np.float64))
    count = len(ready)
    earliest = np.zeros(count + 1)
    cut = np.zeros(count + 1, dtype=np.int64)
    for i in range(1, count + 1):
        low = max(0, int(np.searchsorted(earliest[:i], ready[i - 1], side="right")) - 1)
        over = np.maximum(ready[i - 1], earliest[low:i]) + curve.time_ns(ends[i] - ends[low:i])
        best = int(over.argmin())
        earliest[i], cut[i] = over[best], low + best
    return _spans_of(cut.tolist())


def _spans_of(cut: list[int]) -> Spans:
    found: Spans = []
    end = len(cut) - 1
    while end > 0:
        found.append((cut[end], end))
        end = cut[end]
    return found[::-1]


def merged_as_mg_wfbp(sizes_bytes: Sequence[int], ready_ns: Sequence[float], curve: LinkCurve) -> Spans:
    """The buckets of MG-WFBP's rule, for comparison.

    Shi et al., "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms" (INFOCOM 2019),
    algorithm 1: gradient l is merged with the next one, l - 1, if that is ready before l's communication starts or
    less than the link's start-up time a after it: tau_b(l-1) + t_b(l-1) < tau_c(l) + a. Their time of an all-reduce
    is a + b M; here a is the fitted latency and the curve itself stands for the time.
    """
    startup_ns = curve.latency_ns
    ends = [0, *accumulate(sizes_bytes)]
    ready = list(accumulate(ready_ns, max))
    found: Spans = []
    first, free_ns = 0, 0.0
    for last in range(len(ready)):
        start_ns = max(ready[last], free_ns)
        if last + 1 < len(ready) and ready[last + 1] < start_ns + startup_ns:
            continue
        found.append((first, last + 1))
        free_ns = start_ns + float(curve.time_ns(ends[last + 1] - ends[first]))
        first = last + 1
    return found


def as_buckets(partition: Spans) -> Buckets:
    return [list(range(first, end)) for first, end in partition]


def caps_mb(sizes_bytes: Sequence[int], partition: Spans) -> list[float] | None:
    """The shortest `bucket_cap_mb_list` of short numbers with which DDP makes just these buckets of these gradients.

    A bucket closes once it holds its capacity, so any capacity will do that is more than the bucket without its last
    gradient and no more than all of it. None where no such number exists: a last gradient without elements.
    """
    caps: list[float] = []
    for first, end in partition:
        total_bytes = sum(sizes_bytes[first:end])
        cap = _short_number(total_bytes - sizes_bytes[end - 1], total_bytes)
        if cap is None:
            return None
        caps.append(cap)
    while len(caps) > 1 and _makes(sizes_bytes, caps[:-1], partition):
        caps.pop()
    return caps if _makes(sizes_bytes, caps, partition) else None


def _makes(sizes_bytes: Sequence[int], caps: list[float], partition: Spans) -> bool:
    return spans(list(accumulate(sizes_bytes)), [int(cap * MIB) for cap in caps]) == partition


def _short_number(above_bytes: int, to_bytes: int) -> float | None:
    """The MiB figure of fewest decimals that DDP takes for more than `above_bytes` and at most `to_bytes`."""
    for decimals in range(8):
        step = 10**decimals
        cap = np.floor(to_bytes / MIB * step) / step
        if above_bytes < int(cap * MIB) <= to_bytes:
            return float(cap)
    exact = to_bytes / MIB
    return exact if above_bytes < to_bytes else None


def floor_ns(
    sizes_bytes: Sequence[int],
    ready_ns: Sequence[float],
    compute_end_ns: float,
    curve: LinkCurve,
    slowdown: Slowdown = NO_SLOWDOWN,
) -> float:
    """A time before which these gradients cannot all be reduced, in whatever buckets, consecutive or not.

    From any moment c on, all gradients not ready before c are still to be sent, and the link needs a least time W for
    so many bytes. While compute runs, which is until `compute_end_ns` and longer by what communication costs it, the
    link goes slower.

    Returns:
        ns from the step's start; the optimizer comes after it.
    """
    if not len(ready_ns):
        return compute_end_ns
    order = np.argsort(np.asarray(ready_ns, dtype=np.float64), kind="stable")
    sizes = np.asarray(sizes_bytes, dtype=np.float64)[order]
    still_bytes = np.cumsum(sizes[::-1])[::-1]
    least_ns = _least_ns(sizes.min(), still_bytes, curve)
    left_ns = compute_end_ns - np.asarray(ready_ns, dtype=np.float64)[order]
    # The end is a straight line over the time for which both run, so it is least at a bound of that time.
    both_ns = np.minimum(left_ns * (1 + slowdown.compute), least_ns * (1 + slowdown.communication))
    slope = slowdown.compute / (1 + slowdown.compute) - 1 / (1 + slowdown.communication)
    over_ns = compute_end_ns + least_ns + min(slope, 0.0) * both_ns
    return float(max(compute_end_ns, over_ns.max()))


def _least_ns(smallest_bytes: float, totals_bytes: Float64s, curve: LinkCurve) -> Float64s:
    """What the link needs at least, undisturbed, for so many bytes in any number of buckets; shape of totals.

    With several in flight two bounds hold: half of all time alone (or a third, ...), and one latency and all bytes at
    the rate of a pair. Any mean of the two bounds as well, and a mean is the better one where many small buckets
    would meet the second and few large ones the first.
    """
    sizes = np.unique(np.concatenate([curve.bytes, [smallest_bytes, totals_bytes.max()]]))
    sizes = sizes[(sizes >= smallest_bytes) & (sizes <= totals_bytes.max())]
    alone_ns = curve.time_ns(sizes)
    if curve.concurrency == 1:
        return _least_sum(sizes, alone_ns, totals_bytes)
    latency_ns = float(curve.latency_ns)
    moving_ns = np.maximum(alone_ns - latency_ns, 0.0) / curve.pair_gain
    bounds = [
        weight * min(latency_ns, alone_ns[0])
        + _least_sum(sizes, weight * moving_ns + (1 - weight) * alone_ns / curve.concurrency, totals_bytes)
        for weight in (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)
    ]
    return np.asarray(np.max(bounds, axis=0))


def _least_sum(sizes: Float64s, costs: Float64s, totals: Float64s) -> Float64s:
    """Least sum of costs over one or more parts of any sizes in the range that add up to a total.

    Every line below the costs that does not start below zero bounds it: l + m b at each part is at least l + m B.
    """
    lines = [(costs.min(), 0.0), (0.0, float((costs[sizes > 0] / sizes[sizes > 0]).min(initial=np.inf)))]
    hull = _lower_hull(sizes, costs)
    for left, right in pairwise(hull):
        slope = (costs[right] - costs[left]) / (sizes[right] - sizes[left])
        lines.append((costs[left] - slope * sizes[left], slope))
    kept = [(start, slope) for start, slope in lines if start >= 0 and np.isfinite(slope)]
    return np.asarray(np.max([start + slope * totals for start, slope in kept], axis=0))


def _lower_hull(x: Float64s, y: Float64s) -> list[int]:
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return hull
