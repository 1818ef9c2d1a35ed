"""What tests of real studies share."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

from bucketlab.schema.tuning import Tuning

LONG = {"STEPS": "100000"}  # ended by the study
SHORT_RACE = ("--rounds", "12")


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
    stopped: set[int] = set()
    while new := _family(root) - stopped:  # one that is stopped starts no other
        _signal(new, signal.SIGSTOP)
        stopped |= new
    _signal(stopped, signal.SIGKILL)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # came to its end just now
            os.kill(pid, number)


def _family(root: int) -> set[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {root}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return family


def finished_trials(storage: str) -> list[tuple[int, float]]:
    """Numbers and values of finished trials; read only, since Optuna would make the tables that the job makes."""
    path = storage.removeprefix("sqlite:///")
    query = (
        "select number, value from trials join trial_values using (trial_id) where state = 'COMPLETE' order by number"
    )
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return database.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []  # not made yet


def check_step_times(result: Tuning) -> None:
    """Of a search over variables: the baseline is of launches without them, the best step of those with them."""
    assert result.environment is not None
    race = [one for one in result.environment.launches if one.stage == "race"]
    before = [one.own_step_ns for one in race if not one.variables and one.own_step_ns]
    after = [one.setting.step_ns for one in race if one.variables and one.setting and one.setting.step_ns]
    assert result.baseline.step_ns is not None and result.best.step_ns is not None
    assert min(before) <= result.baseline.step_ns <= max(before)
    # From the baseline by the median of the race's gains, whose rounds are not those of the median baseline.
    assert min(after) * min(before) / max(before) <= result.best.step_ns <= max(after) * max(before) / min(before)
