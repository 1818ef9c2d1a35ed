"""Cost curve of a link: how long an all-reduce of so many bytes takes, from measured points. Knows no bucket.

Two views of the same points: a fit `latency + bytes / bandwidth`, which people read and formulas of other
algorithms need, and the measured points themselves made monotone, which prediction uses, since real links bend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bucketlab.schema.profile import Link, LinkPoint

Float64s = npt.NDArray[np.float64]

# Beyond it no link of today goes; stands for "time did not grow with size".
_FASTEST_GB_S = 1e6
_NEAR = 0.1  # relative error
# Two at a time halve the time per collective where latency rules; less gain than this may be noise.
_CONCURRENT_BELOW = 0.8


@dataclass(frozen=True, eq=False)
class LinkCurve:
    """Time of one all-reduce against its size.

    Between points time is interpolated linearly; below the smallest it stays what it is there; beyond the largest
    it goes on with the slope of the last three octaves.
    """

    bytes: Float64s  # (k,), strictly rising
    ns: Float64s  # (k,), never falling
    slope_ns: float  # per byte, beyond the last point
    latency_ns: int  # of the fit
    bandwidth_gb_s: float  # of the fit: bytes of the buffer per ns
    residual: float  # root mean square of the fit's relative errors
    concurrency: int = 1  # collectives that move at a time
    pair_gain: float = 1.0  # bytes that two at a time move in a given time, over what one alone does; 1 to 2

    @classmethod
    def fit(cls, points: Sequence[LinkPoint]) -> LinkCurve:
        """The curve through measured points of any order; those with two in flight only tell about concurrency.

        Raises:
            ValueError: no point with one in flight.
        """
        sizes, times = _alone(points)
        latency_ns, slope_ns = _least_relative_errors(sizes, times)
        monotone = _monotone(times)
        errors = (latency_ns + slope_ns * sizes) / times - 1
        return cls(
            bytes=sizes,
            ns=monotone,
            slope_ns=_last_slope(sizes, monotone) or slope_ns,
            latency_ns=round(latency_ns),
            bandwidth_gb_s=1 / slope_ns,
            residual=float(np.sqrt(np.mean(errors**2))),
            concurrency=concurrency(points),
            pair_gain=_pair_gain(points, latency_ns),
        )

    @classmethod
    def of(cls, link: Link) -> LinkCurve:
        """The curve of a link as a profile or a sweep holds it; without points, the straight line of its fit."""
        if not any(point.in_flight == 1 for point in link.points):
            return cls.straight(link.latency_ns, link.bandwidth_gb_s, link.concurrency)
        return cls.fit(link.points)

    @classmethod
    def straight(cls, latency_ns: int, bandwidth_gb_s: float, concurrency: int = 1) -> LinkCurve:
        """latency + bytes / bandwidth at every size."""
        return cls(
            bytes=np.zeros(1),
            ns=np.full(1, float(latency_ns)),
            slope_ns=1 / bandwidth_gb_s,
            latency_ns=latency_ns,
            bandwidth_gb_s=bandwidth_gb_s,
            residual=0.0,
            concurrency=concurrency,
        )

    def time_ns(self, bytes: npt.ArrayLike) -> Float64s:
        """Time of one all-reduce alone on the link.

        Args:
            bytes: sizes of the buffers, of any shape.

        Returns:
            ns, of the same shape; never falling with size.
        """
        sizes = np.asarray(bytes, dtype=np.float64)
        beyond = np.maximum(sizes - self.bytes[-1], 0.0)
        return np.asarray(np.interp(sizes, self.bytes, self.ns) + beyond * self.slope_ns)


def concurrency(points: Sequence[LinkPoint]) -> int:
    """Collectives that the backend moves at a time: 2 where a pair in flight takes clearly less than two turns, else 1.

    gloo moves two; NCCL one per communicator, in the order of launch.
    """
    ratios = [pair.ns / alone.ns for alone, pair in _pairs(points)]
    return 2 if ratios and min(ratios) < _CONCURRENT_BELOW else 1


def _alone(points: Sequence[LinkPoint]) -> tuple[Float64s, Float64s]:
    """Sizes, strictly rising, and times with one in flight; the median where a size was measured more than once."""
    by_size: dict[int, list[int]] = {}
    for point in points:
        if point.in_flight == 1 and point.bytes > 0 and point.ns > 0:
            by_size.setdefault(point.bytes, []).append(point.ns)
    if not by_size:
        raise ValueError("a link's curve needs a measured point with one collective in flight")
    sizes = sorted(by_size)
    return np.array(sizes, dtype=np.float64), np.array([float(np.median(by_size[size])) for size in sizes])


def _least_relative_errors(sizes: Float64s, times: Float64s) -> tuple[float, float]:
    """latency (ns) and slope (ns per byte), neither negative, with the least sum of relative errors.

    Of the errors, not of their squares: on a busy host single sizes are slower many times over, and must not bend the
    line. Lines through two of the points are tried, and through one where it meets a bound; only those that come near
    the largest size, whose time a host disturbs least.
    """
    least_slope_ns = 1 / _FASTEST_GB_S
    first, second = np.triu_indices(len(sizes), 1)
    slopes = (times[second] - times[first]) / (sizes[second] - sizes[first])
    slopes = np.concatenate([slopes, times / sizes, np.full(len(sizes), least_slope_ns)])
    through = np.concatenate([first, np.arange(len(sizes)), np.arange(len(sizes))])
    latencies = times[through] - slopes * sizes[through]
    latencies[len(first) : len(first) + len(sizes)] = 0.0  # but for rounding it is
    allowed = (latencies >= 0) & (slopes >= least_slope_ns)
    if not allowed.any():  # time is less than the steepest bandwidth allows, so it hardly grew
        return 0.0, least_slope_ns
    latencies, slopes = latencies[allowed], slopes[allowed]
    errors = np.abs((latencies[:, None] + slopes[:, None] * sizes) / times - 1)
    best = int(np.argmin(np.where(errors[:, -1] <= _NEAR, errors.sum(axis=1), np.inf)))
    return float(latencies[best]), float(slopes[best])


def _monotone(times: Float64s) -> Float64s:
    """The never falling curve nearest to the times in relative terms: pool adjacent violators, on logarithms."""
    pools: list[tuple[float, int]] = []  # mean of logarithms, count
    for value in np.log(times):
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        pools.append((mean, count))
    levels = np.exp([mean for mean, _ in pools])
    return np.repeat(levels, [count for _, count in pools])


def _last_slope(sizes: Float64s, times: Float64s) -> float:
    """ns per byte of the last three octaves; two points alone may lie close together, and noise between them."""
    last = sizes >= sizes[-1] / 8
    if last.sum() < 2:
        return 0.0
    return max(0.0, float(np.polyfit(sizes[last], times[last], 1, w=1 / times[last])[0]))


def _pairs(points: Sequence[LinkPoint]) -> list[tuple[LinkPoint, LinkPoint]]:
    alone = {point.bytes: point for point in points if point.in_flight == 1}
    return [(alone[point.bytes], point) for point in points if point.in_flight == 2 and point.bytes in alone]


def _pair_gain(points: Sequence[LinkPoint], latency_ns: float) -> float:
    """From the largest size measured both ways: latencies of a pair pass together, its bytes share the link."""
    if concurrency(points) == 1:
        return 1.0
    alone, pair = max(_pairs(points), key=lambda both: both[0].bytes)
    apart_ns, together_ns = 2 * (alone.ns - latency_ns), 2 * pair.ns - latency_ns
    if apart_ns <= 0 or together_ns <= 0:
        return 1.0
    return float(np.clip(apart_ns / together_ns, 1.0, 2.0))
