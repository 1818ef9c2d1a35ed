"""What BucketLab tells a person while a command or a rank works: lines on stderr, marked as ours. Not for results."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """One line on stderr, at once: the script's own output may stand around it."""
    print(f"bucketlab: {line}", file=sys.stderr, flush=True)
