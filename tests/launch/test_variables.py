"""torchrun's options may stand in its variables, as operators of clusters set them; the command line comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucketlab.commands.common import job_of
from bucketlab.launch.command import TORCHRUN_FLAGS, TORCHRUN_OPTIONS, launch_command
from tests.commands import SCRIPTS, bucketlab, last_line


def options(**given: str) -> dict[str, object]:
    names = [name.replace("-", "_") for name in [*TORCHRUN_OPTIONS, *TORCHRUN_FLAGS]]
    return {**dict.fromkeys(names), "words": (), **given}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "pod-0", "NPROC_PER_NODE": "4"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_a_pod_of_an_operator_is_a_node_of_its_job_and_not_a_job_of_its_own(script: str) -> None:
    line = launch_command(job_of((script,), False, options()))
    assert "--standalone" not in line
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=pod-0", "--nproc-per-node=4"} <= set(line)


def test_an_option_comes_before_its_variable(script: str) -> None:
    line = launch_command(job_of((script,), False, options(nproc_per_node="2")))
    assert "--nproc-per-node=2" in line and "--nproc-per-node=4" not in line


def test_another_launcher_gets_no_options_of_torchrun(script: str) -> None:
    assert job_of(("python", script), True, options()).options == ()


def test_the_rank_of_a_pod_is_not_taken_for_a_rank_of_the_job(tmp_path: Path) -> None:
    of_the_pod = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
    done = bucketlab("profile", SCRIPTS / "crash_rank1.py", cwd=tmp_path, environment=of_the_pod)
    assert done.returncode == 1
    assert "rank 1 of" in last_line(done) and "ValueError" in last_line(done)
