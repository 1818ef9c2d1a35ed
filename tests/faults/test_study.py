"""A study's database that is locked, damaged or of another release, and trials of a host whose clock is wrong."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import optuna
import pytest

from bucketlab import tuning
from bucketlab.errors import BadInput
from bucketlab.schema.tuning import CURRENT
from bucketlab.tune import records
from bucketlab.tune.records import Created, New, Records, TrialRecord, check_storage
from tests.commands import SCRIPTS, bucketlab, last_line
from tests.tune.simulated import facts, train, tuned, tuner_of
from tests.tune.worker import job

IDENTITY = facts(job(0)).identity()
BEFORE = "exit code 2 before anything is launched; the message names database, cause and remedy; it stays as it was"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Of a small study that is finished."""
    path = tmp_path / "study.db"
    tuned(job(0), storage=f"sqlite:///{path}", trials=3)
    return path


def refused(database: Path) -> str:
    with pytest.raises(BadInput) as caught:
        check_storage(f"sqlite:///{database}", "simulated")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.fault("study", "the database is locked by another program", command="tune", outcome=BEFORE)
def test_a_locked_database_is_said_before_the_launch(tmp_path: Path) -> None:
    folder = tmp_path / "sweeps" / "one"
    folder.mkdir(parents=True)
    optuna.create_study(storage=f"sqlite:///{folder}/study.db", study_name="one")
    with closing(sqlite3.connect(folder / "study.db")) as other:
        other.execute("begin exclusive")
        done = bucketlab("tune", "--study", "one", SCRIPTS / "plain.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "database is locked" in last_line(done) and "Another program holds it" in last_line(done)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.fault(
    "study",
    "the database is locked while trials are measured",
    command="tune",
    outcome="the study goes on in memory to its result, which says what is not stored",
)
def test_a_database_that_stays_locked_ends_the_writing_and_not_the_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_LOCK_SECONDS", 0.1)
    tuner = tuner_of(job(0), storage=f"sqlite:///{tmp_path}/study.db", trials=4)
    assert tuner.next_block() is not None
    with closing(sqlite3.connect(tmp_path / "study.db")) as other:
        other.execute("begin exclusive")
        while (block := tuner.next_block()) is not None:
            train(tuner, job(0), block)
        result = tuner.result()
        tuner.close()
    assert result.finished
    assert any("could not be written to any more" in note and "locked" in note for note in result.notes)


@pytest.mark.fault("study", "the file is no database", command="tune", outcome=BEFORE)
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_bytes(b"something else entirely" * 1000)
    assert "not a database" in refused(path)
    assert path.read_bytes() == b"something else entirely" * 1000


@pytest.mark.fault("study", "the database is damaged in the middle, or cut off", command="tune", outcome=BEFORE)
def test_a_damaged_database_is_refused(database: Path) -> None:
    whole = database.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:20_000] + b"\xa5" * 40_000 + whole[60_000:]):
        database.write_bytes(damaged)
        assert "The file is damaged" in refused(database)


@pytest.mark.fault(
    "study",
    "trials in it hold what bucketlab never wrote",
    command="tune",
    outcome="exit code 1 before anything is tried; the message names study, database and cause",
)
def test_records_of_another_shape_are_refused(database: Path) -> None:
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("update trial_user_attributes set value_json = '[1, 2]' where key = 'bucketlab'")
    tuner = tuner_of(job(0), storage=f"sqlite:///{database}", trials=3)
    with pytest.raises(BadInput, match="cannot be read"):
        tuner.next_block()
    tuner.close()


@pytest.mark.parametrize("version", ["v2.4.0.a", "v99.0.0.a"])
@pytest.mark.fault("study", "the database is of an older or newer Optuna", command="tune", outcome=BEFORE)
def test_a_database_of_another_optuna_is_refused_with_what_to_do(version: str, database: Path) -> None:
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("update alembic_version set version_num = ?", [version])
    told = refused(database)
    assert "no longer compatible" in told
    assert ("optuna storage upgrade" in told) == (version == "v2.4.0.a")
    assert ("pip install -U optuna" in told) == (version != "v2.4.0.a")


@pytest.mark.fault(
    "study",
    "the clock of a host that shares the study is an hour behind",
    command="tune",
    outcome="its running trial is not taken for abandoned",
)
def test_a_running_trial_of_a_host_an_hour_behind_is_left_to_it(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    elsewhere = Records(storage, "simulated", owner="elsewhere:1:abc:def")
    elsewhere.load(IDENTITY).result()
    _created(elsewhere)
    _begun_hours_ago(tmp_path / "study.db", 1)
    here = Records(storage, "simulated")
    stored = here.load(IDENTITY).result()
    assert [trial.running for trial in stored.trials] == [True]
    here.close()
    elsewhere.close()


@pytest.mark.fault(
    "study",
    "another process took a trial's for gone, and gave the trial its end",
    command="tune",
    outcome="the trial counts as the other has it; the study is written on",
)
def test_a_trial_that_another_has_ended_does_not_end_the_writing(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    slow = Records(storage, "simulated", owner="elsewhere:1:abc:def")
    slow.load(IDENTITY).result()
    first = _created(slow)
    _begun_hours_ago(tmp_path / "study.db", 30)
    here = Records(storage, "simulated")
    assert [trial.running for trial in here.load(IDENTITY).result().trials] == [False]
    slow.complete(first, 1.0)
    second = _created(slow)
    slow.complete(second, 0.5)
    slow.flush()
    assert slow.trouble is None
    states = [trial.state for trial in optuna.load_study(study_name="simulated", storage=storage).trials]
    assert states == [optuna.trial.TrialState.FAIL, optuna.trial.TrialState.COMPLETE]
    here.close()
    slow.close()


def _created(records: Records) -> Created:
    record = TrialRecord(candidate=CURRENT, bucket_bytes=[1], owner=records.owner)
    begun = records.create(lambda: New(record, {}, {})).result()
    assert begun is not None
    return begun[1]


def _begun_hours_ago(path: Path, hours: int) -> None:
    with closing(sqlite3.connect(path)) as opened, opened:
        opened.execute("update trials set datetime_start = datetime(datetime_start, ?)", [f"-{hours} hours"])


@pytest.mark.fault(
    "study",
    "the database is locked when a rank has died",
    command="tune",
    outcome="exit code 1; the message names both causes; nothing is launched again with a setting that may kill it",
)
def test_a_trial_that_cannot_be_blamed_is_said_with_the_cause(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_LOCK_SECONDS", 0.1)
    with closing(sqlite3.connect(database)) as other:
        other.execute("begin exclusive")
        with pytest.raises(BadInput, match="locked"):
            records.blame(f"sqlite:///{database}", "simulated", 1, "rank 1 was killed")
    records.blame(f"sqlite:///{database}", "simulated", 1, "rank 1 was killed")
    stored = Records(f"sqlite:///{database}", "simulated")
    assert stored.load(IDENTITY).result().failed_later == {1: "rank 1 was killed"}
    stored.close()


def test_scalars_that_cannot_be_written_cost_a_study_nothing_but_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scalars").write_text("a file, not a folder")
    tuning._write_scalars(tuned(job(0), trials=3), tmp_path)
    said = f"bucketlab: TensorBoard's scalars of the trials were not written to {tmp_path}: Not a directory."
    assert capsys.readouterr().err == f"{said} The result is whole.\n"
