"""A link measured by the command: real ranks, real gloo, and on shaped hosts the rate that was configured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.link.testbed import INTERFACE, network, reason_unavailable
from bucketlab.medians import median_interval
from bucketlab.worker.link import LinkMeter, in_order_of_need
from tests.commands import ROOT, bucketlab, last_line


def test_sizes_grow_to_the_largest_asked_for_alone_and_in_pairs(tmp_path: Path) -> None:
    done = bucketlab("link", "--json", "--seconds", "60", "--max-mb", "2", cwd=tmp_path)  # which it needs few of
    assert done.returncode == 0, done.stderr[-3000:]
    link = json.loads(done.stdout)
    alone = [point["bytes"] for point in link["points"] if point["in_flight"] == 1]
    assert alone == sorted(alone)
    assert alone[0] == 4096 and alone[-1] == 2 * 2**20
    assert {point["bytes"] for point in link["points"] if point["in_flight"] == 2} == {2**16, 2**20}
    for point in link["points"]:
        assert point["low_ns"] <= point["ns"] <= point["high_ns"]
        assert point["algorithm_gb_s"] == pytest.approx(point["bytes"] / point["ns"], rel=0.01)
        assert point["bus_gb_s"] == pytest.approx(point["algorithm_gb_s"])  # two ranks move the buffer once
    assert link["kind"] == "measured"


def test_any_launcher_that_gives_ranks_will_do_and_dtype_is_ours_to_choose(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    done = bucketlab(
        "link", "--json", "--seconds", "2", "--max-mb", "1", "--dtype", "bfloat16", "--", *launcher, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    link = json.loads(done.stdout)
    assert (link["ranks"], link["dtype"]) == (3, "bfloat16")


def test_a_script_is_not_taken_for_a_launcher(tmp_path: Path) -> None:
    done = bucketlab("link", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "without a script" in last_line(done)


@pytest.mark.skipif(reason_unavailable() is not None, reason=f"no hosts to be had: {reason_unavailable()}")
def test_the_fit_is_of_the_order_of_the_configured_rate(tmp_path: Path) -> None:
    mbit_per_s = 100  # so slow that it is the link that takes the time, on a busy machine too
    with network(2, mbit_per_s=mbit_per_s) as hosts:
        nodes = []
        for index, host in enumerate(hosts):
            command = [
                *(sys.executable, "-m", "bucketlab", "link", "--json", "--seconds", "5", "--max-mb", "2"),
                *("--nnodes", "2", "--node-rank", str(index), "--nproc-per-node", "1"),
                *("--master-addr", hosts[0].address, "--master-port", "29500"),
            ]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONPATH": str(ROOT)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            nodes.append(host.popen(command, cwd=tmp_path, env=environment, **pipes))
        outputs = [node.communicate(timeout=200) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs[0][1][-3000:]
    link = json.loads(outputs[0][0])
    assert link["hosts"] == ["host0", "host1"]
    assert 0.5 < link["bandwidth_gb_s"] / (mbit_per_s * 1e6 / 8 / 1e9) < 1.1
    assert "another node" in outputs[1][1]


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(2000):
        low, high = median_interval(random.exponential(1.0, size=25).tolist())
        held += low <= np.log(2) <= high
    assert held / 2000 > 0.93


@given(st.integers(0, 18), st.integers(0, 10**6))
def test_the_ends_come_first_so_that_a_cut_loses_sizes_between_them(doublings: int, more: int) -> None:
    sizes = [4096 << step for step in range(doublings + 1)]
    sizes.append(sizes[-1] + more + 1)
    order = in_order_of_need(sizes)
    assert sorted(order) == sizes
    assert {sizes[0], sizes[-1]} <= set(order[:3])


class SimulatedLink(LinkMeter):
    """A link on which time passes by its operations alone, so that a test knows what fits into the box.

    The clock and the operations are simulated, all that decides what to measure next is not. One rank agrees with
    itself.
    """

    def __init__(self, group: dist.ProcessGroup, seconds: float, latency_ns: float, bytes_per_ns: float) -> None:
        super().__init__(group, torch.float32, torch.device("meta"), seconds)
        self.now_ns = 0.0
        self._line = latency_ns, bytes_per_ns

    def _block_ns(self, buffers: list[torch.Tensor], operations: int) -> int:
        latency_ns, bytes_per_ns = self._line
        took_ns = operations * sum(latency_ns + buffer.nbytes / bytes_per_ns for buffer in buffers)
        self.now_ns += took_ns
        return round(took_ns)

    def _reduce(self, values: torch.Tensor, op: dist.ReduceOp.RedOpType) -> np.ndarray[Any, np.dtype[np.float64]]:
        return values.numpy()


@pytest.fixture(scope="module")
def alone() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@settings(max_examples=25)
@given(
    seconds=st.floats(1, 60),
    latency_ns=st.floats(1e3, 1e7),
    gb_s=st.floats(0.005, 100),
    mebibytes=st.integers(2, 512),
)
def test_the_largest_size_is_measured_wherever_it_fits_and_the_box_is_kept(
    alone: dist.ProcessGroup, seconds: float, latency_ns: float, gb_s: float, mebibytes: int
) -> None:
    meter = SimulatedLink(alone, seconds, latency_ns, gb_s)
    largest, box_ns = mebibytes * 2**20, seconds * 1e9
    with mock.patch.object(time, "monotonic_ns", lambda: round(meter.now_ns)):
        measurement = meter.measure(largest)
    assert measurement.points[0].bytes == 4096
    largest_ns = latency_ns + largest / gb_s
    if largest_ns < box_ns / 10:
        assert measurement.cut_at_bytes is None
        assert max(point.bytes for point in measurement.points) == largest
    # What is under way when the box is full is finished: at most three operations and a block of the largest size.
    assert meter.now_ns < box_ns + 10 * (latency_ns + measurement.points[-1].bytes / gb_s) + 1e9
