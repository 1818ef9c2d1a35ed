"""Sees what the script does: its DDP modules, backward passes and optimizer steps. Measures and changes nothing.

Public hooks of torch where there are any; otherwise a wrapper that notes the time and calls the original. What to do
at the end of a step is the session's business.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from bucketlab.worker.config import WorkerConfig
from bucketlab.worker.progress import (
    END_SIGNAL,
    PHASES,
    STACK_SIGNAL,
    Ending,
    ProgressFile,
    first_line,
    write_ending,
)

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from bucketlab.worker.clock import Clock, Mark
    from bucketlab.worker.session import Session

# An optimizer that has not stepped while another stepped this often is taken for one that never does.
_PATIENCE_STEPS = 10
# Steps without any DDP module after which the run is ended: it would go on to its end with nothing to measure.
_STEPS_WITHOUT_DDP = 50
_RETIRED_AFTER_STEPS = 50  # of others, after which the optimizer that ended steps is taken to be gone
_LET_GO_SECONDS = 0.1


@dataclass(slots=True)
class Step:
    """One optimizer step as the host saw it; marks are on the device's time line."""

    start: Mark
    called: Mark | None = None  # first forward of a DDP module, gradients enabled
    backward_start: Mark | None = None  # of the first backward that synchronises gradients
    backward_end: Mark | None = None  # of the last one
    end: Mark | None = None
    backwards: int = 0
    evaluations: int = 0  # forwards without gradients
    batches: list[int | None] = field(default_factory=list)  # of each other forward, length of its first tensor
    # From a backward's end to the next forward, the last of the step before to this one's start included.
    pauses: list[tuple[Mark, Mark]] = field(default_factory=list)
    loading: list[tuple[Mark, Mark]] = field(default_factory=list)  # pauses between `called` and `backward_start`
    # Calls of optimizers' `step`, without those whose closure runs a backward pass.
    optimizing: list[tuple[Mark, Mark]] = field(default_factory=list)
    skipped: bool = False  # a GradScaler found infinities and skipped the optimizer


class Observer:
    """One for each process, made when torch is imported by a rank or when a DDP module is built."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.modules: list[weakref.ref[DistributedDataParallel]] = []
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self.called: set[int] = set()  # ids of modules that trained
        self.alternatives: list[str] = []
        self.optimizer_steps = 0
        self.step_now: Step | None = None
        self.session: Session | None = None
        self.clock: Clock | None = None
        self.error: str | None = None
        self.failure: str | None = None
        self.stopped_by_us = False
        self.study_over = False
        self._pid = os.getpid()
        self._anchor: weakref.ref[torch.optim.Optimizer] | None = None
        self._without_anchor = 0  # steps of other optimizers since it stepped
        self._steps_of: Counter[int] = Counter()
        self._relevant: dict[int, bool] = {}
        self._syncing_forward: bool | None = None
        self._pause_began: Mark | None = None  # None while the model runs
        self._times_optimizers = False  # as is asked for on CPUs only
        # The optimizer that steps now, by its id, since when, and after how many backward passes of the step.
        self._optimizing: tuple[int, Mark, int] | None = None
        self._backwards_running = 0  # reentrant checkpointing has some within another
        self._torch_watched = False
        self.control = Path(config.control)
        self.progress = ProgressFile(self.control) if self.control.is_dir() else None
        self._stacks = self._offer_stacks()
        self._main_can_be_ended = _let_main_thread_end()
        self._note_exceptions()
        # At interpreter exit, before the process group is gone. A forked child of multiprocessing leaves without
        # atexit, but runs finalizers.
        atexit.register(self.script_ends)
        multiprocessing.util.Finalize(None, self.script_ends, exitpriority=1000)

    # ---- what the script builds -------------------------------------------------------------------------------

    def saw(self, name: str) -> None:
        if name not in self.alternatives:
            self.alternatives.append(name)

    def ddp_built(self, module: DistributedDataParallel) -> None:
        from bucketlab.worker import ddp

        ddp.note_built(module)
        self.modules.append(weakref.ref(module))
        self._relevant.clear()
        if self._torch_watched:
            return
        self._torch_watched = True
        self._watch_torch()
        from bucketlab.worker.clock import clock_for

        device = next(module.parameters()).device
        self.clock = clock_for(device)
        self._times_optimizers = device.type == "cpu"
        self.session = self._session()

    def _session(self) -> Session:
        if self.config.task == "tune":
            from bucketlab.worker.tune_session import TuneSession

            return TuneSession(self)
        if self.config.task == "apply":
            from bucketlab.worker.apply_session import ApplySession

            return ApplySession(self)
        from bucketlab.worker.session import Session

        return Session(self)

    def live_modules(self) -> list[DistributedDataParallel]:
        return [module for reference in self.modules if (module := reference()) is not None]

    def trained_modules(self) -> list[DistributedDataParallel]:
        """Modules whose forward was seen; where none was, as under torch.compile, all of them."""
        live = self.live_modules()
        return [module for module in live if id(module) in self.called] or live

    def stepped_optimizers(self) -> list[torch.optim.Optimizer]:
        return [one for reference in self.optimizers if (one := reference()) is not None]

    # ---- what the script does ---------------------------------------------------------------------------------

    def _watch_torch(self) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        forward: Any = DistributedDataParallel.forward
        backward: Any = torch.autograd.backward

        @functools.wraps(forward)
        def watched_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                self._forward_begins(module, torch.is_grad_enabled(), args, kwargs)
            return forward(module, *args, **kwargs)

        @functools.wraps(backward)
        def watched_backward(*args: Any, **kwargs: Any) -> Any:
            syncs = self._backward_begins()
            try:
                return backward(*args, **kwargs)
            finally:
                self._backward_ends(syncs)

        DistributedDataParallel.forward = watched_forward  # type: ignore[method-assign, assignment]
        torch.autograd.backward = watched_backward
        self._watch_grad_scaler()

    def _watch_grad_scaler(self) -> None:
        """A scaler that finds infinities does not call the optimizer at all: that is the end of a step, too."""
        import torch

        scaler_step: Any = torch.amp.GradScaler.step

        @functools.wraps(scaler_step)
        def watched_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.optimizer_steps
            result = scaler_step(scaler, optimizer, *args, **kwargs)
            if self.optimizer_steps == before:
                self.optimizer_stepped(optimizer, skipped=True)
            return result

        torch.amp.GradScaler.step = watched_step  # type: ignore[method-assign, assignment]

    def _forward_begins(
        self, module: DistributedDataParallel, gradients: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        step = self.step_now
        if not gradients:
            if step is not None:
                step.evaluations += 1
            return
        self.called.add(id(module))
        syncs = bool(module.require_backward_grad_sync)
        self._syncing_forward = syncs or bool(self._syncing_forward)
        if step is None:
            return
        assert self.clock is not None
        step.batches.append(_batch_size(args, kwargs))
        self._pause_ends(step)
        if step.called is None:
            step.called = self.clock.mark()

    def _pause_ends(self, step: Step) -> None:
        if self._pause_began is not None:
            assert self.clock is not None
            pause = self._pause_began, self.clock.mark()
            step.pauses.append(pause)
            if step.called is not None and step.backward_start is None:
                step.loading.append(pause)
            self._pause_began = None

    def _backward_begins(self) -> bool:
        self._backwards_running += 1
        syncs = self._syncing_forward
        if syncs is None:  # a compiled forward is not seen
            syncs = any(module.require_backward_grad_sync for module in self.live_modules())
        self._syncing_forward = None
        step = self.step_now
        if step is None:
            return syncs
        step.backwards += 1
        self._pause_ends(step)
        if syncs and step.backward_start is None:
            assert self.clock is not None
            step.backward_start = self.clock.mark()
        return syncs

    def _backward_ends(self, syncs: bool) -> None:
        self._backwards_running -= 1
        if self.step_now is None:
            return
        assert self.clock is not None
        now = self.clock.mark()
        if syncs:
            self.step_now.backward_end = now
        if not self._backwards_running:
            self._pause_began = now

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """To step; one that wraps another takes that one's time with it."""
        if self.clock is None or not self._times_optimizers or os.getpid() != self._pid or self.step_now is None:
            return
        if self._backwards_running or not self._is_relevant(optimizer):  # it steps while gradients are still reduced
            return
        if self._optimizing is None or self._optimizing[0] == id(optimizer):
            self._optimizing = id(optimizer), self.clock.mark(), self.step_now.backwards

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        if self._optimizing is None or self._optimizing[0] != id(optimizer):
            return
        _, began, backwards = self._optimizing
        self._optimizing = None
        if self.step_now is not None and self.step_now.backwards == backwards:
            assert self.clock is not None
            self.step_now.optimizing.append((began, self.clock.mark()))

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer, skipped: bool = False) -> None:
        if os.getpid() != self._pid:  # a fork of the training process is none of our business
            return
        self.optimizer_steps += 1
        if self.progress is not None:
            self.progress.write()  # a sign of life, whichever optimizer stepped
        if not self.modules:
            self._maybe_give_up()
            return
        self._optimizer_ends(optimizer)
        if self.session is None or not self._is_relevant(optimizer) or not self._ends_a_step(optimizer):
            return
        assert self.clock is not None
        now = self.clock.mark()
        finished, self.step_now = self.step_now, Step(start=now)
        if finished is not None:
            finished.end = now
            finished.skipped = skipped
            if self._pause_began is not None:
                finished.pauses.append((self._pause_began, now))
                self.step_now.pauses.append((self._pause_began, now))
            self.session.step_ended(finished)
            self.step_now.start = self.clock.mark()  # what the session did between two steps is in neither
        self._pause_began = self.step_now.start

    def _maybe_give_up(self) -> None:
        if self.optimizer_steps < _STEPS_WITHOUT_DDP or self.config.keep_running:
            return
        import torch.distributed as dist

        if dist.is_initialized() or self.alternatives or "RANK" in os.environ:
            self.end_script()

    # ---- which optimizer ends a step --------------------------------------------------------------------------

    def _is_relevant(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it steps parameters of a DDP module."""
        key = id(optimizer)
        if key not in self._relevant:
            reduced = {id(parameter) for module in self.live_modules() for parameter in module.parameters()}
            groups = optimizer.param_groups
            self._relevant[key] = any(id(parameter) in reduced for group in groups for parameter in group["params"])
        return self._relevant[key]

    def _ends_a_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Several optimizers, one after the other, make one step; the one that steps least often, or last, ends it."""
        if self._anchor is not None:
            self._without_anchor = 0 if self._anchor() is optimizer else self._without_anchor + 1
            if self._anchor() is not None and self._without_anchor < _RETIRED_AFTER_STEPS:
                return self._anchor() is optimizer
            # The script has put another optimizer in its place.
            self._anchor, self._without_anchor = None, 0
            self._steps_of.clear()
            self._relevant.clear()
            self.optimizers = [weakref.ref(optimizer)]
        self._steps_of[id(optimizer)] += 1
        if not self.optimizers:
            self.optimizers = [weakref.ref(one) for one in self._relevant_optimizers()]
        known = [one for reference in self.optimizers if (one := reference()) is not None]
        waiting = [one for one in known if not self._steps_of[id(one)]]
        if waiting and max(self._steps_of.values()) < _PATIENCE_STEPS:
            return False
        self.optimizers = [weakref.ref(one) for one in known if one not in waiting]
        # Every known optimizer has stepped now: the last of them to do so for the first time is this one.
        self._anchor = weakref.ref(optimizer if not waiting else self._least_often(known, optimizer))
        return self._anchor() is optimizer

    def _least_often(self, known: list[torch.optim.Optimizer], latest: torch.optim.Optimizer) -> torch.optim.Optimizer:
        stepping = [one for one in known if self._steps_of[id(one)]]
        fewest = min((self._steps_of[id(one)] for one in stepping), default=0)
        candidates = [one for one in stepping if self._steps_of[id(one)] == fewest]
        return latest if latest in candidates or not candidates else candidates[-1]

    def _relevant_optimizers(self) -> list[torch.optim.Optimizer]:
        import torch

        # By type, since isinstance would ask every object for its class, and some answer with a warning.
        found = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
        return [one for one in found if hasattr(one, "param_groups") and self._is_relevant(one)]

    # ---- how it ends ------------------------------------------------------------------------------------------

    def end_script(self) -> None:
        """Ends the script as `sys.exit(0)` in its main thread would: its clean-up runs, its exit code is 0."""
        self.stopped_by_us = True
        main = threading.main_thread()
        if self._main_can_be_ended and threading.current_thread() is not main and main.ident is not None:
            signal.pthread_kill(main.ident, END_SIGNAL)  # which waits for this thread, or for what it brings
        raise SystemExit(0)

    def script_ends(self) -> None:
        if os.getpid() != self._pid or self._pid == -1:
            return
        if self.session is not None and self.error is None:
            self.session.script_ends()
        with contextlib.suppress(Exception):
            self.write_ending()
        self._pid = -1  # atexit and multiprocessing's finalizer both come here
        if self.modules:
            # gloo's threads may still hold objects of Python's that belong to the last all-reduces; if they let go of
            # them after the interpreter is gone, the process aborts (torch 2.13).
            time.sleep(_LET_GO_SECONDS)

    def write_ending(self) -> None:
        if self.progress is None or not self.control.is_dir():
            return
        ending = Ending(
            pid=os.getpid(),
            rank=self.progress.rank if self.progress.rank >= 0 else int(os.environ.get("RANK", -1)),
            time_ns=time.time_ns(),
            phase=PHASES[self.progress.phase],
            steps=self.progress.steps,
            error=self.error,
            failure=self.failure,
            saw=self.alternatives,
            ddp_modules=len(self.modules),
            optimizer_steps=self.optimizer_steps,
            stopped_by_us=self.stopped_by_us,
            study_over=self.study_over,
        )
        write_ending(self.control, ending)

    def _note_exceptions(self) -> None:
        original = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            with contextlib.suppress(Exception):
                self.error = first_line(kind, error)
                self.write_ending()
            original(kind, error, trace)

        sys.excepthook = note

    def _offer_stacks(self) -> Any:
        """On a signal the stacks of all threads go to a file, even while the interpreter is stuck in a collective."""
        if self.progress is None:
            return None
        file = (self.control / f"{os.getpid()}.stacks").open("w")
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
        return file


def _let_main_thread_end() -> bool:
    """Whether the main thread now ends at a signal, out of whatever it waits for; another's handler is left alone."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(END_SIGNAL) != signal.SIG_DFL:
        return False

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(END_SIGNAL, leave)
    return True


def _batch_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    for one in (*args, *kwargs.values()):
        shape = getattr(one, "shape", None)
        if shape is not None and len(shape):
            return int(shape[0])
    return None
