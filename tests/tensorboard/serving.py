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
        process.terminate()
        process.wait(timeout=30)
