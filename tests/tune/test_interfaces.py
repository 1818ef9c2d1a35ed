"""A variable of the environment that really changes the link: which of two interfaces gloo takes between two hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bucketlab.link.testbed import INTERFACE, Host, network, reason_unavailable
from bucketlab.schema.tuning import Tuning
from bucketlab.tune.files import load_result
from tests.commands import ROOT, SCRIPTS
from tests.tune.jobs import LONG, SHORT_RACE, check_step_times, paced_sweep

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),  # some 17 launches on two hosts
    pytest.mark.skipif(reason_unavailable() is not None, reason=f"no hosts to be had: {reason_unavailable()}"),
]

SECOND = "eth1"
SLOW_MBIT, FAST_MBIT = 400, 2000  # of the first interface and of the second
VARIABLE = "GLOO_SOCKET_IFNAME"
SWEEP = paced_sweep(f'{VARIABLE} = ["{SECOND}", "{INTERFACE}"]')
STEPS_OF_A_RUN = 60


@dataclass(frozen=True)
class Searched:
    hosts: list[Host]
    folder: Path
    result: Tuning


def on_each(hosts: list[Host], folder: Path, *arguments: str, steps: str) -> list[str]:
    """What the command says on each host; the folder is shared."""
    nodes = []
    for index, host in enumerate(hosts):
        name, *others = arguments
        command = [
            *(sys.executable, "-m", "bucketlab", name, "--nnodes", "2", "--node-rank", str(index)),
            *("--nproc-per-node", "1", "--master-addr", hosts[0].address, "--master-port", "29500", *others),
            str(SCRIPTS / "plain.py"),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "STEPS": steps}
        environment.pop(VARIABLE, None)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        nodes.append(host.popen(command, cwd=folder, env=environment, **pipes))
    said = [node.communicate()[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)[-8000:]
    return said


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    folder = tmp_path_factory.mktemp("interfaces")
    (folder / "paced.toml").write_text(SWEEP)
    with network(2, mbit_per_s=SLOW_MBIT) as hosts:
        _join_again(hosts)
        options = [*SHORT_RACE, "--trials", "1", "--study", "s", "--sweep", "paced.toml"]
        on_each(hosts, folder, "tune", *options, steps=LONG["STEPS"])
        yield Searched(hosts, folder, load_result(folder / "sweeps" / "s"))


def _join_again(hosts: list[Host]) -> None:
    """A second interface on each, straight to the other host."""
    first, second = (host.namespace for host in hosts)
    _run(f"ip link add {SECOND} netns {first} type veth peer name {SECOND} netns {second}")
    for number, namespace in enumerate((first, second)):
        _run(f"ip -n {namespace} address add 10.78.0.{number + 1}/24 dev {SECOND}")
        _run(f"ip -n {namespace} link set {SECOND} mtu 9000 up")
        _run(f"tc -n {namespace} qdisc add dev {SECOND} root tbf rate {FAST_MBIT}mbit burst 128k latency 50ms")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


def test_a_few_launches_find_the_faster_interface_with_an_interval(searched: Searched) -> None:
    environment = searched.result.environment
    assert environment is not None
    assert environment.finished
    assert environment.variables == {VARIABLE: SECOND}
    assert environment.significant
    assert environment.speedup is not None and environment.ci95 is not None
    assert 0 < environment.ci95[0] <= environment.speedup <= environment.ci95[1]
    assert environment.searched == {VARIABLE: [SECOND, INTERFACE]}
    search = [one for one in environment.launches if one.stage == "search"]
    assert [sum(one.variables == {VARIABLE: name} for one in search) for name in (SECOND, INTERFACE)] == [1, 1]
    assert len(environment.launches) <= 18
    assert all(one.in_force.get(VARIABLE) == one.variables.get(VARIABLE) for one in environment.launches)


def test_the_result_says_what_to_export(searched: Searched) -> None:
    assert searched.result.significant
    assert searched.result.how_to_apply.splitlines()[0] == f"export {VARIABLE}={SECOND}"
    check_step_times(searched.result)


def test_run_takes_the_faster_interface_on_both_hosts(searched: Searched) -> None:
    before = [_sent_bytes(host) for host in searched.hosts]
    said = on_each(searched.hosts, searched.folder, "run", "--study", "s", steps=str(STEPS_OF_A_RUN))
    assert f"{VARIABLE}={SECOND}" in "".join(said)
    # Of two ranks each sends all gradients once a step.
    least = STEPS_OF_A_RUN * searched.result.job.gradient_bytes
    assert all(_sent_bytes(host) - sent >= least for host, sent in zip(searched.hosts, before, strict=True))


def _sent_bytes(host: Host) -> int:
    path = f"/sys/class/net/{SECOND}/statistics/tx_bytes"
    entered = ["ip", "netns", "exec", host.namespace, "cat", path]
    return int(subprocess.run(entered, check=True, capture_output=True, text=True).stdout)
