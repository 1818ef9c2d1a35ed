"""Which candidate to measure next: DDP's default and the predicted best, then Optuna's TPE. Measures nothing.

Why TPE: `python -m bench.samplers` lets Optuna's samplers tune 18 simulated jobs. Step time against capacity is flat
near its best, and each layout is measured once, so all of them, and random choice too, find it equally soon: after 12
to 18 steps in half of the studies, after 50 to 66 in nine of ten (jobs whose current setting misses it by more than
1 %). What is left to choose by is cost and what they need: a proposal takes TPE 0.8 ms and GP 19 ms, 2 % of a trial of
a dozen steps of 80 ms; GP and the quasi-random sampler need SciPy, and GP torch as well. TPE needs neither, and takes
the options that are no numbers.

A sampler proposes a number; what is measured is the nearest layout of buckets that nobody has measured yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from bucketlab.schema.tuning import Candidate, Capacities
from bucketlab.tune.records import create_quietly
from bucketlab.tune.space import Key, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

# Proposals at random before the sampler trusts what it has learnt; the ones that the study starts with count.
_RANDOM_FIRST = 8


class Proposals:
    """Candidates in the order in which they should be measured."""

    def __init__(
        self,
        space: Space,
        seed: int | None = None,
        sampler: BaseSampler | None = None,
        starts: Sequence[Candidate] = (),
    ) -> None:
        """Takes a second or so.

        Args:
            space: of the job.
            seed: of the sampler.
            sampler: to compare them; None takes the one that compared best.
            starts: to propose before anything else.
        """
        import optuna

        self.space = space
        self._queue = [*starts, *space.starts()]
        chosen = sampler or optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM_FIRST)
        self._study = create_quietly(sampler=chosen)
        self._wanted = self._distributions()
        firsts: list[float | None] = [*space.firsts()]
        for first_mb in firsts or [None]:
            space.layouts(first_mb)

    def again(self, candidate: Candidate) -> None:
        """Puts first what was begun and not finished."""
        self._queue.insert(0, candidate)

    def learn(self, candidate: Candidate, value: float) -> None:
        """What a candidate measured: its step time relative to that of the current setting."""
        import optuna

        params, distributions = params_of(candidate, self.space)
        self._study.add_trial(optuna.create_trial(value=value, params=params, distributions=distributions))

    def next(self, taken: Collection[Key]) -> Candidate | None:
        """A candidate whose layout is not taken; None where all are."""
        while self._queue:
            candidate = self._queue.pop(0)
            if self.space.key(candidate) not in taken:
                return candidate
        return self.space.nearest(self._sampled(), taken)

    def _sampled(self) -> Candidate:
        import optuna

        trial = self._study.ask(self._wanted)
        params = trial.params
        # Another layout than this one will be measured, so the sampler learns from that and forgets this.
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        compression = params.get("compression", "none")
        return Candidate(
            capacities=Capacities(
                bucket_cap_mb=params["bucket_cap_mb"],
                first_bucket_mb=self._nearest_first(params["first_bucket_mb"]) if "first_bucket_mb" in params else None,
            ),
            gradient_as_bucket_view=params.get("gradient_as_bucket_view"),
            static_graph=params.get("static_graph"),
            compression=None if compression == "none" else compression,
        )

    def _nearest_first(self, first_mb: float) -> float:
        return min(self.space.firsts(), key=lambda one: max(one / first_mb, first_mb / one))

    def _distributions(self) -> dict[str, BaseDistribution]:
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        search, space = self.space.search, self.space
        found: dict[str, BaseDistribution] = {"bucket_cap_mb": FloatDistribution(space.low_mb, space.high_mb, log=True)}
        if space.firsts():
            found["first_bucket_mb"] = FloatDistribution(min(space.firsts()), max(space.firsts()), log=True)
        if search.gradient_as_bucket_view:
            found["gradient_as_bucket_view"] = CategoricalDistribution([False, True])
        if search.static_graph and not self.space.job.static_graph:
            found["static_graph"] = CategoricalDistribution([False, True])
        if search.compression:
            found["compression"] = CategoricalDistribution(["none", *search.compression])
        return found


def params_of(candidate: Candidate, space: Space) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """A candidate as Optuna keeps it. A list of capacities is a choice of one, so that it shows and misleads nobody."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}

    def add(name: str, value: float, low: float, high: float) -> None:
        params[name] = value
        distributions[name] = FloatDistribution(min(low, value), max(high, value), log=True)

    capacities = candidate.capacities
    if capacities.bucket_cap_mb is not None:
        add("bucket_cap_mb", capacities.bucket_cap_mb, space.low_mb, space.high_mb)
    if capacities.first_bucket_mb is not None:
        firsts = space.firsts() or [capacities.first_bucket_mb]
        add("first_bucket_mb", capacities.first_bucket_mb, min(firsts), max(firsts))
    if capacities.bucket_cap_mb_list:
        text = ", ".join(f"{cap:g}" for cap in capacities.bucket_cap_mb_list)
        params["bucket_cap_mb_list"], distributions["bucket_cap_mb_list"] = text, CategoricalDistribution([text])
    options = {**msgspec.structs.asdict(candidate), "compression": candidate.compression or "none"}
    for name, values in (
        ("gradient_as_bucket_view", [False, True]),
        ("static_graph", [False, True]),
        ("compression", ["none", *space.search.compression]),
    ):
        searched = bool(getattr(space.search, name))
        if searched and options[name] is not None:
            params[name], distributions[name] = options[name], CategoricalDistribution(values)
    return params, distributions
