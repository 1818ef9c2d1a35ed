"""Interval arithmetic against the slow, obvious reference: sets of nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.trace.intervals import (
    Lanes,
    Union,
    covered_before,
    difference,
    intersection,
    overlap_of_each,
    union,
)

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1])), max_size=12)


def starts_ends(pairs):
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def nanoseconds(pairs):
    return {t for start, end in pairs for t in range(start, end)}


def as_set(parts: Union):
    return nanoseconds(zip(parts.start.tolist(), parts.end.tolist(), strict=True))


def assert_canonical(parts: Union):
    assert (parts.end > parts.start).all()
    assert (parts.start[1:] > parts.end[:-1]).all()


@given(spans)
def test_union_covers_just_what_its_intervals_cover(pairs):
    parts = union(*starts_ends(pairs))
    assert_canonical(parts)
    assert as_set(parts) == nanoseconds(pairs)


@given(spans, spans)
def test_intersection_is_what_both_cover(a, b):
    parts = intersection(union(*starts_ends(a)), union(*starts_ends(b)))
    assert_canonical(parts)
    assert as_set(parts) == nanoseconds(a) & nanoseconds(b)


@given(spans, spans)
def test_difference_is_what_only_the_first_covers(a, b):
    parts = difference(union(*starts_ends(a)), union(*starts_ends(b)))
    assert_canonical(parts)
    assert as_set(parts) == nanoseconds(a) - nanoseconds(b)


@given(spans, st.lists(st.integers(-5, 60), max_size=10))
def test_covered_before_counts_the_nanoseconds_before_a_time(pairs, times):
    covered = covered_before(union(*starts_ends(pairs)), np.array(times, np.int64))
    assert covered.tolist() == [len([t for t in nanoseconds(pairs) if t < time]) for time in times]


@given(spans, spans)
def test_overlap_of_each_interval_is_its_part_in_the_union(each, pairs):
    overlap = overlap_of_each(*starts_ends(each), union(*starts_ends(pairs)))
    assert overlap.tolist() == [len(nanoseconds([one]) & nanoseconds(pairs)) for one in each]


@given(st.lists(st.tuples(spans, spans), min_size=1, max_size=4), st.integers(-(2**60), 2**60))
def test_lanes_give_for_each_group_what_it_gives_alone(groups, epoch):
    lane = np.repeat(np.arange(len(groups)), [len(a) + len(b) for a, b in groups])
    first = np.concatenate([np.repeat([True, False], [len(a), len(b)]) for a, b in groups]).astype(bool)
    start, end = starts_ends([pair for a, b in groups for pair in a + b])
    start, end = start + epoch, end + epoch
    lanes = Lanes(start, end, lane, len(groups))
    placed_start, placed_end = lanes.place(start, lane), lanes.place(end, lane)
    a = union(placed_start[first], placed_end[first])
    b = union(placed_start[~first], placed_end[~first])
    assert lanes.lengths(a).tolist() == [len(nanoseconds(one)) for one, _ in groups]
    both = intersection(a, b)
    assert lanes.lengths(both).tolist() == [len(nanoseconds(one) & nanoseconds(other)) for one, other in groups]
    parts, of_lane = lanes.back(both)
    for number, (one, other) in enumerate(groups):
        mine = Union(parts.start[of_lane == number] - epoch, parts.end[of_lane == number] - epoch)
        assert as_set(mine) == nanoseconds(one) & nanoseconds(other)


def test_times_of_a_nanosecond_since_1970_stay_exact():
    epoch = 1_790_857_026_000_000_001
    parts = union(np.array([epoch, epoch + 2]), np.array([epoch + 1, epoch + 3]))
    assert (parts.end - parts.start).tolist() == [1, 1]


def test_lanes_longer_than_int64_can_hold_are_refused():
    start, end = np.array([-(2**62), 0]), np.array([2**62, 2**62])
    with pytest.raises(OverflowError, match="146 years"):
        Lanes(start, end, np.array([0, 1]), 2)
