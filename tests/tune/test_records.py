"""Studies that outlive their process, in every storage that this machine offers. Processes and databases are real."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from bucketlab.errors import BadInput
from bucketlab.schema.tuning import CURRENT, TunedTrial, Tuning
from bucketlab.tune.records import blame, check_storage, redacted, shown_url
from tests.tune.simulated import SHARED, train, tuned, tuner_of
from tests.tune.worker import job

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    return str(request.getfixturevalue("postgresql"))


def worker(storage: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.tune.worker", storage, *options],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed_in(storage: str, wanted: str, *options: str, times: int = 1) -> list[str]:
    """Starts a worker and kills it in a block whose line is like this pattern, the `times`-th one; the lines of all."""
    process = worker(storage, "--steps-on-request", *options)
    assert process.stdin is not None
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if sum(re.match(wanted, one) is not None for one in lines) == times:
            process.send_signal(signal.SIGKILL)
            process.wait()
            break
        process.stdin.write("\n")
        process.stdin.flush()
    else:
        raise AssertionError(f"no block {wanted!r}: {process.stderr.read() if process.stderr else ''}")
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()  # type: ignore[union-attr]
    return lines


def gone_on_with(storage: str, trials: int = 12) -> Tuning:
    return tuned(job(1), 1, storage=storage, trials=trials)


def measured(result: Tuning) -> list[TunedTrial]:
    """Trials that are not the current setting."""
    return [trial for trial in result.trials if trial.number > 0 and trial.state == "complete"]


# ---- killed ---------------------------------------------------------------------------------------------------


def test_kill_9_in_a_trial_loses_that_trial_alone_and_the_study_goes_on(storage: str) -> None:
    killed_in(storage, "5 search")
    tuner = tuner_of(job(1), 1, storage=storage, trials=12)
    first = tuner.next_block()
    assert first is not None
    before = {trial.number for trial in tuner.result().trials}
    assert before == {0, 1, 2, 3, 4}
    while (block := tuner.next_block()) is not None:
        train(tuner, job(1), block)
    result = tuner.result()
    tuner.close()
    assert result.finished
    assert len(measured(result)) == 12
    layouts = Counter(tuple(trial.bucket_bytes) for trial in result.trials)
    assert set(layouts.values()) == {1}


def test_what_was_measured_before_the_kill_counts_though_its_trial_had_no_value_yet(storage: str) -> None:
    """Between a trial's steps and its value lies one more block of the current setting."""
    process = worker(storage, "--steps-on-request")
    assert process.stdin is not None
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line.split()[0])
        if seen[-2:] == ["3", "current"]:
            break
        process.stdin.write("\n")
        process.stdin.flush()
    _wait_until_written(storage, 3)
    process.kill()
    process.communicate()
    trial = next(one for one in gone_on_with(storage).trials if one.number == 3)
    assert trial.state == "complete"
    assert len(trial.step_ns) >= 4


def _wait_until_written(storage: str, number: int) -> None:
    """Until the worker's thread has written the trial's steps; it has nothing else to do."""
    for _ in range(10_000):
        trial = optuna.load_study(study_name="simulated", storage=storage).get_trials(deepcopy=False)[number]
        if trial.user_attrs["bucketlab"]["step_ns"]:
            return
    raise AssertionError("never written")


def test_kill_9_in_the_final_race_loses_the_running_round_and_at_most_the_one_before(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    killed_in(storage, "current final-race", "--trials", "4", times=6)
    tuner = tuner_of(job(1), 1, storage=storage, trials=4)
    blocks = []
    while (block := tuner.next_block()) is not None:
        assert tuner.phase == "final race"
        blocks.append(block)
        train(tuner, job(1), block)
    result = tuner.result()
    tuner.close()
    assert result.finished
    assert result.rounds >= 12
    assert result.rounds - 5 <= len(blocks) / 3 <= result.rounds - 4
    again = tuner_of(job(2), 2, storage=storage, trials=4)
    assert again.next_block() is None  # the race is run
    assert (again.result().speedup, again.result().ci95) == (result.speedup, result.ci95)
    again.close()


def test_a_race_taken_up_again_takes_off_the_share_that_it_began_with(tmp_path: Path) -> None:
    noise = replace(SHARED, untouched=0.4)
    storage = f"sqlite:///{tmp_path}/study.db"
    first, of = tuner_of(job(0), storage=storage, trials=12), replace(job(0), noise=noise)
    while (block := first.next_block()) is not None and first.progress().rounds < 3:
        train(first, of, block)
    first.close()
    again = tuned(replace(job(1), noise=noise), storage=storage, trials=12)
    rounds = optuna.load_study(study_name=None, storage=storage).user_attrs.values()
    shares = {one["share"] for one in rounds if isinstance(one, dict) and one.get("stage") == "final"}
    assert len(shares) == 1
    assert min(shares) > 0.5
    assert again.untouched_share in (*shares, 0.0)  # none where the forward pass seemed touched, by chance


def test_a_race_that_the_second_has_left_is_gone_on_with_and_all_its_rounds_count(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    tuner, running = tuner_of(job(1), 1, storage=storage, trials=12), job(1)
    rounds, blocks_of_round = 0, 0
    while (block := tuner.next_block()) is not None:
        train(tuner, running, block)
        blocks_of_round += tuner.phase == "final race"
        if tuner.progress().rounds > rounds:
            rounds = tuner.progress().rounds
            if blocks_of_round == 2:
                break
            blocks_of_round = 0
    assert tuner.next_block() is not None, "no finalist was clearly behind"
    before = tuner.result()
    tuner.close()
    again = tuner_of(job(2), 2, storage=storage, trials=12)
    blocks = 0
    while (block := again.next_block()) is not None:
        assert again.phase == "final race"
        train(again, job(2 + blocks), block)
        blocks += 1
    result = again.result()
    again.close()
    assert result.finished
    assert result.rounds == before.rounds + blocks / 2
    assert sum(trial.finalist for trial in result.trials) == 2


def test_a_candidate_in_which_the_job_ended_twice_is_given_up(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    killed_in(storage, "1 search")
    lost = optuna.load_study(study_name="simulated", storage=storage).get_trials()[1]
    killed_in(storage, r"\d+ search")  # the same candidate under another number
    result = gone_on_with(storage)
    again = [trial for trial in result.trials if trial.bucket_bytes == lost.user_attrs["bucketlab"]["bucket_bytes"]]
    assert [trial.state for trial in again] == ["failed"]
    assert again[0].failure == "the job ended twice while this was tried"


def test_a_reason_that_the_launcher_knows_stands_in_the_trial_and_its_candidate_is_not_tried_again(
    tmp_path: Path,
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    killed_in(storage, "2 search")
    blame(storage, "simulated", 2, "rank 1 ended with exit code 137")
    result = gone_on_with(storage)
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert [(trial.number, trial.failure) for trial in failed] == [(2, "rank 1 ended with exit code 137")]
    assert [one.bucket_bytes for one in result.trials].count(failed[0].bucket_bytes) == 1


def test_what_failed_is_not_tried_again_by_the_next_launch(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    tuner = tuner_of(job(0), storage=storage, trials=3)
    while (block := tuner.next_block()) is not None and block.number != 2:
        train(tuner, job(0), block)
    assert block is not None
    tuner.tell(block, [], [], "CUDA out of memory")
    tuner.result()
    tuner.close()
    layout = tuple(job(0).buckets([int(cap * 2**20) for cap in block.candidate.capacities.mb()]))
    result = gone_on_with(storage, trials=20)
    same = [trial for trial in result.trials if tuple(trial.bucket_bytes) == layout]
    assert [(trial.state, trial.failure) for trial in same] == [("failed", "CUDA out of memory")]


# ---- shared ---------------------------------------------------------------------------------------------------


def test_two_jobs_work_on_one_study_at_once_and_each_ends_with_a_result(storage: str) -> None:
    both = [worker(storage, "--steps-on-request", "--trials", "16", "--seed", str(seed)) for seed in (0, 1)]
    for _ in range(8):  # in step, so that neither measures every trial before the other has begun
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline()
        for process in both:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    with ThreadPoolExecutor() as at_will:
        outputs = at_will.map(lambda process: process.communicate("\n" * 1000, timeout=200), both)
    for process, (_, errors) in zip(both, outputs, strict=True):
        assert process.returncode == 0, errors
    study = optuna.load_study(study_name="simulated", storage=storage)
    records = {trial.number: trial.user_attrs["bucketlab"] for trial in study.trials}
    # A trial is given up where the other job, which chose at the same time, was first.
    trials = [one for one in study.trials if not records[one.number]["is_current"] and not records[one.number]["lost"]]
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in trials)
    assert len({tuple(records[trial.number]["bucket_bytes"]) for trial in trials}) == len(trials)
    assert 16 <= len(trials) <= 18  # each may have one under way when the last one that was wanted is done
    owners = Counter(trial.user_attrs["bucketlab"]["owner"] for trial in trials)
    assert len(owners) == 2
    layouts = Counter(tuple(trial.user_attrs["bucketlab"]["bucket_bytes"]) for trial in trials)
    assert sum(layouts.values()) - len(layouts) <= 2  # chosen by both in the same moment


def test_optuna_reads_the_study_as_its_own(storage: str) -> None:
    tuned(job(0), storage=storage, trials=6)
    study = optuna.load_study(study_name="simulated", storage=storage)
    assert study.direction == optuna.study.StudyDirection.MINIMIZE
    assert study.best_value < 1
    assert study.trials[0].value == 1.0  # the script's own setting
    for trial in study.trials[1:]:
        record = trial.user_attrs["bucketlab"]
        assert "bucket_cap_mb" in trial.params
        assert len(record["step_ns"]) >= 4
        assert sum(record["bucket_bytes"]) == sum(job(0).gradients.bytes)


@pytest.mark.fault(
    "study",
    "the database goes away while trials are measured",
    command="tune",
    outcome="the study goes on in memory to its result, which says what is not stored",
)
def test_a_database_that_goes_away_ends_the_writing_and_not_the_tuning(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    tuner = tuner_of(job(0), storage=f"sqlite:///{folder}/study.db", trials=5)
    blocks = 0
    while (block := tuner.next_block()) is not None:
        blocks += 1
        if blocks == 4:
            folder.rename(tmp_path / "gone")
        train(tuner, job(0), block)
    result = tuner.result()
    tuner.close()
    assert result.finished
    assert len(measured(result)) == 5
    assert any("could not be written to any more" in note for note in result.notes)


# ---- URLs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:pa:s@s@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("mysql+pymysql://me:x%40y@host/db?ssl_key=k", "mysql+pymysql://me:***@host/db?ssl_key=***"),
        ("postgresql://host/db?user=me&password=hunter2", "postgresql://host/db?user=me&password=***"),
    ],
)
def test_a_storage_is_shown_without_its_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_drivers_message_is_shown_without_the_password_in_any_spelling() -> None:
    url = "postgresql://me:s3cret%40%2Fword@host/db"
    told = redacted(f"could not connect to {url} with password s3cret@/word", url)
    assert "s3cret" not in told


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "nosuchdatabase://me:hunter2@host/db",
        "sqlite:////no/such/folder/study.db",
        "postgresql://me:hunter2@127.0.0.1:1/db",
    ],
)
def test_a_storage_that_cannot_be_opened_is_bad_input_told_in_one_line_without_the_password(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_storage(url)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_wrong_password_is_not_told_either(postgresql: str) -> None:
    wrong = postgresql.replace("s3cret", "hunter2")
    with pytest.raises(BadInput) as caught:
        check_storage(wrong)
    assert "password authentication failed" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_first_block_is_the_current_setting(storage: str) -> None:
    tuner = tuner_of(job(0), storage=storage)
    block = tuner.next_block()
    assert block is not None
    assert block.candidate == CURRENT
    tuner.close()
