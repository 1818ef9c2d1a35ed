"""A TensorBoard process for tests, started as a user starts it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    """Its address, once it serves."""
    log = logdir.parent / f"{logdir.name}.log"
    command = [sys.executable, "-m", "bucketlab", "view", "--out", str(logdir), "--port", "0"]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 150
        while not (found := [word for word in log.read_text().split() if word.startswith("http://")]):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield found[0].rstrip("/")
    finally:
        children = _children(process.pid)
        process.terminate()
        process.wait(timeout=60)
    assert not [pid for pid in children if _lives_on(pid)]  # torch-tb-profiler's plugin starts processes


def _children(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # TensorBoard answers each request in a thread, which may be gone by now.
        with suppress(FileNotFoundError, ProcessLookupError):
            children += [int(child) for child in (task / "children").read_text().split()]
    return children


def _lives_on(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while (lives := _lives(pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return lives


def _lives(pid: int) -> bool:
    """One that has ended may stay in the list for ever, where nobody asks how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
