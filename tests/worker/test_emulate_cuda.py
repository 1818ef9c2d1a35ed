"""The emulated link on a GPU: it holds a stream of its own, and the training computes what it computes without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bucketlab.link.curve import LinkCurve
from bucketlab.worker.emulate import Emulation

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA device here", allow_module_level=True)

LATENCY_NS = 20_000_000


@pytest.fixture
def module(tmp_path: Path) -> Iterator[DistributedDataParallel]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    yield DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda(), bucket_cap_mb=0.25)
    dist.destroy_process_group()


def gradients(module: DistributedDataParallel, inputs: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    module(inputs).square().mean().backward()
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def test_buckets_come_one_after_the_other_no_earlier_than_modelled_and_unchanged(
    module: DistributedDataParallel,
) -> None:
    inputs = torch.randn(8, 256, device="cuda")
    for _ in range(4):
        expected = gradients(module, inputs)
    emulation = Emulation(LinkCurve.straight(LATENCY_NS, 1e3))
    emulation.install(module)
    gradients(module, inputs)  # the rate of the spinning kernel's clock is learnt meanwhile
    emulation.reset()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    found = gradients(module, inputs)
    ended.record()
    torch.cuda.synchronize()
    report = emulation.report()
    emulation.remove()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert report.transfers > 1
    # Other work on the GPU can only make it longer; a clock that speeds up within a step is what the tenth is for.
    assert began.elapsed_time(ended) * 1e6 >= 0.9 * LATENCY_NS * report.transfers


def test_the_link_is_left_out_again(module: DistributedDataParallel) -> None:
    inputs = torch.randn(8, 256, device="cuda")
    for _ in range(4):
        expected = gradients(module, inputs)
    emulation = Emulation(LinkCurve.straight(LATENCY_NS, 1e3))
    emulation.install(module)
    gradients(module, inputs)
    emulation.remove()
    assert all(torch.equal(one, other) for one, other in zip(gradients(module, inputs), expected, strict=True))
    assert emulation.why_not(module) is None
