"""Two hosts, as network namespaces: the cable between them is pulled, a clock goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bucketlab.link.testbed import INTERFACE, Host, network, reason_unavailable
from tests.commands import ROOT, SCRIPTS, last_line
from tests.faults.injecting import Injection, marked

pytestmark = pytest.mark.skipif(reason_unavailable() is not None, reason=f"no hosts to be had: {reason_unavailable()}")

# Namespaces share one clock. With this on the path every Python of a host has another one; what torch's own code reads,
# such as a trace's times, stays: clocks of traces are set apart in tests/analysis/test_ranks.py.
AN_HOUR_AHEAD = """
import time
time_s, time_ns = time.time, time.time_ns
time.time = lambda: time_s() + 3600
time.time_ns = lambda: time_ns() + 3600 * 10**9
"""


@contextmanager
def two_hosts(folder: Path, *options: str, second: Mapping[str, str] | None = None) -> Iterator[list[Injection]]:
    """A profile of the plain script by one rank on each of two hosts; the second may have other variables."""
    with network(2, mbit_per_s=1000) as hosts:
        yield [
            _begun(host, index, hosts[0].address, folder, options, second or {} if index else {})
            for index, host in enumerate(hosts)
        ]


def _begun(
    host: Host, index: int, meeting: str, folder: Path, options: tuple[str, ...], further: Mapping[str, str]
) -> Injection:
    own = folder / host.name
    own.mkdir()
    command = [
        *(sys.executable, "-m", "bucketlab", "profile", "--json", *options),
        *("--nnodes", "2", "--node-rank", str(index), "--nproc-per-node", "1", "--master-addr", meeting),
        str(SCRIPTS / "plain.py"),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONPATH": str(ROOT), "STEPS": "100000"}
    environment |= {**marked(str(own)), **further}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return Injection(host.popen(command, cwd=own, env=environment, **pipes), str(own))


def _cable(to: str, how: str) -> None:
    """Pulls or plugs the cable between the switch and the second host."""
    switch = f"{to.rpartition('-')[0]}-switch"
    subprocess.run(["ip", "-n", switch, "link", "set", "host1", how], check=True)


def _namespace(job: Injection) -> str:
    arguments = job.process.args
    assert isinstance(arguments, list)
    return str(arguments[3])  # ip netns exec NAMESPACE


@pytest.mark.fault(
    "hosts",
    "the network between two hosts is cut for 10 s",
    command="profile",
    outcome="the job waits, goes on and is measured to its end",
)
@pytest.mark.long
def test_a_job_outlives_a_network_that_is_gone_for_ten_seconds(tmp_path: Path) -> None:
    with two_hosts(tmp_path, "--steps", "400") as jobs:
        for job in jobs:
            job.wait_for("more timing", steps=3, ranks=1)
        _cable(_namespace(jobs[1]), "down")
        time.sleep(10)
        _cable(_namespace(jobs[1]), "up")
        done = [job.ended() for job in jobs]
    assert [one.returncode for one in done] == [0, 0], [one.stderr[-2000:] for one in done]
    profile = json.loads(done[0].stdout or done[1].stdout)
    assert max(profile["step"]["samples"]) > 5e9  # the step that met it
    assert profile["missing"] == []


@pytest.mark.fault(
    "hosts",
    "the network between two hosts is cut for good",
    command="profile",
    outcome="exit code 1 on both after --timeout, with the stack of each rank; no run is left",
)
@pytest.mark.long
def test_a_network_that_is_gone_for_good_ends_the_job_on_both_hosts(tmp_path: Path) -> None:
    with two_hosts(tmp_path, "--timeout", "20") as jobs:
        for job in jobs:
            job.wait_for("more timing", steps=3, ranks=1)
        _cable(_namespace(jobs[1]), "down")
        done = [job.ended() for job in jobs]
    for one in done:
        assert one.returncode == 1
        assert "made no step for 20 s" in last_line(one)
        assert "reach each other" in last_line(one)
    assert not any(tmp_path.glob("*/traces/*"))


@pytest.mark.fault(
    "hosts",
    "the clock of a host is an hour ahead",
    command="profile",
    outcome="measured all the same; traces are aligned on the ends of collectives, never on clocks",
)
def test_a_clock_that_is_an_hour_ahead_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AN_HOUR_AHEAD)
    ahead = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with two_hosts(tmp_path, "--steps", "40", second=ahead) as jobs:
        done = [job.ended() for job in jobs]
    assert [one.returncode for one in done] == [0, 0], [one.stderr[-2000:] for one in done]
    profile = json.loads(done[0].stdout or done[1].stdout)
    assert profile["missing"] == []
    stamps = sorted(int(path.name.split(".")[1]) for path in tmp_path.rglob("*.pt.trace.json.gz"))
    assert len(stamps) == 2 and stamps[1] - stamps[0] > 3500e9  # the clocks really were apart
    assert all(one["arrival_lag_ns"] < 10e9 for one in profile["stragglers"]["by_rank"])
