"""A link's curve: what the fit finds, what prediction reads off the measured points, how many move at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.link.curve import LinkCurve, concurrency
from bucketlab.schema.profile import LinkPoint

SIZES = [4096 << (2 * step) for step in range(8)]


def point(size: int, ns: float, in_flight: int = 1) -> LinkPoint:
    rate = size / ns
    return LinkPoint(
        bytes=size,
        in_flight=in_flight,
        ns=round(ns),
        p10_ns=round(ns),
        p90_ns=round(ns),
        repetitions=10,
        algorithm_gb_s=rate,
        bus_gb_s=rate,
    )


def line(latency_ns: float, bandwidth_gb_s: float, sizes: list[int] = SIZES) -> list[LinkPoint]:
    return [point(size, latency_ns + size / bandwidth_gb_s) for size in sizes]


measured = st.dictionaries(st.integers(1, 10**9), st.integers(1, 10**11), min_size=1, max_size=20).map(
    lambda times: [point(size, ns) for size, ns in times.items()]
)


@given(st.floats(1e3, 1e7), st.floats(0.05, 100))
def test_the_fit_finds_the_latency_and_bandwidth_of_a_straight_link(latency_ns, bandwidth_gb_s):
    curve = LinkCurve.fit(line(latency_ns, bandwidth_gb_s))
    assert curve.bandwidth_gb_s == pytest.approx(bandwidth_gb_s, rel=0.01)
    assert curve.latency_ns == pytest.approx(latency_ns, rel=0.01, abs=2)
    assert curve.residual < 1e-3


@given(st.floats(1e5, 1e6), st.floats(0.05, 10), st.lists(st.floats(2, 20), min_size=2, max_size=2))
def test_two_sizes_at_which_the_host_was_busy_do_not_bend_the_fit(latency_ns, bandwidth_gb_s, slower):
    points = line(latency_ns, bandwidth_gb_s)
    for index, times in enumerate(slower):
        points[index] = point(points[index].bytes, points[index].ns * times)
    assert LinkCurve.fit(points).bandwidth_gb_s == pytest.approx(bandwidth_gb_s, rel=0.05)


def test_one_large_size_tells_the_bandwidth_however_slow_the_small_ones_were():
    busy = [point(4096, 1.6e6), point(16384, 1.1e6), point(65536, 1.04e6), point(2**20, 0.5e6), point(2**26, 56e6)]
    assert LinkCurve.fit(busy).bandwidth_gb_s == pytest.approx(2**26 / 56e6, rel=0.1)


@given(measured, st.lists(st.integers(0, 10**10), min_size=2))
def test_a_larger_buffer_never_takes_less_time(points, sizes):
    times = LinkCurve.fit(points).time_ns(sorted(sizes))
    assert np.all(np.diff(times) >= 0)
    assert np.all(times > 0)


@given(measured)
def test_the_curve_passes_through_monotone_points(points):
    sizes, times = sorted(p.bytes for p in points), sorted(p.ns for p in points)
    rising = [point(size, ns) for size, ns in zip(sizes, times, strict=True)]
    assert LinkCurve.fit(rising).time_ns(sizes) == pytest.approx(times)


def test_an_outlier_is_shared_out_between_its_neighbours_in_relative_terms():
    curve = LinkCurve.fit([point(1, 10), point(2, 400), point(3, 100), point(4, 1000)])
    assert curve.time_ns([1, 2, 3, 4]) == pytest.approx([10, 200, 200, 1000])


def test_beyond_the_largest_point_the_slope_of_the_last_octaves_goes_on():
    turn = SIZES[-1]
    bent = line(1000, 1.0) + [point(turn * times, 1000 + turn + 3 * turn * (times - 1)) for times in (2, 4, 8, 16)]
    last = bent[-1]
    assert LinkCurve.fit(bent).time_ns(2 * last.bytes) == pytest.approx(last.ns + 3 * last.bytes)


def test_noise_between_two_last_points_that_lie_close_together_is_not_continued():
    points = [*line(1e5, 1.0), point(SIZES[-1] + 4096, 1.02 * (1e5 + SIZES[-1]))]
    assert LinkCurve.fit(points).time_ns(4 * SIZES[-1]) == pytest.approx(4 * SIZES[-1], rel=0.05)


def test_points_that_only_fall_still_give_a_curve_that_grows():
    curve = LinkCurve.fit([point(1000, 2000), point(2000, 1000)])
    assert curve.time_ns(10**9) > curve.time_ns(2000) > 0


def test_a_link_that_moves_two_at_a_time_is_told_by_its_latency():
    alone = line(200_000, 2.0)
    overlapping = [point(size, (200_000 + 2 * size / 2.0) / 2, in_flight=2) for size in SIZES[:5]]
    in_turn = [point(size, 200_000 + size / 2.0, in_flight=2) for size in SIZES[:5]]
    assert concurrency(alone) == 1
    assert concurrency(alone + in_turn) == 1
    assert concurrency(alone + overlapping) == 2
    assert LinkCurve.fit(alone + overlapping).pair_gain == pytest.approx(1.0, abs=0.02)


def test_a_pair_that_moves_more_than_one_alone_shows_as_gain():
    alone = line(20_000, 2.0)
    pairs = [point(size, (20_000 + 2 * size / 3.0) / 2, in_flight=2) for size in SIZES]
    assert LinkCurve.fit(alone + pairs).pair_gain == pytest.approx(1.5, abs=0.02)


def test_a_curve_without_points_in_turn_is_refused():
    with pytest.raises(ValueError, match="one collective in flight"):
        LinkCurve.fit([point(4096, 1000, in_flight=2)])
