"""Environment variables searched by two nodes together, on hosts made of network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bucketlab.link.testbed import INTERFACE, network, reason_unavailable
from tests.commands import ROOT, SCRIPTS
from tests.tune.jobs import LONG, SHORT_RACE, paced_sweep

SWEEP = paced_sweep('PACE = ["fast"]')


@pytest.mark.long
@pytest.mark.skipif(reason_unavailable() is not None, reason=f"no hosts to be had: {reason_unavailable()}")
def test_two_nodes_with_no_shared_disk_launch_with_the_same_variables(tmp_path: Path) -> None:
    with network(2, mbit_per_s=1000) as hosts:
        nodes = []
        for index, host in enumerate(hosts):
            folder = tmp_path / host.name
            folder.mkdir()
            (folder / "paced.toml").write_text(SWEEP)
            command = [
                *(sys.executable, "-m", "bucketlab", "tune", *SHORT_RACE, "--trials", "1"),
                *("--sweep", "paced.toml"),
                *("--nnodes", "2", "--node-rank", str(index), "--nproc-per-node", "1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:29500", "--rdzv-id", "two"),
                str(SCRIPTS / "paced.py"),
            ]
            environment = {**os.environ, **LONG, "GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONPATH": str(ROOT)}
            log = (folder / "log").open("w")
            nodes.append(host.popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT))
        logs = [tmp_path / host.name / "log" for host in hosts]
        try:
            _wait_until_third_launch(nodes, logs)
        finally:
            for node in nodes:
                node.send_signal(signal.SIGINT)
            for node in nodes:
                node.wait(60)
    texts = [log.read_text() for log in logs]
    led = next(text for text in texts if "launch 2 of" in text)
    followed = next(text for text in texts if "launch on rank 0's word" in text)
    assert led is not followed
    assert "export PACE=fast" in led
    assert "launch on rank 0's word: export PACE=fast" in followed
    # Rank 0's pace is printed where it runs; in the second launch it is that of both nodes.
    assert led.count("pace as it is") >= 2
    assert "pace fast" in led
    assert "failed" not in led + followed


def _wait_until_third_launch(nodes: list[subprocess.Popen[bytes]], logs: list[Path]) -> None:
    while not any("launch 3 of" in log.read_text() for log in logs):
        for node, log in zip(nodes, logs, strict=True):
            assert node.poll() is None, log.read_text()[-4000:]
        time.sleep(0.2)
