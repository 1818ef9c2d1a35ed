"""`bucketlab tune` with environment variables, on real launches of a job that is as fast as a variable says."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import msgspec
import optuna
import pytest

from bucketlab.documents import write_json
from bucketlab.schema.tuning import Launched, Tuning
from bucketlab.tune.files import RESULT, load_result
from bucketlab.tune.launched import SUFFIX, LaunchRecords
from tests.commands import SCRIPTS, bucketlab, last_line, start
from tests.tune.jobs import LONG, SHORT_RACE, check_step_times, kill_all, paced_sweep

pytestmark = pytest.mark.timeout(900)  # what all share are four launches and more

PACED = SCRIPTS / "paced.py"
SWEEP = paced_sweep('PACE = ["fast", "none"]\nPACE_OF = ["us"]')


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Launched]]:
    """A search killed once four launches were over, and those."""
    folder = tmp_path_factory.mktemp("environment")
    (folder / "paced.toml").write_text(SWEEP)
    process = start(*command(), cwd=folder, environment=LONG)
    while len(launches := stored(folder)) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    kill_all(process.pid)
    process.wait()
    return folder, launches


def command() -> list[str | Path]:
    options = [*SHORT_RACE, "--trials", "1", "--study", "s", "--sweep", "paced.toml"]
    return ["tune", "--json", *options, "--nproc-per-node", "2", PACED, "--sets-own"]


def storage(folder: Path) -> str:
    return f"sqlite:///{folder}/sweeps/s/study.db"


def stored(folder: Path) -> list[Launched]:
    """Read only, since Optuna would make the tables that the command makes."""
    try:
        with closing(sqlite3.connect(f"file:{folder}/sweeps/s/study.db?mode=ro", uri=True)) as database:
            query = "select value_json from study_user_attributes where key like 'bucketlab:launch:%' order by key"
            return [msgspec.json.decode(text, type=Launched) for (text,) in database.execute(query)]
    except sqlite3.OperationalError:
        return []  # not made yet


def test_the_environment_as_it_is_comes_first_and_a_group_of_variables_makes_the_job_faster(
    killed: tuple[Path, list[Launched]],
) -> None:
    _, launches = killed
    assert not launches[0].variables
    before = launches[0].setting
    fast = next(one for one in launches if one.variables == {"PACE": "fast"})
    assert before is not None
    assert before.step_ns is not None
    assert fast.setting is not None
    assert fast.setting.step_ns is not None
    assert fast.in_force["PACE"] == "fast"
    assert fast.setting.step_ns < before.step_ns


def test_variables_that_the_script_sets_itself_are_left_alone(killed: tuple[Path, list[Launched]]) -> None:
    _, launches = killed
    assert launches[0].in_force == {"PACE_OF": "the script"}
    assert not any("PACE_OF" in one.variables for one in launches)


def test_variables_that_crash_the_job_fail_with_the_reason(killed: tuple[Path, list[Launched]]) -> None:
    _, launches = killed
    (crashed,) = [one for one in launches if one.variables == {"PACE": "none"}]
    assert "no such pace" in (crashed.failure or "")


@pytest.fixture(scope="module")
def resumed(killed: tuple[Path, list[Launched]]) -> tuple[Path, Tuning]:
    """The same command after kill -9; most of the race is made up of what was measured, since it takes minutes."""
    folder, launches = killed
    before, fast = launches[0], next(one for one in launches if one.variables == {"PACE": "fast"})
    records = LaunchRecords(storage(folder), "s")
    attributes = optuna.load_study(study_name=f"s{SUFFIX}", storage=storage(folder))
    for number, one in enumerate([one for _ in range(5) for one in (before, fast)]):
        raced = msgspec.structs.replace(one, stage="race", rung=number // 2)
        attributes.set_user_attr(f"bucketlab:launch:{len(launches) + number:06d}", msgspec.to_builtins(raced))
    records.close()
    done = bucketlab(*command(), cwd=folder, environment=LONG)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "PACE_OF=the script: it stays" in done.stderr
    return folder, msgspec.json.decode(done.stdout, type=Tuning)


@pytest.mark.long
def test_after_kill_9_the_search_goes_on_and_ends_with_an_interval(resumed: tuple[Path, Tuning]) -> None:
    folder, result = resumed
    assert load_result(folder / "sweeps" / "s") == result
    environment = result.environment
    assert environment is not None
    assert environment.variables == {"PACE": "fast"}
    assert environment.significant
    assert environment.ci95 is not None
    assert environment.ci95[0] > 0.5
    assert [one.variables for one in environment.launches].count({"PACE": "none"}) == 1
    assert sum(one.stage == "race" for one in environment.launches) == 12


@pytest.mark.long
def test_the_whole_result_is_over_the_job_as_it_is_and_says_what_to_export(resumed: tuple[Path, Tuning]) -> None:
    _, result = resumed
    assert result.significant
    assert result.speedup is not None
    assert result.speedup > 0.5
    assert result.how_to_apply.splitlines()[0] == "export PACE=fast"
    check_step_times(result)


@pytest.mark.long
def test_each_group_is_a_trial_for_those_who_look_at_the_study(resumed: tuple[Path, Tuning]) -> None:
    folder, _ = resumed
    trials = optuna.load_study(study_name=f"s{SUFFIX}", storage=storage(folder)).trials
    found = {trial.params["PACE"]: trial.state.name for trial in trials}
    assert found == {"fast": "COMPLETE", "none": "FAIL"}


@pytest.mark.long
def test_run_sets_the_variables(resumed: tuple[Path, Tuning]) -> None:
    folder, _ = resumed
    short = {"STEPS": "20"}
    done = bucketlab("run", "--study", "s", "--nproc-per-node", "2", PACED, cwd=folder, environment=short)
    assert done.returncode == 0, done.stderr
    assert "pace fast" in done.stdout
    assert "PACE=fast" in last_line(done)


@pytest.mark.long
def test_run_sets_no_variable_that_chooses_code(resumed: tuple[Path, Tuning]) -> None:
    folder, result = resumed
    assert result.environment is not None
    foreign = msgspec.structs.replace(result.environment, variables={"LD_PRELOAD": "/tmp/x.so"})
    write_json(_made(folder / "sweeps" / "foreign") / RESULT, msgspec.structs.replace(result, environment=foreign))
    done = bucketlab("run", "--study", "foreign", PACED, cwd=folder)
    assert done.returncode == 2
    assert "LD_PRELOAD, which chooses code" in last_line(done)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.long
def test_optuna_dashboard_opens_both_studies(resumed: tuple[Path, Tuning]) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    folder, _ = resumed
    shown = got(dashboard.wsgi(storage(folder)), "/api/studies")["study_summaries"]
    assert {one["study_name"] for one in shown} >= {"s", f"s{SUFFIX}"}
    for one in shown:
        trials = got(dashboard.wsgi(storage(folder)), f"/api/studies/{one['study_id']}")["trials"]
        assert any(trial["state"] == "Complete" and trial["values"] for trial in trials)


def got(application: Any, path: str) -> Any:
    """The JSON that a web application answers with."""
    environment: dict[str, Any] = {"PATH_INFO": path}
    setup_testing_defaults(environment)
    status: list[str] = []
    body = b"".join(application(environment, lambda line, *_: status.append(line)))
    assert status[0].startswith("200")
    return json.loads(body)


def test_a_variable_that_is_set_already_is_said_to_stay(tmp_path: Path) -> None:
    (tmp_path / "paced.toml").write_text(SWEEP)
    environment = {"PACE": "slow"}
    done = bucketlab("tune", "--launches", "3", "--sweep", "paced.toml", PACED, cwd=tmp_path, environment=environment)
    assert done.returncode == 2
    assert "PACE is set here, to slow: it stays" in done.stderr
    assert "--launches 3" in last_line(done)
    assert not (tmp_path / "sweeps").exists()


def test_nccl_s_settings_are_not_searched_where_ranks_communicate_by_gloo(tmp_path: Path) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    done = bucketlab("tune", "--nccl", PACED, cwd=tmp_path)
    assert done.returncode == 2
    assert "gloo, which has none of NCCL's settings" in last_line(done)
    assert not (tmp_path / "sweeps").exists()
