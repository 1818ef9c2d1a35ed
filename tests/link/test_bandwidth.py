"""Bus bandwidth as nccl-tests counts it."""

from __future__ import annotations

import pytest

from bucketlab.link.bandwidth import bus_factor, bus_gb_s


def test_bus_bandwidth_is_that_of_nccl_tests():
    # its own example of 8 ranks: all-reduce moves 2(n-1)/n of the buffer per rank, all-gather (n-1)/n, broadcast all
    assert bus_gb_s("allreduce", 1_000_000, 8, 1_000) == pytest.approx(1750)
    assert bus_gb_s("allgather", 1_000_000, 8, 1_000) == pytest.approx(875)
    assert bus_gb_s("reducescatter", 1_000_000, 8, 1_000) == pytest.approx(875)
    assert bus_gb_s("alltoall", 1_000_000, 8, 1_000) == pytest.approx(875)
    assert bus_gb_s("broadcast", 1_000_000, 8, 1_000) == pytest.approx(1000)
    assert bus_gb_s("unknown", 1_000_000, 8, 1_000) is None
    assert bus_gb_s("allreduce", 1_000_000, 8, 0) is None
    assert bus_gb_s("allreduce", None, 8, 1_000) is None


def test_two_ranks_move_the_buffer_once_and_many_almost_twice():
    assert bus_factor("allreduce", 2) == 1.0
    assert bus_factor("allreduce", 8) == 1.75
    assert bus_factor("allreduce", 1) == 0.0
    assert bus_factor("allreduce", 0) is None
