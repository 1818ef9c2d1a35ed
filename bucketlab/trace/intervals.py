"""Exact arithmetic on sets of half-open intervals [start, end) of int64 nanoseconds. Knows nothing of traces.

A `Union` is what every function hands on: sorted, disjoint, not touching, none empty. `Lanes` puts many groups of
intervals (a lane per step and device) side by side on one axis, so that one pass serves all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bucketlab.trace.columns import Int64s

LONGEST_AXIS_NS = 2**62  # half of what int64 holds: sums of two such times do not overflow


class Union(NamedTuple):
    """Sorted disjoint intervals; two arrays of shape (k,)."""

    start: Int64s
    end: Int64s


def union(start: Int64s, end: Int64s) -> Union:
    """The union of n intervals in any order, overlapping or not; empty ones count for nothing. O(n log n)."""
    solid = end > start
    if not solid.all():
        start, end = start[solid], end[solid]
    if not len(start):
        return Union(start, end)
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(start[1:] > reach[:-1]) + 1
    return Union(start[np.r_[0, first]], reach[np.r_[first - 1, len(start) - 1]])


def covered_before(parts: Union, times: Int64s) -> Int64s:
    """Of each time, how much of the union lies before it; same shape as `times`."""
    if not len(parts.start):
        return np.zeros(len(times), np.int64)
    lengths = parts.end - parts.start
    total = np.concatenate(([0], np.cumsum(lengths)))
    at = np.searchsorted(parts.start, times, side="right")
    inside = np.maximum(parts.end[at - 1] - times, 0)
    return np.where(at > 0, total[at] - inside, 0)


def overlap_of_each(start: Int64s, end: Int64s, parts: Union) -> Int64s:
    """Of each of n intervals, the length that the union covers; shape (n,)."""
    return covered_before(parts, end) - covered_before(parts, start)


def intersection(a: Union, b: Union) -> Union:
    """What both cover. O((m + n) log n)."""
    first = np.searchsorted(b.end, a.start, side="right")
    stop = np.searchsorted(b.start, a.end, side="left")
    count = stop - first
    of_a = np.repeat(np.arange(len(a.start)), count)
    # within each run of `count` entries: first, first + 1, ...
    of_b = np.arange(len(of_a)) - np.repeat(np.cumsum(count) - count - first, count)
    return Union(np.maximum(a.start[of_a], b.start[of_b]), np.minimum(a.end[of_a], b.end[of_b]))


def difference(a: Union, b: Union) -> Union:
    """What `a` covers and `b` does not."""
    if not len(b.start):
        return a
    edge = np.iinfo(np.int64)
    gaps = Union(np.concatenate(([edge.min], b.end)), np.concatenate((b.start, [edge.max])))
    return intersection(a, gaps)


class Lanes:
    """Groups of intervals laid one after another on a common axis, a gap of 1 ns between neighbours.

    `lane` says for each of the n intervals which of `count` lanes it lies in. Times handed in later must lie within
    the extent that their lane had here. Raises OverflowError where all lanes together are longer than 146 years.
    """

    def __init__(self, start: Int64s, end: Int64s, lane: Int64s, count: int) -> None:
        low = np.full(count, np.iinfo(np.int64).max)
        high = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(low, lane, start)
        np.maximum.at(high, lane, end)
        empty = low > high
        low[empty] = high[empty] = 0
        if (high.astype(float) - low).sum() + count >= LONGEST_AXIS_NS:
            raise OverflowError("events span more than 146 years")
        self._begins: Int64s = np.concatenate(([0], np.cumsum(high - low + 1)))
        self._shift: Int64s = self._begins[:-1] - low
        self._count = count

    def place(self, times: Int64s, lane: Int64s) -> Int64s:
        """Times on the common axis."""
        return times + self._shift[lane]

    def back(self, parts: Union) -> tuple[Union, Int64s]:
        """A union on the common axis as times of its lanes, and each interval's lane."""
        lane = self.lane_of(parts.start)
        shift = self._shift[lane]
        return Union(parts.start - shift, parts.end - shift), lane

    def lane_of(self, placed: Int64s) -> Int64s:
        return np.searchsorted(self._begins, placed, side="right") - 1

    def lengths(self, parts: Union) -> Int64s:
        """Of a union on the common axis, the length in each lane; shape (count,)."""
        return sum_by(self.lane_of(parts.start), parts.end - parts.start, self._count)


def sum_by(group: npt.NDArray[np.integer], values: Int64s, count: int) -> Int64s:
    """Sums of `values` by group number, exact where a float64 weight would not be; shape (count,)."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, values)
    return sums
