"""How far each training process is and how it ended: written by the workers, read by the launch on the same host.

Progress is a few integers in a mapped file, so that noting a step costs the training about a microsecond; the end is
a small JSON file. Both live in the launch's control folder, which is gone with the launch.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

PHASES = (
    "starting",
    "warm-up",
    "timing",
    "tracing",
    "ready times",
    "link",
    "topologies",
    "more timing",
    "tuning",
    "writing",
    "done",
)
# Dumps the stacks of all threads; a real-time signal, since scripts and Slurm use SIGUSR1 and SIGUSR2 themselves.
STACK_SIGNAL = signal.SIGRTMIN + 7
# Ends the main thread of a script that trains in another one.
END_SIGNAL = signal.SIGRTMIN + 8
# How the failure of a rank begins that waited for others in vain; the launch looks for the one that is to blame.
NOT_EVERY_RANK_CAME = "not every rank came to the same step"
_LAYOUT = struct.Struct("<8q")  # pid, rank, phase, done, total, steps, heartbeat_ns, reserved
_SUFFIX = ".progress"
_TOLD = "told"


class Progress(msgspec.Struct, frozen=True):
    """How far one process is."""

    pid: int
    rank: int  # -1 until the process group exists
    phase: int  # index into PHASES
    done: int  # steps of the phase
    total: int  # 0: not known
    steps: int  # optimizer steps since the start
    heartbeat_ns: int  # time.monotonic_ns of the last sign of life


class Ending(msgspec.Struct, kw_only=True):
    """How one process ended, as far as the process itself could tell."""

    pid: int
    rank: int
    time_ns: int
    phase: str
    steps: int
    error: str | None = None  # the script's own exception, "Type: message"
    failure: str | None = None  # bucketlab's own trouble, with its remedy; the script is not to blame
    saw: list[str] = []  # what the script used instead of, or beside, DistributedDataParallel
    ddp_modules: int = 0
    optimizer_steps: int = 0
    stopped_by_us: bool = False
    study_over: bool = False


class RankExit(msgspec.Struct, kw_only=True):
    """What torchrun's agent says of a rank that failed."""

    rank: int
    pid: int
    exit_code: int
    time_s: float


def first_line(kind: type[BaseException], error: BaseException) -> str:
    """Of an exception, fit for a terminal and for JSON: its text may be anything, or raise itself."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    line = f"{kind.__name__}: {text}".strip().split("\n")[0]
    printable = "".join(letter if letter.isprintable() else "?" for letter in line[:2000])
    return printable.encode("utf-8", "replace").decode()


class ProgressFile:
    """The writing end, one for each process."""

    def __init__(self, control: Path) -> None:
        path = control / f"{os.getpid()}{_SUFFIX}"
        with path.open("w+b") as file:
            file.write(bytes(_LAYOUT.size))
            file.flush()
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        self.rank = -1
        self.phase = 0
        self.done = 0
        self.total = 0
        self.steps = 0
        self.write()

    def write(self) -> None:
        now_ns = time.monotonic_ns()
        row = (os.getpid(), self.rank, self.phase, self.done, self.total, self.steps, now_ns, 0)
        _LAYOUT.pack_into(self._map, 0, *row)

    def enter(self, phase: str, total: int = 0) -> None:
        self.phase, self.done, self.total = PHASES.index(phase), 0, total
        self.write()


def read_progress(control: Path) -> list[Progress]:
    """Progress of every process that left any, in no order."""
    rows: list[Progress] = []
    for path in control.glob(f"*{_SUFFIX}"):
        data = path.read_bytes()
        if len(data) == _LAYOUT.size:
            rows.append(Progress(*_LAYOUT.unpack(data)[:7]))
    return rows


def write_ending(control: Path, ending: Ending) -> None:
    _write_json(control / f"{ending.pid}.end.json", ending)


def write_exits(control: Path, exits: Sequence[RankExit]) -> None:
    _write_json(control / f"{os.getpid()}.exits.json", list(exits))


def read_endings(control: Path) -> list[Ending]:
    """Endings, the earliest first."""
    endings = [msgspec.json.decode(path.read_bytes(), type=Ending) for path in control.glob("*.end.json")]
    return sorted(endings, key=lambda ending: ending.time_ns)


def read_exits(control: Path) -> list[RankExit]:
    found = [msgspec.json.decode(path.read_bytes(), type=list[RankExit]) for path in control.glob("*.exits.json")]
    return [one for exits in found for one in exits]


def note_told(control: Path) -> None:
    """That a launcher was told to end and does so."""
    (control / _TOLD).touch()


def was_told(control: Path) -> bool:
    return (control / _TOLD).exists()


def _write_json(path: Path, value: object) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(value))
    temporary.replace(path)
