"""Gets bucketlab into a training process without a change to the script: waits for torch's modules to be imported.

Runs in every Python process of a launch, so it imports nothing heavy and does nothing until torch appears.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from bucketlab.worker.config import VARIABLE

Action = Callable[[ModuleType], None]

# Exceptions in which torchrun hands on how its ranks ended, or with which all end at Ctrl-C. Where the job only runs to
# be measured, the command says it in a line; their tracebacks would push the script's own out of sight.
_TOLD_BY_THE_COMMAND = ("ChildFailedError", "SignalException", "KeyboardInterrupt")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs an action once a named module has been executed, whoever imports it."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        action = self._actions.pop(fullname, None)
        if action is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then_act(module: ModuleType) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Called by `sitecustomize`."""
    if VARIABLE not in os.environ:
        return
    if os.getppid() == _config().launcher_pid:
        _follow_the_launcher_into_death()
    if os.getppid() == _config().launcher_pid or _is_told_its_rank():
        _note_early_exceptions()
    actions: dict[str, Action] = {
        "torch.distributed.distributed_c10d": _when_groups_exist,
        "torch.nn.parallel.distributed": _when_ddp_exists,
        "torch.optim.optimizer": _when_optimizers_exist,
        "torch.nn.parallel.data_parallel": _note_class("DataParallel"),
        "torch.distributed.fsdp.fully_sharded_data_parallel": _note_class("FullyShardedDataParallel"),
        "torch.distributed.fsdp._fully_shard._fully_shard": _note_fully_shard,
        "torch.distributed.elastic.multiprocessing.errors": _note_failed_ranks,
        "torch.distributed.elastic.multiprocessing.api": _note_death_signals,
    }
    sys.meta_path.insert(0, _AfterImport(actions))


def _is_told_its_rank() -> bool:
    """Kubeflow's PyTorchJob tells torchrun a RANK too: that of its pod."""
    words = {word.rpartition("/")[2] for word in sys.orig_argv[1:4]}
    return "RANK" in os.environ and not words & {"torch.distributed.run", "torchrun", "accelerate"}


def _follow_the_launcher_into_death() -> None:
    """torchrun's agent ends its ranks when it is told to; this tells it when bucketlab itself was killed."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _note_early_exceptions() -> None:
    """Of torchrun itself, of a script that spawns its ranks, or of a rank before it has imported torch."""
    original = sys.excepthook
    keeps_running = _config().keep_running

    def note(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        with contextlib.suppress(Exception):
            if not observer.cache_info().currsize:  # which notes exceptions itself, and knows more
                _write_early_error(kind, error)
        if keeps_running or kind.__name__ not in _TOLD_BY_THE_COMMAND:
            original(kind, error, trace)

    sys.excepthook = note


def _write_early_error(kind: type[BaseException], error: BaseException) -> None:
    import time
    from pathlib import Path

    from bucketlab.worker.progress import Ending, first_line, write_ending

    control = Path(_config().control)
    if kind.__name__ == "ChildFailedError" or not control.is_dir():
        return  # the ranks that failed are named with their exit codes
    if kind.__name__ == "ProcessRaisedException":  # torch.multiprocessing.spawn: the child's traceback as text
        text, rank = str(error).strip().splitlines()[-1], getattr(error, "error_index", -1)
    else:
        text, rank = first_line(kind, error), int(os.environ["RANK"]) if _is_told_its_rank() else -1
    write_ending(control, Ending(pid=os.getpid(), rank=rank, time_ns=time.time_ns(), phase="", steps=0, error=text))


def _config() -> Any:
    import msgspec

    from bucketlab.worker.config import WorkerConfig

    return msgspec.json.decode(os.environ[VARIABLE], type=WorkerConfig)


@functools.cache
def observer() -> Any:
    """The one observer of this process."""
    from bucketlab.worker.observe import Observer

    return Observer(_config())


def _when_ddp_exists(module: ModuleType) -> None:
    original = module.DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        observer_of_process = observer()
        setting = observer_of_process.config.setting
        if setting is not None:
            from bucketlab.worker.setting import build_with

            build_with(setting.candidate, original, self, args, kwargs)
        else:
            original(self, *args, **kwargs)
        observer_of_process.ddp_built(self)
        _keep_compilers_out()

    module.DistributedDataParallel.__init__ = __init__
    if _is_told_its_rank():
        observer()


def _when_optimizers_exist(module: ModuleType) -> None:
    _optimizer_hooks.append(module.register_optimizer_step_post_hook(_optimizer_stepped))


def _optimizer_begins(optimizer: Any, args: Any, kwargs: Any) -> None:
    observer().optimizer_begins(optimizer)


def _optimizer_stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    observer().optimizer_stepped(optimizer)


_optimizer_hooks: list[Any] = []  # handles of those that a compiler would look into


def _keep_compilers_out() -> None:
    """Under torch.compile, which a script may use for an optimizer's step, the hooks then run as they are.

    Not sooner: what is needed for it is there once a DDP module is, and takes long to import before.
    """
    if not _optimizer_hooks:
        return
    import torch
    from torch.optim import optimizer

    _optimizer_hooks.pop().remove()
    optimizer.register_optimizer_step_pre_hook(torch.compiler.disable(_optimizer_begins))
    optimizer.register_optimizer_step_post_hook(torch.compiler.disable(_optimizer_stepped))


def _when_groups_exist(module: ModuleType) -> None:
    """Just before NCCL reads its variables, so that what the script sets itself is left alone."""
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            _ask_nccl_for_its_log()
        return original(*args, **kwargs)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _ask_nccl_for_its_log() -> None:
    """What a job really used stands in NCCL's own log; into files of the launch, never into the script's output."""
    from pathlib import Path

    from bucketlab.link.nccl_log import debug_environment

    control = Path(_config().control)
    if control.is_dir():
        os.environ.update(debug_environment(control, os.environ))


def _note_class(name: str) -> Action:
    def act(module: ModuleType) -> None:
        owner = getattr(module, name)
        original = owner.__init__

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            observer().saw(name)

        owner.__init__ = __init__

    return act


def _note_fully_shard(module: ModuleType) -> None:
    original = module.fully_shard

    @functools.wraps(original)
    def fully_shard(*args: Any, **kwargs: Any) -> Any:
        observer().saw("fully_shard (FSDP2)")
        return original(*args, **kwargs)

    module.fully_shard = fully_shard  # type: ignore[attr-defined]


def _note_failed_ranks(module: ModuleType) -> None:
    """torchrun's agent names the ranks that failed in an exception; its exit codes are what the launch reports."""
    original = module.ChildFailedError.__init__

    @functools.wraps(original)
    def __init__(self: Any, name: str, failures: Any, *rest: Any, **kwargs: Any) -> None:
        from pathlib import Path

        from bucketlab.worker.progress import RankExit, write_exits

        exits = [
            RankExit(rank=rank, pid=one.pid, exit_code=one.exitcode, time_s=float(one.timestamp))
            for rank, one in failures.items()
        ]
        control = Path(_config().control)
        if control.is_dir():
            write_exits(control, exits)
        original(self, name, failures, *rest, **kwargs)

    module.ChildFailedError.__init__ = __init__


def _note_death_signals(module: ModuleType) -> None:
    """torchrun's agent passes the first on to its ranks and waits for them; another would cut that short."""
    original = module.SignalException.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        from pathlib import Path

        from bucketlab.worker.progress import note_told

        control = Path(_config().control)
        if control.is_dir():
            note_told(control)
        original(self, *args, **kwargs)

    module.SignalException.__init__ = __init__
