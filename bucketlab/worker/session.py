"""One profiled run, inside the training process: warm-up, timing, trace, ready times, link, report.

`Session.flow` reads from top to bottom in that order; each `yield` lets the script train one more step. All ranks
walk through it in step, since each optimizer step follows a collective.

Everything is imported at once, early: a script that ends before its measurement is reported while the interpreter
shuts down, when some modules can no longer be imported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import socket
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
import torch.distributed as dist

import bucketlab
from bucketlab.analysis import analyze_trace
from bucketlab.analysis.profile import build_profile
from bucketlab.errors import WorkFailed
from bucketlab.link.nccl_log import check_link, explain, logs_of_process, what_was_used
from bucketlab.link.sweep import LinkModel, curve_of
from bucketlab.predict import predict, unsayable
from bucketlab.predict.advice import advise
from bucketlab.predict.assignment import assign
from bucketlab.runs import write_run
from bucketlab.saying import say
from bucketlab.schema.analysis import RankAnalysis
from bucketlab.schema.profile import Gradient, LinkPoint, Module, Profile
from bucketlab.schema.rank import RankReport, RehearsedSteps, RunFacts, TimedStep, TopologySteps
from bucketlab.trace.kineto import read_trace
from bucketlab.worker import ddp, memory
from bucketlab.worker.comparison import Comparison, turns, why_not_compared
from bucketlab.worker.emulate import Emulation
from bucketlab.worker.exchange import Exchange, GaveUp
from bucketlab.worker.link import LinkMeter
from bucketlab.worker.progress import PHASES
from bucketlab.worker.ready import HeldBack, ReadyTimes, why_not_held_back
from bucketlab.worker.recorder import Recorder
from bucketlab.worker.rehearsal import Rehearsal
from bucketlab.worker.usual import Usual

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from bucketlab.worker.clock import Clock, Mark
    from bucketlab.worker.observe import Observer, Step

_MIB = 2**20  # DDP's "mb"
_TIMING_SECONDS = 5.0
_FEWEST_TIMED, _MOST_TIMED = 20, 200
_MOST_HELD_BACK, _HELD_BACK_SECONDS = 15, 2.0  # further steps whose communication is held back
_SETTLING_STEPS = 4  # of a new reducer, until DDP tells its buckets again
# The rest of the time box is for slow links, on which buckets matter most, to reach the whole gradient at all.
_REPEAT_LINK_SECONDS = 3.0
_TOPOLOGY_ROUNDS, _STEPS_OF_A_TURN = 4, 5
_STEPS_OF_A_NEW_REDUCER = 2  # the first backward of one is not like the others
_PATIENCE_WITH_ANOTHER_PROFILER = 50  # steps
_COMING_SECONDS = 10.0  # how long ranks that train wait for those that may not
_RANK_SECONDS = 60.0  # how long rank 0 waits for the others' reports

# Capacities that are rehearsed, as parts of all gradients: many buckets and few. How many steps of each.
_REHEARSED_PARTS = (16, 4)
_FEWEST_REHEARSED, _MOST_REHEARSED = 4, 8

_NO_SPACE, _NOT_WRITABLE = "Free some space or choose --out.", "Make it writable or choose --out."
_REMEDIES = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EROFS: _NOT_WRITABLE,
    errno.EACCES: _NOT_WRITABLE,
}

Flow = Generator[None, "Step", None]


class Session:
    """The measurement of one process; made when its first DDP module is."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.config = observer.config
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.exchange = Exchange(ddp.default_store(), self.rank, self.world_size)
        self.device = next(observer.live_modules()[0].parameters()).device
        self.backend = _backend(observer.live_modules()[0].process_group, self.device)
        self.fixed_bytes = self._fixed_bytes()
        self.peak_bytes = 0
        self.modules: list[DistributedDataParallel] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.usual = Usual()
        self.timed: list[Step] = []
        self.layouts: dict[int, ddp.Layout] = {}  # id of module -> its buckets while steps were timed
        self.analysis: RankAnalysis | None = None
        self.ready: dict[int, list[int]] = {}
        self.held_back: list[tuple[Step, int]] = []  # with ns from the start of its backward to its last gradient
        # Capacity, layout, and its steps, each with ns to its last gradient and the end of its last all-reduce.
        self.rehearsed: list[tuple[int, list[list[int]], list[tuple[Step, int, Mark | None]]]] = []
        self.link_points: list[LinkPoint] = []
        self.link_dtype = ""
        self.topologies: dict[str, TopologySteps] = {}
        self.not_valid: str | None = None
        self.missing: list[str] = []
        self.notes: list[str] = []
        self.seconds: dict[str, float] = {}
        self.apart = False  # some rank is elsewhere: nothing more can be agreed on
        self.profiled_by_the_script = 0  # timed steps
        self.complete = False  # all has been measured once
        self._flow: Flow | None = self.flow()
        if observer.progress is not None:
            observer.progress.rank = self.rank
        next(self._flow)

    # ---- the run, top to bottom -------------------------------------------------------------------------------

    def flow(self) -> Flow:
        yield from self._warm_up()
        if self.config.emulate is not None:
            yield from self._run_on_emulated_link(self.config.emulate)
        else:
            with self._phase("timing", _FEWEST_TIMED):
                yield from self._time(min(_FEWEST_TIMED, self.config.timed_steps or _FEWEST_TIMED))
            self._look_at_memory_and_buckets()
            if self.config.only_time:
                yield from self._time(self._agree_on_more_timed_steps())
                self._report()
                return
            with self._phase("tracing", self.config.traced_steps + 1):
                yield from self._trace()
        with self._phase("ready times", self.config.ready_steps + 1):
            yield from self._take_ready_times(self.config.ready_steps)
        if self.config.emulate is None:
            with self._phase("link"):
                self._measure_link()
            if self.config.compare_topologies:
                yield from self._compare_topologies()
            # More steps make the step time surer; they come last, so that a short script misses nothing else.
            more = self._agree_on_more_timed_steps()
            self.complete = True
            held_back = self._agree_on_more_held_back_steps()
            rehearsed = _steps_to_rehearse(held_back) if held_back and self._can_rehearse() else 0
            with self._phase("more timing", max(0, more) + self._steps_held_back(held_back, rehearsed)):
                yield from self._time(more)
                if held_back:
                    yield from self._take_ready_times(held_back, rehearsed)
        self.complete = True
        with self._phase("writing"):
            self._report()

    def _warm_up(self) -> Flow:
        """Steps that nothing is measured in; after them it is known what trains, and which ranks do."""
        with self._phase("warm-up", self.config.warmup_steps):
            for _ in range(self.config.warmup_steps):
                yield
        # Held from here to the report, which may come when the script has already let go of them.
        self.modules, self.optimizers = self.observer.trained_modules(), self.observer.stepped_optimizers()
        self._find_out_who_trains()

    def _find_out_who_trains(self) -> None:
        """Where DDP reduces within a group, other ranks may train in groups of their own, or not at all."""
        group = self.modules[0].process_group
        training = dist.get_world_size(group)
        if training < self.world_size and not self.exchange.everybody_is_here("train", _COMING_SECONDS):
            of_all = f"{training} of the job's {self.world_size} ranks"
            self.notes.append(f"{of_all} train this module: only they are measured")
            self.exchange = self.exchange.within(group)
            self.rank, self.world_size = self.exchange.rank, self.exchange.world_size
        self.exchange.join_host(socket.gethostname())

    def _look_at_memory_and_buckets(self) -> None:
        self.peak_bytes = memory.peak_bytes(self.device)
        self.layouts = {id(module): ddp.layout(module) for module in self.modules}

    def _run_on_emulated_link(self, model: LinkModel) -> Flow:
        """Only timed: a trace would show the real link's collectives."""
        self._look_at_memory_and_buckets()
        curve = curve_of(model)
        emulation = Emulation(curve, curve.concurrency)
        for module in self.modules:
            emulation.install(module)
        try:
            for _ in range(_SETTLING_STEPS):
                yield
            emulation.reset()
            with self._phase("timing", _FEWEST_TIMED):
                yield from self._time(min(_FEWEST_TIMED, self.config.timed_steps or _FEWEST_TIMED))
                yield from self._time(self._agree_on_more_timed_steps())
        finally:
            self.not_valid = emulation.report().why_not_valid
            emulation.remove()
        self.missing.append("trace: collectives of an emulated link are in none, only the real link's are")

    def _time(self, steps: int) -> Flow:
        for _ in range(steps):
            self.timed.append((yield))
            self.profiled_by_the_script += ddp.profiler_is_running()

    def _agree_on_more_timed_steps(self) -> int:
        """As many as fit in a few seconds, the same number on every rank."""
        if self.apart:
            return 0
        if self.config.timed_steps is not None:
            return max(0, self.config.timed_steps - len(self.timed))
        walls = sorted(step.wall_ns for step in self._timed_steps())
        fits = int(_TIMING_SECONDS * 1e9 / max(1, walls[len(walls) // 2]))
        return self.exchange.from_rank_0("more-timed-steps", min(_MOST_TIMED, fits) - len(self.timed), int)

    def _agree_on_more_held_back_steps(self) -> int:
        """As many as fit in a short time: few steps tell little where steps differ. None where communication runs."""
        if self.apart or self.config.timed_steps is not None:
            return 0
        fits = int(
            _HELD_BACK_SECONDS
            * 1e9
            / max([1, *(self._clock().between(one.start, one.end) for one, _ in self.held_back)])
        )
        return self.exchange.from_rank_0(
            "more-held-back-steps", min(_MOST_HELD_BACK, fits) if self.held_back else 0, int
        )

    def _trace(self) -> Flow:
        # Scripts often profile on one rank alone; all must wait for it, to stay in step.
        for number in range(_PATIENCE_WITH_ANOTHER_PROFILER):
            if not self.exchange.anybody(f"profiler/{number}", ddp.profiler_is_running()):
                break
            yield
        else:
            self.missing.append("trace: the script's own torch.profiler was running all the time")
            return
        folder = self._run_folder()
        folder.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(folder, self.rank, self.config.traced_steps, self.device)
        with recorder:
            for _ in range(self.config.traced_steps + 1):  # the profiler's own warm-up takes one
                yield
                recorder.step()
        if recorder.gave_way:
            self.missing.append("trace: the script started its own torch.profiler meanwhile, and ours gave way")
            return
        self.analysis = analyze_trace(read_trace(recorder.path))

    def _take_ready_times(self, steps: int, rehearsed: int = 0) -> Flow:
        modules = self.modules
        obstacles = [reason for module in modules if (reason := why_not_held_back(module))]
        times = ReadyTimes(self._clock())
        if obstacles:
            self.notes.append(f"ready times were taken while communication ran, so they are late: {obstacles[0]}")
            with times.watching(modules):
                yield from self._note_ready_times(times, steps, self.ready)
            return
        with HeldBack(modules, [self.layouts[id(one)] for one in modules]) as held, times.watching(modules):
            yield  # the first backward of a new reducer is not like the others
            self.held_back += yield from self._note_ready_times(times, steps, self.ready)
            if rehearsed:
                yield from self._rehearse(held, times, rehearsed)

    def _steps_held_back(self, steps: int, rehearsed: int) -> int:
        """How many `_take_ready_times` will take: capacities that make the same buckets are rehearsed once."""
        if not steps:
            return 0
        layouts = {str(self._layout_of(cap_bytes)) for cap_bytes in self._rehearsed_caps()} if rehearsed else ()
        return 1 + steps + rehearsed * len(layouts)

    def _can_rehearse(self) -> bool:
        """On every rank: one module, one backward pass a step, all gradients in each, and memory for a second copy."""
        [module, *others] = self.modules
        parameters = [one for _, one in ddp.named_parameters(module)]
        obstacle = (
            bool(others)
            or why_not_held_back(module) is not None
            or self.usual.backwards() != 1
            or dist.get_world_size(module.process_group) < self.world_size
            or module.find_unused_parameters
            or not all(id(one) in self.ready for one in parameters)
            or (
                self.device.type == "cuda"
                and torch.cuda.mem_get_info(self.device)[0] < 2 * sum(one.nbytes for one in parameters)
            )
        )
        return not self.exchange.anybody("cannot-rehearse", obstacle)

    def _rehearse(self, held: HeldBack, times: ReadyTimes, steps: int) -> Flow:
        """Other layouts than the one in force: how much compute and communication slow each other depends on it."""
        [module] = self.modules
        tried: list[list[list[int]]] = []
        for cap_bytes in self._rehearsed_caps():
            layout = self.exchange.from_rank_0(f"rehearsed/{cap_bytes}", self._layout_of(cap_bytes), list[list[int]])
            if layout in tried:
                continue
            tried.append(layout)
            rehearsal = Rehearsal(module, layout, self._clock())
            times.on_ready = rehearsal.note
            held.before_reducing(rehearsal.finish)
            noted: list[tuple[Step, int, Mark | None]] = []
            try:
                for _ in range(steps):
                    timed = yield from self._note_ready_times(times, 1, {})
                    noted += [(step, last_ns, rehearsal.end) for step, last_ns in timed]
            finally:
                times.on_ready = None
                held.before_reducing(None)
                self.rehearsed.append((cap_bytes, layout, noted))

    def _rehearsed_caps(self) -> list[int]:
        [module] = self.modules
        gradient_bytes = sum(one.nbytes for _, one in ddp.named_parameters(module))
        return [max(1, gradient_bytes // part) for part in _REHEARSED_PARTS]

    def _layout_of(self, cap_bytes: int) -> list[list[int]]:
        """Positions of parameters in buckets of this capacity, as DDP would form them."""
        [module] = self.modules
        parameters = [one for _, one in ddp.named_parameters(module)]
        order = sorted(range(len(parameters)), key=lambda at: self._ready_ns(parameters[at]) or 0)
        sizes = [parameters[at].nbytes for at in order]
        kinds = [parameters[at].dtype for at in order]
        return [[order[one] for one in bucket] for bucket in assign(sizes, [cap_bytes], kinds)]

    def _note_ready_times(
        self, times: ReadyTimes, steps: int, ready: dict[int, list[int]]
    ) -> Generator[None, Step, list[tuple[Step, int]]]:
        """Steps whose gradients were timed, with ns from the start of the backward to the last gradient.

        Args:
            times: noted so far.
            steps: to take.
            ready: gets ns from the start of the backward to each parameter's gradient.
        """
        clock = self._clock()
        noted = []
        for _ in range(steps):
            times.marks.clear()
            step = yield
            if step.backward_start is None or not self.usual.is_like_others(step):
                continue
            clock.settle()
            for parameter, mark in times.marks.items():
                ready.setdefault(parameter, []).append(clock.between(step.backward_start, mark))
            last_ns = [clock.between(step.backward_start, mark) for mark in times.marks.values()]
            if last_ns:
                noted.append((step, max(last_ns)))
        return noted

    def _measure_link(self) -> None:
        if dist.get_world_size(self.modules[0].process_group) == 1:
            self.missing.append("link: one rank has none")
            return
        if not self.exchange.everybody_is_here("link", _RANK_SECONDS):
            self.missing.append("link: not every rank came to this step")
            self.apart = True
            return
        module = self.modules[0]
        parameters = [one for _, one in ddp.named_parameters(module)]
        dtype = Counter(one.dtype for one in parameters).most_common(1)[0][0]
        gradient_bytes = sum(one.nbytes for one in parameters)
        seconds = self.config.link_seconds
        meter = LinkMeter(module.process_group, dtype, self.device, seconds, repeat_seconds=_REPEAT_LINK_SECONDS)
        measurement = meter.measure(gradient_bytes)
        self.link_points = measurement.points
        self.link_dtype = str(dtype).removeprefix("torch.")
        if measurement.cut_at_bytes is not None:
            self.notes.append(
                f"the link was measured up to {measurement.cut_at_bytes / _MIB:.3g} MiB, not to the whole gradient of "
                f"{gradient_bytes / _MIB:.3g} MiB: no time or no memory for more (--link-seconds)"
            )

    def _compare_topologies(self) -> Flow:
        reason = "not every rank is here" if self.apart else why_not_compared(self.modules)
        if reason is not None:
            self.missing.append(f"topologies: {reason}")
            return
        comparison = Comparison(self.modules, [self.layouts[id(module)] for module in self.modules])
        in_turn = turns(_TOPOLOGY_ROUNDS)
        with self._phase("topologies", len(in_turn) * (_STEPS_OF_A_NEW_REDUCER + _STEPS_OF_A_TURN)):
            try:
                for name in in_turn:
                    comparison.use(name)
                    yield from self._take_a_turn(name, comparison)
            finally:
                comparison.end()

    def _take_a_turn(self, name: str, comparison: Comparison) -> Flow:
        for _ in range(_STEPS_OF_A_NEW_REDUCER):
            yield
        comparison.count_anew()
        steps: list[Step] = []
        for _ in range(_STEPS_OF_A_TURN):
            steps.append((yield))
        clock = self._clock()
        clock.settle()
        so_far = self.topologies.setdefault(name, TopologySteps(name=name))
        so_far.steps += [self._timed_step(clock, step) for step in steps]
        so_far.reduced_bytes += comparison.traffic.reduced_bytes
        so_far.sent_bytes += comparison.traffic.sent_bytes
        so_far.received_bytes += comparison.traffic.received_bytes

    # ---- between the script and the flow ----------------------------------------------------------------------

    def step_ended(self, step: Step) -> None:
        """One step of the script is over; whatever goes wrong in here is ours, and the script goes on or ends well."""
        self._count_step()
        if self._flow is None:
            return
        self.usual.saw(step)
        try:
            self._flow.send(step)
            return
        except StopIteration:
            self._enter("done")
        except Exception as error:
            self._give_up(error)
        self._flow = None
        if not self.config.keep_running:
            self.observer.end_script()

    def script_ends(self) -> None:
        """The script came to its end before the flow did: report what there is."""
        flow, self._flow = self._flow, None
        if flow is None:
            return
        reached = PHASES[self.observer.progress.phase] if self.observer.progress else "the measurement"
        try:
            flow.close()
            if not self.timed:
                return
            if not self.complete:
                self.missing.append(f"the script ended during {reached}: train longer to get what comes after it")
            self._report()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._enter("done")  # nothing more comes from here, and the launch must not wait for it
        if isinstance(error, GaveUp):
            return
        with contextlib.suppress(dist.DistError):
            self.exchange.give_up()
        self._note_failure(error)
        if self.config.keep_running:  # the launch tells of it when the script ends, which may be days away
            say(f"{self.observer.failure} The script trains on.")

    def _note_failure(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            self.observer.failure = cannot_write(error, self._run_folder())
            return
        if isinstance(error, WorkFailed):
            self.observer.failure = str(error)
            return
        self.observer.failure = f"measuring failed ({type(error).__name__}: {error}); the script is not to blame"
        if os.environ.get("BUCKETLAB_DEBUG"):
            traceback.print_exception(error)

    # ---- the report -------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self.exchange.report("report", self._rank_report())
        if self.rank == 0:
            write_run(self._run_folder(), self._profile_from("report"), self.config.launch)

    def _profile_from(self, key: str) -> Profile:
        """On rank 0, of what the ranks reported under this key."""
        reports = self.exchange.reports(key, RankReport, _RANK_SECONDS)
        not_valid = next((report.not_valid for report in reports if report and report.not_valid), None)
        if not_valid:
            raise WorkFailed(f"the emulation is not valid: {not_valid}. Emulate a slower link, or run on a faster one.")
        contradictions = [one for report in reports if report for one in report.contradictions]
        if contradictions:
            raise WorkFailed(explain(self.config.wanted_link, contradictions))
        profile = build_profile(self._facts(), reports)
        profile.prediction = predict(profile)
        if profile.prediction is None:
            profile.missing += unsayable(profile)
        profile.advice = advise(profile)
        return profile

    def _rank_report(self) -> RankReport:
        peak = self.peak_bytes or memory.peak_bytes(self.device)
        logs = logs_of_process(self.observer.control, os.getpid())
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE") or self.exchange.ranks_on(socket.gethostname()))
        return RankReport(
            rank=self.rank,
            host=socket.gethostname(),
            device=self._device_name(),
            steps=self._timed_steps(),
            held_back=self._held_back_steps(),
            rehearsed=self._rehearsed_steps(),
            analysis=self.analysis,
            memory=memory.measure(self.modules, self.optimizers, self.device, peak, self.fixed_bytes, ranks_here),
            nccl=what_was_used(logs) if logs else None,
            not_valid=self.not_valid,
            contradictions=check_link(self.config.wanted_link, logs) if self.config.wanted_link else [],
            missing=self.missing,
            seconds=self.seconds,
            topologies=list(self.topologies.values()),
        )

    def _facts(self) -> RunFacts:
        modules = self.modules
        names = [ddp.named_parameters(module) for module in modules]
        layouts = [self.layouts.get(id(module)) or ddp.layout(module) for module in modules]
        return RunFacts(
            run=self._run_name(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            script=self.config.script,
            command=self.config.command,
            versions=_versions(),
            world_size=self.world_size,
            backend=self.backend,
            accumulation=self.usual.backwards(),
            modules=[self._describe(*one) for one in zip(modules, names, layouts, strict=True)],
            bucket_parameters=[
                [[named[index][0] for index in bucket] for bucket in buckets]
                for named, buckets in zip(names, layouts, strict=True)
            ],
            optimizers=[type(one).__name__ for one in self.optimizers],
            gradients=[
                Gradient(
                    module=index,
                    name=name,
                    bytes=parameter.nbytes,
                    dtype=str(parameter.dtype).removeprefix("torch."),
                    ready_ns=self._ready_ns(parameter),
                    declared=declared,
                    sparse=sparse,
                )
                for index, (module, named) in enumerate(zip(modules, names, strict=True))
                for declared, ((name, parameter), sparse) in enumerate(
                    zip(named, ddp.parameters_of_reducer(module)[1], strict=True)
                )
            ],
            link_points=self.link_points,
            link_dtype=self.link_dtype,
            wanted_link=self.config.wanted_link,
            emulated=self.config.emulate,
            missing=[],
            notes=self.notes + self._own_profiler(),
        )

    def _describe(
        self,
        module: DistributedDataParallel,
        named: list[tuple[str, torch.nn.Parameter]],
        buckets: ddp.Layout,
    ) -> Module:
        setting = ddp.capacities(module)
        sizes = [parameter.nbytes for _, parameter in named]
        return Module(
            name=type(module.module).__name__,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            bucket_cap_mb=setting.cap / _MIB,
            first_bucket_mb=setting.first / _MIB,
            bucket_cap_mb_list=[cap / _MIB for cap in setting.each],
            is_default=ddp.is_default_capacity(module),
            gradient_as_bucket_view=bool(module.gradient_as_bucket_view),
            find_unused_parameters=bool(module.find_unused_parameters),
            static_graph=bool(module.static_graph),
            communication_hook=ddp.hook_of(module),
            compiled=ddp.is_compiled_inside(module) or id(module) not in self.observer.called,
            bucket_bytes=[sum(sizes[index] for index in bucket) for bucket in buckets],
        )

    def _own_profiler(self) -> list[str]:
        steps = self.profiled_by_the_script
        return [f"{steps} of the timed steps ran under the script's own torch.profiler"] if steps else []

    # ---- small questions --------------------------------------------------------------------------------------

    def _timed_steps(self) -> list[TimedStep]:
        clock = self._clock()
        clock.settle()
        regular = self.usual.are_like_others(self.timed, clock)
        return [
            msgspec.structs.replace(self._timed_step(clock, step), regular=is_regular)
            for step, is_regular in zip(self.timed, regular, strict=True)
        ]

    def _timed_step(self, clock: Clock, step: Step) -> TimedStep:
        def since_start(mark: Mark | None) -> int | None:
            return None if mark is None else clock.between(step.start, mark)

        forward_ns, backward_end_ns = since_start(step.backward_start), since_start(step.backward_end)
        backward_ns = None if forward_ns is None or backward_end_ns is None else backward_end_ns - forward_ns
        return TimedStep(
            wall_ns=clock.between(step.start, step.end),
            input_ns=since_start(step.called),
            forward_ns=forward_ns,
            backward_ns=backward_ns,
            regular=self.usual.is_like_others(step),
        )

    def _held_back_steps(self) -> list[TimedStep]:
        if self.config.emulate is not None:  # their communication took the real link
            return []
        clock = self._clock()
        return [
            msgspec.structs.replace(self._timed_step(clock, step), computed_ns=last_ns)
            for step, last_ns in self.held_back
        ]

    def _rehearsed_steps(self) -> list[RehearsedSteps]:
        clock = self._clock()
        sizes = [one.nbytes for _, one in ddp.named_parameters(self.modules[0])]
        return [
            RehearsedSteps(
                cap_bytes=cap_bytes,
                bucket_bytes=[sum(sizes[at] for at in bucket) for bucket in layout],
                steps=[
                    msgspec.structs.replace(
                        self._timed_step(clock, step),
                        computed_ns=last_ns,
                        rehearsed_ns=None
                        if end is None or step.backward_start is None
                        else clock.between(step.backward_start, end),
                    )
                    for step, last_ns, end in noted
                ],
            )
            for cap_bytes, layout, noted in self.rehearsed
        ]

    def _ready_ns(self, parameter: torch.Tensor) -> int | None:
        samples = self.ready.get(id(parameter))
        return round(statistics.median(samples)) if samples else None

    def _clock(self) -> Clock:
        assert self.observer.clock is not None
        return self.observer.clock

    def _run_name(self) -> str:
        return self.exchange.from_rank_0("run", self.config.run, str)

    def _run_folder(self) -> Path:
        return Path(self.config.out) / self._run_name()

    def _device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def _fixed_bytes(self) -> int:
        """Memory that does not grow with the model: interpreter and libraries, or what others hold on the GPU."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            return total - free - torch.cuda.memory_reserved(self.device)
        parameters = list(self.observer.live_modules()[0].parameters())
        model = sum(one.nbytes for one in parameters)
        buckets = sum(one.nbytes for one in parameters if one.requires_grad)
        return max(0, memory.resident_bytes() - model - buckets)

    # ---- progress ---------------------------------------------------------------------------------------------

    @contextmanager
    def _phase(self, name: str, total: int = 0) -> Iterator[None]:
        self._enter(name, total)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - began, 3)

    def _enter(self, name: str, total: int = 0) -> None:
        if self.observer.progress is not None:
            self.observer.progress.enter(name, total)

    def _count_step(self) -> None:
        progress = self.observer.progress
        if progress is not None:
            progress.done += 1
            progress.steps += 1
            progress.write()


def cannot_write(error: OSError, folder: Path) -> str:
    """The line for a file that could not be written, or for the folder where the error names none."""
    remedy = _REMEDIES.get(error.errno or 0, "Choose another folder with --out.")
    return f"cannot write {error.filename or folder}: {error.strerror}. {remedy}"


def _backend(group: dist.ProcessGroup, device: torch.device) -> str:
    """What reduces tensors of this device: a group made without naming a backend has one for each kind of device."""
    for pair in dist.get_backend_config(group).split(","):
        kind, _, backend = pair.partition(":")
        if kind == device.type and backend:
            return backend
    return str(dist.get_backend(group))


def _versions() -> dict[str, str]:
    versions = {
        "bucketlab": bucketlab.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


def _steps_to_rehearse(held_back: int) -> int:
    """Of each layout, where so many steps were held back as fit in their time."""
    return min(_MOST_REHEARSED, max(_FEWEST_REHEARSED, held_back))
