"""Runs the command as a user does, in a process of its own, and hands back what it printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bucketlab.schema.profile import Profile

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "tests" / "scripts"
TRAIN = ROOT / "bucketlab" / "examples" / "train.py"


def bucketlab(
    *arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None, timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """`python -m bucketlab ARGUMENTS`, importable from anywhere."""
    return subprocess.run(
        [sys.executable, "-m", "bucketlab", *map(str, arguments)],
        cwd=cwd,
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def start(*arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """The same, left running."""
    return subprocess.Popen(
        [sys.executable, "-m", "bucketlab", *map(str, arguments)],
        cwd=cwd,
        env=_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def torchrun(
    script: Path, *, ranks: int, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The script as it runs without bucketlab."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    return subprocess.run(command, cwd=cwd, env=_environment(environment), capture_output=True, text=True, timeout=200)


def profiled(
    script: Path, *options: str, cwd: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Profile:
    """The profile that `bucketlab profile --json` prints; fails with its messages where there is none."""
    done = bucketlab("profile", "--json", *options, script, *arguments, cwd=cwd, environment=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return msgspec.json.decode(done.stdout, type=Profile)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What bucketlab itself said at the end."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("bucketlab: ")]
    return lines[-1] if lines else ""


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}
