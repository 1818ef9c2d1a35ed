"""Writes a trace of any size, as kineto lays it out and with the mix of events of a DDP job on NCCL. Draws no figures.

What its analysis must say is known by construction. On the device a layer of the model is one kernel, and layers
follow one another at a fixed pace. In the backward pass each tenth layer completes a bucket, whose all-reduce starts
with the next layer and takes as long as seven; that of the last bucket has nothing beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from isal import igzip

LAYERS = 200  # half of them of the forward pass, half of the backward pass
BUCKET_LAYERS = 10
REDUCE_LAYERS = 7
STEP_LAYERS = LAYERS + REDUCE_LAYERS + 1
LAYER_NS = 80_000  # longer than any kernel
EPOCH_NS = 5_110_856_586_400_434
ELEMENTS = 2_049_000

_MAIN, _AUTOGRAD = 25_509, 25_640  # threads
_COMPUTE, _COMMUNICATION = 7, 20  # streams
_IDS = 40  # external and correlation ids that a layer may use
_COPY_NS = 4_321

_KERNELS = [
    name
    for n in range(1, 21)
    for name in (
        f"void at::native::vectorized_elementwise_kernel<{n}, at::native::CUDAFunctor_add<float>, "
        f"std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, {n}ul>)",
        f"sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize{n}x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    )
]
_HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA H100", "numSms": 132}
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass
class Large:
    """What was written; `total` is what the analysis must say of it, in the keys of the analysis."""

    steps: int = 0
    events: int = 0
    unpacked_bytes: int = 0
    total: Counter[str] = field(default_factory=Counter)


def write_large(path: Path, megabytes: float) -> Large:
    """A trace of at least so many megabytes (1e6 bytes, unpacked), as gzip where the name ends in ".gz".

    An event takes about 250 bytes: 50 MB have 200,000 events, 1 GB has 4 million.
    """
    made = Large()
    opened = igzip.open(path, "wb", compresslevel=2) if path.suffix == ".gz" else path.open("wb")  # type: ignore[no-untyped-call]
    with opened as file:

        def put(text: str) -> None:
            made.unpacked_bytes += file.write(text.encode())

        put(_HEADER)
        while made.unpacked_bytes < megabytes * 1e6:
            events = list(_step(made.steps, made.total))
            put("".join(events))
            made.steps += 1
            made.events += len(events)
        threads = [_thread(_MAIN, "python"), _thread(_AUTOGRAD, "pt_autograd_0")]
        put("".join(threads).rstrip(",\n") + f'\n  ],\n  "traceName": "{path.name}"\n}}\n')
        made.events += len(threads)
    return made


def _step(number: int, total: Counter[str]) -> Iterator[str]:
    """The events of one step, in the order of the host's calls; adds what they are to the total."""
    begin, ids = EPOCH_NS + number * STEP_LAYERS * LAYER_NS, 1 + number * STEP_LAYERS * _IDS
    wall_ns = STEP_LAYERS * LAYER_NS
    yield _host("user_annotation", f"ProfilerStep#{number + 10}", _MAIN, begin, wall_ns, f'"External id": {ids}')
    yield from _copy(begin + wall_ns - LAYER_NS, ids)
    total += Counter(memory_ns=_COPY_NS, busy_ns=_COPY_NS)
    for layer in range(LAYERS):
        kernel_ns = 20_000 + (layer * 7_919 + number * 104_729) % 40_000
        at, own_ids = begin + layer * LAYER_NS, ids + (layer + 1) * _IDS
        backward = layer - LAYERS // 2
        yield from _layer(layer, at, kernel_ns, own_ids)
        beside = backward >= BUCKET_LAYERS and backward % BUCKET_LAYERS < REDUCE_LAYERS
        total += Counter(
            compute_ns=kernel_ns, kernels=1, busy_ns=0 if beside else kernel_ns, overlap_ns=kernel_ns if beside else 0
        )
        if backward >= 0 and backward % BUCKET_LAYERS == BUCKET_LAYERS - 1:
            yield from _all_reduce(at, own_ids + _IDS // 2)
            reduce_ns = REDUCE_LAYERS * LAYER_NS
            total += Counter(communication_ns=reduce_ns, busy_ns=reduce_ns, kernels=1, collectives=1)
    total["exposed_ns"] = total["communication_ns"] - total["overlap_ns"]


def _layer(layer: int, at: int, kernel_ns: int, ids: int) -> Iterator[str]:
    backward = layer >= LAYERS // 2
    thread = _AUTOGRAD if backward else _MAIN
    outer = "autograd::engine::evaluate_function: AddmmBackward0" if backward else "aten::linear"
    operators = (outer, "AddmmBackward0" if backward else "aten::t", "aten::mm" if backward else "aten::addmm")
    shapes = f'"Input Dims": [[{layer % 64 + 1}, 4096], [4096, 1024]], "Input type": ["float", "float"]'
    for depth, name in enumerate(operators):
        said = f'"External id": {ids + depth}, "Sequence number": {layer}, "Fwd thread id": {int(backward)}, '
        said += f'{shapes}, "Ev Idx": {ids}' if depth == 2 else f'"Ev Idx": {ids}'
        yield _host("cpu_op", name, thread, at + 1_000 * depth, 30_000 - 2_111 * depth, said)
    yield _arrow("f" if backward else "s", "fwdbwd", ids, thread, at)
    yield _runtime("cudaStreamIsCapturing", thread, at + 3_500, 876, ids)
    yield _arrow("f", "ac2g", ids, thread, at + 3_500)
    yield from _launched(_KERNELS[layer % len(_KERNELS)], thread, at + 5_000, _COMPUTE, at, kernel_ns, ids + 1)


def _all_reduce(at: int, ids: int) -> Iterator[str]:
    """Launched by DDP's hook in the layer that begins at `at`; runs from the next layer's kernel on."""
    nested = (
        ("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
        ("cpu_op", "torch::autograd::AccumulateGrad"),
        ("cpu_op", "c10d::allreduce_"),
        ("cpu_op", "record_param_comms"),
        ("user_annotation", "nccl:all_reduce"),
    )
    for depth, (category, name) in enumerate(nested):
        said = f'"External id": {ids + depth}'
        if name == "record_param_comms":
            said += _SAID
        yield _host(category, name, _AUTOGRAD, at + 60_000 + 500 * depth, 15_000 - 1_500 * depth, said)
    at_once, runs_ns = at + LAYER_NS, REDUCE_LAYERS * LAYER_NS
    yield from _launched(_REDUCE, _AUTOGRAD, at + 63_000, _COMMUNICATION, at_once, runs_ns, ids + 9, _SAID)


_SAID = (
    f', "Collective name": "allreduce", "In msg nelems": {ELEMENTS}, "Out msg nelems": {ELEMENTS}, "Group size": 8, '
    '"dtype": "Float", "Process Group Name": "0", "Process Group Description": "default_pg", '
    '"Process Group Ranks": "[0, 1, ..., 7]"'
)


def _launched(
    kernel: str, thread: int, called: int, stream: int, at: int, ns: int, ids: int, told: str = ""
) -> Iterator[str]:
    """A kernel of the layer that begins at `at`, which the device does half a layer later, and its launch."""
    starts = at + LAYER_NS // 2
    yield _runtime("cudaLaunchKernel", thread, called, 4_567, ids)
    yield _arrow("s", "ac2g", ids, thread, called)
    said = (
        '"queued": 0, "context": 1, "registers per thread": 32, "shared memory": 16384, "blocks per SM": 7.757576, '
        '"warps per SM": 31.030304, "grid": [1024, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 48'
    )
    yield _device("kernel", kernel, stream, starts, ns, ids, ids + 1, said + told)
    yield _arrow("f", "ac2g", ids, stream, starts)


def _copy(at: int, ids: int) -> Iterator[str]:
    yield _runtime("cudaMemcpyAsync", _MAIN, at, 5_678, ids)
    name = "Memcpy HtoD (Pageable -> Device)"
    yield _device("gpu_memcpy", name, _COMPUTE, at + LAYER_NS // 2, _COPY_NS, ids, ids, '"bytes": 38535168')


def _runtime(name: str, thread: int, at: int, ns: int, correlation: int) -> str:
    said = f'"External id": {correlation}, "cbid": 211, "correlation": {correlation}'
    return _host("cuda_runtime", name, thread, at, ns, said)


def _device(category: str, name: str, stream: int, at: int, ns: int, correlation: int, external: int, said: str) -> str:
    ids = f'"External id": {external}, "device": 0, "stream": {stream}, "correlation": {correlation}'
    return _event(category, name, 0, stream, at, ns, f"{ids}, {said}")


def _host(category: str, name: str, thread: int, at: int, ns: int, said: str) -> str:
    return _event(category, name, _MAIN, thread, at, ns, said)


def _event(category: str, name: str, pid: int, tid: int, at: int, ns: int, said: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {at // 1000}.{at % 1000:03}, "dur": {ns // 1000}.{ns % 1000:03},\n'
        f'    "args": {{\n      {said}\n    }}\n  }},\n'
    )


def _arrow(phase: str, category: str, number: int, tid: int, at: int) -> str:
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {_MAIN}, "tid": {tid}, "ts": {at // 1000}.{at % 1000:03},\n'
        f'    "cat": "{category}", "name": "{category}"\n  }},\n'
    )


def _thread(number: int, name: str) -> str:
    args = f'"args": {{"name": "thread {number} ({name})"}}'
    at = f'"ts": {EPOCH_NS // 1000}.000'
    return f'  {{"name": "thread_name", "ph": "M", {at}, "pid": {_MAIN}, "tid": {number}, {args}}},\n'
