"""A rank dies or hangs, in each phase of `profile` and `tune`, in ways that processes really do."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from bucketlab.runs import load_profile
from bucketlab.schema.tuning import Tuning
from bucketlab.tune.files import load_result
from bucketlab.worker.progress import PHASES
from tests.commands import SCRIPTS, last_line
from tests.faults.injecting import Injection, begun, wait_until
from tests.tune.jobs import SHORT_RACE

FAULTY = SCRIPTS / "faulty.py"
LONG = {"STEPS": "100000"}
NO_RUN = "exit code 1; the last line names {}; no run is left"
AT_ONCE = "exit code 1; the last line names rank and signal; nothing is launched again"


@dataclass(frozen=True)
class Case:
    fault: str  # for the script
    phase: str  # in which it must have met it
    words: tuple[str, ...]  # of the last line


def case(what: str, names: str, fault: str, phase: str, words: tuple[str, ...]) -> object:
    mark = pytest.mark.fault("ranks", f"{what}, {phase}", command="profile", outcome=NO_RUN.format(names))
    return pytest.param(Case(fault, phase, words), id=fault, marks=mark)


WHO = "rank, signal and step"
OOM = ("rank 1", "smaller batch")
LEFT = "the rank that left, its step and the remedy"


@pytest.mark.parametrize(
    "met",
    [
        case("kill -9", WHO, "killed@3", "warm-up", ("rank 1", "SIGKILL", "after step")),
        case("`sys.exit(0)` too early", LEFT, "exits@15", "timing", ("rank 1 came to", "number of steps")),
        case("segmentation fault", WHO, "segfault@30", "tracing", ("rank 1", "SIGSEGV", "after step")),
        case("out of memory", "rank, cause and remedy", "memory@38", "ready times", OOM),
        case("`os._exit(0)`", LEFT, "leaves@60", "more timing", ("rank 1 left with exit code 0",)),
    ],
)
def test_a_rank_that_ends_too_early_is_named_and_no_run_is_left(met: Case, tmp_path: Path) -> None:
    job = begun("profile", "--steps", "60", FAULTY, cwd=tmp_path, environment={"FAULT": met.fault})
    assert _phase_at_the_end(job) == met.phase
    done = job.ended()
    assert done.returncode == 1
    for word in met.words:
        assert word in last_line(done), done.stderr[-3000:]
    assert not any(tmp_path.glob("traces/*"))


def _phase_at_the_end(job: Injection) -> str:
    wait_until(lambda: bool(job.look()) and job.process.poll() is not None)
    return PHASES[job.last[1].phase]


@pytest.mark.fault("ranks", "kill -9, link", command="profile", outcome=NO_RUN.format(WHO))
def test_a_rank_killed_while_the_link_is_measured_is_named(tmp_path: Path) -> None:
    job = begun("profile", FAULTY, cwd=tmp_path, environment={**LONG, "FAULT": "killed@inside:_measure_link"})
    job.wait_until_it_trains()
    done = job.ended()
    assert done.returncode == 1
    assert "rank 1" in last_line(done) and "SIGKILL" in last_line(done)
    assert not any(tmp_path.glob("traces/*"))


@pytest.mark.fault("ranks", "segmentation fault, link", command="tune", outcome=AT_ONCE)
def test_a_rank_killed_before_the_first_trial_ends_the_study_at_once(tmp_path: Path) -> None:
    environment = {**LONG, "FAULT": "segfault@inside:_measure_link"}
    job = begun("tune", "--trials", "2", FAULTY, cwd=tmp_path, environment=environment)
    job.wait_until_it_trains()
    done = job.ended()
    assert done.returncode == 1
    assert "rank 1" in last_line(done) and "SIGSEGV" in last_line(done)
    assert "launched again" not in done.stderr


@pytest.mark.fault(
    "ranks",
    "a collective hangs in the search, at the same step in two launches",
    command="tune",
    outcome="exit code 1 after the second launch, with the stack of each rank; what was measured is kept",
)
@pytest.mark.long
def test_a_hang_at_the_same_step_in_two_launches_is_the_scripts(tmp_path: Path) -> None:
    environment = {**LONG, "FAULT": "hangs@90"}
    job = begun("tune", "--timeout", "20", "--trials", "9", FAULTY, cwd=tmp_path, environment=environment)
    done = job.ended()
    assert done.returncode == 1
    assert "made no step for 20 s" in last_line(done)
    assert "in two launches at the same step" in last_line(done)
    assert done.stderr.count("launched again") == 1
    assert "--- rank 1 ---" in done.stderr


# ---- while results are written ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "rank", "words"),
    [
        pytest.param(
            "killed@event:.profile.json",  # opened under its temporary name
            0,
            ("rank 0", "SIGKILL", "while results were written"),
            id="rank 0, killed",
            marks=pytest.mark.fault("ranks", "kill -9, writing", command="profile", outcome=NO_RUN.format(WHO)),
        ),
        pytest.param(
            "killed@event:memory.max",  # read for a rank's report
            1,
            ("rank 1", "SIGKILL", "while results were written"),
            id="rank 1, killed",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "leaves@event:.profile.json",
            0,
            ("rank 0 left with exit code 0", "while results were written"),
            id="rank 0, leaves",
            marks=[
                pytest.mark.long,
                pytest.mark.fault(
                    "ranks", "`os._exit(0)`, writing", command="profile", outcome=NO_RUN.format("rank and step")
                ),
            ],
        ),
    ],
)
def test_a_rank_that_dies_while_the_run_is_written_leaves_no_run(
    fault: str, rank: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    before = _a_run_from_before(tmp_path)
    environment = {**LONG, "FAULT": fault, "FAULTY_RANK": str(rank)}
    job = begun("profile", "--steps", "20", FAULTY, cwd=tmp_path, environment=environment)
    job.wait_until_it_trains()
    done = job.ended()
    assert done.returncode == 1
    for word in words:
        assert word in last_line(done), done.stderr[-3000:]
    assert {path: path.read_bytes() for path in (tmp_path / "traces").rglob("*") if path.is_file()} == before


def _a_run_from_before(folder: Path) -> dict[Path, bytes]:
    """Files of another run, by path."""
    other = folder / "traces" / "before"
    other.mkdir(parents=True)
    (other / "profile.json").write_bytes(b"{}")
    return {other / "profile.json": b"{}"}


@pytest.mark.fault(
    "ranks",
    "kill -9 after the run was written",
    command="profile",
    outcome="exit code 1; the last line names rank, signal and where the whole profile is",
)
@pytest.mark.long
def test_a_rank_that_dies_after_the_run_was_written_loses_none_of_it(tmp_path: Path) -> None:
    environment = {**LONG, "FAULT": "killed@event:.end.tmp", "FAULTY_RANK": "0"}
    job = begun("profile", "--steps", "20", FAULTY, cwd=tmp_path, environment=environment)
    job.wait_until_it_trains()
    done = job.ended()
    assert done.returncode == 1
    [folder] = (tmp_path / "traces").iterdir()
    assert "SIGKILL" in last_line(done) and str(folder.relative_to(tmp_path)) in last_line(done)
    assert load_profile(folder).missing == []
    assert not list(folder.glob(".*"))


# ---- while a study runs ---------------------------------------------------------------------------------------------


ONE_STUDY = ["--json", *SHORT_RACE, "--trials", "3", "--study", "one"]
ONCE = "launched again, and said why; the study goes on to its result; no process stays"
MANNERS = {
    "killed": ("kill -9", ("rank 1", "SIGKILL")),
    "leaves": ("`os._exit(0)`", ("rank 1 left with exit code 0",)),
    "raises": ("an exception", ("rank 1", "ValueError: a bad sample")),
}


@pytest.mark.parametrize(
    ("how", "stage"),
    [
        pytest.param(
            how,
            stage,
            marks=[
                pytest.mark.long,
                pytest.mark.fault("ranks", f"{told} of one rank, once, {stage}", command="tune", outcome=ONCE),
            ],
        )
        for how, (told, _) in MANNERS.items()
        for stage in ("search", "final race")
    ],
)
def test_a_rank_that_dies_once_costs_a_study_one_launch(how: str, stage: str, tmp_path: Path) -> None:
    now = tmp_path / "now"
    environment = {**LONG, "FAULT": f"{how}@any", "FAULTY_ONCE": str(now)}
    job = begun("tune", *ONE_STUDY, FAULTY, cwd=tmp_path, environment=environment)
    job.wait_for_study(stage)
    before = _measured(tmp_path)
    now.touch()
    done = job.ended()
    _goes_on_to_its_result(done, tmp_path, before)
    [again] = [line for line in done.stderr.splitlines() if "launched again" in line]
    for word in MANNERS[how][1]:
        assert word in again, done.stderr[-3000:]


def _measured(folder: Path) -> list[tuple[int, float]]:
    """Numbers and values of the study's finished trials."""
    query = "select number, value from trials join trial_values using (trial_id) where state = 'COMPLETE'"
    with closing(sqlite3.connect(f"file:{folder}/sweeps/one/study.db?mode=ro", uri=True)) as database:
        return sorted(database.execute(query).fetchall())


def _goes_on_to_its_result(
    done: subprocess.CompletedProcess[str], folder: Path, before: list[tuple[int, float]]
) -> Tuning:
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("launched again") == 1
    result = msgspec.json.decode(done.stdout, type=Tuning)
    assert result.finished and result.rounds >= 12
    assert set(before) <= set(_measured(folder))
    assert not list((folder / "sweeps" / "one").glob("**/*.tmp"))
    return result


@pytest.mark.parametrize(
    ("how", "inside"), [("killed", "_slowest"), ("leaves", "_slowest"), ("killed", "_put_in_force")]
)
@pytest.mark.long
def test_a_rank_that_dies_in_what_is_ours_is_named_as_one_that_dies_in_the_script(
    how: str, inside: str, tmp_path: Path
) -> None:
    """The other rank then fails in a collective of ours: that is no failure of measuring."""
    environment = {**LONG, "FAULT": f"{how}@inside:{inside}"}
    command = ["run", "--autotune", "--trials", "3", "--no-prediction", FAULTY]  # which launches once
    job = begun(*command, cwd=tmp_path, environment=environment)
    done = job.ended()
    assert done.returncode == 1
    for word in MANNERS[how][1]:
        assert word in last_line(done), done.stderr[-3000:]
    assert "the script is not to blame" not in last_line(done)


@pytest.mark.parametrize("how", ["killed", "leaves"])
@pytest.mark.long
def test_a_rank_that_dies_in_what_is_ours_costs_a_study_one_launch_too(how: str, tmp_path: Path) -> None:
    """Here the other rank is ended by us, and well: torchrun may see no failure at all."""
    now = tmp_path / "now"
    environment = {**LONG, "FAULT": f"{how}@inside:_slowest", "FAULTY_ONCE": str(now)}
    job = begun("tune", *ONE_STUDY, FAULTY, cwd=tmp_path, environment=environment)
    job.wait_for_study("search")
    before = _measured(tmp_path)
    now.touch()
    done = job.ended()
    _goes_on_to_its_result(done, tmp_path, before)
    [again] = [line for line in done.stderr.splitlines() if "launched again" in line]
    for word in MANNERS[how][1]:
        assert word in again, done.stderr[-3000:]


@pytest.mark.fault(
    "ranks",
    "`os._exit(0)` of one rank, search, at the same step in two launches",
    command="tune",
    outcome="exit code 1 after the second launch; the last line names the rank that left, its step and the remedy",
)
@pytest.mark.long
def test_a_rank_that_leaves_at_the_same_step_in_two_launches_is_the_scripts(tmp_path: Path) -> None:
    environment = {**LONG, "FAULT": "leaves@90"}
    job = begun("tune", "--trials", "9", "--study", "one", FAULTY, cwd=tmp_path, environment=environment)
    done = job.ended()
    assert done.returncode == 1
    assert "rank 1 left with exit code 0 after step" in last_line(done), done.stderr[-3000:]
    assert "same number of steps" in last_line(done) and "in two launches at the same step" in last_line(done)
    assert done.stderr.count("launched again") == 1


@pytest.mark.fault(
    "ranks", "kill -9 of rank 0 while the result is written", command="tune", outcome=f"{ONCE}; no step of it is lost"
)
@pytest.mark.long
def test_a_rank_killed_while_the_result_is_written_costs_a_launch_and_no_steps(tmp_path: Path) -> None:
    now = tmp_path / "now"
    now.touch()
    environment = {**LONG, "FAULT": "killed@event:.result.json", "FAULTY_RANK": "0", "FAULTY_ONCE": str(now)}
    job = begun("tune", *ONE_STUDY, FAULTY, cwd=tmp_path, environment=environment)
    job.wait_for_study("final race")
    before = _measured(tmp_path)
    result = _goes_on_to_its_result(job.ended(), tmp_path, before)
    assert len(_measured(tmp_path)) == 4  # with the script's own setting
    assert not [trial for trial in result.trials if trial.failure]


@pytest.mark.fault(
    "ranks",
    "kill -9 of rank 0 after the study is over",
    command="run --autotune",
    outcome="exit code 1; the last line names rank and signal; the result is whole; the training is not begun anew",
)
@pytest.mark.long
def test_a_rank_killed_after_its_study_is_not_taken_for_one_of_another_node(tmp_path: Path) -> None:
    options = ["--autotune", "--trials", "1", "--no-prediction", "--study", "one"]
    job = begun("run", *options, SCRIPTS / "plain.py", cwd=tmp_path, environment=LONG)
    os.kill(job.wait_for("done")[0].pid, signal.SIGKILL)
    done = job.ended()
    assert done.returncode == 1
    assert "rank 0" in last_line(done) and "SIGKILL" in last_line(done), done.stderr[-3000:]
    assert load_result(tmp_path / "sweeps" / "one").finished


# ---- the launcher ---------------------------------------------------------------------------------------------------


@pytest.mark.fault(
    "ranks",
    "kill -9 of torchrun alone",
    command="profile",
    outcome="exit code 1; the last line names torchrun and the signal; no process and no run is left",
)
def test_a_killed_torchrun_is_named_and_its_ranks_end(tmp_path: Path) -> None:
    job = begun("profile", SCRIPTS / "plain.py", cwd=tmp_path, environment=LONG)
    job.wait_until_it_trains()
    os.kill(job.launcher(), signal.SIGKILL)
    done = job.ended()
    assert done.returncode == 1
    assert "the launcher (" in last_line(done) and "was killed by SIGKILL" in last_line(done)
    assert not any(tmp_path.glob("traces/*"))


@pytest.mark.fault(
    "ranks", "kill -9 of torchrun alone", command="tune", outcome=f"{ONCE}; no setting is taken for the cause"
)
@pytest.mark.parametrize("stage", ["search", "final race"])
@pytest.mark.long
def test_a_killed_torchrun_costs_a_study_one_launch_and_no_setting(stage: str, tmp_path: Path) -> None:
    job = begun("tune", *ONE_STUDY, SCRIPTS / "plain.py", cwd=tmp_path, environment=LONG)
    job.wait_for_study(stage)
    before = _measured(tmp_path)
    os.kill(job.launcher(), signal.SIGKILL)
    done = job.ended()
    result = _goes_on_to_its_result(done, tmp_path, before)
    assert not [trial for trial in result.trials if trial.failure]
    [again] = [line for line in done.stderr.splitlines() if "launched again" in line]
    assert "the launcher (" in again and "SIGKILL" in again
