"""`bucketlab tune --relaunch`: a study whose every block is a launch. Whole ones take minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from bucketlab.link.testbed import INTERFACE, network, reason_unavailable
from bucketlab.runs import load_profile
from bucketlab.schema.tuning import Tuning
from bucketlab.tune.files import load_result
from tests.commands import ROOT, SCRIPTS, bucketlab, start
from tests.tune.jobs import LONG, finished_trials, kill_all
from tests.tune.test_steps_measured import pauses_among

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

MOST_MB = 2.04  # of a bucket, as tests/scripts/own_is_best.py bears


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[int, float]], Tuning, str]:
    """Trials that were finished when all was killed, and what the same command came to, with its messages."""
    folder = tmp_path_factory.mktemp("relaunched")
    options = ["--json", "--relaunch", "--study", "s", "--trials", "4", "--nproc-per-node", "2"]
    command: list[str | Path] = ["tune", *options, SCRIPTS / "own_is_best.py"]
    storage = f"sqlite:///{folder}/sweeps/s/study.db"
    process = start(*command, cwd=folder, environment=LONG)
    while len(before := finished_trials(storage)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    kill_all(process.pid)
    process.wait()
    done = bucketlab(*command, cwd=folder, environment=LONG, timeout=1000)
    assert done.returncode == 0, done.stderr[-4000:]
    assert finished_trials(storage)[: len(before)] == before
    result = msgspec.json.decode(done.stdout, type=Tuning)
    assert load_result(folder / "sweeps" / "s") == result
    assert load_profile(folder / "sweeps" / "s").link is not None
    return before, result, done.stderr


def test_after_kill_9_the_same_command_measures_only_what_was_not_finished(
    resumed: tuple[list[tuple[int, float]], Tuning, str],
) -> None:
    before, result, _ = resumed
    assert result.finished
    assert {number for number, _ in before} <= {trial.number for trial in result.trials}
    assert len({tuple(trial.bucket_bytes) for trial in result.trials}) == len(result.trials)


def test_a_setting_that_crashes_a_rank_fails_with_its_reason_and_is_launched_once(
    resumed: tuple[list[tuple[int, float]], Tuning, str],
) -> None:
    _, result, _ = resumed
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert failed
    assert all("rank 1" in (trial.failure or "") and "out of memory" in (trial.failure or "") for trial in failed)
    assert not any(trial.step_ns for trial in failed)
    complete = [trial for trial in result.trials if trial.state == "complete"]
    assert len(complete) >= 2
    assert all(trial.setting and (trial.setting.bucket_cap_mb or 0) <= MOST_MB for trial in complete)


def test_where_nothing_is_faster_the_answer_is_to_keep_the_setting(
    resumed: tuple[list[tuple[int, float]], Tuning, str],
) -> None:
    _, result, messages = resumed
    assert not result.significant
    assert result.how_to_apply == "keep your setting"
    assert result.rounds >= 12
    assert result.ci95 is not None
    assert result.ci95[1] < 0  # the script sees to that
    assert "final race, round 12" in messages


def test_no_launch_measures_a_step_with_a_pause(tmp_path: Path) -> None:
    reasons = ["evaluation", "log", "skip", "tail", "restart"]
    options = ["--relaunch", "--study", "s", "--nproc-per-node", "2"]
    command: list[str | Path] = ["tune", *options, SCRIPTS / "pauses.py", *reasons]
    storage = f"sqlite:///{tmp_path}/sweeps/s/study.db"
    process = start(*command, cwd=tmp_path, environment=LONG)
    while len(finished_trials(storage)) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert all(f"pauses: {reason}" in output for reason in ("evaluation", "log", "skip"))
    step_ns = [ns for trial in load_result(tmp_path / "sweeps" / "s").trials for ns in trial.step_ns]
    assert len(step_ns) >= 3 * 10
    assert not pauses_among(step_ns, output)


@pytest.mark.skipif(reason_unavailable() is not None, reason=f"no hosts to be had: {reason_unavailable()}")
def test_two_nodes_launch_with_the_same_buckets(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/host0/sweeps/s/study.db"
    with network(2, mbit_per_s=1000) as hosts:
        nodes = []
        for index, host in enumerate(hosts):
            folder = tmp_path / host.name
            folder.mkdir()
            command = [
                *(sys.executable, "-m", "bucketlab", "tune", "--relaunch", "--study", "s"),
                *("--nnodes", "2", "--node-rank", str(index), "--nproc-per-node", "1"),
                *("--master-addr", hosts[0].address, "--master-port", "29500", str(SCRIPTS / "own_is_best.py")),
            ]
            environment = {**os.environ, **LONG, "GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONPATH": str(ROOT)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            nodes.append(host.popen(command, cwd=folder, env=environment, **pipes))
        while len(finished_trials(storage)) < 2:
            assert all(node.poll() is None for node in nodes), [node.communicate() for node in nodes]
            time.sleep(0.2)
        for node in nodes:
            node.send_signal(signal.SIGINT)
        said = [node.communicate(timeout=200)[0] for node in nodes]
    assert all("interrupted" in one.splitlines()[-1] for one in said)
    assert [node.returncode for node in nodes] == [1, 1]
    result = load_result(tmp_path / "host0" / "sweeps" / "s")
    complete = [trial for trial in result.trials if trial.state == "complete"]
    assert len(complete) >= 2
    assert len({tuple(trial.bucket_bytes) for trial in complete}) == len(complete)
    assert not list((tmp_path / "host1" / "sweeps").iterdir())
