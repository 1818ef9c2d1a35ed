"""Two nodes with no shared disk: each has a command and a folder of its own, and rank 0's node gets the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bucketlab.link.testbed import INTERFACE, network, reason_unavailable
from tests.commands import ROOT, SCRIPTS

pytestmark = pytest.mark.skipif(reason_unavailable() is not None, reason=f"no hosts to be had: {reason_unavailable()}")


def test_two_nodes_are_profiled_and_only_the_first_holds_the_report(tmp_path: Path) -> None:
    mbit_per_s = 200  # so slow that it is the link that takes the time, on a busy machine too
    with network(2, mbit_per_s=mbit_per_s) as hosts:
        nodes = []
        for index, host in enumerate(hosts):
            folder = tmp_path / host.name
            folder.mkdir()
            command = [
                *(sys.executable, "-m", "bucketlab", "profile", "--json"),
                *("--nnodes", "2", "--node-rank", str(index), "--nproc-per-node", "1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:29500", "--rdzv-id", "two"),
                str(SCRIPTS / "plain.py"),
            ]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONPATH": str(ROOT)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            nodes.append(host.popen(command, cwd=folder, env=environment, **pipes))
        outputs = [node.communicate(timeout=200) for node in nodes]
    for node, (_, errors) in zip(nodes, outputs, strict=True):
        assert node.returncode == 0, errors[-3000:]
    profiles = [json.loads(output) for output, _ in outputs if output.strip()]
    assert len(profiles) == 1
    profile = profiles[0]
    assert profile["nodes"] == 2
    assert {rank["host"] for rank in profile["ranks"]} == {host.name for host in hosts}
    assert "across 2 hosts" in profile["link"]["what"]
    # Gradients of 2 MB at 200 Mbit/s take nearly a tenth of a second each way; loopback would take a few milliseconds.
    largest = max(profile["link"]["points"], key=lambda point: point["bytes"])
    assert 0.4 < largest["bus_gb_s"] / (mbit_per_s * 1e6 / 8 / 1e9) < 1.6
    traces = {host.name: sorted((tmp_path / host.name / "traces").rglob("*.pt.trace.json.gz")) for host in hosts}
    assert [len(found) for found in traces.values()] == [1, 1]  # each rank's trace stays where it was recorded
    elsewhere = next(index for index, (output, _) in enumerate(outputs) if not output.strip())
    assert "the report is there" in outputs[elsewhere][1]
