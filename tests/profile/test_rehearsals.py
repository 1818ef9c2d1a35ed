"""Other layouts tried out beside the backward pass: they change nothing, and are what DDP would make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bucketlab.predict.forecast import current_layouts, timeline_of
from tests.commands import SCRIPTS, profiled, torchrun
from tests.profile.conftest import dumped

LONG = {"STEPS": "340"}  # until layouts have been rehearsed, and some more


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory):
    """Profile and dump of three ranks, for the order of a sum of two numbers would not show."""
    folder = tmp_path_factory.mktemp("rehearsed")
    options = ["--keep-running", "--out", str(folder / "traces"), "--nproc-per-node", "3", "--link-seconds", "1"]
    script = SCRIPTS / "gradient_clipping.py"
    return profiled(script, *options, cwd=SCRIPTS, environment={**LONG, "DUMP": str(folder)}), dumped(folder)


def test_a_job_that_rehearsed_ends_with_the_same_bits(rehearsed, tmp_path: Path) -> None:
    profile, measured = rehearsed
    assert profile.rehearsals
    torchrun(SCRIPTS / "gradient_clipping.py", ranks=3, cwd=SCRIPTS, environment={**LONG, "DUMP": str(tmp_path)})
    assert len(measured) == 3
    assert measured == dumped(tmp_path)


def test_each_rehearsed_layout_is_what_ddp_would_make_and_none_comes_twice(rehearsed) -> None:
    profile, _ = rehearsed
    layouts = [one.bucket_bytes for one in profile.rehearsals]
    assert all(layouts.count(one) == 1 for one in layouts)
    # Asked of torch: what a profile and its prediction say comes from one rule of ours.
    gradients = [torch.empty(one.bytes // 4) for one in profile.gradients]
    for one in profile.rehearsals:
        buckets, _ = dist._compute_bucket_assignment_by_size(gradients, [one.cap_bytes])
        assert one.bucket_bytes == [sum(gradients[at].nbytes for at in bucket) for bucket in buckets]
        assert one.steps >= 4
        assert 0 < one.compute_ns < one.end_ns


def test_the_last_rank_has_a_bucket_no_earlier_than_rank_0(rehearsed) -> None:
    profile, _ = rehearsed
    assert len(profile.buckets) == len(current_layouts(profile, timeline_of(profile))[0])
    for bucket in profile.buckets:
        assert bucket.ready_ns is not None and bucket.last_ready_ns is not None and bucket.end_ns is not None
        assert bucket.ready_ns <= bucket.last_ready_ns <= bucket.end_ns


_TELLS_PROGRESS = """
import json, os, sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bucketlab.worker.config import VARIABLE
from bucketlab.worker.progress import PHASES, read_progress

control = Path(json.loads(os.environ[VARIABLE])["control"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(256, 256, bias=False))  # one gradient: one bucket, whatever the capacity
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
seen = {}
for _ in range(400):
    optimizer.zero_grad()
    model(torch.randn(4, 256)).sum().backward()
    optimizer.step()
    [row] = [one for one in read_progress(control) if one.pid == os.getpid()]
    seen[PHASES[row.phase]] = [row.done, row.total]
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps(seen))
dist.destroy_process_group()
"""


@pytest.mark.long
def test_each_phase_says_beforehand_how_many_steps_it_takes(tmp_path: Path) -> None:
    script, told = tmp_path / "tells.py", tmp_path / "told.json"
    script.write_text(_TELLS_PROGRESS)
    options = ["--keep-running", "--nproc-per-node", "2", "--link-seconds", "0.5"]
    profile = profiled(script, *options, cwd=tmp_path, arguments=[str(told)])
    assert len(profile.rehearsals) == 1  # of two capacities that make the same bucket
    seen = json.loads(told.read_text())
    for phase in ("timing", "tracing", "ready times", "more timing"):
        done, total = seen[phase]
        assert done + 1 == total, phase  # the script is asked before the phase's last step
