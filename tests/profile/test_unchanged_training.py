"""A profiled script computes what it computes without bucketlab: weights and losses are equal to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import SCRIPTS, bucketlab, profiled, torchrun

# Each does one thing that real scripts do; see their first lines.
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
    ("embedding_larger_than_cap", 2),
    ("grads_read_after_step", 3),
    ("gradient_clipping", 3),
    ("reads_itself", 2),
]


def _outcome(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("rank*.json"))}


@pytest.mark.parametrize(("name", "ranks"), SCRIPTS_AND_RANKS)
def test_weights_and_losses_are_the_same_bits(name: str, ranks: int, tmp_path: Path) -> None:
    plain, measured = tmp_path / "plain", tmp_path / "measured"
    plain.mkdir()
    measured.mkdir()
    script = SCRIPTS / f"{name}.py"
    # gloo of torch 2.13 now and then aborts at interpreter exit, when all has been written: the exit code is no claim.
    torchrun(script, ranks=ranks, cwd=SCRIPTS, environment={"DUMP": str(plain)})
    options = ("--keep-running", "--steps", "25", "--out", str(tmp_path / "traces"), "--nproc-per-node", str(ranks))
    profile = profiled(script, *options, cwd=SCRIPTS, environment={"DUMP": str(measured)})
    assert len(_outcome(plain)) == ranks
    assert _outcome(measured) == _outcome(plain)
    assert profile.step is not None
    assert len(profile.step.samples) + profile.step.excluded == 25
    assert profile.missing == []


def test_a_script_that_spawns_its_own_ranks_is_measured_the_same(tmp_path: Path) -> None:
    plain, measured = tmp_path / "plain", tmp_path / "measured"
    plain.mkdir()
    measured.mkdir()
    import subprocess
    import sys

    script = str(SCRIPTS / "spawns.py")
    subprocess.run([sys.executable, script], cwd=SCRIPTS, env=_with_dump(plain), timeout=200, capture_output=True)
    options = ["--keep-running", "--steps", "25", "--out", str(tmp_path / "traces")]
    done = bucketlab(
        "profile", *options, "--", sys.executable, script, cwd=SCRIPTS, environment={"DUMP": str(measured)}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(_outcome(plain)) == 2
    assert _outcome(measured) == _outcome(plain)


def _with_dump(folder: Path) -> dict[str, str]:
    import os

    return {**os.environ, "DUMP": str(folder)}
