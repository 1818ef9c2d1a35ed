"""Ranks agree and report through the job's own store, never through a collective of ours that a dead rank would hang.

A rank that is gone costs the others a bounded wait and its own share of the report.
"""

from __future__ import annotations

import time
import zlib
from datetime import timedelta
from typing import TypeVar

import msgspec
import torch.distributed as dist

from bucketlab.errors import WorkFailed
from bucketlab.worker.progress import NOT_EVERY_RANK_CAME

T = TypeVar("T")

_AGREE_SECONDS = 120.0
_GAVE_UP = "gave-up"
_AT_ONCE_SECONDS = 20.0  # longer than rank 0 takes to choose: torch warns where this time is not enough
_LOOK_SECONDS = 0.2


class GaveUp(Exception):
    """Another rank has given up, and says why itself."""


class Exchange:
    """Named values between the ranks of one job.

    Every method may raise `torch.distributed.DistError`; one that waits also `GaveUp`, and WorkFailed where others do
    not come.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, prefix: str = "bucketlab") -> None:
        self._whole = store
        self._store = dist.PrefixStore(prefix, store)
        self.rank = rank
        self.world_size = world_size

    def within(self, group: dist.ProcessGroup) -> Exchange:
        """Between the ranks of a group alone, numbered as there."""
        ranks = dist.get_process_group_ranks(group)
        prefix = "-".join(["bucketlab", *map(str, ranks)])
        return Exchange(self._whole, dist.get_rank(group), len(ranks), prefix)

    def give_up(self) -> None:
        """Lets the others know that this rank comes to no further agreement."""
        self._set(_GAVE_UP, b"yes")

    def from_rank_0(self, key: str, value: T, kind: type[T]) -> T:
        """Rank 0's value, on every rank."""
        if self.rank == 0:
            self._set(key, msgspec.json.encode(value))
            return value
        self._wait(key, _AGREE_SECONDS)
        return msgspec.json.decode(self._store.get(key), type=kind)

    def everybody_is_here(self, key: str, seconds: float) -> bool:
        """Whether every rank came to this point within the time; all ranks get the same answer."""
        if self._store.add(f"{key}/count", 1) == self.world_size:
            self._set(f"{key}/all", b"yes")
        try:
            self._store.wait([f"{key}/all"], timedelta(seconds=seconds))
        except dist.DistError:
            # The last rank may come just now: what counts is who sets the key first.
            return bytes(self._store.compare_set(f"{key}/all", "", "no")) == b"yes"
        return bytes(self._store.get(f"{key}/all")) == b"yes"

    def anybody(self, key: str, value: bool) -> bool:
        """Whether it is so on any rank; every rank must ask."""
        if value:
            self._store.add(f"{key}/yes", 1)
        if self._store.add(f"{key}/count", 1) == self.world_size:
            self._set(f"{key}/all", b"yes")
        self._wait(f"{key}/all", _AGREE_SECONDS)
        return self._store.add(f"{key}/yes", 0) > 0

    def _wait(self, key: str, seconds: float) -> None:
        """The store's own wait first, since it loses no time; but it would go on when another rank has given up."""
        try:
            self._store.wait([key], timedelta(seconds=min(_AT_ONCE_SECONDS, seconds)))
            return
        except dist.DistError:
            deadline = time.monotonic() + seconds - _AT_ONCE_SECONDS
        while not self._store.check([key]):
            if self._store.check([_GAVE_UP]):
                raise GaveUp
            if time.monotonic() > deadline:
                raise WorkFailed(f"{NOT_EVERY_RANK_CAME} within {seconds:g} s: do all of them train the same modules?")
            time.sleep(_LOOK_SECONDS)

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # the stub says str, the store takes both

    def join_host(self, host: str) -> None:
        """Counts this rank to its host: launchers differ in what they tell a rank of its neighbours."""
        if self._store.add(f"host/{host}", 1) == 1:
            self._store.add("hosts", 1)

    def ranks_on(self, host: str) -> int:
        """Once all ranks have joined their hosts, as they have after the next collective."""
        return self._store.add(f"host/{host}", 0)

    def hosts(self) -> int:
        """Likewise."""
        return self._store.add("hosts", 0)

    def report(self, key: str, value: object) -> None:
        self._set(f"{key}/{self.rank}", zlib.compress(msgspec.json.encode(value), 1))

    def reports(self, key: str, kind: type[T], seconds: float) -> list[T | None]:
        """What each rank reported, by rank; None for one that did not within the time, which is for all of them."""
        deadline = time.monotonic() + seconds
        return [self._one_report(f"{key}/{rank}", kind, deadline) for rank in range(self.world_size)]

    def _one_report(self, key: str, kind: type[T], deadline: float) -> T | None:
        try:
            self._wait(key, max(0.05, deadline - time.monotonic()))
            return msgspec.json.decode(zlib.decompress(self._store.get(key)), type=kind)
        except (dist.DistError, GaveUp, WorkFailed):
            return None
