"""What the profile says of scripts that are not the textbook's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import SCRIPTS, bucketlab, last_line, profiled
from tests.profile.conftest import Measured


def test_backwards_of_an_accumulated_step_are_counted(measured: Measured) -> None:
    assert measured("accumulate_no_sync").profile.accumulation == 4
    assert measured("accumulate_flag").profile.accumulation == 3


def test_steps_that_a_grad_scaler_skips_are_not_timed(measured: Measured) -> None:
    profile = measured("grad_scaler").profile
    assert profile.step is not None
    assert profile.step.excluded > 0


def test_steps_with_an_evaluation_in_them_are_not_timed(measured: Measured) -> None:
    profile = measured("eval_between_epochs").profile
    assert profile.step is not None
    assert profile.step.excluded > 0


def test_both_modules_of_a_gan_are_measured_and_its_step_is_both_optimizers(measured: Measured) -> None:
    profile = measured("gan").profile
    assert len(profile.modules) == 2
    assert len(profile.optimizers) == 2
    assert {gradient.module for gradient in profile.gradients} == {0, 1}
    assert all(gradient.ready_ns is not None for gradient in profile.gradients)


def test_the_setting_in_force_stands_in_the_profile_once_more_for_other_programs(measured: Measured) -> None:
    profile = measured("gan").profile
    largest = max(profile.modules, key=lambda one: one.parameters)
    assert profile.current is not None
    assert profile.current.bucket_cap_mb == largest.bucket_cap_mb
    assert profile.current.is_default == largest.is_default


def test_the_scripts_own_communication_hook_is_kept_and_named(measured: Measured) -> None:
    profile = measured("own_hook").profile
    assert profile.modules[0].communication_hook == "fp16_compress_hook"
    assert any("fp16_compress_hook" in note for note in profile.notes)


def test_parameters_without_a_gradient_have_no_ready_time(measured: Measured) -> None:
    profile = measured("unused_parameters", 3).profile
    assert profile.modules[0].find_unused_parameters
    ready = [gradient.ready_ns for gradient in profile.gradients]
    assert any(one is not None for one in ready)


def test_a_script_that_ends_early_is_reported_with_what_there_is_and_what_is_missing(tmp_path: Path) -> None:
    profile = profiled(SCRIPTS / "ends_early.py", cwd=tmp_path)
    assert profile.step is not None and 1 <= len(profile.step.samples) <= 2
    assert profile.link is None and profile.breakdown is None
    assert any("ended during timing" in line for line in profile.missing)


def test_a_job_bound_by_its_input_gets_no_bucket_size_recommended(tmp_path: Path) -> None:
    profile = profiled(SCRIPTS / "slow_input.py", cwd=tmp_path)
    assert profile.input_ns is not None and profile.step is not None
    assert profile.input_ns > profile.step.median_ns / 2
    assert "input" in profile.advice[0]
    assert not any("bucket_cap_mb=" in line for line in profile.advice)


def test_a_parameter_larger_than_the_capacity_is_a_bucket_of_its_own(measured: Measured) -> None:
    profile = measured("embedding_larger_than_cap", 3).profile
    largest = max(gradient.bytes for gradient in profile.gradients)
    cap_bytes = profile.modules[0].bucket_cap_mb * 2**20
    assert largest > cap_bytes
    assert any(bucket.bytes >= largest for bucket in profile.buckets)


def test_a_compiled_model_is_profiled_and_said_to_be_compiled(measured: Measured) -> None:
    profile = measured("compiled").profile
    assert profile.modules[0].compiled
    assert profile.step is not None


@pytest.mark.fault(
    "scripts", "there is a sitecustomize already", command="profile", outcome="it runs, and the script is measured"
)
def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['OWN_SITECUSTOMIZE'] = 'ran'\n")
    script = tmp_path / "train.py"
    source = (SCRIPTS / "plain.py").read_text()
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(SCRIPTS)!r})\nprint('own:', os.environ.get('OWN_SITECUSTOMIZE'))\n"
        + source.replace("from __future__ import annotations\n", "")
    )
    done = bucketlab("profile", script, cwd=tmp_path, environment={"PYTHONPATH": f"{own}:{Path(__file__).parents[2]}"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "own: ran" in done.stdout


def test_a_second_profile_does_not_touch_the_first(tmp_path: Path) -> None:
    first = profiled(SCRIPTS / "plain.py", cwd=tmp_path)
    second = profiled(SCRIPTS / "plain.py", cwd=tmp_path)
    assert first.run != second.run
    assert {path.parent.name for path in tmp_path.glob("traces/*/profile.json")} == {first.run, second.run}


@pytest.mark.fault(
    "scripts",
    "the script would train for days",
    command="profile",
    outcome="ended after the measurement as by `sys.exit(0)`, with its clean-up",
)
def test_the_script_is_ended_after_the_measurement_with_its_clean_up(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
        "import torch, torch.nn.functional as F\n"
        "from tiny import batch, network, start\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "start()\nmodel = DistributedDataParallel(network())\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "try:\n"
        "    for step in range(10**9):\n"
        "        inputs, targets = batch(step)\n"
        "        optimizer.zero_grad()\n"
        "        F.mse_loss(model(inputs), targets).backward()\n"
        "        optimizer.step()\n"
        "finally:\n"
        "    print('cleaned up', flush=True)\n"
    )
    done = bucketlab("profile", "--steps", "20", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("cleaned up") == 2
    assert "exit code" not in last_line(done)


@pytest.mark.fault(
    "scripts",
    "the script starts its own torch.profiler while ours runs",
    command="profile",
    outcome="ours gives way; the script's trace is whole; the run says what is missing",
)
def test_our_profiler_gives_way_to_one_that_the_script_starts_meanwhile(tmp_path: Path) -> None:
    environment = {"DUMP": str(tmp_path), "WAIT": "26"}  # ours begins after 26 steps
    profile = profiled(SCRIPTS / "own_profiler.py", "--keep-running", cwd=tmp_path, environment=environment)
    assert len(list(tmp_path.glob("rank*.json"))) == 2  # it got its own trace, and to its end
    assert any("ours gave way" in line for line in profile.missing)
    assert profile.link is not None  # the ranks stayed in step
