"""What chance leaves open of the difference between two runs' figures: 95 % intervals. Knows no profile and no trace.

Many steps are resampled, few samples get Welch's interval, and a link's fit is made again from redrawn points.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from bucketlab.link.curve import Float64s, LinkCurve
from bucketlab.schema.profile import LinkPoint

FEWEST_SAMPLES = 3
_RESAMPLES = 4000
_REFITS = 300  # a quarter of a millisecond each
_MOST_RESAMPLED = 2000  # steps, the latest: time and memory grow with them, and the interval is narrow long before
_Z95 = NormalDist().inv_cdf(0.975)

Interval = tuple[float, float]


def quantile_resamples(samples: Sequence[int], share: float, seed: int) -> Float64s:
    """A quantile of circular block bootstrap resamples (Politis and Romano 1992): neighbouring steps are alike.

    Returns:
        shape (4000,), the same for the same samples and seed.
    """
    values = np.asarray(samples[-_MOST_RESAMPLED:], dtype=np.float64)
    count = len(values)
    length = max(1, round(count ** (1 / 3)))
    starts = np.random.default_rng(seed).integers(0, count, (_RESAMPLES, math.ceil(count / length)))
    picks = (starts[:, :, None] + np.arange(length)).reshape(_RESAMPLES, -1)[:, :count] % count
    return np.asarray(np.quantile(values[picks], share, axis=1))


def middle_95(values: Float64s) -> Interval:
    """Quantiles 0.025 and 0.975."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def welch(difference: float, a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Welch's interval (Biometrika 1947) around a difference, for samples too few to resample.

    None of fewer than three samples on a side, and where nothing varies.
    """
    if min(len(a), len(b)) < FEWEST_SAMPLES:
        return None
    errors = [statistics.variance(values) / len(values) for values in (a, b)]
    total = sum(errors)
    if total == 0:
        return None
    freedom = total**2 / sum(error**2 / (len(values) - 1) for error, values in zip(errors, (a, b), strict=True))
    reach = _student(freedom) * math.sqrt(total)
    return difference - reach, difference + reach


def _student(freedom: float) -> float:
    """0.975 quantile of Student's t from the normal one (Abramowitz and Stegun 26.7.5); within 2 % from 2.5 on."""
    z, v = _Z95, max(freedom, 2.0)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def link_refits(points: Sequence[LinkPoint], seed: int) -> Float64s | None:
    """Latency (ns) and bandwidth (GB/s) of fits to points redrawn from their own intervals (parametric bootstrap).

    Each side of a point's interval is taken for half of a normal distribution's.

    Returns:
        shape (300, 2); None where a point has no interval.
    """
    alone = [one for one in points if one.in_flight == 1]
    if not alone or any(one.low_ns is None or one.high_ns is None for one in alone):
        return None
    times, low, high = (np.array([getattr(one, name) for one in alone]) for name in ("ns", "low_ns", "high_ns"))
    draws = np.random.default_rng(seed).standard_normal((_REFITS, len(alone)))
    redrawn = np.maximum(1, times + draws / _Z95 * np.where(draws > 0, high - times, times - low))
    fits = [
        LinkCurve.fit([msgspec.structs.replace(one, ns=round(ns)) for one, ns in zip(alone, row.tolist(), strict=True)])
        for row in redrawn
    ]
    return np.array([(one.latency_ns, one.bandwidth_gb_s) for one in fits])
