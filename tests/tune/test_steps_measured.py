"""Which of a script's steps a study measures: those with pauses that nobody could take for a step's time are in none.

The scripts pause for 0.4 s, and their other steps take about an eighth of that.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import optuna
import pytest

from bucketlab.schema.tuning import Tuning
from tests.commands import SCRIPTS, bucketlab
from tests.tune.jobs import LONG, SHORT_RACE

PAUSE_NS = 400_000_000


@dataclass(frozen=True)
class Tuned:
    result: Tuning
    pauses: Counter[str]  # by reason, on all ranks
    said: str

    def step_ns(self) -> list[int]:
        return [ns for trial in self.result.trials for ns in trial.step_ns]

    def pauses_measured(self) -> list[int]:
        return pauses_among(self.step_ns(), self.said)


def pauses_among(step_ns: list[int], said: str) -> list[int]:
    """Measured steps as long as a pause, without those that the machine made so long, as the script said."""
    stalls_ns = [float(seconds) * 1e9 for seconds in re.findall(r"stalls: ([\d.]+) s", said)]
    return [ns for ns in step_ns if ns >= PAUSE_NS and not any(abs(ns - one) < PAUSE_NS / 4 for one in stalls_ns)]


def tuned(folder: Path, script: str, *reasons: str, options: tuple[str, ...] = ()) -> Tuned:
    command = ["tune", "--json", *SHORT_RACE, "--no-prediction", "--trials", "1", "--nproc-per-node", "2", *options]
    done = bucketlab(*command, SCRIPTS / script, *reasons, cwd=folder, environment=LONG)
    assert done.returncode == 0, done.stderr[-4000:]
    pauses = Counter(re.findall(f"pauses: ({'|'.join(reasons)})", done.stderr))  # ranks print at the same time
    return Tuned(msgspec.json.decode(done.stdout, type=Tuning), pauses, done.stderr)


def test_no_step_with_a_pause_skipped_of_another_batch_or_just_after_a_change_is_measured(tmp_path: Path) -> None:
    reasons = ("evaluation", "validation", "log", "checkpoint", "skip", "tail", "restart")
    found = tuned(tmp_path, "pauses.py", *reasons)
    assert set(found.pauses) == set(reasons)
    assert found.result.finished
    assert len(found.step_ns()) > 50
    assert not found.pauses_measured()


@pytest.mark.long
def test_the_first_steps_of_new_buckets_are_not_measured(tmp_path: Path) -> None:
    found = tuned(tmp_path, "pauses.py", "rebuild")
    assert found.pauses["rebuild"] == 2 * 2 * 4  # ranks, steps, changes
    assert found.result.finished
    assert not found.pauses_measured()


@pytest.mark.long
def test_no_accumulated_step_with_a_pause_or_another_number_or_size_of_micro_batches_is_measured(
    tmp_path: Path,
) -> None:
    reasons = ("between", "tail", "incomplete")
    found = tuned(tmp_path, "pauses_accumulating.py", *reasons)
    assert set(found.pauses) == set(reasons)
    assert found.result.finished
    assert len(found.step_ns()) > 50
    assert not found.pauses_measured()


@pytest.mark.parametrize("how", [(), ("closure",)], ids=["plain", "closure"])
def test_the_work_that_buckets_do_not_touch_is_what_the_script_says_it_was(tmp_path: Path, how: tuple[str]) -> None:
    found = tuned(tmp_path, "untouched.py", *how)
    said_ns: dict[str, float] = {}  # by step, of the rank where it took longest
    for step, seconds in re.findall(r"untouched: (\d+) ([\d.]+)", found.said):
        said_ns[step] = max(said_ns.get(step, 0.0), 1e9 * float(seconds))
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{tmp_path}/sweeps/{found.result.study}/study.db")
    stored_ns = [ns for trial in study.trials for ns in trial.user_attrs["bucketlab"]["untouched_ns"]]
    assert len(stored_ns) >= 8
    last = max(trial.after_steps or 0 for trial in found.result.trials)  # later steps may be those of a busier machine
    searched_ns = [ns for step, ns in said_ns.items() if int(step) <= last]
    assert median(stored_ns) == pytest.approx(median(searched_ns), rel=0.3)  # data take five times as long
    near = [min(abs(ns - said) for said in said_ns.values()) < 0.3 * ns for ns in stored_ns]
    assert sum(near) >= 0.8 * len(near)  # of some the machine took longer between two looks at the clock
