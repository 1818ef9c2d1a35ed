"""What scripts do to their process, their output and their threads, and what becomes of it under `profile`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bucketlab.runs import find_run, load_profile
from tests.commands import SCRIPTS, profiled, torchrun
from tests.faults.injecting import begun

LONG = {"STEPS": "100000"}


@pytest.mark.fault(
    "scripts",
    "the script forks, leaves with `os._exit`, handles signals, changes the working directory, redirects stdout, "
    "sets NCCL variables",
    command="profile",
    outcome="all of it as without bucketlab, weights and losses to the last bit; the run is where it was asked for",
)
def test_what_a_script_does_to_its_process_is_what_it_does_without_us(tmp_path: Path) -> None:
    untouched, measured = _folder(tmp_path / "untouched"), _folder(tmp_path / "measured")
    script = SCRIPTS / "odd_process.py"
    torchrun(script, ranks=2, cwd=tmp_path, environment=_into(untouched))
    options = ["--keep-running", "--steps", "40", "--out", "traces"]
    profile = profiled(script, *options, cwd=tmp_path, environment=_into(measured))
    assert profile.missing == []
    assert load_profile(find_run(None, tmp_path / "traces")) == profile
    names = [f"rank{rank}.{kind}" for rank in range(2) for kind in ("json", "out")]
    for name in names:
        assert (measured / name).read_text() == (untouched / name).read_text(), name
    told = json.loads((measured / "rank1.json").read_text())
    assert told["children"] == [10, 30, 50, 70, 90, 110]
    assert len(told["signals"]) == 6
    assert told["folder"]
    assert (measured / "rank1.out").read_text() == "trained\nto the end\n"


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _into(folder: Path) -> dict[str, str]:
    return {"DUMP": str(folder), "ELSEWHERE": str(folder)}


@pytest.mark.fault(
    "scripts",
    "the script trains in a thread other than the main one",
    command="profile",
    outcome="measured; the main thread is ended too, with its clean-up",
)
def test_a_script_that_trains_in_a_thread_is_ended_after_its_measurement(tmp_path: Path) -> None:
    options = ["--nproc-per-node", "2", "--steps", "20"]
    job = begun("profile", *options, SCRIPTS / "trains_in_a_thread.py", cwd=tmp_path, environment=LONG)
    done = job.ended()
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("cleaned up") == 2
    assert "Traceback" not in done.stderr


@pytest.mark.fault(
    "scripts",
    "some ranks train with DDP, others do something else",
    command="profile",
    outcome="those that train are measured, which is noted; the others are stopped with them",
)
@pytest.mark.long
def test_ranks_that_train_are_measured_where_others_do_not(tmp_path: Path) -> None:
    options = ["--nproc-per-node", "3", "--steps", "20"]
    job = begun("profile", *options, SCRIPTS / "ddp_on_some_ranks.py", cwd=tmp_path, environment=LONG)
    done = job.ended()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "processes that train nothing were then stopped" in done.stderr
    profile = load_profile(find_run(None, tmp_path / "traces"))
    assert profile.world_size == 2
    assert len(profile.ranks) == 2
    assert any("2 of the job's 3 ranks" in note for note in profile.notes)
    assert profile.missing == []
