"""One trace of one rank: torch.profiler over some steps, written whole, named as TensorBoard wants it. Reads none."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import shutil
import time
from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from bucketlab.worker import ddp


class Recorder:
    """A context manager over the steps of the window; `path` is the finished trace, if there is one.

    Shapes are recorded, since on CPU they are the only place where the size of a collective stands. Only one profiler
    can record at a time: when the script starts its own, this one gives way and `gave_way` is set.
    """

    def __init__(self, folder: Path, rank: int, steps: int, device: torch.device) -> None:
        self.path = folder / f"rank{rank}.{time.time_ns()}.pt.trace.json.gz"
        self.gave_way = False
        self._plain = folder / f".{self.path.name}.{os.getpid()}.json"
        self._others = ddp.before_profilers_start(self._give_way)
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
        )

    def __enter__(self) -> None:
        self._others.__enter__()
        self._profiler.start()

    def step(self) -> None:
        if not self.gave_way:
            self._profiler.step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._others.__exit__(kind, error, trace)
        if not self.gave_way:
            self._profiler.stop()

    def _give_way(self, starting: object) -> None:
        if starting is self._profiler.profiler or self.gave_way:
            return
        self.gave_way = True
        self._profiler.stop()

    def _write(self, profiler: profile) -> None:
        if self.gave_way:
            return
        packed = self._plain.with_suffix(".gz")
        try:
            profiler.export_chrome_trace(str(self._plain))
            _check_whole(self._plain)
            with self._plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
                shutil.copyfileobj(source, target, 2**20)
            packed.replace(self.path)
        finally:
            for leftover in (self._plain, packed):
                with contextlib.suppress(OSError):
                    leftover.unlink()


def _check_whole(path: Path) -> None:
    """Kineto says nothing when it could not write a trace, or not all of it."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(-64, os.SEEK_END)
        if file.read().rstrip().endswith(b"}"):
            return
    try:
        with path.open("ab") as file:
            file.write(b" ")
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO), str(path.parent)) from None
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
