"""The document `bucketlab analyze --json` prints (`bucketlab.analysis/1`): plain data, saved and loaded with msgspec.

All times are integer nanoseconds; words as in the README: overlap is the time in which communication and compute
both run, exposed communication is the rest of communication.
"""

from __future__ import annotations

import msgspec

SCHEMA = "bucketlab.analysis/1"


class Totals(msgspec.Struct, kw_only=True):
    """Lengths of unions of intervals, unclipped, summed over the rank's devices."""

    communication_ns: int
    compute_ns: int
    memory_ns: int
    overlap_ns: int
    exposed_ns: int
    busy_ns: int
    kernels: int
    collectives: int


class CollectiveEvent(msgspec.Struct, kw_only=True):
    """One collective on one rank. Times count from the start of its step; None is "the trace does not say"."""

    op: str  # nccl-tests' names in lower case: "allreduce", "reducescatter", "allgather", ...; "unknown"
    elements: int | None
    bytes: int | None
    dtype: str | None
    group: str | None
    group_size: int | None
    sequence: int | None
    bucket: int | None  # index of the DDP bucket it carries, 0 is the first to be ready
    ready_ns: int | None
    start_ns: int
    end_ns: int
    overlap_ns: int
    exposed_ns: int
    bus_gb_s: float | None  # nccl-tests' bus bandwidth, 1e9 bytes per second
    queued_ns: int | None = None  # from ready to start, as far as the collective before it was still running
    transfer_ns: int | None = None  # without the wait for the last rank; known only across ranks
    wait_ns: int | None = None


class StepAnalysis(Totals, kw_only=True):
    """One step: everything launched in it."""

    name: str
    start_ns: int  # in the trace's own clock: what times of events count from, and what ranks are aligned by
    wall_ns: int
    idle_ns: int  # wall time in which the device runs nothing
    input_ns: int  # time the host spent waiting for the DataLoader
    events: list[CollectiveEvent]


class RankAnalysis(msgspec.Struct, kw_only=True):
    """One rank's trace."""

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    total: Totals
    steps: list[StepAnalysis]
    unattributed_kernels: int  # launched outside every step
    warnings: list[str]


class RankStragglers(msgspec.Struct, kw_only=True):
    """How late a rank comes to collectives, and how long it waits there for others (medians over steps)."""

    rank: int
    arrival_lag_ns: int
    wait_ns: int
    lag_p10_ns: int
    lag_p90_ns: int


class Stragglers(msgspec.Struct, kw_only=True):
    """Who is late at the synchronisation barrier."""

    by_rank: list[RankStragglers]
    verdict: str  # one sentence


class Analysis(msgspec.Struct, kw_only=True):
    """All ranks that were given."""

    schema: str = SCHEMA
    ranks: list[RankAnalysis]
    stragglers: Stragglers
    warnings: list[str]
