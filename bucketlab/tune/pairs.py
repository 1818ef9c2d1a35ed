"""Comparing step times on machines that drift: blocks in pairs, and a bootstrap interval. Runs and decides nothing.

All that is compared is the logarithm of a block's median step time. The difference of two blocks that ran close
together is what a drift of both leaves alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]

_RESAMPLES = 2000
# Values so many deviations off have no weight: 95 % of a mean's efficiency on normal values.
_NOTHING_BEYOND = 4.685
_ITERATIONS = 5
_LEAST_DEVIATION = 1e-9  # where half of the values are equal
_MAD_OF_NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


def level_of(step_ns: Sequence[int]) -> float:
    """Logarithm of the block's median step."""
    return math.log(float(np.median(step_ns)))


def speedup_of(log_gain: float) -> float:
    """From a difference of logarithms, current less other, to the part by which more steps are done."""
    return math.expm1(log_gain)


def noise_of(levels: Sequence[float]) -> float:
    """Standard deviation of one block, drift between neighbours included, from blocks of one setting in a row.

    Robust: a burst of load in one of them does not make all look noisy. Zero where fewer than three are known.
    """
    if len(levels) < 3:
        return 0.0
    return float(_MAD_OF_NORMAL * np.median(np.abs(np.diff(levels))) / math.sqrt(2))


def center_of(log_gains: Sequence[float]) -> float:
    """Where most values lie: Tukey's biweight (Mosteller and Tukey 1977, chapter 10).

    A round that other work disturbed as a whole counts for nothing, as in a median, and where there is none it varies
    hardly more than a mean. Gains and losses are treated alike.
    """
    return float(_centers(np.asarray(log_gains, dtype=np.float64)[None, :])[0])


def _centers(samples: Float64s) -> Float64s:
    """Of each row."""
    centers: Float64s = np.median(samples, axis=1, keepdims=True)
    deviations = _MAD_OF_NORMAL * np.median(np.abs(samples - centers), axis=1, keepdims=True)
    for _ in range(_ITERATIONS):
        off = np.abs(samples - centers) / np.maximum(_NOTHING_BEYOND * deviations, _LEAST_DEVIATION)
        weights = np.where(off < 1, (1 - off**2) ** 2, 0)
        weighed = weights.sum(axis=1, keepdims=True)
        centers = np.where(
            weighed > 0, (weights * samples).sum(axis=1, keepdims=True) / np.maximum(weighed, 1e-9), centers
        )
    return centers[:, 0]


def interval_of(log_gains: Sequence[float], confidence: float, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of `center_of`, whole rounds resampled (Efron and Tibshirani 1993, chapter 13).

    Args:
        log_gains: one per round; rounds are taken to be independent, their own order of blocks is random.
        confidence: 0.95 for an interval that misses in one of twenty cases.
        seed: of the resampling; the same data give the same interval.
    """
    gains = np.asarray(log_gains, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, len(gains), (_RESAMPLES, len(gains)))
    low, high = np.quantile(_centers(gains[picks]), [(1 - confidence) / 2, (1 + confidence) / 2])
    center = center_of(log_gains)
    return min(float(low), center), max(float(high), center)


def interval_of_few(log_gains: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Interval of the median between two order statistics (Conover 1999, section 3.2); None for too few values.

    A bootstrap of half a dozen values is too narrow; this one misses no more often than it says, however the values
    are distributed, and needs six of them for 95 %.
    """
    ordered, count = sorted(log_gains), len(log_gains)
    below, inside = 0.0, None
    for at in range(count // 2):
        below += math.comb(count, at) / 2**count
        if 2 * below > 1 - confidence:
            break
        inside = ordered[at], ordered[count - 1 - at]
    return inside
