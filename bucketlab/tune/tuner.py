"""A study from its first block to its result: search, narrowing down, final race. Knows no torch and no process group.

Whoever runs the steps asks for a block, trains its steps with the block's candidate in force, and tells their times;
what is tried, and how often, is decided here, by what is known (`known`). `Tuner._flow` reads from top to bottom:

    search      each candidate in one short block between two of the current setting; its speed-up is over their mean
    narrowing   those that may be the best by all that is known together (`beliefs`), and the current setting, in
                rounds, each in random order, until choosing one of them cannot cost much
    final race  the best two and the current setting in rounds, and nothing measured before counts: of many noisy
                candidates the one that looks best was lucky too, and fresh steps do not share that luck. From half of
                it on the second stays away where it is clearly behind; the interval is made for two all the same

How many rounds make the interval tight enough is settled before the race, from the noise that the search has seen, and
once more after its first twelve, from how much these vary (Stein 1945). A race that is looked at and stopped once it
looks good, or only once its interval looks narrow, errs more often than it says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from bucketlab.link.sweep import Search
from bucketlab.schema.tuning import CURRENT, Candidate, TunedSetting, TunedTrial, Tuning
from bucketlab.tune.arms import Arm, Pair, Round
from bucketlab.tune.known import FINALISTS, MISSES, PAIR, Known
from bucketlab.tune.pairs import (
    Times,
    center_of,
    log_gain,
    speedup_of,
)
from bucketlab.tune.proposals import Proposals, params_of
from bucketlab.tune.records import Created, New, Records, RoundRecord, Stored, StoredTrial, TrialRecord, by_name
from bucketlab.tune.space import JobFacts, Key, Space, how_to_apply

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

_BLOCK_STEPS = 4
# A block of fewer milliseconds is mostly the noise of clocks and schedulers, and the study's own work would show. In
# rounds, which must tell what one block cannot, short steps are cheap.
_SHORTEST_BLOCK_NS, _SHORTEST_BLOCK_OF_ROUNDS_NS = 200_000_000, 500_000_000
_MOST_BLOCK_STEPS = 64
_NARROWING_ROUNDS = 12
_ALIKE = 0.003  # settings whose order matters to nobody
# Blocks of the final race are longer: with few settings left, the steps that settle a change weigh more than drift.
_RACE_BLOCK_STEPS = 8
_FEWEST_ROUNDS, MOST_ROUNDS = 12, 30
_RACE_SECONDS = 90  # within which more rounds than that are not too many
_TIGHT = 0.0075  # half width of an interval that nobody needs tighter ...
_TIGHT_SHARE = 0.2  # ... or this part of the speed-up itself
_TOO_WIDE = 2.0  # times what is wanted: the result says so, and what would help
_SHARE_FOR_SEARCH = 0.55  # of a limited number of steps
_IS_TOUCHED = (
    "the forward pass and the optimizer took another time with these buckets, too: steps are compared whole, "
    "which is less exact"
)
_LEARN_SHARE_EVERY = 8  # blocks of the current setting
_ATTEMPTS = 3  # at a block that comes back without steps or fails with the current setting


@dataclass(frozen=True)
class Block:
    """Steps to train with one candidate in force."""

    number: int | None  # of the trial; None: the current setting
    candidate: Candidate
    steps: int  # to measure
    settle_steps: int  # to leave out before them, as the buckets have just been changed


@dataclass(frozen=True)
class Progress:
    """What a live display shows."""

    phase: Literal["search", "narrowing", "final race", "done"]
    trials: int
    most_trials: int
    steps: int
    rounds: int  # of the final race
    best: Candidate | None
    best_speedup: float | None
    seconds_left: float | None
    steps_left: int | None
    points: list[tuple[float, float]]  # capacity in MiB of what was tried, step time over the current setting's


@dataclass(frozen=True)
class _Told:
    times: Times
    bucket_bytes: tuple[int, ...]
    failure: str | None


_Begun = tuple[TrialRecord, Created]
_Flow = Generator[Block, _Told, None]


class _Over(Exception):
    """The study ends here, for the reason that it carries."""


class Tuner:
    """One study of one job, driven by rank 0.

    Example: `while (block := tuner.next_block()) is not None: tuner.tell(block, *train(block))`.
    """

    def __init__(
        self,
        job: JobFacts,
        search: Search,
        storage: str | None,
        study: str,
        trials: int = 40,
        step_budget: int | None = None,
        *,
        most_rounds: int | None = None,
        settle_steps: int = 2,
        steps_before: int = 0,
        step_ns: float | None = None,
        seed: int | None = None,
        sampler: BaseSampler | None = None,
        starts: Sequence[Candidate] = (),
    ) -> None:
        """Returns at once: a thread imports Optuna and opens the study, which takes one to two seconds.

        Args:
            job: what is tuned.
            search: what may be tried.
            storage: any URL that Optuna takes; None keeps the study in memory.
            study: its name there; a study that exists is gone on with.
            trials: how many layouts the search measures, earlier launches and other processes included; with none, the
                current setting alone is timed.
            step_budget: steps of this launch, settling included; None: as many as it takes.
            most_rounds: of the final race, twelve or more; it takes no more than its interval needs. None: 30, or as
                many as take a minute and a half.
            settle_steps: that are not measured after a change of buckets.
            steps_before: that this launch has spent already, to measure the job.
            step_ns: how long a step takes, for the length of the first blocks.
            seed: of sampler and order; None: another one each time.
            sampler: to compare samplers; None: see `proposals`.
            starts: candidates to try before all others.
        """
        self.job, self.search, self.study = job, search, study
        self.space = Space(job, search)
        self.most_trials, self.step_budget, self.settle_steps = trials, step_budget, settle_steps
        self._rounds_asked_for = most_rounds
        self.steps = steps_before
        self.phase: Literal["search", "narrowing", "final race", "done"] = "search"
        self.reason = "the script ended before the study did"
        self.finished = False
        self.notes: list[str] = []
        self._rng = np.random.default_rng(seed)
        self._records = Records(storage, study)
        self._loading = self._records.load(job.identity())
        self._preparing = self._records.also(lambda: Proposals(self.space, seed, sampler, starts))
        self._proposals: Proposals | None = None  # after its making for the records' thread alone
        self._learnt: list[tuple[Candidate, float]] = []  # by them from here
        self._known = Known(self.space, self._records.owner)
        self._others: dict[int, StoredTrial] = {}  # running elsewhere, by number
        self._typical_ns = step_ns
        self._short_blocks = False  # in the race too, as steps are few
        if step_budget is not None and self._race_steps() > step_budget * (1 - _SHARE_FOR_SEARCH):
            self._short_blocks = True
        self._planned_rounds = 0  # of the final race; settled when it begins
        self._stored_rounds: list[RoundRecord] = []
        self._round_written: Future[None] | None = None
        self._in_force: Candidate | None = None
        self._outstanding: Block | None = None
        self._run: _Flow | None = None

    # ---- what the training job calls -------------------------------------------------------------------------

    def is_open(self) -> bool:
        """Whether `next_block` has not to wait any more until the study is opened, or cannot be."""
        return self._loading.done() and self._preparing.done()

    def has_begun(self) -> bool:
        """Whether a block was asked for, and what the study knew before was read."""
        return self._run is not None or self.finished

    def next_block(self) -> Block | None:
        """What to train next, None once the study is over. The same block again until it was told of.

        Raises:
            BadInput: the storage cannot be opened, or the study in it is of another job; on the first call.
        """
        if self._run is None and not self.finished:
            self._resume(self._loading.result())
            self._run = self._flow()
            self._advance(None)
        return self._outstanding

    def tell(
        self,
        block: Block,
        step_ns: Sequence[float],
        bucket_bytes: Sequence[int],
        failure: str | None = None,
        *,
        untouched_ns: Sequence[float] = (),
    ) -> None:
        """What became of a block.

        Args:
            block: from `next_block`.
            step_ns: of each measured step, the slowest rank's; fewer than asked for will do, and none means that the
                block should be repeated.
            bucket_bytes: what DDP really built, all modules one after the other; empty: not known.
            failure: why the candidate cannot be used, if so.
            untouched_ns: of the same steps, what the forward pass and the optimizer took, on the rank where they took
                longest; empty where that is not known.
        """
        assert block == self._outstanding, "told of a block that was not given out"
        if any(not math.isfinite(one) or one <= 0 for one in step_ns):
            failure = failure or "a step's time is not a number"
        settled = 0 if block.candidate == self._in_force else block.settle_steps
        self.steps += settled + len(step_ns)
        self._in_force = None if failure else block.candidate
        times = Times([])
        if failure is None:
            known = len(untouched_ns) == len(step_ns) and all(math.isfinite(one) and one >= 1 for one in untouched_ns)
            times = Times([round(one) for one in step_ns], [round(one) for one in untouched_ns] if known else [])
        self._advance(_Told(times, tuple(bucket_bytes), failure))

    def result(self) -> Tuning:
        """What is known by now; waits until it is stored too."""
        self._records.flush()
        return self._result()

    def close(self) -> None:
        self._records.close()

    def progress(self) -> Progress:
        """For a display; cheap enough for every step."""
        steps_left = self._steps_left()
        step_s = float(np.median(self._known.current_ns[-64:])) / 1e9 if self._known.current_ns else 0.0
        gains = {arm.number: self._known.gain_of(arm) for arm in self._known.arms}
        usable = [arm for arm in self._known.arms if arm.is_measured and arm.failure is None]
        best = max(usable, key=lambda arm: gains[arm.number], default=None)
        gain = gains[best.number] if best else None
        if self._known.finalists and len(self._known.rounds) > 1:
            best = self._known.leader()
            gain = center_of(self._known.gains_of(best))
        return Progress(
            phase=self.phase,
            trials=self._tried(),
            most_trials=self.most_trials,
            steps=self.steps,
            rounds=len(self._known.rounds),
            best=best.candidate if best else None,
            best_speedup=None if gain is None else speedup_of(gain),
            seconds_left=None if steps_left is None else steps_left * step_s,
            steps_left=steps_left,
            points=[
                (arm.candidate.capacities.bucket_cap_mb, math.exp(-gains[arm.number]))
                for arm in usable
                if arm.candidate.capacities.bucket_cap_mb is not None
            ],
        )

    # ---- the study, top to bottom ----------------------------------------------------------------------------

    def _flow(self) -> _Flow:
        try:
            yield from self._find()
            self.phase = "narrowing"
            finalists = self._race_begun_before() or (yield from self._narrow())
            self.phase = "final race"
            yield from self._race(finalists)
        except _Over as over:
            self.reason = str(over)
        self.phase = "done"
        self.finished = True

    def _find(self) -> _Flow:
        if self._searched_enough():
            return
        # A thread chooses while the current setting runs.
        own, choosing = self._begin_current(), self._begin()
        first = yield from self._current_block()
        if own is not None:
            self._note_current(own, first)
        before: Times | None = first
        while (begun := choosing.result()) is not None:
            record, created = begun
            before = before or (yield from self._current_block())
            self._merge(created.others)
            if self._is_measured_elsewhere(record, created):
                choosing = self._begin()
                continue
            told = yield from self._trained(self._block(created.number, record.candidate))
            arm = self._measured(record, created, told, before)
            choosing = self._begin()
            if arm is None:
                before = None
                continue
            after = yield from self._current_block()
            if len(self._known.series[self._known.owner]) % _LEARN_SHARE_EVERY == 0:
                self._known.learn_share()
            arm.pairs[-1] = Pair([before, after], told.times)
            gain = log_gain([before, after], told.times, self._known.share_of(arm))
            self._learn(arm, gain)
            self._records.complete(created, math.exp(-gain))
            before = after

    def _narrow(self) -> Generator[Block, _Told, list[Arm]]:
        """Rounds among those that may be the fastest, until one of them is, or as good as that."""
        for _ in range(_NARROWING_ROUNDS):
            self._known.learn_share()
            arms, regret = self._known.contenders()
            if regret < _ALIKE or not self._affords(len(arms) + 1, reserve=self._race_steps()):
                break
            if (measured := (yield from self._round("narrowing", arms))) is not None:
                self._known.narrowed(self._records.owner, measured)
        return self._known.contenders()[0][:FINALISTS]

    def _race(self, finalists: list[Arm]) -> _Flow:
        if not finalists and self.most_trials:
            raise _Over("no other buckets than the current ones could be measured")
        self._known.finalists = finalists
        self._planned_rounds = self._planned_rounds or self._rounds_needed()
        self._plan_again()  # a launch before this one may have ended in between
        while len(self._known.rounds) < self._planned_rounds:
            racing = self._racing()
            if not self._affords(len(racing) + 1):
                raise _Over("the steps that it was given are spent")
            measured = yield from self._round("final", racing)
            left = [arm for arm in self._known.finalists if arm.failure is None]
            if self._known.finalists and not left:
                raise _Over("every finalist failed in the final race")
            if len(left) < len(self._known.finalists):
                self._known.finalists = left
            if measured is not None:
                self._known.rounds.append(measured)
                self._plan_again()
        self.reason = "the final race is run"

    def _racing(self) -> list[Arm]:
        """The finalists; from half of the race on without the second, where it is clearly behind the first."""
        known = self._known
        if len(known.finalists) < 2 or not known.rounds:
            return known.finalists
        first = known.leader()
        second = next(arm for arm in known.finalists if arm is not first)
        if len(known.gains_of(second)) < len(known.gains_of(first)):
            return [first]
        half_way = len(known.rounds) >= self._planned_rounds / 2
        return [first] if half_way and known.is_clearly_behind(second, first) else known.finalists

    # ---- blocks ----------------------------------------------------------------------------------------------

    def _block(self, number: int | None, candidate: Candidate) -> Block:
        settle_steps = 0 if candidate == self._in_force else self.settle_steps
        return Block(number, candidate, self._block_steps(), settle_steps)

    def _block_steps(self, phase: str | None = None) -> int:
        phase = phase or self.phase
        fewest, shortest_ns = _BLOCK_STEPS, _SHORTEST_BLOCK_NS
        if phase != "search" and not self._short_blocks:
            fewest = _RACE_BLOCK_STEPS if phase == "final race" else _BLOCK_STEPS
            shortest_ns = _SHORTEST_BLOCK_OF_ROUNDS_NS
        step_ns = self._usual_step_ns()
        if step_ns is None:
            return fewest
        return max(fewest, min(_MOST_BLOCK_STEPS, math.ceil(shortest_ns / step_ns)))

    def _usual_step_ns(self) -> float | None:
        return float(np.median(self._known.current_ns[-16:])) if self._known.current_ns else self._typical_ns

    def _trained(self, block: Block) -> Generator[Block, _Told, _Told]:
        """The block, given out again as long as it comes back with neither steps nor a failure."""
        for _ in range(_ATTEMPTS):
            told = yield block
            if told.times.step_ns or told.failure is not None:
                return told
        return _Told(Times([]), (), f"no step of it could be measured in {_ATTEMPTS} attempts")

    def _current_block(self) -> Generator[Block, _Told, Times]:
        failure: str | None = None
        for _ in range(_ATTEMPTS):
            told = yield from self._trained(self._block(None, CURRENT))
            if told.failure is None:
                self._known.measured_current(told.times)
                return told.times
            failure = told.failure
        raise _Over(f"the current setting itself failed: {failure}")

    def _round(self, stage: str, arms: list[Arm]) -> Generator[Block, _Told, Round | None]:
        """One block of each and of the current setting, in random order; without what failed in it.

        None where that was the current setting.
        """
        current: Times | None = None
        others: dict[int, Times] = {}
        order: list[Arm | None] = [None, *arms]
        for index in self._rng.permutation(len(order)):
            arm = order[index]
            if arm is None:
                told = yield from self._trained(self._block(None, CURRENT))
                self._known.current_ns += told.times.step_ns
            else:
                told = yield from self._trained(self._block(arm.number, arm.candidate))
                arm.step_ns += told.times.step_ns
                if told.failure is not None:
                    arm.failure = told.failure
                    self._records.failed_later(arm.number, told.failure)
            if told.failure is None:
                if arm is None:
                    current = told.times
                else:
                    others[arm.number] = told.times
        if self._round_written is not None:
            self._round_written.result()  # so that a kill can cost no more than this round and the one before
        self._round_written = self._records.round(
            RoundRecord(
                stage=stage,
                of=sorted(arm.number for arm in arms),
                tried=self._tried(),
                planned=self._planned_rounds or _NARROWING_ROUNDS,
                owner=self._records.owner,
                step_ns=by_name(current, others, lambda times: times.step_ns),
                untouched_ns=by_name(current, others, lambda times: times.untouched_ns),
                share=self._known.share,
                at=time.time(),
            )
        )
        return None if current is None else Round(current, others)

    def _advance(self, told: _Told | None) -> None:
        assert self._run is not None
        try:
            self._outstanding = next(self._run) if told is None else self._run.send(told)
        except StopIteration:
            self._outstanding = None

    # ---- search ----------------------------------------------------------------------------------------------

    def _begin(self) -> Future[_Begun | None]:
        """Has the next candidate chosen and its trial written down; None where the search is over."""
        over, taken, tried = self._searched_enough(), self._taken(), self._tried()
        learnt, self._learnt = self._learnt, []

        def choose() -> New | None:
            assert self._proposals is not None
            for measured, value in learnt:
                self._proposals.learn(measured, value)
            if over:
                return None
            candidate = self._proposals.next(taken)
            if candidate is None:
                self.notes.append(self._nothing_left(tried))
                return None
            return self._new(candidate, self.space.bucket_bytes(candidate.capacities))

        return self._records.create(choose)

    def _new(self, candidate: Candidate, bucket_bytes: Sequence[int], is_current: bool = False) -> New:
        record = TrialRecord(
            candidate=candidate,
            bucket_bytes=list(bucket_bytes),
            owner=self._records.owner,
            is_current=is_current,
        )
        return New(record, *params_of(candidate, self.space))

    def _nothing_left(self, tried: int) -> str:
        if not tried:
            asked = self.search.bucket_cap_mb
            return f"every bucket_cap_mb from {asked.low:g} to {asked.high:g} gives the buckets that the job has"
        ways = f"all {tried} other ways" if tried > 1 else "the one other way"
        return f"{ways} to form buckets of these gradients {'were' if tried > 1 else 'was'} tried"

    def _searched_enough(self) -> bool:
        if self._tried() >= self.most_trials or not self._affords(2, reserve=self._race_steps()):
            return True
        return self.step_budget is not None and self.steps > self.step_budget * _SHARE_FOR_SEARCH

    def _begin_current(self) -> Future[_Begun | None] | None:
        """The script's own setting as a trial, once in a study."""
        if any(arm.is_current for arm in self._known.arms):
            return None
        own = Candidate(capacities=self.job.current)
        return self._records.create(lambda: self._new(own, self.job.current_bucket_bytes, is_current=True))

    def _note_current(self, begun: Future[_Begun | None], times: Times) -> None:
        own = begun.result()
        assert own is not None
        record, created = own
        record.step_ns = record.before_ns = list(times.step_ns)
        record.untouched_ns = record.before_untouched_ns = list(times.untouched_ns)
        self._records.measured(created, record)
        self._records.complete(created, 1.0)
        arm = Arm(
            created.number,
            record.candidate,
            self._known.current_key,
            list(times.step_ns),
            told=[0.0],
            is_current=True,
        )
        arm.after_steps = self.steps
        self._known.arms.append(arm)
        self._learn(arm, 0.0)

    def _trial_steps(self) -> int:
        return 2 * (self.settle_steps + self._block_steps())

    def _measured(self, record: TrialRecord, created: Created, told: _Told, before: Times) -> Arm | None:
        """Notes a trial's block; None where it failed."""
        key = self.space.key(record.candidate)
        if told.bucket_bytes:
            record.built_otherwise = told.bucket_bytes != tuple(record.bucket_bytes)
            record.bucket_bytes = list(told.bucket_bytes)
            key = self.space.key(record.candidate, told.bucket_bytes)
        arm = Arm(created.number, record.candidate, key, built_otherwise=record.built_otherwise)
        arm.after_steps = self.steps
        self._known.arms.append(arm)
        if told.failure is not None:
            arm.failure = record.failure = told.failure
            self._records.fail(created, record)
            return None
        record.step_ns, record.untouched_ns = list(told.times.step_ns), list(told.times.untouched_ns)
        record.before_ns, record.before_untouched_ns = list(before.step_ns), list(before.untouched_ns)
        arm.step_ns = list(told.times.step_ns)
        arm.pairs = [Pair([before], told.times)]
        self._records.measured(created, record)
        return arm

    def _learn(self, arm: Arm, gain: float) -> None:
        arm.finished = True
        self._learnt.append((arm.candidate, math.exp(-gain)))
        twin = next(
            (one for one in self._known.arms if one is not arm and one.key == arm.key and one.is_measured), None
        )
        if twin is not None:  # other capacities, and DDP built the same
            twin.pairs += arm.pairs
            twin.told += arm.told
            twin.step_ns += arm.step_ns

    def _taken(self) -> set[Key]:
        """Layouts that are measured, failed, or under way elsewhere, by what DDP built and by its rule."""
        built = {arm.key for arm in self._known.arms}
        asked = {self.space.key(arm.candidate) for arm in self._known.arms}
        elsewhere = {self.space.key(trial.record.candidate) for trial in self._others.values()}
        return built | asked | elsewhere | {self._known.current_key}

    def _tried(self) -> int:
        return sum(not arm.is_current for arm in self._known.arms) + len(self._others)

    # ---- what other processes and earlier launches did ---------------------------------------------------------

    def _resume(self, stored: Stored) -> None:
        self._proposals = self._preparing.result()
        lost: dict[Key, int] = {}
        for trial in stored.trials:
            if trial.record.lost and trial.record.is_current:
                continue
            if trial.record.lost:
                key = self.space.key(trial.record.candidate)
                lost[key] = lost.get(key, 0) + 1
                if lost[key] > 1:
                    trial.record.failure = "the job ended twice while this was tried"
                    self._adopt(trial)
            elif trial.running:
                self._others[trial.number] = trial
            else:
                self._adopt(trial)
        for key, times in lost.items():
            if times == 1 and key not in self._taken():
                candidate = next(t.record.candidate for t in stored.trials if self.space.key(t.record.candidate) == key)
                self._proposals.again(candidate)
        by_number = {arm.number: arm for arm in self._known.arms}
        for number, reason in stored.failed_later.items():
            if number in by_number:
                by_number[number].failure = reason
        self._stored_rounds = stored.rounds
        for record in stored.rounds:
            measured = record.round()
            if record.stage == "narrowing" and measured is not None:
                self._known.narrowed(record.owner, measured)
                self._known.count_steps(measured)

    def _adopt(self, trial: StoredTrial) -> None:
        if self._known.adopt(trial) and trial.value is not None:
            self._learnt.append((trial.record.candidate, trial.value))

    def _merge(self, others: list[StoredTrial]) -> None:
        known = {arm.number for arm in self._known.arms}
        self._others = {trial.number: trial for trial in others if trial.running}
        for trial in others:
            if not trial.running and not trial.record.lost and trial.number not in known:
                self._adopt(trial)

    def _is_measured_elsewhere(self, record: TrialRecord, created: Created) -> bool:
        """Whether another process chose the same at the same time, and was first; this trial is then given up."""
        key = self.space.key(record.candidate)
        first = [one for one in created.others if one.number < created.number and not one.record.lost]
        if all(self.space.key(one.record.candidate) != key or one.record.is_current for one in first):
            return False
        record.lost = True
        self._records.fail(created, record)
        return True

    def _race_begun_before(self) -> list[Arm]:
        """The finalists of a race that a launch before this one began and no trial has come after; takes its rounds."""
        before = [one for one in self._stored_rounds if one.stage == "final" and one.tried == self._tried()]
        if not before:
            return []
        self._planned_rounds = before[-1].planned
        return self._known.race_on(before)

    # ---- how much there is to run --------------------------------------------------------------------------------

    def _rounds_needed(self) -> int:
        """For an interval as narrow as wanted, if the race is as noisy as the search was."""
        if not self._known.finalists:
            return _FEWEST_ROUNDS
        shorter = self._block_steps("search") / self._block_steps("final race")
        deviation = math.sqrt(2 * shorter) * self._known.block_noise()
        return self._rounds_for(deviation)

    def _plan_again(self) -> None:
        """Once, where rounds vary more than the search let expect: more of them. What they say is not looked at."""
        if self._known.finalists and len(self._known.rounds) == _FEWEST_ROUNDS:
            self._planned_rounds = max(self._planned_rounds, self._rounds_for(self._known.race_deviation()))

    def _rounds_for(self, deviation: float) -> int:
        """Whose speed-ups have this standard deviation."""
        tight = _tight(max(abs(self._known.gain_of(arm)) for arm in self._known.finalists))
        quantile = NormalDist().inv_cdf(1 - MISSES / FINALISTS / 2)
        return min(self._most_rounds(), max(_FEWEST_ROUNDS, math.ceil((quantile * deviation / tight) ** 2)))

    def _most_rounds(self) -> int:
        step_ns = self._usual_step_ns()
        if self._rounds_asked_for is not None or step_ns is None:
            return self._rounds_asked_for or MOST_ROUNDS
        return max(MOST_ROUNDS, math.floor(_RACE_SECONDS * 1e9 / (step_ns * self._race_steps(rounds=1))))

    def _affords(self, blocks: int, reserve: int = 0) -> bool:
        if self.step_budget is None:
            return True
        return self.steps + blocks * (self.settle_steps + self._block_steps()) + reserve <= self.step_budget

    def _race_steps(self, rounds: int = _FEWEST_ROUNDS) -> int:
        return rounds * (FINALISTS + 1) * (self.settle_steps + self._block_steps("final race"))

    def _steps_left(self) -> int | None:
        """A guess: the trials to come, four narrowing rounds of four, and a final race half way to its longest."""
        if not self._known.current_ns:
            return None
        if self.phase == "done":
            return 0
        planned = self._planned_rounds or (_FEWEST_ROUNDS + self._most_rounds()) // 2
        steps = self._race_steps(max(1, planned - len(self._known.rounds)))
        if self.phase == "search":
            steps += max(0, self.most_trials - self._tried()) * self._trial_steps()
        if self.phase in ("search", "narrowing"):
            steps += 16 * (self.settle_steps + self._block_steps("narrowing"))
        if self.step_budget is not None:
            steps = min(steps, self.step_budget - self.steps)
        return max(0, steps)

    # ---- the answer ------------------------------------------------------------------------------------------

    def _result(self) -> Tuning:
        leader = self._known.leader() if self._known.finalists and self._known.rounds else None
        gains = self._known.gains_of(leader) if leader else []
        interval = self._known.interval(leader) if leader and len(gains) >= _FEWEST_ROUNDS else None
        gain = center_of(gains) if gains else None
        significant = interval is not None and interval[0] > 0
        raced = [ns for one in self._known.rounds for ns in one.current.step_ns] or self._known.current_ns
        base_ns = float(np.median(raced)) if raced else None
        current_bytes = self.job.current_bucket_bytes
        baseline = TunedSetting.of(Candidate(capacities=self.job.current), current_bytes, base_ns)
        best = baseline
        if leader is not None and gain is not None and base_ns is not None:
            best = TunedSetting.of(leader.candidate, leader.key.bucket_bytes, base_ns * math.exp(-gain))
        return Tuning(
            kind=self.job.kind,
            study=self.study,
            job=self.job.identity(),
            interconnect=self.job.interconnect,
            best=best,
            baseline=baseline,
            current_is_default=self.job.current_is_default,
            current_by_module=self.job.current_by_module,
            speedup=None if gain is None else speedup_of(gain),
            ci95=None if interval is None else (speedup_of(interval[0]), speedup_of(interval[1])),
            significant=significant,
            rounds=len(self._known.rounds),
            untouched_share=self._known.share if leader is None else self._known.share_of(leader),
            finished=self.finished,
            reason=self.reason,
            how_to_apply=how_to_apply(leader.candidate, self.job) if leader and significant else "keep your setting",
            trials=[self._trial(arm) for arm in sorted(self._known.arms, key=lambda arm: arm.number)],
            steps=self.steps,
            notes=[
                *self.notes,
                *(self._doubts(gain, interval) if gain is not None and interval is not None else []),
                *([_IS_TOUCHED] if leader is not None and self._known.is_touched(leader) else []),
                *([self._records.trouble] if self._records.trouble else []),
            ],
        )

    def _doubts(self, gain: float, interval: tuple[float, float]) -> list[str]:
        """Where the whole race has run, and its interval is far wider than wanted."""
        half = (speedup_of(interval[1]) - speedup_of(interval[0])) / 2
        if len(self._known.rounds) < self._planned_rounds or half <= _TOO_WIDE * _tight(gain):
            return []
        of_one = NormalDist().inv_cdf(1 - MISSES / 2) * math.sqrt(PAIR) * self._known.block_noise()
        rounds = len(self._known.rounds)
        return [
            f"this job's steps vary: {rounds} rounds tell a speed-up to ±{100 * half:.1f} % only, one block "
            f"of a trial to ±{100 * of_one:.0f} %; twice as exact takes four times the rounds, --rounds "
            f"{4 * rounds} in a study of another name, or a machine that does nothing else"
        ]

    def _trial(self, arm: Arm) -> TunedTrial:
        raced = self._known.gains_of(arm) if arm in self._known.finalists else []
        gain = center_of(raced) if raced else self._known.gain_of(arm)
        return TunedTrial(
            number=arm.number,
            params=params_of(arm.candidate, self.space)[0],
            setting=TunedSetting.of(arm.candidate, (), None),
            state="failed" if arm.failure else "complete" if arm.finished else "running",
            bucket_bytes=list(arm.key.bucket_bytes),
            step_ns=self._known.current_ns if arm.is_current else arm.step_ns,
            speedup=speedup_of(gain) if math.isfinite(gain) else None,
            pairs=len(arm.pairs) + len(arm.told),
            finalist=arm in self._known.finalists,
            is_current=arm.is_current,
            failure=arm.failure,
            built_otherwise=arm.built_otherwise,
            after_steps=arm.after_steps,
        )


def _tight(gain: float) -> float:
    """Half the width of an interval that nobody needs tighter, for a speed-up with this logarithm."""
    return max(_TIGHT, _TIGHT_SHARE * abs(gain))
