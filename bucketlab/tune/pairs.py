"""Comparing step times on machines that drift: blocks in pairs, and a bootstrap interval. Runs and decides nothing.

All that is compared are logarithms of step times, by a block's median. The difference of two blocks that ran close
together is what a drift of both leaves alone.

What slows a step often slows its forward pass and its optimizer too, which buckets do not touch: a processor that
others use, a clock that throttles. So a share of what that untouched work took is taken off each step first. As
settings do not differ in it, no share makes their difference wrong, and the best one makes it vary least: a control
variate (Lavenberg and Welch 1981).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]

_RESAMPLES = 2000
# Values so many deviations off have no weight: 95 % of a mean's efficiency on normal values.
_NOTHING_BEYOND = 4.685
_ITERATIONS = 5
_LEAST_DEVIATION = 1e-9  # where half of the values are equal
_MAD_OF_NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
# More of its change than that of the untouched work itself cannot be in a step.
_SHARES = [twentieths / 20 for twentieths in range(21)]
_FEWEST_NEIGHBOURS = 8  # to learn a share from
_FEWEST_TO_TELL = 6  # differences, of whether untouched work is touched


@dataclass(frozen=True)
class Times:
    """Of one block, a value for each measured step: the slowest rank's."""

    step_ns: Sequence[int]
    untouched_ns: Sequence[int] = ()  # forward pass and optimizer; empty where they are not known
    # Those asked for before, by share. Training waits while levels are compared, and there are hundreds.
    _levels: dict[float, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def level(self, share: float = 0.0) -> float:
        """Logarithm of the median step, after this share of its untouched work's logarithm was taken off each.

        Levels are compared only with those of the same share.
        """
        if share not in self._levels:
            logarithms = map(math.log, self.step_ns)
            if share:
                taken_off = (share * math.log(one) for one in self.untouched_ns)
                logarithms = map(operator.sub, logarithms, taken_off)
            self._levels[share] = median(logarithms)
        return self._levels[share]


def log_gain(current: Sequence[Times], other: Times, share: float = 0.0) -> float:
    """Logarithm of the other's speed-up over the mean of blocks of the current setting around it."""
    if not all(one.untouched_ns for one in (*current, other)):
        share = 0.0
    return math.fsum(one.level(share) for one in current) / len(current) - other.level(share)


def levels_of(blocks: Sequence[Times], share: float = 0.0) -> list[float]:
    """Of each; whole steps where the untouched work of any is not known."""
    known = all(one.untouched_ns for one in blocks)
    return [one.level(share if known else 0.0) for one in blocks]


def share_of(series: Iterable[Sequence[Times]]) -> float:
    """The share with which neighbouring blocks of one setting differ least, on average and by their sizes.

    Args:
        series: blocks of one setting in the order in which one process ran them. Few tell nothing, and the share is 0.
    """
    neighbours = [np.diff([levels_of(blocks, share) for share in _SHARES]) for blocks in series if len(blocks) > 1]
    if sum(one.shape[1] for one in neighbours) < _FEWEST_NEIGHBOURS:
        return 0.0
    return _SHARES[int(np.argmin(np.abs(np.concatenate(neighbours, axis=1)).mean(axis=1)))]


def is_touched(pairs: Iterable[tuple[Sequence[Times], Times]], deviations: float) -> bool:
    """Whether the work that should not depend on buckets takes longer or shorter with another setting's, after all.

    Args:
        pairs: blocks of the current setting, and one of the other that ran close to them.
        deviations: of the mean difference, by which that must be off zero.
    """
    longer = [
        math.fsum(Times(one.untouched_ns).level() for one in current) / len(current) - Times(other.untouched_ns).level()
        for current, other in pairs
        if all(one.untouched_ns for one in (*current, other))
    ]
    if len(longer) < _FEWEST_TO_TELL:
        return False
    return abs(center_of(longer)) > deviations * deviation_of(longer) / math.sqrt(len(longer))


def speedup_of(log_gain: float) -> float:
    """From a difference of logarithms, current less other, to the part by which more steps are done."""
    return math.expm1(log_gain)


def noise_of(series: Iterable[Sequence[float]]) -> float:
    """Standard deviation of one block's level, drift between neighbours included.

    Robust: a burst of load in one of them does not make all look noisy. Zero where fewer than two neighbours are known.

    Args:
        series: levels of one setting in a row, as many rows as there are.
    """
    neighbours = np.concatenate([np.zeros(0), *(np.diff(levels) for levels in series)])
    if len(neighbours) < 2:
        return 0.0
    return float(_MAD_OF_NORMAL * np.median(np.abs(neighbours)) / math.sqrt(2))


def center_of(log_gains: Sequence[float]) -> float:
    """Where most values lie: Tukey's biweight (Mosteller and Tukey 1977, chapter 10).

    A round that other work disturbed as a whole counts for nothing, as in a median, and where there is none it varies
    hardly more than a mean. Gains and losses are treated alike.
    """
    return float(_centers(np.asarray(log_gains, dtype=np.float64)[None, :])[0])


def deviation_of(values: Sequence[float]) -> float:
    """Standard deviation around the center, of those that belong to it: bursts count for little. Zero for one value."""
    center = center_of(values)
    return _MAD_OF_NORMAL * median(abs(one - center) for one in values)


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
