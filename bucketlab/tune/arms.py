"""What was measured of each layout that a study tried, and what that says of its speed-up. Chooses nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from bucketlab.schema.tuning import Candidate
from bucketlab.tune.pairs import Times, log_gain
from bucketlab.tune.space import Key


@dataclass(frozen=True)
class Pair:
    """A block, and those of the current setting that ran just before and after it, or one of the same round."""

    current: Sequence[Times]
    own: Times


@dataclass
class Arm:
    """One layout, and the trial in which it was tried first."""

    number: int
    candidate: Candidate
    key: Key
    step_ns: list[int] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)  # of all before the final race
    told: list[float] = field(default_factory=list)  # logarithms of speed-ups that another process measured
    failure: str | None = None
    finished: bool = False
    built_otherwise: bool = False
    after_steps: int | None = None
    is_current: bool = False  # the script's own setting, which is a trial for those who look at the study

    @property
    def is_measured(self) -> bool:
        return bool(self.pairs or self.told)

    def gains(self, share: float) -> list[float]:
        """Logarithm of the speed-up, one of each pair before the final race; see `pairs` on the share."""
        return [*self.told, *(log_gain(pair.current, pair.own, share) for pair in self.pairs)]

    def gain(self, share: float) -> float:
        """The median; less than any number where nothing is measured."""
        gains = self.gains(share)
        return median(gains) if gains else -math.inf


@dataclass(frozen=True)
class Round:
    """A block of the current setting, and one of each layout that ran in the same round, by its trial's number."""

    current: Times
    others: dict[int, Times]

    def pair_of(self, number: int) -> Pair:
        return Pair([self.current], self.others[number])

    def gain_of(self, number: int, share: float) -> float:
        return log_gain([self.current], self.others[number], share)
