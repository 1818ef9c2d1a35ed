"""A training under the command is told to end as it would be without it, and has the time to save its state."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.commands import SCRIPTS
from tests.faults.injecting import Injection, begun, wait_until


def begun_to_train(folder: Path, saving_seconds: float) -> Injection:
    """A training that goes on after its measurement, once all ranks are at work."""
    command = ["profile", "--keep-running", SCRIPTS / "saves_when_told.py"]
    injection = begun(*command, cwd=folder, environment={"DUMP": str(folder), "SAVING": str(saving_seconds)})
    wait_until(lambda: len(list(folder.glob("trains-*"))) == 2, lambda: injection.process.poll() is None)
    return injection


def saved(folder: Path) -> list[list[str]]:
    """Signals that each rank got until it had saved its state."""
    return [json.loads(path.read_text())["signals"] for path in sorted(folder.glob("rank*.json"))]


def test_a_signal_to_the_command_alone_reaches_every_rank_as_it_is(tmp_path: Path) -> None:
    training = begun_to_train(tmp_path, saving_seconds=1)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # which scripts agree on with their scheduler: no reason to end
        training.process.send_signal(number)
    training.process.send_signal(signal.SIGTERM)  # as Kubernetes does: to the first process of a container
    done = training.ended()
    assert saved(tmp_path) == [["SIGTERM"], ["SIGTERM"]]
    assert done.returncode == 1
    assert "interrupted" in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_a_signal_to_every_process_leaves_ranks_the_time_to_save(tmp_path: Path) -> None:
    training = begun_to_train(tmp_path, saving_seconds=15)
    for pid in training.processes():  # as Slurm does
        os.kill(pid, signal.SIGTERM)
    training.ended()
    assert saved(tmp_path) == [["SIGTERM"], ["SIGTERM"]]
