"""A profiled script computes what it computes without bucketlab: weights and losses are equal to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import SCRIPTS, bucketlab, torchrun
from tests.profile.conftest import TIMED_STEPS, Measured, dumped

# Each does one thing that real scripts do; see their first lines. Where the order of a sum could show, three ranks:
# of two numbers the order does not matter.
SCRIPTS_AND_RANKS = [
    ("accumulate_no_sync", 2),
    ("accumulate_flag", 2),
    ("grad_scaler", 2),
    ("gan", 2),
    ("eval_between_epochs", 2),
    ("unused_parameters", 3),
    ("static_graph", 2),
    ("own_hook", 2),
    ("compiled", 2),
    ("variable_length", 2),
    ("subclass", 2),
    ("two_optimizers", 2),
    ("embedding_larger_than_cap", 3),
    ("grads_read_after_step", 3),
    ("gradient_clipping", 3),
    ("reads_itself", 2),
    ("own_profiler", 2),
]


@pytest.mark.parametrize(("name", "ranks"), SCRIPTS_AND_RANKS)
def test_weights_and_losses_are_the_same_bits(name: str, ranks: int, measured: Measured, tmp_path: Path) -> None:
    # gloo of torch 2.13 now and then aborts at interpreter exit, when all has been written: the exit code is no claim.
    torchrun(SCRIPTS / f"{name}.py", ranks=ranks, cwd=SCRIPTS, environment={"DUMP": str(tmp_path)})
    untouched = dumped(tmp_path)
    run = measured(name, ranks)
    assert len(untouched) == ranks
    assert run.dumped == untouched
    assert run.profile.missing == []
    assert run.profile.step is not None
    assert len(run.profile.step.samples) + run.profile.step.excluded == TIMED_STEPS


def test_a_script_that_spawns_its_own_ranks_is_measured_the_same(tmp_path: Path) -> None:
    plain, measured = tmp_path / "plain", tmp_path / "measured"
    plain.mkdir()
    measured.mkdir()
    script = [sys.executable, str(SCRIPTS / "spawns.py")]
    subprocess.run(script, cwd=SCRIPTS, env={**os.environ, "DUMP": str(plain)}, timeout=200, capture_output=True)
    options = ["--keep-running", "--steps", "25", "--out", str(tmp_path / "traces")]
    done = bucketlab("profile", *options, "--", *script, cwd=SCRIPTS, environment={"DUMP": str(measured)})
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(dumped(plain)) == 2
    assert dumped(measured) == dumped(plain)


def test_the_three_ranks_of_the_tests_above_sum_in_several_buckets(measured: Measured) -> None:
    for name in ("grads_read_after_step", "gradient_clipping", "embedding_larger_than_cap"):
        assert len(measured(name, 3).profile.buckets) > 1
