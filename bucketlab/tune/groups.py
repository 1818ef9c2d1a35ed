"""Which group of environment variables a job's next launch gets, and what the groups gain. Launches nothing.

A setting that takes a launch to try is compared launch by launch. Launches are dear and a machine drifts between them,
so they are few, and those with other variables stand between launches of the environment as it is:

    search   some groups once each, first values one at a time, then combined by Optuna's TPE; the better half of
             them again, and so on (successive halving)
    race     the best group and the environment as it is, in turns of random order, and nothing measured before counts

Each launch finds, or has, the buckets that are best in its own environment: see `bucketlab.environments`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np

from bucketlab.schema.tuning import Launched
from bucketlab.tune.pairs import interval_of_few
from bucketlab.tune.records import create_quietly

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Choices = Mapping[str, Sequence[str]]  # of each variable the values to try
Group = dict[str, str]  # values of some variables; the others stay as they are

# What shapes NCCL's collectives whatever they travel on (NCCL user guide, "Environment Variables"). Not the protocol
# LL128, which NCCL takes where it is safe by itself: asked for elsewhere, it corrupts data.
NCCL_SETTINGS: Choices = {
    "NCCL_ALGO": ("Ring", "Tree"),
    "NCCL_PROTO": ("Simple", "LL"),
    "NCCL_MIN_NCHANNELS": ("32",),
    "NCCL_MAX_NCHANNELS": ("8",),  # fewer leave more multiprocessors to the backward pass
    "NCCL_BUFFSIZE": ("1048576", "16777216"),  # bytes; NCCL has 4 MiB
}
RACE_ROUNDS = 6  # the fewest that give an interval of 95 %
_BETWEEN = 3  # launches with other variables, at most, between two of the environment as it is
_ALONE = 2 / 3  # of the groups are single values
_WELL_KNOWN = 3  # groups at most, of which the best is raced
_CONFIDENCE = 0.95
_AS_IT_IS = "as it is"
_PROPOSALS = 50  # that may be of groups known already
_RANDOM_FIRST = 4


@dataclass(frozen=True)
class Planned:
    """A launch to make."""

    stage: Literal["search", "race"]
    rung: int
    variables: Group


@dataclass
class GroupSearch:
    """One search over groups; `next` follows from what `tell` was told, so that a search goes on where it stopped.

    Args:
        choices: at least one variable.
        most_launches: in all; the race takes `2 * RACE_ROUNDS` of them.
        seed: of sampler and order; None: another one each time.
        launched: by earlier commands.
    """

    choices: Choices
    most_launches: int
    seed: int | None = None
    launched: list[Launched] = field(default_factory=list)
    reason: str = ""  # why it is over, once `next` gave None

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self.most_groups = _groups_for(self.most_launches, math.prod(1 + len(one) for one in self.choices.values()) - 1)

    def tell(self, launched: Launched) -> None:
        self.launched.append(launched)

    def next(self) -> Planned | None:
        """The launch to make now, None where the search is over; needs a second or so for Optuna's import."""
        contenders: list[Group] = []
        for rung, size in enumerate(_rungs(self.most_groups)):
            if rung and len(contenders) == 1:
                break
            planned = self._of_rung(rung, contenders[:size] if rung else None)
            if planned is not None:
                return planned
            contenders = self.ranked(rung)
            if not contenders:
                self.reason = self._why_none()
                return None
        return self._of_race(contenders[0])

    # ---- search ----------------------------------------------------------------------------------------------

    def _of_rung(self, rung: int, groups: Sequence[Group] | None) -> Planned | None:
        """The rung's next launch: its groups, and the environment as it is before, after and in between."""
        done = [one for one in self.launched if one.stage == "search" and one.rung <= rung]
        if not done:
            return Planned("search", rung, {})
        tried = [one.variables for one in done if one.variables and one.rung == rung]
        in_a_row = _since_the_environment_as_it_is(done)
        if groups is None:
            wanted = self._proposed(tried) if len(tried) < self.most_groups else None
        else:
            left = [one for one in groups if one not in tried]
            wanted = left[0] if left else None
        if in_a_row >= _BETWEEN or (wanted is None and in_a_row):
            return Planned("search", rung, {})
        return None if wanted is None else Planned("search", rung, wanted)

    def _proposed(self, tried: Sequence[Group]) -> Group | None:
        """Values alone first: of what is usually right, one thing is wrong more often than several at once."""
        if len(tried) < self.most_groups * _ALONE:
            often = Counter(name for group in tried if len(group) == 1 for name in group)
            alone = [{name: value} for name, values in self.choices.items() for value in values]
            left = [group for group in alone if group not in tried]
            if left:
                least = min(often[name] for group in left for name in group)
                left = [group for group in left if all(often[name] == least for name in group)]
                return left[int(self._rng.integers(len(left)))]
        return self._sampled(tried)

    def _sampled(self, tried: Sequence[Group]) -> Group | None:
        import optuna

        sampler = optuna.samplers.TPESampler(seed=int(self._rng.integers(2**31)), n_startup_trials=_RANDOM_FIRST)
        study = create_quietly(sampler=sampler)
        wanted = distributions_of(self.choices)
        gains = self.gains(0)
        for group in tried:
            gain = next((gain for other, gain in gains if other == group), None)
            if gain is not None:
                value, params = math.exp(-gain), params_of(group, self.choices)
                study.add_trial(optuna.create_trial(value=value, params=params, distributions=wanted))
        for _ in range(_PROPOSALS):
            params = study.ask(wanted).params
            group = {name: value for name, value in params.items() if value != _AS_IT_IS}
            if group and group not in tried:
                return group
        left = [one for one in all_groups(self.choices) if one not in tried]
        return left[int(self._rng.integers(len(left)))] if left else None

    def gains(self, last_rung: int) -> list[tuple[Group, float]]:
        """Of the groups that the search launched up to a rung."""
        return gains_of([one for one in self.launched if one.stage == "search" and one.rung <= last_rung])

    def ranked(self, last_rung: int) -> list[Group]:
        """The groups that looked faster than the environment as it is, the best first."""
        faster = [(group, gain) for group, gain in self.gains(last_rung) if gain > 0]
        return [group for group, _ in sorted(faster, key=lambda one: -one[1])]

    def failed(self) -> list[Group]:
        return [one.variables for one in self.launched if one.failure is not None]

    def _why_none(self) -> str:
        count = len({tuple(sorted(one.variables.items())) for one in self.launched if one.variables})
        if len(self.failed()) == count:
            return f"no launch with other variables could be measured, of {count}"
        return f"no group of variables was faster than the environment as it is, of {count}"

    # ---- race ------------------------------------------------------------------------------------------------

    def _of_race(self, leader: Group) -> Planned | None:
        race = [one for one in self.launched if one.stage == "race"]
        leader = next((one.variables for one in race if one.variables), leader)
        if leader in self.failed():
            self.reason = "the best group of variables failed when it was launched again"
            return None
        for number in range(RACE_ROUNDS):
            have = [bool(one.variables) for one in race if one.rung == number]
            if len(have) < 2:
                order = [one for one in (True, False) if one not in have]
                variables = leader if order[int(self._rng.integers(len(order)))] else {}
                return Planned("race", number, variables)
        self.reason = "the race of launches is run"
        return None

    def leader(self) -> Group:
        """The group that came into the race; empty where none did."""
        return next((one.variables for one in self.launched if one.stage == "race" and one.variables), {})

    def race_gains(self, over: Callable[[Launched], int | None]) -> list[float]:
        """Logarithms of the leader's speed-up, one a round, over a figure of the launches that it is raced against."""
        race = [one for one in self.launched if one.stage == "race" and one.failure is None]
        gains = []
        for number in range(RACE_ROUNDS):
            theirs = next((one for one in race if one.rung == number and one.variables), None)
            as_it_is = next((one for one in race if one.rung == number and not one.variables), None)
            before_ns = over(as_it_is) if as_it_is is not None else None
            if theirs is not None and before_ns is not None:
                gains.append(math.log(before_ns) - _level(theirs))
        return gains

    def launches_left(self) -> int:
        """A guess, of the longest way."""
        return max(1, _launches_for(self.most_groups) - len(self.launched))


def gains_of(launches: Sequence[Launched]) -> list[tuple[Group, float]]:
    """Of each group none of whose launches failed: the mean logarithm of its speed-up over launches nearby."""
    found: list[tuple[Group, list[float]]] = []
    failed = [one.variables for one in launches if one.failure is not None]
    for at, one in enumerate(launches):
        near = _neighbours(launches, at)
        if not one.variables or one.variables in failed or not near:
            continue
        gain = float(np.mean([_level(other) for other in near])) - _level(one)
        known = next((gains for group, gains in found if group == one.variables), None)
        if known is None:
            found.append((one.variables, [gain]))
        else:
            known.append(gain)
    return [(group, float(np.mean(gains))) for group, gains in found]


def gain_of(gains: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Median of a race's gains and its 95 % interval."""
    return float(np.median(gains)), interval_of_few(gains, _CONFIDENCE)


# ---- groups -----------------------------------------------------------------------------------------------------


def all_groups(choices: Choices) -> list[Group]:
    """Every combination of values, those of variables that stay as they are included."""
    values = [[_AS_IT_IS, *choices[name]] for name in choices]
    found = [dict(zip(choices, chosen, strict=True)) for chosen in product(*values)]
    return [group for one in found if (group := {name: value for name, value in one.items() if value != _AS_IT_IS})]


def params_of(group: Group, choices: Choices) -> dict[str, str]:
    """As Optuna keeps a group."""
    return {name: group.get(name, _AS_IT_IS) for name in choices}


def distributions_of(choices: Choices) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution

    return {name: CategoricalDistribution([_AS_IT_IS, *values]) for name, values in choices.items()}


def least_launches() -> int:
    """With fewer than these nothing can be found."""
    return _launches_for(1)


# ---- launches ---------------------------------------------------------------------------------------------------


def _rungs(groups: int) -> list[int]:
    """How many groups each rung of successive halving launches."""
    sizes = [groups]
    while sizes[-1] > _WELL_KNOWN:
        sizes.append(math.ceil(sizes[-1] / 2))
    return sizes


def _launches_for(groups: int) -> int:
    search = 1 + sum(size + math.ceil(size / _BETWEEN) for size in _rungs(groups))
    return search + 2 * RACE_ROUNDS


def _groups_for(launches: int, groups: int) -> int:
    """The most groups that so many launches allow, one at least."""
    return next((count for count in range(groups, 1, -1) if _launches_for(count) <= launches), 1)


def _since_the_environment_as_it_is(launched: Sequence[Launched]) -> int:
    """Launches that were measured with other variables since the last one without."""
    usable = [one for one in launched if one.failure is None]
    return next((count for count, one in enumerate(reversed(usable)) if not one.variables), len(usable))


def _neighbours(launches: Sequence[Launched], at: int) -> list[Launched]:
    """Of the environment as it is, the nearest before and after."""
    before = next((one for one in reversed(launches[:at]) if not one.variables and one.failure is None), None)
    after = next((one for one in launches[at + 1 :] if not one.variables and one.failure is None), None)
    return [one for one in (before, after) if one is not None]


def _level(launched: Launched) -> float:
    assert launched.setting is not None
    assert launched.setting.step_ns is not None
    return math.log(launched.setting.step_ns)
