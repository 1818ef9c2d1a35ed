"""One launch of a study, inside the training process: what the job is, then block after block of its own steps.

Rank 0 holds the study and chooses; the others are told each block over the job's store. `flow` reads from top to
bottom, as that of a profiled run, whose parts it uses.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
import torch.distributed as dist

from bucketlab.documents import write_json
from bucketlab.errors import BadInput, BucketlabError, WorkFailed
from bucketlab.link.sweep import curve_of
from bucketlab.runs import PROFILE, load_profile
from bucketlab.saying import say
from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import CURRENT, Candidate, Tuning
from bucketlab.tune import Block, JobFacts, Progress, Tuner
from bucketlab.tune.files import RESULT, LiveStudy, write_live
from bucketlab.tune.pairs import Times
from bucketlab.tune.records import shown_url
from bucketlab.tune.words import answer
from bucketlab.worker import ddp
from bucketlab.worker.emulate import Emulation
from bucketlab.worker.session import Flow, Session, cannot_write
from bucketlab.worker.setting import InPlace, why_not_in_place
from bucketlab.worker.untouched import Untouched, forward_waits

if TYPE_CHECKING:
    from bucketlab.worker.config import TuneTask
    from bucketlab.worker.observe import Observer, Step

_STEPS_BEFORE = 12  # timed with nothing changed: what prediction starts from
_SETTLE_STEPS = 2  # of a new reducer: DDP forms its buckets once more after the first
_SETTLE_STEPS_STATIC = 3
_MOST_WAITING_STEPS = 10
_SHOW_SECONDS = 1.0  # from one look at how far the study is to the next, for which training waits
_NOT_USABLE_NS = 2**62  # a step that is not like the others; the greatest of all ranks' times wins

# What went wrong with a block on some rank; the greatest number of all ranks' wins.
_FAILURES = {
    1: "the emulated link was not the slower one: what it gave is not valid",
    2: "it could not be put in force",
    3: "memory ran out while it was put in force",
}


class Order(msgspec.Struct, kw_only=True):
    """What every rank does next."""

    candidate: Candidate
    steps: int  # to measure; 0: the study is over, and the candidate is what to train on with
    settle_steps: int = 0
    failure: str | None = None  # why the study is over before it was finished


class TuneSession(Session):
    """The part of a study that one process takes in one launch."""

    def __init__(self, observer: Observer) -> None:
        assert observer.config.tune is not None
        self.task: TuneTask = observer.config.tune
        self.tuner: Tuner | None = None
        self.emulation: Emulation | None = None
        self.own_ns = 0  # spent between steps while tuning
        self.began_ns: int | None = None
        self._forward_waits = False
        self._progress: Progress | None = None  # as it was last shown
        self._show_again_at = 0.0  # on the monotonic clock
        super().__init__(observer)

    # ---- the launch, top to bottom ------------------------------------------------------------------------------

    def flow(self) -> Flow:
        yield from self._warm_up()
        self._check_that_buckets_can_change()
        self._look_at_memory_and_buckets()
        known = self._known_from_before()
        is_known = self.exchange.from_rank_0("known", known is not None, bool)
        measure = self.task.predict and not is_known
        if measure:
            with self._phase("ready times", self.config.ready_steps + 1):
                yield from self._take_ready_times(self.config.ready_steps)
        if self.config.emulate is not None:
            yield from self._emulate()
        elif measure:
            with self._phase("link"):
                self._measure_link()
        if not is_known:
            with self._phase("timing", _STEPS_BEFORE):
                yield from self._time(_STEPS_BEFORE)
            known = self._gather()
        if known is not None:
            self.tuner = self._open_study(known)
        with self._phase("timing", _MOST_WAITING_STEPS):
            yield from self._train_until_it_is_open()
        with self._phase("tuning"):
            yield from self._tune()
        with self._phase("writing"):
            self._write_result()

    def _check_that_buckets_can_change(self) -> None:
        reasons = [reason for module in self.modules if (reason := why_not_in_place(module))]
        if dist.get_world_size(self.modules[0].process_group) == 1 and self.config.emulate is None:
            raise WorkFailed(
                "one rank exchanges gradients with nobody: there are no buckets to tune. Launch two or more."
            )
        if reasons:
            raise WorkFailed(
                f"this job's buckets cannot be changed between two steps: {reasons[0]}. "
                "Add --relaunch: each setting is then tried in a launch of its own."
            )

    def _emulate(self) -> Flow:
        assert self.config.emulate is not None
        curve = curve_of(self.config.emulate)
        self.emulation = Emulation(curve, curve.concurrency)
        for module in self.modules:
            self.emulation.install(module)
        for _ in range(_SETTLE_STEPS_STATIC + 1):
            yield

    def _known_from_before(self) -> Profile | None:
        """On rank 0: what an earlier launch of this study has measured of the job, if it is still the same job."""
        if self.rank != 0:
            return None
        try:
            before = load_profile(Path(self.task.folder))
        except BadInput:
            return None
        now = self._facts()
        same = before.world_size == self.world_size and before.modules == now.modules
        return before if same else None

    def _gather(self) -> Profile | None:
        """What is known of the job, on rank 0."""
        self.exchange.report("before", self._rank_report())
        return self._profile_from("before") if self.rank == 0 else None

    def _open_study(self, profile: Profile) -> Tuner:
        static = any(module.static_graph for module in self.modules) or self.task.search.static_graph
        write_json(Path(self.task.folder) / PROFILE, profile)
        return Tuner(
            JobFacts.of(profile, ddp.takes_lists(), "measured" if self.config.emulate is None else "emulated"),
            self.task.search,
            self.task.storage,
            self.task.study,
            self.task.trials,
            self.task.steps,
            most_rounds=self.task.rounds,
            settle_steps=_SETTLE_STEPS_STATIC if static else _SETTLE_STEPS,
            steps_before=self.observer.progress.steps if self.observer.progress else 0,
            step_ns=profile.step.median_ns if profile.step else None,
            starts=self.task.starts,
        )

    def _tune(self) -> Flow:
        settings = InPlace(self.modules, self.emulation)
        self.own_ns, self.began_ns = 0, time.perf_counter_ns()
        self._forward_waits = forward_waits(self.modules)
        number = 0
        while (order := self.exchange.from_rank_0(f"block/{number}", self._next_order(), Order)).steps:
            failed = self._put_in_force(settings, order.candidate, number)
            told = Times([])
            if not failed:
                for _ in range(order.settle_steps):
                    yield
                steps: list[Step] = []
                self._begin_block()
                for _ in range(order.steps):
                    steps.append((yield))
                told, failed = self._slowest(steps)
            if self.tuner is not None:
                self._tell(self.tuner, told, settings, failed)
            number += 1
        self.observer.study_over = True
        self._put_in_force(settings, order.candidate, number)
        if order.failure is not None:
            raise WorkFailed(order.failure)

    def _train_until_it_is_open(self) -> Flow:
        """A thread imports Optuna and opens the study, which takes a second; a few steps need not wait for it."""
        for number in range(_MOST_WAITING_STEPS):
            opening = self.tuner is not None and not self.tuner.is_open()
            if not self.exchange.from_rank_0(f"opening/{number}", opening, bool):
                break
            yield
            if self.tuner is not None:
                self.tuner.steps += 1

    # ---- a block ------------------------------------------------------------------------------------------------

    def _next_order(self) -> Order:
        """On rank 0 the next block, or the end of the study; whatever went wrong, the others must hear of it."""
        if self.tuner is None:
            return Order(candidate=CURRENT, steps=0)  # another rank's word counts
        try:
            block = self.tuner.next_block()
            if block is None:
                result = self.tuner.result()
                return Order(candidate=result.best.candidate() if result.significant else CURRENT, steps=0)
        except BucketlabError as error:
            return Order(candidate=CURRENT, steps=0, failure=str(error))
        self._show(block)
        return Order(candidate=block.candidate, steps=block.steps, settle_steps=block.settle_steps)

    def _put_in_force(self, settings: InPlace, candidate: Candidate, number: int) -> int:
        """Changes the buckets on all ranks or on none; the number of a failure, or 0."""
        if candidate == settings.in_force:
            return 0
        failure = 0
        try:
            settings.apply(candidate)
        except (torch.OutOfMemoryError, MemoryError):
            failure = 3
        except RuntimeError as error:
            self.notes.append(f"{candidate}: {error}")
            failure = 2
        if self.exchange.anybody(f"failed/{number}", bool(failure)):
            settings.in_force = candidate  # on some ranks or in some modules
            settings.apply(CURRENT)
            return failure or 2
        return 0

    def _begin_block(self) -> None:
        if self.emulation is not None:
            self.emulation.reset()

    def _slowest(self, steps: list[Step]) -> tuple[Times, int]:
        """Of each step that was as usual on all ranks the slowest rank's times, and whether something went wrong."""
        clock = self._clock()
        clock.settle()
        usual = self.usual.are_like_others(steps, clock)
        walls = [
            clock.between(one.start, one.end) if is_usual else _NOT_USABLE_NS
            for one, is_usual in zip(steps, usual, strict=True)
        ]
        untouched = [Untouched.of(one, clock) for one in steps]
        # Where ranks wait for each other in the forward pass, the shortest one is that of the rank which waits least.
        sign = -1 if self._forward_waits else 1
        forwards, optimizers = [sign * one.forward_ns for one in untouched], [one.optimizer_ns for one in untouched]
        valid = self.emulation is None or self.emulation.report().valid
        mine = [*walls, *forwards, *optimizers, 0 if valid else 1]
        shared = torch.tensor(mine, dtype=torch.int64, device=self.device)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self.modules[0].process_group)
        *slowest, failed = shared.tolist()
        walls, forwards, optimizers = (slowest[part * len(steps) : (part + 1) * len(steps)] for part in range(3))
        usable = [number for number, wall in enumerate(walls) if wall < _NOT_USABLE_NS]
        outside = [abs(forwards[number]) + optimizers[number] for number in usable]
        return Times([walls[number] for number in usable], outside if all(outside) else []), failed

    def step_ended(self, step: Step) -> None:
        began_ns = time.perf_counter_ns()
        try:
            super().step_ended(step)
        finally:
            self.own_ns += time.perf_counter_ns() - began_ns

    def _tell(self, tuner: Tuner, times: Times, settings: InPlace, failed: int) -> None:
        block = tuner.next_block()
        assert block is not None
        failure = _FAILURES[failed] if failed else None
        built = [] if failed else settings.bucket_bytes()
        tuner.tell(block, times.step_ns, built, failure, untouched_ns=times.untouched_ns)

    def _show(self, block: Block) -> None:
        """For the launch on this host: what to show, and which trial to blame if the job dies now."""
        assert self.tuner is not None
        if time.monotonic() >= self._show_again_at:
            self._progress = self.tuner.progress()
            self._show_again_at = time.monotonic() + _SHOW_SECONDS
        assert self._progress is not None
        live = LiveStudy(progress=self._progress, in_force=block.number)
        with contextlib.suppress(OSError):  # a full disk; the study itself will say so
            write_live(self.observer.control, live)

    # ---- the end ------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """The script came to its end before the study did."""
        self._write_result()

    def _write_result(self) -> None:
        if self.tuner is None or not self.tuner.has_begun():
            return
        result = self._with_facts(self.tuner.result())
        self.tuner.close()
        try:
            write_json(Path(self.task.folder) / RESULT, result)
        except OSError as error:  # what was found took long to find: it is at least told
            raise WorkFailed(
                f"{cannot_write(error, Path(self.task.folder))} What it would say: {answer(result)}"
            ) from None
        if self.config.keep_running and result.finished:
            what = result.how_to_apply if result.significant else "the script's own buckets: nothing was surely faster"
            say(f"tuned after {result.steps} steps, trains on with {what}")

    def _with_facts(self, result: Tuning) -> Tuning:
        return msgspec.structs.replace(
            result,
            script=self.config.script,
            command=self.config.command,
            storage=shown_url(self.task.storage),
            own_share=None if self.began_ns is None else self.own_ns / (time.perf_counter_ns() - self.began_ns),
            variables={name: os.environ[name] for name in self.task.watched if name in os.environ},
            notes=[*self.notes, *result.notes],
        )
