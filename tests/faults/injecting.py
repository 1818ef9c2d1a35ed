"""Breaks something in a running job at a chosen moment, and looks for what the job leaves behind.

Its processes are found by a variable in their environment, its state by the progress that its ranks note.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bucketlab.tune.files import LiveStudy, read_live
from bucketlab.worker.config import VARIABLE
from bucketlab.worker.progress import PHASES, Progress, read_progress
from tests.commands import start

_MARK = "TEST_OF_A_FAULT"


class Injection:
    """One command that runs; `begun` starts one."""

    def __init__(self, process: subprocess.Popen[Any], mark: str) -> None:
        self.process = process
        self.last: dict[int, Progress] = {}  # what each rank noted last
        self.studies: list[LiveStudy] = []
        self._mark = f"{_MARK}={mark}"
        self._controls: set[Path] = set()

    def look(self) -> dict[int, Progress]:
        """Progress by rank, of ranks that have come to train."""
        if len(self.last) < 2:  # the folder of a launch, and of the next one, is known once a rank trains
            self._controls |= {control for pid in self.processes() for control in _controls(pid)}
        for control in self._controls:
            with contextlib.suppress(OSError):  # gone just now
                self.last |= {one.rank: one for one in read_progress(control) if one.rank >= 0}
        return self.last

    def wait_until_it_trains(self, ranks: int = 2) -> dict[int, Progress]:
        """Until so many ranks do, in whatever phase: from then on it is known what this launch must not leave."""
        wait_until(lambda: len(self.look()) >= ranks, self._still_runs)
        return self.last

    def wait_for(self, phase: str, steps: int = 0, ranks: int = 2) -> dict[int, Progress]:
        """Until so many ranks are in the phase and have made so many steps of it.

        For phases that last for seconds, or in which `held` holds the job: a shorter one could pass unseen.
        """

        def there() -> bool:
            now = self.look().values()
            return sum(PHASES[one.phase] == phase and one.done >= steps for one in now) >= ranks

        wait_until(there, self._still_runs)
        return self.last

    def wait_for_study(self, stage: str, trials: int = 1) -> LiveStudy:
        """Until a study has come to this stage and has measured so many trials."""

        def there() -> bool:
            self.look()
            found = [read_live(control) for control in self._controls]
            self.studies = [one for one in found if one is not None]
            return any(one.progress.phase == stage and one.progress.trials >= trials for one in self.studies)

        wait_until(there, self._still_runs)
        return self.studies[0]

    def launcher(self) -> int:
        """The process that started the ranks."""
        [parent] = {_parent(one.pid) for one in self.last.values()}
        return parent

    def _still_runs(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"it ended too early:\n{self.process.communicate()[1][-2000:]}")
        return True

    def ended(self, timeout: float = 250) -> subprocess.CompletedProcess[str]:
        """Waits for the command's end, and claims that it left no process and no temporary file behind."""
        output, errors = self.process.communicate(timeout=timeout)
        assert not self.processes(), "processes are left"
        assert not [control for control in self._controls if control.exists()], "temporary files are left"
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, output, errors)

    def processes(self) -> list[int]:
        """Those of the command and its job that still run."""
        return [pid for pid in _all_pids() if self._mark in _environment(pid) and _runs(pid)]


def begun(*arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> Injection:
    process = start(*arguments, cwd=cwd, environment={**(environment or {}), **marked(str(cwd))})
    return Injection(process, str(cwd))


@contextmanager
def held(folder: Path, step: int) -> Iterator[dict[str, str]]:
    """Variables with which rank 1 of tests/scripts/faulty.py waits before this step, until the end of the block."""
    here = folder / "held"
    here.touch()
    try:
        yield {"FAULT": f"waits@{step}", "FAULTY_WHILE": str(here)}
    finally:
        here.unlink()


def marked(mark: str) -> dict[str, str]:
    return {_MARK: mark}


def wait_until(
    holds: Callable[[], bool], still_possible: Callable[[], bool] = lambda: True, seconds: float = 240
) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert still_possible(), "it ended before that"
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


@contextmanager
def file_system(folder: Path, options: str) -> Iterator[Path]:
    """A small file system of its own, mounted at a new folder."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small file system to be had: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        while folder.is_mount():
            subprocess.run(["umount", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """A mounted file system, as the kernel does after an error of the disk.

    It refuses where files are open for writing, as a study's database is: then a read-only view is laid over it, so
    that nothing can be opened for writing any more.
    """
    if not subprocess.run(["mount", "-o", "remount,ro", str(folder)], capture_output=True).returncode:
        return
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    remount = ["mount", "-o", "remount,bind,ro", str(folder)]
    # Refused while a file is open that was opened through the view, as a journal may be for a moment.
    wait_until(lambda: not subprocess.run(remount, capture_output=True).returncode)


def _all_pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if int(folder.name) != os.getpid()]


def _environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _runs(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """What follows the name: the state, the parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _controls(pid: int) -> set[Path]:
    found = [value for value in _environment(pid) if value.startswith(f"{VARIABLE}=")]
    return {Path(json.loads(value.partition("=")[2])["control"]) for value in found}
