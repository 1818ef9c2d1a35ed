"""The odd training scripts, run untouched under torchrun, end as they should: what profiling them is compared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

TRAINS = [
    "accumulate_flag",
    "accumulate_no_sync",
    "compiled",
    "data_parallel",
    "embedding_larger_than_cap",
    "ends_early",
    "eval_between_epochs",
    "fsdp",
    "fsdp wrapper",
    "gan",
    "grad_scaler",
    "gradient_clipping",
    "grads_read_after_step",
    "never_steps",
    "no_ddp",
    "own_hook",
    "own_hook own",
    "plain",
    "reads_itself",
    "slow_input",
    "static_graph",
    "subclass",
    "two_optimizers",
    "unused_parameters",
    "variable_length",
]
FAILS = {
    "crash_rank1": "ValueError: a bad sample, on rank 1 alone",
    "exits_rank1": "exitcode  : 3",
    "oom": "OutOfMemoryError: CUDA out of memory",
}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "STEPS": "12", **more}


def ranks_losses(folder: Path) -> list[list[object]]:
    return [json.loads((folder / f"rank{rank}.json").read_text())["losses"] for rank in range(2)]


@pytest.mark.parametrize("command", TRAINS)
def test_script_trains_to_its_end(command: str, tmp_path: Path) -> None:
    script, *options = command.split()
    done = subprocess.run(
        [*TORCHRUN, str(SCRIPTS / f"{script}.py"), *options],
        env=environment(DUMP=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, second = ranks_losses(tmp_path)
    assert len(first) >= 7
    assert first != second  # each rank has its own data


@pytest.mark.parametrize("script", FAILS)
def test_script_fails_with_its_own_error(script: str) -> None:
    done = subprocess.run([*TORCHRUN, str(SCRIPTS / f"{script}.py")], env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert FAILS[script] in done.stderr


def test_script_that_spawns_its_ranks_needs_no_torchrun(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPTS / "spawns.py")], env=environment(DUMP=str(tmp_path)), check=True)
    first, second = ranks_losses(tmp_path)
    assert len(first) == 12
    assert first != second


def test_script_that_hangs_goes_on_until_it_is_ended() -> None:
    torchrun = subprocess.Popen(
        [*TORCHRUN, str(SCRIPTS / "hangs.py")], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert torchrun.stdout is not None
    assert torchrun.stdout.readline() == "rank 1 hangs\n"
    with pytest.raises(subprocess.TimeoutExpired):
        torchrun.wait(timeout=1)
    torchrun.terminate()
    assert torchrun.wait(timeout=60) != 0


def test_every_script_is_tried_here() -> None:
    tried = {command.split()[0] for command in [*TRAINS, *FAILS]} | {"hangs", "spawns"}
    assert {path.stem for path in SCRIPTS.glob("*.py")} == tried | {"tiny"}
