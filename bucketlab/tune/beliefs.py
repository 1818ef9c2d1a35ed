"""What the blocks measured so far say of each layout together: layouts alike take alike. Measures and decides nothing.

One block tells a layout's speed-up to a few percent only, and of forty such figures the largest belongs to the luckiest
as often as to the fastest. Step time against buckets is smooth, though: so each layout's neighbours say something of it
too, and so does the prediction. Both are put together by Gaussian process regression (Rasmussen and Williams 2006,
sections 2.2 and 5.4): speed-ups differ from the predicted ones by a part that is common to all, a part that varies
smoothly with the number of buckets and the sizes of the last and the largest, and a part of each layout's own. How
large these are is what makes the measurements likeliest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]

# Logarithms of step times. Tried for the smooth part: its size, and the distance over which it changes; for the part of
# each layout's own: its size.
_SMOOTH, _LENGTHS, _OWN = (0.01, 0.03, 0.1), (0.5, 1.0, 2.0), (0.003, 0.01)
_COMMON = 0.05
_LEAST_NOISE = 0.002
# One pair that is so many deviations off was disturbed: its weight is less, as in Huber's estimate of a mean. The
# median of three or more has taken care of that itself.
_DISTURBED = 1.5
_REWEIGHTED = 3
_SPEAK_FOR_THEMSELVES = 3
_DRAWS = 2000
_ROUNDING = 1e-9  # added to variances, so that rounding makes none of them negative


@dataclass(frozen=True, eq=False)
class Beliefs:
    """A distribution of the logarithms of all speed-ups at once, as values drawn from it."""

    draws: Float64s  # of shape (draws, layouts)

    @classmethod
    def of(cls, features: Float64s, expected: Float64s, gains: Sequence[Sequence[float]], noise: float) -> Beliefs:
        """From what was measured.

        Args:
            features: of shape (layouts, any number): layouts with like values are alike; see `features_of`.
            expected: of each layout the logarithm of its predicted speed-up, zero where none is known.
            gains: of each layout the logarithms of the measured ones, one of each pair of blocks; none will do.
            noise: standard deviation of one such gain.
        """
        known = [one for one, measured in enumerate(gains) if measured]
        counts = np.array([len(gains[one]) for one in known], dtype=np.float64)
        values = np.array([float(np.median(gains[one])) for one in known]) - expected[known]
        variances = max(noise, _LEAST_NOISE) ** 2 / counts
        squares = ((features[:, None, :] - features[None, :, :]) ** 2).sum(axis=2)
        priors = np.array(
            [
                _COMMON**2 + smooth**2 * np.exp(-squares / (2 * length**2)) + own**2 * np.eye(len(gains))
                for smooth, length, own in product(_SMOOTH, _LENGTHS, _OWN)
            ]
        )
        fits = _Fits.of(priors, known, values, variances, counts < _SPEAK_FOR_THEMSELVES)
        likelihoods = np.exp(fits.log_likelihoods - fits.log_likelihoods.max())
        rng = np.random.default_rng(0)
        shares = rng.multinomial(_DRAWS, likelihoods / likelihoods.sum())
        return cls(expected + np.concatenate([fits.draws(one, n, rng) for one, n in enumerate(shares) if n]))

    @cached_property
    def mean(self) -> Float64s:
        mean: Float64s = self.draws.mean(axis=0)
        return mean

    @cached_property
    def chances(self) -> Float64s:
        """Of each layout to be the fastest of all."""
        fastest = np.bincount(np.argmax(self.draws, axis=1), minlength=self.draws.shape[1])
        chances: Float64s = fastest / _DRAWS
        return chances

    @property
    def regret(self) -> float:
        """How much faster, on average, the fastest is than the one that is believed to be."""
        return float((self.draws.max(axis=1) - self.draws[:, int(np.argmax(self.mean))]).mean())


@dataclass(frozen=True, eq=False)
class _Fits:
    """With each choice of sizes: how likely it makes the measurements, and the distribution given them."""

    log_likelihoods: Float64s
    means: Float64s  # of shape (choices, layouts)
    covariances: Float64s  # of shape (choices, layouts, layouts)

    @classmethod
    def of(
        cls, priors: Float64s, known: list[int], values: Float64s, variances: Float64s, doubtful: NDArray[np.bool_]
    ) -> _Fits:
        """All at once: training waits, and a call of numpy costs more than the arithmetic."""
        of_known = priors[:, known]
        among, diagonal = of_known[:, :, known], np.eye(len(known))
        weighed = np.broadcast_to(variances, (len(priors), len(known)))
        for _ in range(_REWEIGHTED):
            solved = np.linalg.solve(among + weighed[:, :, None] * diagonal, values[:, None])[:, :, 0]
            off = weighed * np.abs(solved) / np.sqrt(variances)  # what is left unexplained, in deviations
            weighed = variances * np.where(doubtful, np.maximum(1.0, off / _DISTURBED), 1.0)
        total = among + weighed[:, :, None] * diagonal
        column = np.broadcast_to(values[:, None], (len(priors), len(known), 1))
        solved = np.linalg.solve(total, np.concatenate([column, of_known], axis=2))
        log_likelihoods = -0.5 * (solved[:, :, 0] @ values + np.linalg.slogdet(total)[1])
        explained = np.swapaxes(of_known, 1, 2) @ solved
        return cls(log_likelihoods, explained[:, :, 0], priors - explained[:, :, 1:])

    def draws(self, choice: int, count: int, rng: np.random.Generator) -> Float64s:
        mean = self.means[choice]
        root = np.linalg.cholesky(self.covariances[choice] + _ROUNDING * np.eye(len(mean)))
        drawn: Float64s = mean + rng.standard_normal((count, len(mean))) @ root.T
        return drawn


def features_of(bucket_bytes: Sequence[int], options: Sequence[float] = ()) -> list[float]:
    """What makes layouts alike: the number of buckets, the last one's size (nothing hides it), the largest one's.

    Args:
        bucket_bytes: in the order of launch.
        options: of DDP's; a difference of one counts as much as e times as many buckets.
    """
    last, largest = max(1, bucket_bytes[-1]), max(1, *bucket_bytes)
    return [math.log(len(bucket_bytes)), 0.5 * math.log(last), 0.5 * math.log(largest), *options]
