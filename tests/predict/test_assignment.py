"""The replica of DDP's bucket rule against torch itself: the function it calls, and a real module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.predict.assignment import DEFAULT_CAP_BYTES, DEFAULT_FIRST_BYTES, MIB, assign
from bucketlab.predict.replay import ModuleGradients

torch = pytest.importorskip("torch")
dist = torch.distributed

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]

models = st.lists(st.tuples(st.integers(0, 300), st.sampled_from(DTYPES), st.booleans()), min_size=1, max_size=60)
capacities = st.lists(st.integers(0, 2000), min_size=1, max_size=8)


def torch_assign(tensors: list[torch.Tensor], caps: list[int], sparse: list[bool]) -> list[list[int]]:
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, caps, sparse, list(range(len(tensors))))
    return [list(bucket) for bucket in buckets]


@given(models, capacities)
def test_it_makes_the_buckets_that_torch_makes(model, caps):
    tensors = [torch.empty(count, dtype=dtype) for count, dtype, _ in model]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    sparse = [flag for _, _, flag in model]
    kinds = [dtype for _, dtype, _ in model]
    assert assign(sizes, caps, kinds, sparse) == torch_assign(tensors, caps, sparse)
    assert assign(sizes, caps, kinds) == torch_assign(tensors, caps, [False] * len(tensors))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200), capacities)
def test_gradients_of_one_kind_take_a_shorter_way_to_the_same_buckets(counts, caps):
    tensors = [torch.empty(count) for count in counts]
    sizes = [4 * count for count in counts]
    alone = torch_assign(tensors, caps, [False] * len(tensors))
    assert assign(sizes, caps) == alone
    assert assign(sizes, caps, sparse=[False] * len(sizes)) == alone


@given(models, st.integers(0, 1000), st.integers(0, 1000))
def test_without_a_rebuild_buckets_follow_the_declaration_from_its_end(model, first, more):
    """As DDP's constructor makes them, when it looks for unused parameters: sorted by torch, then reversed."""
    tensors = [torch.empty(count, dtype=dtype) for count, dtype, _ in model]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    gradients = ModuleGradients(sizes, [0.0] * len(sizes), [str(dtype) for _, dtype, _ in model], rebuilt=False)
    initial, _ = dist._compute_bucket_assignment_by_size(tensors, [first, first + more])
    assert gradients.buckets([first, first + more]) == [list(bucket) for bucket in reversed(initial)]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    store: Path = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("setting", "caps"),
    [
        ({}, [DEFAULT_FIRST_BYTES, DEFAULT_CAP_BYTES]),
        ({"bucket_cap_mb": 25}, [25 * MIB]),
        ({"bucket_cap_mb": 1}, [MIB]),
        ({"bucket_cap_mb": 0.5}, [MIB // 2]),
        ({"bucket_cap_mb_list": [1, 4, 2]}, [MIB, 4 * MIB, 2 * MIB]),
        ({"bucket_cap_mb_list": [0.3, 100]}, [int(0.3 * MIB), 100 * MIB]),
    ],
)
def test_a_real_module_rebuilds_to_the_predicted_buckets(one_rank, setting, caps):
    layers = [torch.nn.Linear(200 * width, 300) for width in range(1, 12)]
    stem = torch.nn.Linear(16, 200)
    model = torch.nn.ModuleList([stem, *layers])
    try:
        module = torch.nn.parallel.DistributedDataParallel(Widening(model), **setting)
    except TypeError:
        pytest.skip("bucket_cap_mb_list came with torch 2.13")
    ready: list[torch.nn.Parameter] = []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(ready.append)
    for _ in range(3):  # buckets are rebuilt before the second forward, and logged with the next
        ready.clear()
        module(torch.randn(2, 16)).sum().backward()
    sizes = [parameter.numel() * parameter.element_size() for parameter in ready]
    built = module._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    expected = [sum(sizes[position] for position in bucket) for bucket in assign(sizes, caps)]
    assert [int(size) for size in built.split(",")] == expected


class Widening(torch.nn.Module):
    def __init__(self, layers: torch.nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        total = torch.zeros(())
        for width, layer in enumerate(list(self.layers)[1:], start=1):
            x = x + layer(x.repeat(1, width)).mean()
            total = total + x.sum()
        return total


@pytest.mark.parametrize("cap_mb", [0.01, 0.03, 0.05, 25])
def test_a_real_module_with_sparse_gradients_gives_each_of_them_a_bucket_of_its_own(one_rank, cap_mb):
    module = torch.nn.parallel.DistributedDataParallel(TwoEmbeddings(), bucket_cap_mb=cap_mb)
    ready: list[torch.nn.Parameter] = []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(ready.append)
    for _ in range(3):
        ready.clear()
        module.zero_grad()
        module(torch.randint(0, 50, (8,))).sum().backward()
    sizes = [parameter.numel() * parameter.element_size() for parameter in ready]
    sparse = [parameter.grad.is_sparse for parameter in ready]
    assert sum(sparse) == 2
    gradients = ModuleGradients(sizes, [0.0] * len(sizes), ["float32"] * len(sizes), sparse)
    built = module._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    expected = [sum(sizes[position] for position in bucket) for bucket in gradients.buckets([int(cap_mb * MIB)])]
    assert [int(size) for size in built.split(",")] == expected


class TwoEmbeddings(torch.nn.Module):
    """One that is ready last, one in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Embedding(100, 64, sparse=True)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))
        self.between = torch.nn.Embedding(50, 64, sparse=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.first(words)
        for number, layer in enumerate(self.layers):
            x = layer(x + self.between(words) if number == 3 else x)
        return x
