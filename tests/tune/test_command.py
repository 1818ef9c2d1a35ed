"""`bucketlab tune` and `bucketlab run` as users call them, on real torchrun launches."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import optuna
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from bucketlab.schema.tuning import SCHEMA, Tuning
from bucketlab.tune.files import RESULT, find_result, load_result
from tests.commands import SCRIPTS, bucketlab, profiled, start
from tests.faults.injecting import begun
from tests.tune.jobs import LONG, SHORT_RACE, finished_trials, kill_all

PLAIN = SCRIPTS / "plain.py"


def tuned(*arguments: str | Path, cwd: Path, environment: dict[str, str] = LONG) -> Tuning:
    done = bucketlab("tune", "--json", *SHORT_RACE, *arguments, cwd=cwd, environment=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return msgspec.json.decode(done.stdout, type=Tuning)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuning]:
    folder = tmp_path_factory.mktemp("study")
    return folder, tuned("--trials", "4", PLAIN, cwd=folder)


def test_one_launch_gives_a_setting_with_an_interval(study: tuple[Path, Tuning]) -> None:
    _, result = study
    assert result.schema == SCHEMA
    assert result.kind == "measured"
    assert result.finished
    assert result.ci95 is not None
    assert result.speedup is not None
    assert result.ci95[0] <= result.speedup <= result.ci95[1]
    assert result.significant == (result.ci95[0] > 0)
    assert result.rounds >= 12
    assert result.current_is_default
    assert "2 ranks within one host" in result.interconnect


def test_the_buckets_of_every_trial_were_read_back_from_ddp(study: tuple[Path, Tuning]) -> None:
    _, result = study
    gradient_bytes = result.job.gradient_bytes
    assert all(sum(trial.bucket_bytes) == gradient_bytes for trial in result.trials)
    assert not any(trial.built_otherwise for trial in result.trials)
    assert len({tuple(trial.bucket_bytes) for trial in result.trials}) == len(result.trials)


def test_result_json_is_what_was_printed_and_optuna_opens_the_study(study: tuple[Path, Tuning]) -> None:
    folder, result = study
    stored = find_result(None, folder / "sweeps")
    assert load_result(stored) == result
    opened = optuna.load_study(study_name=result.study, storage=f"sqlite:///{stored}/study.db")
    assert {trial.number for trial in opened.trials} >= {trial.number for trial in result.trials}
    assert all(trial.state.is_finished() for trial in opened.trials)


def test_each_trial_is_a_run_with_its_setting_and_step_time_in_tensorboard(study: tuple[Path, Tuning]) -> None:
    folder, result = study
    top = find_result(None, folder / "sweeps") / "scalars"
    measured = [trial for trial in result.trials if trial.state == "complete"]
    assert sorted(path.name for path in top.iterdir()) == [f"trial-{trial.number:03d}" for trial in measured]
    everything = {"tensors": 0}
    accumulator = EventAccumulator(str(top / f"trial-{measured[-1].number:03d}"), size_guidance=everything)
    accumulator.Reload()
    steps = [tensor_value(one) for one in accumulator.Tensors("measured/step ms")]
    assert steps == pytest.approx([ns / 1e6 for ns in measured[-1].step_ns], rel=1e-6)


def tensor_value(event: Any) -> float:
    return float(make_ndarray(event.tensor_proto))


@pytest.mark.long
def test_the_same_command_after_a_finished_study_begins_another(study: tuple[Path, Tuning]) -> None:
    folder, result = study
    again = tuned("--trials", "4", PLAIN, cwd=folder)
    assert again.study == f"{result.study}-2"
    assert load_result(folder / "sweeps" / result.study) == result


def test_without_a_script_the_one_last_profiled_is_tuned(tmp_path: Path) -> None:
    profiled(PLAIN, "--steps", "20", "--nproc-per-node", "2", cwd=tmp_path, environment=LONG)
    result = tuned("--trials", "1", cwd=tmp_path)
    assert result.command == [str(PLAIN)]
    assert result.job.world_size == 2


def test_without_a_script_and_without_a_profile_it_says_what_to_do(tmp_path: Path) -> None:
    done = bucketlab("tune", cwd=tmp_path)
    assert done.returncode == 2
    assert "bucketlab profile" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_ends_early_is_launched_again_and_the_study_goes_on(tmp_path: Path) -> None:
    now = tmp_path / "now"
    options = ["--json", *SHORT_RACE, "--trials", "2"]
    job = begun("tune", *options, SCRIPTS / "ends_when_told.py", now, cwd=tmp_path, environment=LONG)
    job.wait_for_study("final race")
    now.touch()
    done = job.ended()
    assert done.returncode == 0, done.stderr[-4000:]
    result = msgspec.json.decode(done.stdout, type=Tuning)
    assert len([trial for trial in result.trials if not trial.is_current]) == 2
    assert result.finished
    assert result.rounds >= 12
    assert done.stderr.count("launched again: the script ended before the study did") == 1


@pytest.mark.fault(
    "ranks",
    "an exception that one setting brings, search",
    command="tune",
    outcome="launched again; the setting is noted as failed with its reason and not tried again",
)
def test_a_setting_that_kills_a_rank_fails_with_its_reason_and_is_not_tried_again(tmp_path: Path) -> None:
    result = tuned("--trials", "4", SCRIPTS / "crashes_above.py", "2.04", cwd=tmp_path)
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert failed
    assert all("out of memory" in (trial.failure or "") for trial in failed)
    assert all(sum(trial.bucket_bytes == one.bucket_bytes for one in result.trials) == 1 for trial in failed)
    assert any(trial.state == "complete" and not trial.is_current for trial in result.trials)
    assert result.best.bucket_cap_mb is None or result.best.bucket_cap_mb <= 2.04


@pytest.mark.fault(
    "ranks",
    "an exception before the search",
    command="tune",
    outcome="exit code 1; the last line names rank, step and exception",
)
def test_a_script_that_fails_whatever_its_buckets_are_is_to_blame_itself(tmp_path: Path) -> None:
    done = bucketlab("tune", "--trials", "5", SCRIPTS / "crash_rank1.py", cwd=tmp_path, environment=LONG)
    assert done.returncode == 1
    assert "rank 1" in done.stderr.splitlines()[-1]
    assert done.stderr.count("launched again") <= 1


def test_one_rank_has_no_buckets_to_tune(tmp_path: Path) -> None:
    done = bucketlab("tune", "--trials", "2", "--nproc-per-node", "1", PLAIN, cwd=tmp_path, environment=LONG)
    assert done.returncode == 1
    assert "one rank exchanges gradients with nobody" in done.stderr.splitlines()[-1]


def test_a_script_without_ddp_is_launched_once(tmp_path: Path) -> None:
    done = bucketlab("tune", "--trials", "2", SCRIPTS / "no_ddp.py", cwd=tmp_path, environment=LONG)
    assert done.returncode == 1
    assert "never built a DistributedDataParallel" in done.stderr.splitlines()[-1]
    assert "launched again" not in done.stderr


@pytest.mark.fault(
    "ranks",
    "kill -9 of the command, torchrun and all ranks at once",
    command="tune",
    outcome="the same command goes on; at most the running trial is lost",
)
def test_kill_9_of_everything_loses_at_most_the_running_trial(tmp_path: Path) -> None:
    command = ["tune", "--json", "--trials", "6", "--study", "killed", PLAIN]
    storage = f"sqlite:///{tmp_path}/sweeps/killed/study.db"
    process = start(*command, cwd=tmp_path, environment=LONG)
    while len(before := finished_trials(storage)) < 3:
        assert process.poll() is None
        time.sleep(0.2)
    kill_all(process.pid)
    process.wait()
    result = tuned(*command[2:], cwd=tmp_path)
    after = finished_trials(storage)
    assert after[: len(before)] == before
    assert len({tuple(trial.bucket_bytes) for trial in result.trials}) == len(result.trials)
    assert result.finished


def test_two_jobs_share_one_study_in_postgresql(postgresql: str, tmp_path: Path) -> None:
    command = ["tune", "--json", *SHORT_RACE, "--trials", "3", "--study", "shared", "--storage", postgresql]
    jobs = [start(*command, PLAIN, "--out", "x", cwd=_made(tmp_path / name), environment=LONG) for name in "ab"]
    outputs = [job.communicate(timeout=250) for job in jobs]
    for job, (_, errors) in zip(jobs, outputs, strict=True):
        assert job.returncode == 0, errors[-4000:]
    results = [msgspec.json.decode(output, type=Tuning) for output, _ in outputs]
    trials = optuna.load_study(study_name="shared", storage=postgresql).trials
    layouts = [tuple(trial.user_attrs["bucketlab"]["bucket_bytes"]) for trial in trials]
    complete = [one for one in trials if one.state == optuna.trial.TrialState.COMPLETE and not trial_is_current(one)]
    assert 2 <= len(complete) == len({layouts[one.number] for one in complete})
    assert all(one.state.is_finished() for one in trials)
    assert all(result.finished and result.ci95 is not None for result in results)
    assert all("s3cret" not in output + errors for output, errors in outputs)


def trial_is_current(trial: optuna.trial.FrozenTrial) -> bool:
    return bool(trial.user_attrs["bucketlab"]["is_current"])


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_job_whose_buckets_cannot_change_in_place_is_told_of_relaunch(tmp_path: Path) -> None:
    script = SCRIPTS / "sparse_embedding.py"
    done = bucketlab("tune", "--trials", "2", script, cwd=tmp_path, environment=LONG)
    assert done.returncode == 1
    assert "sparse gradients" in done.stderr
    assert "--relaunch" in done.stderr


def test_with_relaunch_each_setting_is_given_to_the_constructor(tmp_path: Path) -> None:
    """And what was measured until Ctrl-C is kept: a whole study of launches takes minutes."""
    command = ["tune", "--relaunch", "--study", "killed", PLAIN]
    storage = f"sqlite:///{tmp_path}/sweeps/killed/study.db"
    process = start(*command, cwd=tmp_path, environment=LONG)
    while len(finished_trials(storage)) < 3:
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate()
    assert process.returncode == 1
    assert "interrupted" in messages.splitlines()[-1]
    result = load_result(tmp_path / "sweeps" / "killed")
    assert not result.finished
    complete = [trial for trial in result.trials if trial.state == "complete"]
    assert len(complete) >= 3
    assert all(sum(trial.bucket_bytes) == result.job.gradient_bytes for trial in complete)
    assert len({tuple(trial.bucket_bytes) for trial in complete}) == len(complete)
    assert not any(trial.built_otherwise for trial in complete)


# ---- the link ---------------------------------------------------------------------------------------------------


def test_an_emulated_link_is_tuned_for_and_the_result_says_emulated(tmp_path: Path) -> None:
    result = tuned("--trials", "3", "--emulate", "ethernet", PLAIN, cwd=tmp_path)
    assert result.kind == "emulated"
    assert "ethernet" in result.interconnect
    assert "ethernet" in result.study


def test_several_sweeps_make_one_study_each_in_its_own_space(tmp_path: Path) -> None:
    for name, high in (("small", 1), ("large", 4)):
        link = 'kind = "gloo"\nranks = 2\nlatency_us = 100.0\nbandwidth_gb_s = 1.0'
        search = f"bucket_cap_mb = {{ low = 0.25, high = {high} }}"
        text = f'name = "{name}"\ndescription = "a space"\n[link]\n{link}\n[search]\n{search}\n'
        (tmp_path / f"{name}.toml").write_text(text)
    sweeps = ["--sweep", "small.toml", "--sweep", "large.toml"]
    command = ["tune", "--json", *SHORT_RACE, "--no-prediction", "--trials", "1", *sweeps, PLAIN]
    done = bucketlab(*command, cwd=tmp_path, environment=LONG)
    assert done.returncode == 0, done.stderr[-4000:]
    results = msgspec.json.decode(done.stdout, type=list[Tuning])
    assert [result.study.split("-")[1] for result in results] == ["small", "large"]
    assert all(result.finished for result in results)


def test_a_link_that_is_not_here_is_named_before_anything_is_launched(tmp_path: Path) -> None:
    done = bucketlab("tune", "--sweep", "nvlink", PLAIN, cwd=tmp_path)
    if done.returncode == 0:
        pytest.skip("this machine has NVLink")
    assert done.returncode == 2
    assert "nvlink" in done.stderr
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////nowhere/at/all/study.db", "unable to open"),
        ("nonsense", "cannot be opened"),
        ("postgresql+psycopg2://me:secret-word@127.0.0.1:1/none", "cannot be opened"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_named_without_its_password(url: str, words: str, tmp_path: Path) -> None:
    done = bucketlab("tune", "--storage", url, PLAIN, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "secret-word" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- run --------------------------------------------------------------------------------------------------------


def test_run_gives_the_setting_to_a_script_that_does_not_know_of_it(tmp_path: Path) -> None:
    folder, result = tmp_path / "sweeps" / "by-hand", _result_of_a_faster_setting(tmp_path)
    options = ["--json", "--study", folder, "--nproc-per-node", "2"]
    done = bucketlab("run", *options, PLAIN, cwd=tmp_path, environment={"STEPS": "20"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["study"] == "by-hand"
    assert "warning" not in done.stderr
    assert f"trains with {len(result.best.bucket_bytes)} buckets" in done.stderr


def test_run_warns_of_other_ranks_of_another_model_and_of_another_link(tmp_path: Path) -> None:
    _result_of_a_faster_setting(tmp_path)
    short = {"STEPS": "20"}
    other_ranks = bucketlab("run", "--nproc-per-node", "3", PLAIN, cwd=tmp_path, environment=short)
    assert other_ranks.returncode == 0, other_ranks.stderr
    assert "3 ranks train here, study by-hand had 2" in other_ranks.stderr
    path = tmp_path / "sweeps" / "by-hand" / RESULT
    path.write_text(json.dumps({**json.loads(path.read_text()), "interconnect": "InfiniBand, 2 ranks on 2 hosts"}))
    other_model = bucketlab("run", "--study", "by-hand", SCRIPTS / "gan.py", cwd=tmp_path, environment=short)
    assert "the model has other gradients" in other_model.stderr
    assert "study by-hand had InfiniBand, 2 ranks on 2 hosts" in other_model.stderr


def test_run_without_a_study_says_what_to_do(tmp_path: Path) -> None:
    done = bucketlab("run", PLAIN, cwd=tmp_path)
    assert done.returncode == 2
    assert "bucketlab tune" in done.stderr


@pytest.mark.long
def test_run_tells_of_a_script_that_fails(tmp_path: Path) -> None:
    _result_of_a_faster_setting(tmp_path)
    done = bucketlab("run", "--study", "by-hand", SCRIPTS / "crash_rank1.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "rank 1" in done.stderr.splitlines()[-1]


def _result_of_a_faster_setting(folder: Path) -> Tuning:
    """A study of the plain script whose answer is known: changed by hand to 0.5 MiB, significant."""
    measured = tuned("--trials", "1", "--study", "by-hand", "--nproc-per-node", "2", PLAIN, cwd=folder)
    path = folder / "sweeps" / "by-hand" / RESULT
    document = json.loads(path.read_text())
    document["significant"] = True
    document["best"]["bucket_cap_mb"] = 0.5
    document["best"]["first_bucket_mb"] = None
    document["best"]["bucket_cap_mb_list"] = []
    # The plain script's gradients in ready order, closed at half a MiB: three matrices of 1 MiB, 1 MiB and 64 KiB.
    document["best"]["bucket_bytes"] = [1_052_676, 1_050_624, 67_584]
    path.write_text(json.dumps(document))
    assert sum(document["best"]["bucket_bytes"]) == measured.job.gradient_bytes
    return load_result(path.parent)
