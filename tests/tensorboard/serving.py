"""A TensorBoard process for tests, started as a user starts it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    """Its address, once it serves."""
    log = logdir.parent / f"{logdir.name}.log"
    command = [sys.executable, "-m", "bucketlab", "view", "--out", str(logdir), "--port", "0"]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 90
        while not (found := [word for word in log.read_text().split() if word.startswith("http://")]):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield found[0].rstrip("/")
    finally:
        children = [int(pid) for task in _tasks(process.pid) for pid in (task / "children").read_text().split()]
        process.terminate()
        process.wait(timeout=30)
    assert not [pid for pid in children if _lives_on(pid)]  # torch-tb-profiler's plugin starts processes


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _lives_on(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return Path(f"/proc/{pid}").exists()
