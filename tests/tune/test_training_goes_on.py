"""`bucketlab run --autotune` changes when gradients travel, never what is computed: weights and losses stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bucketlab.tune.files import find_result, load_result
from tests.commands import SCRIPTS, bucketlab, torchrun
from tests.tune.jobs import SHORT_RACE

STEPS = "400"  # enough for several settings in turn, and the training goes on with the last of them

# Of two ranks' numbers the order of the sum does not matter, so every bit must be the same whatever the buckets.
SCRIPTS_FOR_BITS = [
    "plain",
    "accumulate_no_sync",
    "grad_scaler",
    "gan",
    pytest.param("eval_between_epochs", marks=pytest.mark.long),
    "unused_parameters",
    "static_graph",
    pytest.param("own_hook", marks=pytest.mark.long),
    pytest.param("embedding_larger_than_cap", marks=pytest.mark.long),
]


def dumped(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("rank*.json"))}


def trained(name: str, ranks: int, folder: Path) -> tuple[dict[str, str], dict[str, str], set[tuple[int, ...]]]:
    """What an untouched and a tuned training wrote, and the layouts of buckets that the tuned one trained with."""
    untouched, tuned = folder / "untouched", folder / "tuned"
    untouched.mkdir()
    tuned.mkdir()
    script = SCRIPTS / f"{name}.py"
    torchrun(script, ranks=ranks, cwd=SCRIPTS, environment={"DUMP": str(untouched), "STEPS": STEPS})
    options = ["--autotune", *SHORT_RACE, "--nproc-per-node", str(ranks), "--trials", "6", "--no-prediction"]
    environment = {"DUMP": str(tuned), "STEPS": STEPS}
    done = bucketlab("run", *options, "--out", folder / "sweeps", script, cwd=SCRIPTS, environment=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    result = load_result(find_result(None, folder / "sweeps"))
    layouts = {tuple(trial.bucket_bytes) for trial in result.trials if trial.step_ns}
    return dumped(untouched), dumped(tuned), layouts


@pytest.mark.parametrize("name", SCRIPTS_FOR_BITS)
def test_weights_and_losses_are_the_same_bits_while_buckets_change(name: str, tmp_path: Path) -> None:
    untouched, tuned, layouts = trained(name, 2, tmp_path)
    assert len(layouts) > 1
    assert len(untouched) == 2
    assert tuned == untouched


def test_three_ranks_sum_in_another_order_and_losses_differ_by_no_more_than_rounding(tmp_path: Path) -> None:
    untouched, tuned, layouts = trained("plain", 3, tmp_path)
    assert len(layouts) > 1
    for name, text in untouched.items():
        assert json.loads(tuned[name])["losses"][:200] == pytest.approx(json.loads(text)["losses"][:200], rel=1e-3)


def test_a_compiled_model_is_compiled_anew_for_its_new_buckets(tmp_path: Path) -> None:
    untouched, tuned, layouts = trained("compiled", 2, tmp_path)
    assert len(layouts) > 1
    for name, text in untouched.items():
        assert json.loads(tuned[name]) == json.loads(text)


@pytest.mark.fault(
    "ranks",
    "an exception that one setting brings",
    command="run --autotune",
    outcome="exit code 1; the training is not begun anew; the study is kept",
)
def test_a_training_that_dies_of_a_setting_is_not_begun_anew_by_us(tmp_path: Path) -> None:
    options = ["--autotune", "--out", str(tmp_path / "sweeps"), "--study", "one", "--trials", "4"]
    command = ["run", *options, SCRIPTS / "crashes_above.py", "1.2"]
    done = bucketlab(*command, cwd=SCRIPTS, environment={"STEPS": "100000"})
    assert done.returncode == 1
    assert "out of memory" in done.stderr.splitlines()[-1]
    assert "the same command goes on" in done.stderr.splitlines()[-1]
    assert "launched again" not in done.stderr
