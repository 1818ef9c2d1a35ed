"""The part of a step in which no bucket is reduced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bucketlab.worker.clock import CudaClock, HostClock
from bucketlab.worker.observe import Step
from bucketlab.worker.untouched import Untouched, forward_waits

WHOLE = Step(
    start=0,
    called=10,
    backward_start=40,
    backward_end=80,
    end=100,
    pauses=[(0, 10), (20, 25), (80, 100)],
    loading=[(20, 25)],
    optimizing=[(85, 90), (90, 99)],
)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_it_is_the_forward_pass_without_what_waits_for_data_and_every_optimizer() -> None:
    assert Untouched.of(WHOLE, HostClock()) == Untouched((40 - 10) - (25 - 20), (90 - 85) + (99 - 90))


def test_it_is_what_could_be_seen_of_that() -> None:
    assert Untouched.of(replace(WHOLE, called=None, loading=[]), HostClock()) == Untouched(0, 14)
    assert Untouched.of(replace(WHOLE, optimizing=[]), HostClock()) == Untouched(25, 0)


def test_on_a_gpu_nothing_is_taken_for_untouched() -> None:
    assert Untouched.of(WHOLE, CudaClock()) == Untouched(0, 0)


def test_forward_passes_wait_for_other_ranks_where_buffers_are_broadcast(alone: None) -> None:
    plain = DistributedDataParallel(nn.Linear(2, 2))
    normed = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert not forward_waits([plain])
    assert forward_waits([plain, normed])
