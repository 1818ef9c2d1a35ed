"""Processes that benchmarks measure: a command with its time and memory, and ranks of a module under torchrun."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec

_ROOT = Path(__file__).parents[1]
_RESULT = "BENCH_RESULT"

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One process, or the medians of several."""

    wall_s: float
    cpu_s: float  # of it and of the processes that it waited for
    peak_bytes: int

    @classmethod
    def median(cls, runs: Sequence[Run]) -> Run:
        return cls(
            wall_s=statistics.median(run.wall_s for run in runs),
            cpu_s=statistics.median(run.cpu_s for run in runs),
            peak_bytes=round(statistics.median(run.peak_bytes for run in runs)),
        )


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Runs a command to its end, start of Python and imports included. Raises SystemExit where it fails."""
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=_ROOT, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read()[-2000:].decode(errors='replace')}")
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def in_ranks(
    module: str,
    ranks: int,
    kind: type[T],
    environment: Mapping[str, str] | None = None,
    output: TextIO = sys.stderr,
) -> T:
    """What rank 0 of `python -m MODULE` told with `tell`; what ranks print goes to `output`.

    Raises:
        subprocess.CalledProcessError: a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        path = os.pathsep.join(filter(None, [(environment or {}).get("PYTHONPATH"), str(_ROOT)]))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        subprocess.run(
            [*command, "-m", module],
            env={**os.environ, **(environment or {}), "PYTHONPATH": path, _RESULT: str(result)},
            stdout=output,
            check=True,
        )
        return msgspec.json.decode(result.read_bytes(), type=kind)


def is_rank() -> bool:
    """Whether this process was started by `in_ranks`."""
    return _RESULT in os.environ and "RANK" in os.environ


def tell(result: object) -> None:
    """Hands this back to who called `in_ranks`. For rank 0 alone."""
    Path(os.environ[_RESULT]).write_bytes(msgspec.json.encode(result))
