"""Disks that are full, fill up or cannot be written, and two commands that write into one folder."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bucketlab.runs import load_profile
from tests.commands import SCRIPTS, bucketlab, last_line
from tests.faults.injecting import Injection, begun, file_system, held, make_read_only, wait_until
from tests.tune.jobs import SHORT_RACE, finished_trials

PLAIN, FAULTY = SCRIPTS / "plain.py", SCRIPTS / "faulty.py"
LONG = {"STEPS": "100000"}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            command,
            marks=pytest.mark.fault(
                "disk",
                "the folder cannot be written",
                command=command,
                outcome="exit code 2 before anything is launched; the message names folder, cause and --out",
            ),
        )
        for command in ("profile", "tune")
    ],
)
def test_a_file_system_that_cannot_be_written_is_said_before_the_launch(command: str, tmp_path: Path) -> None:
    with file_system(tmp_path / "fixed", "ro,size=64k") as fixed:
        done = bucketlab(command, "--out", fixed / "out", PLAIN, cwd=tmp_path)
    assert done.returncode == 2
    assert "Read-only file system" in last_line(done) and "--out" in last_line(done)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.fault(
    "disk",
    "the disk is full when the study begins",
    command="tune",
    outcome="exit code 2 before anything is launched; the message names the database and the cause",
)
def test_a_disk_without_room_for_the_database_is_said_before_the_launch(tmp_path: Path) -> None:
    with file_system(tmp_path / "small", "size=32k") as small:
        done = bucketlab("tune", "--out", small / "sweeps", PLAIN, cwd=tmp_path)
    assert done.returncode == 2
    assert "full" in last_line(done) and "--storage" in last_line(done)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.fault(
    "disk",
    "the disk fills up while trials are measured",
    command="tune",
    outcome="exit code 1; the message names the folder and the cause; trials measured before are whole in the database",
)
@pytest.mark.long
def test_a_disk_that_fills_up_while_trials_are_measured_leaves_a_whole_database(tmp_path: Path) -> None:
    with file_system(tmp_path / "small", "size=1m") as small:
        options = [*SHORT_RACE, "--trials", "2", "--study", "one", "--out", str(small)]
        job = begun("tune", *options, PLAIN, cwd=tmp_path, environment=LONG)
        job.wait_for("tuning", steps=30)
        _fill(small)
        done = job.ended()
        with closing(sqlite3.connect(small / "one" / "study.db")) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert database.execute("select count(*) from trials").fetchone()[0] >= 1
        assert sorted(path.name for path in (small / "one").iterdir() if path.suffix == ".tmp") == []
    assert done.returncode == 1
    assert "No space left on device" in last_line(done)
    assert str(small / "one") in last_line(done)


def _killed_in_a_trial(job: Injection) -> bool:
    """Kills rank 1 if a trial's setting is in force: both ranks are stopped, so that this stays so."""
    ranks = [job.last[rank].pid for rank in range(2)]
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    in_a_trial = job.wait_for_study("search").in_force is not None
    os.kill(ranks[1], signal.SIGKILL if in_a_trial else signal.SIGCONT)
    os.kill(ranks[0], signal.SIGCONT)
    return in_a_trial


def _fill(folder: Path) -> None:
    with (folder / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


@pytest.mark.fault(
    "disk",
    "two profiles into one folder at once",
    command="profile",
    outcome="two runs, both whole",
)
def test_two_profiles_into_one_folder_at_once_are_two_whole_runs(tmp_path: Path) -> None:
    options = ["--steps", "20", "--out", str(tmp_path / "traces")]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    jobs = [begun("profile", *options, PLAIN, cwd=tmp_path / name, environment=LONG) for name in "ab"]
    done = [job.ended() for job in jobs]
    assert [one.returncode for one in done] == [0, 0], [one.stderr[-2000:] for one in done]
    folders = list((tmp_path / "traces").iterdir())
    assert len(folders) == 2
    assert {load_profile(folder).run for folder in folders} == {folder.name for folder in folders}
    assert all(len(list(folder.glob("*.pt.trace.json.gz"))) == 2 for folder in folders)


# ---- read-only from one moment to the next, as a kernel does after an error of the disk ---------------------------


@pytest.mark.fault(
    "disk",
    "the file system becomes read-only while steps are timed",
    command="profile",
    outcome="exit code 1; the message names the folder, the cause and the remedy; what is left is not taken for a run",
)
def test_a_file_system_that_becomes_read_only_is_said_and_earlier_runs_stay(tmp_path: Path) -> None:
    with file_system(tmp_path / "fixed", "size=16m") as fixed:
        earlier = fixed / "traces" / "earlier" / "profile.json"
        earlier.parent.mkdir(parents=True)
        earlier.write_text("{}")
        options = ["--steps", "20", "--out", str(fixed / "traces")]
        with held(tmp_path, step=15) as here:
            job = begun("profile", *options, FAULTY, cwd=tmp_path, environment={**LONG, **here})
            job.wait_for("timing")
            make_read_only(fixed)
        done = job.ended()
        assert earlier.read_text() == "{}"
        assert [path for path in (fixed / "traces").rglob("*") if path.is_file()] == [earlier]
    assert done.returncode == 1
    assert str(fixed / "traces") in last_line(done)
    assert "Read-only file system" in last_line(done) and "--out" in last_line(done)
    assert "Traceback" not in done.stderr


@pytest.mark.fault(
    "disk",
    "the file system becomes read-only while trials are measured",
    command="tune",
    outcome="the study goes on in memory; then exit code 1; the message names the file, the cause and what was found; "
    "trials measured before are whole in the database",
)
@pytest.mark.long
def test_a_study_on_a_file_system_that_becomes_read_only_tells_at_least_what_it_found(tmp_path: Path) -> None:
    with file_system(tmp_path / "fixed", "size=16m") as fixed:
        options = [*SHORT_RACE, "--trials", "4", "--study", "one", "--out", str(fixed)]
        job = begun("tune", *options, PLAIN, cwd=tmp_path, environment=LONG)
        job.wait_for_study("search", trials=2)
        wait_until(lambda: len(finished_trials(f"sqlite:///{fixed}/one/study.db")) >= 2)  # a thread writes them
        make_read_only(fixed)
        done = job.ended()
        with closing(sqlite3.connect(f"file:{fixed}/one/study.db?immutable=1", uri=True)) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert database.execute("select count(*) from trials where state = 'COMPLETE'").fetchone()[0] >= 2
    assert done.returncode == 1
    assert str(fixed / "one" / "result.json") in last_line(done)
    assert "Read-only file system" in last_line(done) and "Make it writable" in last_line(done)
    assert "What it would say:" in last_line(done)
    assert "launched again" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.fault(
    "disk",
    "the file system becomes read-only while trials are measured",
    command="run --autotune",
    outcome="the script trains to its end with its own exit code; the last line names the file and the cause",
)
@pytest.mark.long
def test_a_training_whose_study_cannot_be_written_ends_as_it_would_have(tmp_path: Path) -> None:
    with file_system(tmp_path / "fixed", "size=16m") as fixed:
        options = ["--autotune", *SHORT_RACE, "--no-prediction", "--trials", "2", "--study", "one", "--out", str(fixed)]
        job = begun("run", *options, PLAIN, cwd=tmp_path, environment={"STEPS": "4000", "DUMP": str(tmp_path)})
        job.wait_for_study("search")
        make_read_only(fixed)
        done = job.ended()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Read-only file system" in last_line(done) and "ran to its own end" in last_line(done)
    assert len(list(tmp_path.glob("rank*.json"))) == 2  # which the script writes at its end


@pytest.mark.fault(
    "disk",
    "the file system becomes read-only, and then a rank is killed",
    command="tune",
    outcome="exit code 1; the message names both causes; trials measured before are whole in the database",
)
@pytest.mark.long
def test_a_trial_that_cannot_be_blamed_any_more_ends_the_study_with_both_causes(tmp_path: Path) -> None:
    with file_system(tmp_path / "fixed", "size=16m") as fixed:
        options = ["--trials", "40", "--study", "one", "--out", str(fixed)]
        job = begun("tune", *options, PLAIN, cwd=tmp_path, environment=LONG)
        job.wait_for_study("search", trials=2)
        make_read_only(fixed)
        wait_until(lambda: _killed_in_a_trial(job))
        done = job.ended()
        with closing(sqlite3.connect(f"file:{fixed}/one/study.db?immutable=1", uri=True)) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert done.returncode == 1
    assert "SIGKILL" in last_line(done) and "cannot be" in last_line(done) and str(fixed) in last_line(done)
    # Torch prints one of the rank that lost its neighbour, behind that rank's name.
    assert not any(line.startswith("Traceback") for line in done.stderr.splitlines())
