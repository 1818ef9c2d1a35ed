"""The door to DDP's private names: what it reads is what DDP built, what it puts in place is what DDP would build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bucketlab.worker import ddp
from bucketlab.worker.ddp import Capacities

KIB, MIB = 2**10, 2**20


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store: Path = tmp_path_factory.mktemp("store") / "file"
    torch.set_num_threads(1)  # more would only wait for one another here
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())), nn.Linear(256, 7))


def trained(steps: int = 3, **options: Any) -> DistributedDataParallel:
    module = DistributedDataParallel(network(), **options)
    train(module, steps)
    return module


def train(module: DistributedDataParallel, steps: int) -> None:
    for step in range(steps):
        module.zero_grad()
        inputs = torch.randn(4, 256, generator=torch.Generator().manual_seed(step))
        module(inputs).square().mean().backward()


def test_this_release_has_all_that_is_needed() -> None:
    assert ddp.missing_names() == []


def test_the_layout_read_back_has_the_sizes_that_ddp_logs() -> None:
    module = trained(bucket_cap_mb=1)
    sizes = [sum(one.numel() * 4 for one in bucket) for bucket in _parameters(module)]
    logged = [int(size) for size in module._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]
    assert sizes == logged
    assert len(sizes) > 1


def _parameters(module: DistributedDataParallel) -> list[list[torch.Tensor]]:
    named = ddp.named_parameters(module)
    return [[named[index][1] for index in bucket] for bucket in ddp.layout(module)]


def uniform(cap: int) -> Capacities:
    return Capacities(cap, cap)


SETTINGS: list[tuple[dict[str, Any], Capacities]] = [
    ({}, Capacities(25 * MIB, MIB)),
    ({"bucket_cap_mb": 1}, uniform(MIB)),
    ({"bucket_cap_mb": 0.3}, uniform(int(0.3 * MIB))),
    ({"bucket_cap_mb": 1e-6}, uniform(1)),
    ({"bucket_cap_mb": 3}, uniform(3 * MIB)),
]
if ddp.takes_lists():
    listed = Capacities(int(0.6 * MIB), int(0.6 * MIB), (209715, 629145, 314572))
    SETTINGS.append(({"bucket_cap_mb_list": [0.2, 0.6, 0.3]}, listed))


@pytest.mark.parametrize("mode", ["usual", "find_unused_parameters", "static_graph"])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize(("options", "wanted"), SETTINGS)
def test_changed_in_place_is_as_if_constructed(
    options: dict[str, Any], wanted: Capacities, view: bool, mode: str
) -> None:
    flags = {} if mode == "usual" else {mode: True}
    constructed = trained(gradient_as_bucket_view=view, **options, **flags)
    changed = trained(gradient_as_bucket_view=view, bucket_cap_mb=0.7, **flags)
    ddp.change_capacities(changed, wanted)
    train(changed, 3)
    assert ddp.capacities(constructed) == wanted
    assert ddp.capacities(changed) == wanted
    assert ddp.is_default_capacity(changed) == ddp.is_default_capacity(constructed)
    assert ddp.layout(changed) == ddp.layout(constructed)
    for one, other in zip(changed.parameters(), constructed.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_a_change_keeps_the_gradients_of_the_step_before() -> None:
    module = trained(gradient_as_bucket_view=True)
    before = [one.grad.clone() for one in module.parameters() if one.grad is not None]
    ddp.change_capacities(module, Capacities(64 * KIB, 64 * KIB))
    after = [one.grad for one in module.parameters() if one.grad is not None]
    assert len(before) == len(after) == len(list(module.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_the_first_backward_after_a_change_is_in_the_new_buckets_already() -> None:
    module = trained()
    ddp.change_capacities(module, Capacities(256 * KIB, 256 * KIB))
    seen: list[int] = []

    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append(bucket.buffer().numel())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    module.register_comm_hook(None, hook)
    train(module, 1)
    first = list(seen)
    seen.clear()
    train(module, 1)
    assert first == seen
    assert len(first) > 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"skip_all_reduce_unused_params": True}, "skips the all-reduce"), ({}, None)],
)
def test_modules_that_must_be_left_alone_are_named_with_the_reason(options: dict[str, Any], reason: str | None) -> None:
    found = ddp.why_not_rebuildable(trained(1, **options))
    assert found is None if reason is None else found is not None and reason in found


def test_sparse_gradients_are_left_alone() -> None:
    module = DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
    assert "sparse" in (ddp.why_not_rebuildable(module) or "")


def test_the_scripts_own_hook_is_known_by_name() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    module = DistributedDataParallel(network())
    assert ddp.hook_of(module) is None
    module.register_comm_hook(None, fp16_compress_hook)
    assert ddp.hook_of(module) == "fp16_compress_hook"


def test_a_parameter_frozen_or_thawed_later_is_where_it_was_in_the_buckets() -> None:
    built = network()
    built[2].weight.requires_grad_(False)
    module = DistributedDataParallel(built, find_unused_parameters=True, bucket_cap_mb=0.3)
    ddp.note_built(module)
    train(module, 3)
    before = ddp.layout(module)
    built[2].weight.requires_grad_(True)  # DDP's reducer knows nothing of it
    built[4].weight.requires_grad_(False)  # and still waits for this one
    ddp.put_in_new_reducer(module, before)
    train(module, 3)
    assert ddp.layout(module) == before
    assert "2.weight" not in [name for name, _ in ddp.named_parameters(module)]
    assert "4.weight" in [name for name, _ in ddp.named_parameters(module)]


def test_a_reducer_that_cannot_be_built_leaves_the_old_one_in_place() -> None:
    module = trained()
    before = module.reducer
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        ddp.put_in_new_reducer(module, [[0], [99]])
    assert module.reducer is before
    train(module, 1)


def test_a_sparse_gradient_has_a_bucket_of_its_own_in_whatever_order_gradients_are_ready() -> None:
    model = nn.Sequential(nn.Embedding(10, 16, sparse=True), nn.Linear(16, 16), nn.Linear(16, 16))
    module = DistributedDataParallel(model)
    assert ddp.assignment(module, Capacities(MIB, MIB), [4, 3, 2, 1, 0]) == [[0], [4, 3, 2, 1]]
