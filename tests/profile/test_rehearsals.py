"""Other layouts tried out beside the backward pass: they change nothing, and are what DDP would make."""

from __future__ import annotations

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
        assert profile.forward_ns is not None and profile.forward_ns < one.compute_ns < one.end_ns


def test_the_last_rank_has_a_bucket_no_earlier_than_rank_0(rehearsed) -> None:
    profile, _ = rehearsed
    assert len(profile.buckets) == len(current_layouts(profile, timeline_of(profile))[0])
    for bucket in profile.buckets:
        assert bucket.ready_ns is not None and bucket.last_ready_ns is not None and bucket.end_ns is not None
        assert bucket.ready_ns <= bucket.last_ready_ns <= bucket.end_ns
