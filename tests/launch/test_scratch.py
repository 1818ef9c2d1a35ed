"""Temporary folders go with their command; those of a command that was killed go with the next one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bucketlab.launch.scratch import scratch_folder
from tests.commands import ROOT

HOLD = """
import sys
from bucketlab.launch.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "something").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[str]:
    """A process that holds a folder until its standard input closes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def folder_of(holder: subprocess.Popen[str]) -> Path:
    assert holder.stdout is not None
    return Path(holder.stdout.readline().strip())


def test_a_folder_goes_with_its_command(holder: subprocess.Popen[str]) -> None:
    folder = folder_of(holder)
    assert folder.is_dir()
    holder.communicate()
    assert not folder.exists()


@pytest.mark.fault(
    "ranks", "kill -9 of the command, its temporary folder", command="all", outcome="the next one removes it"
)
def test_the_next_command_removes_the_folder_of_one_that_was_killed_and_no_other(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    killed = folder_of(holder)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    somebodys = tmp_path / "bucketlab-of-somebody"
    somebodys.mkdir()
    assert killed.is_dir()
    with scratch_folder() as own:
        assert not killed.exists()
        with scratch_folder():
            assert own.is_dir()
    assert not own.exists()
    assert somebodys.is_dir()


def test_the_folder_of_a_living_command_stays(holder: subprocess.Popen[str]) -> None:
    living = folder_of(holder)
    with scratch_folder():
        assert (living / "something").is_dir()
    holder.communicate()
