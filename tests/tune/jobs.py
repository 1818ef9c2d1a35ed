"""What tests of real studies share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

LONG = {"STEPS": "100000"}  # ended by the study


def paced_sweep(environment: str) -> str:
    """A sweep file whose search goes over these variables, for tests/scripts/paced.py."""
    return f"""
name = "paced"
description = "a job whose speed is a variable"
[environment]
[link]
kind = "gloo"
ranks = 2
latency_us = 100.0
bandwidth_gb_s = 1.0
[search]
bucket_cap_mb = {{ low = 0.25, high = 4 }}
[search.environment]
{environment}
"""


def kill_all(root: int) -> None:
    """The command, torchrun and the ranks at once, as a lost machine would."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {root}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    for pid in family:
        os.kill(pid, signal.SIGKILL)
