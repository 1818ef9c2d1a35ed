"""What a cluster changes from node to node and from allocation to allocation, and how srun starts commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucketlab.errors import BadInput
from bucketlab.launch.command import Job, launch_command

MEETING = (("nnodes", "2"), ("node-rank", "1"), ("master-addr", "node7"), ("master-port", "29511"))


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def srun(monkeypatch: pytest.MonkeyPatch, tasks: int, nodes: int) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", str(tasks))
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", str(nodes))


def test_a_job_is_the_same_on_every_node_and_when_it_is_queued_again() -> None:
    again = (("nnodes", "2"), ("node-rank", "0"), ("master-addr", "node9"), ("master-port", "29933"))
    assert Job(("train.py",), options=MEETING).identity == Job(("train.py",), options=again).identity
    by_c10d = [(("rdzv-backend", "c10d"), ("rdzv-endpoint", f"node{n}:1"), ("rdzv-id", str(n))) for n in (1, 2)]
    assert Job(("train.py",), options=by_c10d[0]).identity == Job(("train.py",), options=by_c10d[1]).identity


def test_more_nodes_or_other_arguments_make_another_job() -> None:
    more = (("nnodes", "4"), *MEETING[1:])
    assert Job(("train.py",), options=MEETING).identity != Job(("train.py",), options=more).identity
    assert Job(("train.py", "--wide"), options=MEETING).identity != Job(("train.py",), options=MEETING).identity


def test_only_a_static_rendezvous_tells_beforehand_where_rank_0_is() -> None:
    assert not Job(("train.py",), options=MEETING).may_hold_rank_0
    assert Job(("train.py",), options=(*MEETING, ("rdzv-backend", "c10d"))).may_hold_rank_0
    assert Job(("train.py",), options=(("nnodes", "2"), ("node-rank", "0"))).may_hold_rank_0
    assert Job(("train.py",)).may_hold_rank_0


def test_srun_must_not_start_a_job_of_its_own_on_each_node(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    srun(monkeypatch, tasks=2, nodes=2)
    with pytest.raises(BadInput, match="srun started 2 of these commands, and nothing says how they meet"):
        launch_command(Job((script,)))
    assert "--standalone" not in launch_command(Job((script,), options=MEETING))
    assert "--standalone" in launch_command(Job((script,), flags=("standalone",)))


def test_srun_must_not_start_several_commands_on_a_node(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    srun(monkeypatch, tasks=16, nodes=2)
    with pytest.raises(BadInput, match=r"16 of these commands on 2 nodes.*--ntasks-per-node=1"):
        launch_command(Job((script,), options=MEETING))
    assert launch_command(Job(("python", script), own_launcher=True)) == ["python", script]


def test_a_batch_script_and_a_single_task_are_jobs_of_one_node(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "16")  # of the allocation, not of a step
    assert "--standalone" in launch_command(Job((script,)))
    srun(monkeypatch, tasks=1, nodes=1)
    assert "--standalone" in launch_command(Job((script,)))
