"""Starts a job, watches its progress, and stops it: nothing that it started outlives this call.

The script's own output goes where it would go without bucketlab.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

import bucketlab.worker
from bucketlab.errors import Interrupted
from bucketlab.launch.display import Display
from bucketlab.launch.scratch import scratch_folder
from bucketlab.saying import say
from bucketlab.worker.config import VARIABLE, WorkerConfig
from bucketlab.worker.progress import (
    PHASES,
    STACK_SIGNAL,
    Ending,
    Progress,
    RankExit,
    read_endings,
    read_exits,
    read_progress,
    was_told,
)

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 10.0  # for the job to end by itself once it was asked to
_STACK_SECONDS = 2.0
_TOLD_SECONDS = 0.5  # in which a launcher that was told to end, as we were, has noted it
_SAVING_SECONDS = 30.0  # torchrun gives its ranks as long
_HINT_SECONDS = 45.0
_LEFT_OVER_SECONDS = 15.0  # for processes that do not train, once all that do were ended by us
_HINT = (
    "no rank has built a DistributedDataParallel module yet. A script that starts its own processes "
    "(torch.multiprocessing.spawn) is given with its launcher, after two dashes: -- python SCRIPT"
)


@dataclass
class Outcome:
    """How a job went, as seen from outside."""

    exit_code: int
    endings: list[Ending]  # the earliest first
    exits: list[RankExit]
    progress: list[Progress]
    launcher_pid: int
    interrupted: bool = False
    stalled: bool = False
    stopped: bool = False  # by us, when only processes were left that train nothing
    stacks: dict[int, str] = field(default_factory=dict)  # rank -> stacks of its threads

    def rank_0_is_elsewhere(self) -> bool:
        """Whether ranks trained here and rank 0 is not one of them; one that died has left its progress."""
        trained = [one.rank for one in self.endings if one.ddp_modules and one.steps]
        here = [one.rank for one in self.progress if one.rank >= 0]
        return bool(trained) and 0 not in here


def supervise(
    argv: Sequence[str],
    configure: Callable[[Path], WorkerConfig],
    timeout_seconds: float,
    output_to_stderr: bool,
    further_environment: Mapping[str, str],
    on_end: Callable[[Path], None] = lambda control: None,
    plain: bool = False,
) -> Outcome:
    """Runs a job to its end.

    Args:
        argv: the command.
        configure: makes the workers' configuration, given the control folder.
        timeout_seconds: without a step for this long, the job is taken to hang and is stopped.
        output_to_stderr: sends the job's stdout to stderr, so that stdout stays clean for a document.
        further_environment: variables for the job, beside those of this process.
        on_end: is given the control folder once the job has ended, before it is gone.
        plain: shows the job's output and nothing else, also on a terminal.
    """
    with scratch_folder() as control, _signals_interrupt():
        config = configure(control)
        environment = _environment(config)
        display = Display(plain)
        process = subprocess.Popen(
            argv,
            env={**environment, **further_environment, **display.environment()},
            start_new_session=True,
            stdout=display.child_stdout(output_to_stderr),
            stderr=display.child_stderr(),
        )
        with display.following(process, output_to_stderr):
            outcome = _watch(process, control, timeout_seconds, display, config.keep_running)
        on_end(control)
        return outcome


def run_plainly(
    argv: Sequence[str], environment: dict[str, str], timeout_seconds: float, output_to_stderr: bool
) -> int | None:
    """Runs a launch that is all ours to its end; its exit code, or None where it was stopped for taking too long."""
    with _signals_interrupt():
        stdout = sys.stderr if output_to_stderr else None
        process = subprocess.Popen(argv, env=environment, start_new_session=True, stdout=stdout)
        try:
            return process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None
        except KeyboardInterrupt:
            raise Interrupted("interrupted: the launch was stopped before it had a result.") from None
        finally:
            _end(process, signal.SIGTERM)


def _watch(
    process: subprocess.Popen[bytes], control: Path, timeout_seconds: float, display: Display, trains: bool
) -> Outcome:
    stalled = stopped = False
    told: signal.Signals | None = None
    left_over_since: float | None = None
    stacks: dict[int, str] = {}
    began = last_sign = time.monotonic()
    hinted = False
    try:
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            progress = [one for one in read_progress(control) if _belongs_to_us(one.pid, control)]
            display.show(progress, control)
            last_sign = max([last_sign, *(one.heartbeat_ns / 1e9 for one in progress)])
            hinted = hinted or any(one.rank >= 0 for one in progress)
            if not hinted and time.monotonic() - began > _HINT_SECONDS:
                hinted = True
                say(_HINT)
            measured = bool(progress) and all(PHASES[one.phase] == "done" for one in progress if one.rank >= 0)
            if not measured and time.monotonic() - last_sign > timeout_seconds:
                stalled = True
                stacks = _stacks(control)
                break
            if not measured:
                continue
            left_over_since = (left_over_since or time.monotonic()) if _all_trained(control) else None
            if left_over_since is not None and time.monotonic() - left_over_since > _LEFT_OVER_SECONDS:
                stopped = True
                break
    except KeyboardInterrupt as interruption:
        told = interruption.number if isinstance(interruption, _ToldToEnd) else signal.SIGINT
    finally:
        if told is not None and trains:
            _let_it_save(process, control, told)
        _stop(process, control, told or signal.SIGTERM)
    return Outcome(
        exit_code=process.returncode,
        endings=read_endings(control),
        exits=read_exits(control),
        progress=read_progress(control),
        launcher_pid=process.pid,
        interrupted=told is not None,
        stalled=stalled,
        stopped=stopped,
        stacks=stacks,
    )


def _all_trained(control: Path) -> bool:
    """Whether each rank that trains came to its end because we ended it."""
    ended = {one.pid for one in read_endings(control) if one.stopped_by_us}
    ranks = {one.pid for one in read_progress(control) if one.rank >= 0}
    return bool(ranks) and ranks <= ended


def _environment(config: WorkerConfig) -> dict[str, str]:
    own = str(Path(bucketlab.worker.__file__).parent / "sitepath")
    theirs = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{own}{os.pathsep}{theirs}" if theirs else own,
        VARIABLE: msgspec.json.encode(config).decode(),
    }


def _let_it_save(process: subprocess.Popen[bytes], control: Path, told: signal.Signals) -> None:
    """Passes the signal on, and waits for a training to save its state: as long as its sender does, or until a second.

    Slurm tells every process of a job step, Kubernetes the first of a container alone. torchrun must not be told twice:
    it would leave its ranks behind.
    """
    with contextlib.suppress(KeyboardInterrupt):
        until = time.monotonic() + _TOLD_SECONDS
        while not was_told(control) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        if not was_told(control):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, told)
        process.wait()
        until = time.monotonic() + _SAVING_SECONDS
        while time.monotonic() < until and any(_belongs_to_us(one.pid, control) for one in read_progress(control)):
            time.sleep(_POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes], control: Path, first: signal.Signals) -> None:
    """Ends the launcher and its process group, then whatever else carries this launch in its environment."""
    _end(process, first)
    for pid in [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]:
        if pid != os.getpid() and _belongs_to_us(pid, control):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """Asks, insists, then kills."""
    for number in (first, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(_GRACE_SECONDS)
    process.wait()


def _belongs_to_us(pid: int, control: Path) -> bool:
    """Whether the process still runs and was started by this launch: process ids are used again."""
    if not Path("/proc/self/environ").exists():
        return True  # a system that does not tell
    try:
        return str(control).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _stacks(control: Path) -> dict[int, str]:
    ranks = {one.pid: one.rank for one in read_progress(control)}
    for pid in [pid for pid in ranks if _belongs_to_us(pid, control)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACK_SIGNAL)
    time.sleep(_STACK_SECONDS)
    found: dict[int, str] = {}
    for pid, rank in ranks.items():
        path = control / f"{pid}.stacks"
        if path.is_file() and rank not in found:
            found[rank] = path.read_text(errors="replace")
    return found


class _ToldToEnd(KeyboardInterrupt):
    """By a scheduler or a closed terminal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = signal.Signals(number)


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Being told to end, by a scheduler or a closed terminal, is the same as Ctrl-C: the job is stopped first.

    The signals that scripts agree on with Slurm go to every process of a job step: what they mean is the script's
    business, and the default, to die of them, would take the job along.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _ToldToEnd(number)

    def leave_it_to_the_script(number: int, frame: FrameType | None) -> None:
        pass

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        before[number] = signal.signal(number, leave_it_to_the_script)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
