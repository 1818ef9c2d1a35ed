"""Disks that are full, fill up or cannot be written, and two commands that write into one folder."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bucketlab.runs import load_profile
from tests.commands import SCRIPTS, bucketlab, last_line
from tests.faults.injecting import begun, file_system

PLAIN = SCRIPTS / "plain.py"
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
        options = ["--trials", "2", "--study", "one", "--out", str(small)]
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
