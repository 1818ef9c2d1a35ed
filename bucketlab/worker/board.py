"""Where the ranks of one machine write down when their buckets are ready: memory that they share.

    board = Board.of(group)         # on every rank of the group
    slot = board.write(time.perf_counter_ns())
    board.latest(slot)              # greatest of all ranks' times for that slot, None until all have written it

No message and no thread: a rank writes its time before it starts the bucket's all-reduce, so once that is over all
times are there. For ranks that share files, memory and a clock; across machines there is none of these.
"""

from __future__ import annotations

import itertools
import mmap
import os
import platform
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from bucketlab.errors import WorkFailed

SLOTS = 2**14  # more than one backward pass has buckets: no rank is further ahead of another
_SHARED_MEMORY = Path("/dev/shm")

Times = npt.NDArray[np.int64]


class Slot(NamedTuple):
    """One bucket's place on the board, and this rank's time in it."""

    number: int
    ready_ns: int


class Board:
    """Ranks write for the same buckets in the same order.

    Args:
        times: (ranks, SLOTS), zero, the same memory on every rank.
        rank: whose row this one writes.
    """

    def __init__(self, times: Times, rank: int) -> None:
        self._numbers = itertools.count()
        self._times = times
        self._rank = rank

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Board:
        """To be called on every rank of the group at the same time.

        Raises:
            WorkFailed: on every rank, where some of them share no memory with the first.
        """
        return cls(_shared_times(group), dist.get_rank(group))

    def write(self, ready_ns: int) -> Slot:
        """Notes this rank's time for the next bucket, of a clock that counts from the machine's start.

        The last bit of what is written tells the laps round the board apart, so the time that counts is even or odd.
        """
        number = next(self._numbers)
        ready_ns = ready_ns & ~1 | _mark(number)
        self._times[self._rank, number % SLOTS] = ready_ns
        return Slot(number, ready_ns)

    def latest(self, slot: Slot) -> int | None:
        """When the last rank's bucket was ready; None while some rank's is not."""
        times = self._times[:, slot.number % SLOTS]
        there = bool(((times & 1 == _mark(slot.number)) & (times > 0)).all())
        return int(times.max()) if there else None


def _mark(number: int) -> int:
    return number // SLOTS % 2


def _shared_times(group: dist.ProcessGroup) -> Times:
    ranks, first = dist.get_world_size(group), dist.get_rank(group) == 0
    made = _make_file(ranks * SLOTS * 8) if first else None
    told = [(str(made), _clock())] if first else [("", "")]
    dist.broadcast_object_list(told, group=group, group_src=0)
    path, clock = told[0]
    times = _mapped(Path(path), ranks) if clock == _clock() else None
    all_see_it = torch.tensor([times is not None], dtype=torch.int32)
    dist.all_reduce(all_see_it, dist.ReduceOp.MIN, group=group)
    if made is not None:
        made.unlink()
    if times is None or not int(all_see_it):
        raise WorkFailed(
            "a link is emulated between processes of one machine that share its memory, and not all ranks do: "
            f"start them on one machine, outside of containers of their own, with {ranks * SLOTS * 8 // 2**10} KiB "
            f"free in {_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else tempfile.gettempdir()}"
        )
    return times


def _make_file(size_bytes: int) -> Path | None:
    """Whole, so that no rank is ended by a write that finds no memory."""
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    try:
        descriptor, name = tempfile.mkstemp(prefix="bucketlab-", dir=folder)
    except OSError:
        return None
    path = Path(name)
    try:
        os.write(descriptor, bytes(size_bytes))
    except OSError:
        path.unlink()
        return None
    finally:
        os.close(descriptor)
    return path


def _mapped(path: Path, ranks: int) -> Times | None:
    try:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), ranks * SLOTS * 8)
    except (OSError, ValueError):
        return None
    return np.frombuffer(memory, dtype=np.int64).reshape(ranks, SLOTS)


def _clock() -> str:
    """The same text for processes in which `time.perf_counter_ns` is one clock: that of one running kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/time").readlink())
    except OSError:
        return platform.node()
