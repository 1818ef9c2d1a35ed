"""Wall time of the commands themselves: start-up, and a whole profile of the shipped example.

python -m bench.commands
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_TRAIN = _ROOT / "bucketlab" / "examples" / "train.py"
_BUCKETLAB = [sys.executable, "-m", "bucketlab"]


def main() -> None:
    bare = statistics.median(_seconds([sys.executable, "-c", "pass"]) for _ in range(11))
    for words in (["--help"], ["profile", "--help"], ["analyze", "--help"]):
        took = statistics.median(_seconds([*_BUCKETLAB, *words]) for _ in range(11))
        print(f"bucketlab {' '.join(words):16} {took:6.3f} s   median of 11; Python alone {bare:.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        command = [*_BUCKETLAB, "profile", "--json", "--out", folder, str(_TRAIN)]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, check=True)
        took = time.perf_counter() - began
        phases: dict[str, float] = json.loads(done.stdout)["seconds"]
    print(f"bucketlab profile example  {took:6.1f} s   of it in the script's steps {sum(phases.values()):.1f} s:")
    for name, seconds in phases.items():
        print(f"    {name:12} {seconds:6.2f} s")


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
