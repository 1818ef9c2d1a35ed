"""Wall time of the commands themselves: start-up, and a whole profile of the shipped example.

python -m bench.commands
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, Wanted
from bench.launching import Run, run

_ROOT = Path(__file__).parents[1]
_TRAIN = _ROOT / "bucketlab" / "examples" / "train.py"
_BUCKETLAB = [sys.executable, "-m", "bucketlab"]
_START_UPS = {
    "import bucketlab": [sys.executable, "-c", "import bucketlab"],
    "bucketlab --help": [*_BUCKETLAB, "--help"],
    "bucketlab profile --help": [*_BUCKETLAB, "profile", "--help"],
    "bucketlab analyze --help": [*_BUCKETLAB, "analyze", "--help"],
}


def figures(wanted: Wanted) -> list[Figure]:
    """Start-up over that of Python alone; a whole profile over the time in which the script's own steps ran."""
    repeats = 7 if wanted.quick else 15
    found = _start_ups(repeats)
    if not wanted.quick:
        took, in_steps = profile_example()
        over = "its own steps"
        found.append(Figure(name="bucketlab profile, example", value=took, unit="s", ratio=took / in_steps, over=over))
    return found


def _start_ups(repeats: int) -> list[Figure]:
    """They take turns with a bare Python, so that what else the machine does meets them all."""
    commands = {"Python alone": [sys.executable, "-c", "pass"], **_START_UPS}
    taken: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            taken[name].append(run(command))
    median = {name: Run.median(runs) for name, runs in taken.items()}
    bare = median.pop("Python alone")
    over = "Python alone"
    found = []
    for name, one in median.items():
        ratio = one.cpu_s / bare.cpu_s
        found.append(Figure(name=name, value=one.wall_s, unit="s", samples=repeats))
        found.append(Figure(name=f"{name}, CPU", value=one.cpu_s, unit="s", ratio=ratio, over=over, samples=repeats))
    return found


def profile_example() -> tuple[float, float]:
    """Wall seconds of one whole profile, and how many of them were the script's own steps."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*_BUCKETLAB, "profile", "--json", "--out", folder, str(_TRAIN)]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, check=True)
        took = time.perf_counter() - began
        phases: dict[str, float] = json.loads(done.stdout)["seconds"]
    return took, sum(phases.values())


if __name__ == "__main__":
    for figure in figures(Wanted()):
        ratio = "" if figure.ratio is None else f"{figure.ratio:6.2f} times {figure.over}"
        print(f"{figure.name:30} {figure.value:7.3f} s   {ratio}".rstrip())
