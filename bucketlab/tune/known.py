"""All that was measured in a study, by whichever process, and what it says: who leads, how surely, who else may win.

Runs no block, and decides on none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bucketlab.schema.tuning import CURRENT
from bucketlab.tune.arms import Arm, Round
from bucketlab.tune.beliefs import Beliefs, features_of
from bucketlab.tune.pairs import Times, center_of, deviation_of, interval_of, is_touched, levels_of, noise_of, share_of
from bucketlab.tune.records import RoundRecord, StoredTrial
from bucketlab.tune.space import Key, Space

FINALISTS = 2
MISSES = 0.05  # of intervals
PAIR = 1.5  # variance of a trial's speed-up, of a block's: its own block, and the mean of two neighbours
# Layouts that are the fastest with this chance, by all that is known, are measured again.
_CONTENDING = 0.02
_MOST_CONTENDERS = 6
# Deviations by which untouched work must differ to be taken for touched. So many are there by chance in one of twenty
# studies, which then only know less. Of the many layouts before the race some would be, and would look better or worse
# for it than they are.
_TOUCHED, _SURELY_TOUCHED = 2.5, 4.0
_CLEARLY_WORSE = 2.0  # deviations of a mean


@dataclass(eq=False)
class Known:
    """Of one study, as of now."""

    space: Space
    owner: str  # this process
    arms: list[Arm] = field(default_factory=list)
    # Blocks of the current setting before the final race, one after the other, by the process that ran them.
    series: dict[str, list[Times]] = field(default_factory=dict)
    current_ns: list[int] = field(default_factory=list)  # all steps with the current setting
    rounds: list[Round] = field(default_factory=list)  # of the final race
    finalists: list[Arm] = field(default_factory=list)
    share: float = 0.0  # of the untouched work that is taken off a step; settled when the final race begins
    # By trial, what its blocks say; how many and how strictly asked.
    _touched: dict[int, tuple[tuple[int, float], bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.current_key = self.space.key(CURRENT)
        self.series.setdefault(self.owner, [])

    # ---- what comes in -------------------------------------------------------------------------------------------

    def measured_current(self, times: Times) -> None:
        """A block of the current setting, by this process."""
        self.series[self.owner].append(times)
        self.current_ns += times.step_ns

    def narrowed(self, owner: str, measured: Round) -> None:
        """A round before the final race."""
        self.series.setdefault(owner, []).append(measured.current)
        for arm in self.arms:
            if arm.number in measured.others:
                arm.pairs.append(measured.pair_of(arm.number))

    def count_steps(self, measured: Round) -> None:
        """Of a round that this process did not run."""
        self.current_ns += measured.current.step_ns
        for arm in self.arms:
            if arm.number in measured.others:
                arm.step_ns += measured.others[arm.number].step_ns

    def adopt(self, trial: StoredTrial) -> bool:
        """A finished trial that this process did not run. Whether it has a value to learn from."""
        record = trial.record
        key = self.space.key(record.candidate, tuple(record.bucket_bytes))
        arm = Arm(trial.number, record.candidate, key, built_otherwise=record.built_otherwise, finished=True)
        arm.failure, arm.is_current = record.failure, record.is_current
        if record.is_current and any(one.is_current for one in self.arms):
            return False  # two processes began at once
        if record.before_ns and not record.is_current:  # whose steps are those before the first trial
            before = Times(record.before_ns, record.before_untouched_ns)
            self.series.setdefault(record.owner, []).append(before)
            self.current_ns += record.before_ns
        if trial.value is not None:
            arm.step_ns = list(record.step_ns)
            arm.told = [-math.log(trial.value)]
        elif arm.failure is None:
            return False  # failed by somebody's hand, for no reason that is known
        self.arms.append(arm)
        return trial.value is not None

    def race_on(self, before: Sequence[RoundRecord]) -> list[Arm]:
        """Takes the rounds of a race that a launch before this one began; its finalists, as far as they are left."""
        last = set(before[-1].of)
        race = max((one.of for one in reversed(before) if last <= set(one.of)), key=len)
        for record in before:
            measured = record.round()
            if last <= set(record.of) <= set(race) and measured is not None:
                self.rounds.append(measured)
                self.count_steps(measured)
        self.share = before[-1].share
        return [arm for arm in self.arms if arm.number in race and arm.failure is None]

    def learn_share(self) -> None:
        self.share = share_of(self.series.values())

    # ---- what it says --------------------------------------------------------------------------------------------

    def contenders(self) -> tuple[list[Arm], float]:
        """Layouts that may be the fastest, one trial of each, the most promising first; what choosing it now may cost.

        At least two, where there are two; the cost is a part of a step, on average.
        """
        usable: dict[Key, Arm] = {}
        for arm in self.arms:
            if arm.is_measured and arm.failure is None and arm.key != self.current_key:
                usable.setdefault(arm.key, arm)
        arms = list(usable.values())
        if not arms:
            return [], 0.0
        believed = Beliefs.of(
            np.array([features_of(arm.key.bucket_bytes, self._options_as_numbers(arm)) for arm in arms]),
            np.array([self.space.predicted_gain(arm.key.bucket_bytes) for arm in arms]),
            [arm.gains(self.share_of(arm)) for arm in arms],
            math.sqrt(PAIR) * self.block_noise(),
        )
        ranked = sorted(range(len(arms)), key=lambda one: -believed.mean[one])
        ranked[1:] = sorted(ranked[1:], key=lambda one: (-believed.chances[one], -believed.mean[one]))
        near = [one for at, one in enumerate(ranked) if at < FINALISTS or believed.chances[one] >= _CONTENDING]
        return [arms[one] for one in near[:_MOST_CONTENDERS]], believed.regret

    def _options_as_numbers(self, arm: Arm) -> list[float]:
        view, static, compression = arm.key.options
        return [float(view), float(static), *(float(compression == one) for one in self.space.search.compression)]

    def block_noise(self) -> float:
        """Standard deviation of one block's level."""
        return noise_of([levels_of(blocks, self.share) for blocks in self.series.values()])

    def gain_of(self, arm: Arm) -> float:
        """Logarithm of its speed-up, by the blocks before the final race."""
        return arm.gain(self.share_of(arm))

    def gains_of(self, arm: Arm) -> list[float]:
        """Of each round of the final race."""
        share = self.share_of(arm)
        return [one.gain_of(arm.number, share) for one in self.rounds if arm.number in one.others]

    def share_of(self, arm: Arm) -> float:
        """None of it where options differ that change how the optimizer or the forward pass runs, or seem to."""
        return 0.0 if arm.key.options != self.current_key.options or self.is_touched(arm) else self.share

    def is_touched(self, arm: Arm) -> bool:
        """By all that was measured of it, as of now."""
        if not self.share:
            return False
        pairs = [*arm.pairs, *(one.pair_of(arm.number) for one in self.rounds if arm.number in one.others)]
        deviations = _TOUCHED if arm in self.finalists else _SURELY_TOUCHED
        known, touched = self._touched.get(arm.number, ((0, deviations), False))
        if known != (len(pairs), deviations):
            touched = is_touched([(pair.current, pair.own) for pair in pairs], deviations)
            self._touched[arm.number] = (len(pairs), deviations), touched
        return touched

    def leader(self) -> Arm:
        """The faster of the finalists that ran the whole race."""

        def rank(arm: Arm) -> tuple[int, float]:
            gains = self.gains_of(arm)
            return len(gains), center_of(gains or [-math.inf])

        return max(self.finalists, key=rank)

    def is_clearly_behind(self, second: Arm, first: Arm) -> bool:
        """Of two that have run the same rounds."""
        behind = [one - other for one, other in zip(self.gains_of(first), self.gains_of(second), strict=True)]
        error = float(np.std(behind)) / math.sqrt(len(behind))
        return center_of(behind) > _CLEARLY_WORSE * error

    def race_deviation(self) -> float:
        """Standard deviation of a round's speed-ups, of the finalist whose vary more."""
        of_finalists = [self.gains_of(arm) for arm in self.finalists]
        return max((deviation_of(gains) for gains in of_finalists if gains), default=0.0)

    def interval(self, arm: Arm) -> tuple[float, float]:
        """Such that the intervals of all finalists hold at once: the better of two is reported, whichever it is."""
        return interval_of(self.gains_of(arm), 1 - MISSES / FINALISTS)
