"""The guide's job script on a Slurm cluster of two nodes: as it is written, but for the sizes that sbatch is given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.commands import ROOT, SCRIPTS
from tests.docs.blocks import blocks
from tests.slurm import Cluster, cluster, reason_unavailable

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(reason_unavailable() is not None, reason=f"no cluster: {reason_unavailable()}"),
]

HERE = ["--gpus-per-node=1", "--cpus-per-task=2"]
[SCRIPT] = [block.code for block in blocks() if block.mark == "slurm"]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


def submit(slurm: Cluster, script: str, folders: Sequence[Path]) -> tuple[str, str]:
    """How Slurm says that a job ended, and its log; nodes have a plain `train.py` in the given folders."""
    for folder in folders:
        for name, source in {"train.py": "plain.py", "tiny.py": "tiny.py"}.items():
            shutil.copy(SCRIPTS / source, folder / name)
    place = slurm.shared / f"job{len(list(slurm.shared.iterdir()))}"
    place.mkdir()
    (place / "job.sh").write_text(script)
    environment = {"STEPS": "100000", "PYTHONPATH": str(ROOT), "WHERE": str(slurm.local)}
    state = slurm.batch("job.sh", place, HERE, environment)
    return state, "".join(path.read_text() for path in place.glob("*.log"))


def on_local_disks(slurm: Cluster) -> list[Path]:
    """Where each node sees a folder of its own."""
    return [slurm.local.with_name(f"local-{host.name}") for host in slurm.hosts]


def test_the_guides_script_profiles_two_nodes_and_reports_once(slurm: Cluster) -> None:
    state, log = submit(slurm, SCRIPT.replace("train.py", '"$WHERE/train.py"'), on_local_disks(slurm))
    assert state == "COMPLETED", log
    assert log.count("rank 0 runs on another node") == 1
    assert log.count("Where a step goes") == 1
    [path] = slurm.shared.glob("*/traces/*/profile.json")
    profile = json.loads(path.read_text())
    assert [rank["host"] for rank in profile["ranks"]] == [host.name for host in slurm.hosts]
    assert len(list(path.parent.glob("rank*.json.gz"))) == 2


def test_a_study_on_local_disks_leaves_its_result_on_the_first_node_and_nothing_on_the_other(slurm: Cluster) -> None:
    tune = 'cd "$WHERE"; bucketlab tune --trials 1 --steps 200'
    script = SCRIPT.replace('bucketlab profile --out "$SLURM_SUBMIT_DIR/traces"', tune)
    first, second = on_local_disks(slurm)
    state, log = submit(slurm, script, [first, second])
    assert state == "COMPLETED", log
    assert len(list(first.glob("sweeps/*/result.json"))) == 1
    assert not list(second.glob("sweeps/*"))


def test_a_node_whose_command_fails_ends_the_job(slurm: Cluster) -> None:
    first, second = on_local_disks(slurm)
    (second / "train.py").unlink(missing_ok=True)
    state, log = submit(slurm, SCRIPT.replace("bucketlab", 'cd "$WHERE"; bucketlab'), [first])
    assert state == "FAILED", log
    assert "there is no script train.py" in log
