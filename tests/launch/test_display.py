"""What is said of a study while it runs where stderr is no terminal."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bucketlab.launch import display
from bucketlab.launch.display import Display
from bucketlab.schema.tuning import Candidate, Capacities
from bucketlab.tune.files import LiveStudy, write_live
from bucketlab.tune.tuner import Progress

LIVE = LiveStudy(
    in_force=3,
    progress=Progress(
        phase="search",
        trials=2,
        most_trials=40,
        steps=100,
        rounds=0,
        best=Candidate(capacities=Capacities(bucket_cap_mb=8.0)),
        best_speedup=0.1,
        seconds_left=90.0,
        steps_left=900,
        points=[],
    ),
)


def test_a_plain_line_says_which_trial_runs_what_is_best_and_how_long_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "_LINE_SECONDS", 0.0)
    write_live(tmp_path, LIVE)
    Display().show([], tmp_path)
    assert (
        capsys.readouterr().err == "bucketlab: trial 3 of 40, best so far bucket_cap_mb=8: +10.0 %, about 90.0 s left\n"
    )


def test_lines_do_not_come_faster_than_anyone_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "_LINE_SECONDS", 0.2)
    write_live(tmp_path, LIVE)
    began = time.monotonic()
    shown = Display()
    lines = 0
    while lines < 3:
        shown.show([], tmp_path)
        lines += len(capsys.readouterr().err.splitlines())
        assert time.monotonic() - began >= 0.19 * lines


def test_a_training_run_with_a_stored_setting_and_one_without_a_study_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "_LINE_SECONDS", 0.0)
    Display().show([], tmp_path)
    write_live(tmp_path, LIVE)
    Display(plain=True).show([], tmp_path)
    assert capsys.readouterr().err == ""
