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

T = TypeVar("T")

_AGREE_SECONDS = 120.0


class Exchange:
    """Named values between the ranks of one job. Every method may raise `torch.distributed.DistError`."""

    def __init__(self, store: dist.Store, rank: int, world_size: int) -> None:
        self._store = dist.PrefixStore("bucketlab", store)
        self.rank = rank
        self.world_size = world_size

    def from_rank_0(self, key: str, value: T, kind: type[T]) -> T:
        """Rank 0's value, on every rank."""
        if self.rank == 0:
            self._set(key, msgspec.json.encode(value))
            return value
        self._store.wait([key], timedelta(seconds=_AGREE_SECONDS))
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
        self._store.wait([f"{key}/all"], timedelta(seconds=_AGREE_SECONDS))
        return self._store.add(f"{key}/yes", 0) > 0

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # the stub says str, the store takes both

    def report(self, key: str, value: object) -> None:
        self._set(f"{key}/{self.rank}", zlib.compress(msgspec.json.encode(value), 1))

    def reports(self, key: str, kind: type[T], seconds: float) -> list[T | None]:
        """What each rank reported, by rank; None for one that did not within the time, which is for all of them."""
        deadline = time.monotonic() + seconds
        return [self._one_report(f"{key}/{rank}", kind, deadline) for rank in range(self.world_size)]

    def _one_report(self, key: str, kind: type[T], deadline: float) -> T | None:
        patience = max(0.05, deadline - time.monotonic())
        try:
            self._store.wait([key], timedelta(seconds=patience))
            return msgspec.json.decode(zlib.decompress(self._store.get(key)), type=kind)
        except dist.DistError:
            return None
