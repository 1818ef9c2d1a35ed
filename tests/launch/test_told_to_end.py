"""A training under the command is told to end as it would be without it, and has the time to save its state."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.commands import SCRIPTS
from tests.faults.injecting import Injection, begun, wait_until


@pytest.fixture
def training(tmp_path: Path) -> Injection:
    """One that trains on after its measurement, with all ranks at work."""
    command = ["profile", "--keep-running", SCRIPTS / "saves_when_told.py"]
    injection = begun(*command, cwd=tmp_path, environment={"DUMP": str(tmp_path)})
    wait_until(lambda: len(list(tmp_path.glob("trains-*"))) == 2, lambda: injection.process.poll() is None)
    return injection


def saved(folder: Path) -> list[list[str]]:
    """Signals that each rank got until it had saved its state."""
    return [json.loads(path.read_text())["signals"] for path in sorted(folder.glob("rank*.json"))]


def test_a_signal_to_the_command_alone_reaches_every_rank_as_it_is(training: Injection, tmp_path: Path) -> None:
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # which scripts agree on with their scheduler: no reason to end
        training.process.send_signal(number)
    training.process.send_signal(signal.SIGTERM)  # as Kubernetes does: to the first process of a container
    done = training.ended()
    assert saved(tmp_path) == [["SIGTERM"], ["SIGTERM"]]
    assert done.returncode == 1
    assert "interrupted" in done.stderr.splitlines()[-1]


def test_a_signal_to_every_process_leaves_ranks_the_time_to_save(training: Injection, tmp_path: Path) -> None:
    for pid in training.processes():  # as Slurm does
        os.kill(pid, signal.SIGTERM)
    training.ended()
    assert saved(tmp_path) == [["SIGTERM"], ["SIGTERM"]]
