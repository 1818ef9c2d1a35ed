"""Bus bandwidth in the terms of nccl-tests, for traces and for measurements alike. Measures none."""

from __future__ import annotations


def bus_factor(op: str, ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth among n ranks; None where it is not defined.

    From nccl-tests, doc/PERFORMANCE.md; sizes as there: of all-gather the whole output, of reduce-scatter the whole
    input, of all-to-all all that one rank sends.
    """
    if ranks < 1:
        return None
    if op == "allreduce":
        return 2 * (ranks - 1) / ranks
    if op in ("reducescatter", "allgather", "alltoall", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0 if op in ("broadcast", "reduce", "sendrecv") else None


def bus_gb_s(op: str, size_bytes: int | None, ranks: int | None, duration_ns: int) -> float | None:
    """Bus bandwidth in 1e9 bytes per second; None where something is unknown or nothing took any time."""
    if size_bytes is None or ranks is None or duration_ns <= 0:
        return None
    factor = bus_factor(op, ranks)
    return None if factor is None else size_bytes / duration_ns * factor
