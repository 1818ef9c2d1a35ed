"""The same questions on CUDA: what watching costs, how exact an emulated link is, what a trace of NCCL holds.

    python -m bench.gpu

One rank for each GPU, through NCCL. Of a single rank NCCL may launch no kernel at all, since there is nothing to
reduce: the figure of collectives then says so. Where there is no GPU it is skipped. It has never run: no machine with
a GPU was at hand when it was written.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench import commands, instrumentation
from bench.figures import Figure, Skipped, Wanted
from bench.launching import in_ranks, is_rank, tell

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

_TRANSFER_MS = (1, 5, 20)
_PAIRS, _TRACED_STEPS = 15, 5
_UNTIL_SETTLED = 4  # backward passes until DDP has rebuilt its buckets


class Exactness(msgspec.Struct):
    """Of emulated transfers of one length."""

    milliseconds: int
    median_error: float  # how late they came, over the modelled time
    transfers: int


class Seen(msgspec.Struct):
    """What rank 0 found."""

    exactness: list[Exactness]
    buckets: int  # of the traced job
    collectives: int  # that its trace shows, in all traced steps
    communication_ms: float  # of all of them


def figures(_: Wanted) -> list[Figure]:
    """Each over the same without BucketLab, or over what was asked for."""
    ranks = _gpus()
    watched = instrumentation.measure(_PAIRS, ranks, "cuda")
    seen = in_ranks("bench.gpu", ranks, Seen)
    took, in_steps = commands.profile_example()
    ratio = statistics.median(watched.ratios)
    launched = seen.buckets * _TRACED_STEPS
    return [
        Figure(
            name=f"step, watched, {ranks} GPU(s)",
            value=watched.plain_ms * ratio,
            unit="ms",
            ratio=ratio,
            over="the same step, not watched",
            samples=_PAIRS,
        ),
        *(
            Figure(
                name=f"late, transfers of {one.milliseconds} ms on a side stream, {ranks} GPU(s)",
                value=100 * one.median_error,
                unit="%",
                kind="emulated",
                samples=one.transfers,
            )
            for one in seen.exactness
        ),
        Figure(
            name=f"collectives in a trace, {ranks} GPU(s)",
            value=seen.collectives,
            unit="kernels",
            ratio=seen.collectives / launched,
            over="all-reduces that DDP called",
            better="more",
            samples=_TRACED_STEPS,
        ),
        Figure(name=f"their time, {ranks} GPU(s)", value=seen.communication_ms, unit="ms", samples=_TRACED_STEPS),
        Figure(
            name=f"bucketlab profile, example, {ranks} GPU(s)",
            value=took,
            unit="s",
            ratio=took / in_steps,
            over="its own steps",
        ),
    ]


def _gpus() -> int:
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        raise Skipped("torch sees no CUDA device here")
    if not dist.is_nccl_available():
        raise Skipped("this build of torch has no NCCL")
    return torch.cuda.device_count()


# ---- inside each rank -------------------------------------------------------------------------------------------


def _as_rank() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from bucketlab.worker import ddp

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    network = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).to(device)
    module = DistributedDataParallel(network, bucket_cap_mb=4, gradient_as_bucket_view=True)
    inputs = torch.randn(64, 1024, device=device)
    for _ in range(_UNTIL_SETTLED):
        _backward(module, inputs)
    buckets = ddp.layout(module)
    exactness = [_exactness(module, inputs, milliseconds) for milliseconds in _TRANSFER_MS]
    collectives, communication_ms = _traced(module, inputs)
    if dist.get_rank() == 0:
        tell(Seen(exactness, len(buckets), collectives, communication_ms))
    dist.barrier()
    dist.destroy_process_group()


def _exactness(module: DistributedDataParallel, inputs: torch.Tensor, milliseconds: int) -> Exactness:
    from bucketlab.link.curve import LinkCurve
    from bucketlab.worker import ddp
    from bucketlab.worker.emulate import Emulation

    sizes = [parameter.nbytes for _, parameter in ddp.named_parameters(module)]
    largest = max(sum(sizes[one] for one in bucket) for bucket in ddp.layout(module))
    emulation = Emulation(LinkCurve.straight(0, largest / (milliseconds * 1e6)))
    emulation.install(module)
    for _ in range(_UNTIL_SETTLED):  # meanwhile it learns how fast the spinning kernel's clock is
        _backward(module, inputs)
    emulation.reset()
    for _ in range(200 // milliseconds + 10):
        _backward(module, inputs)
    report = emulation.report()
    emulation.remove()
    for _ in range(_UNTIL_SETTLED):
        _backward(module, inputs)
    assert report.median_error is not None
    return Exactness(milliseconds, report.median_error, report.transfers)


def _traced(module: DistributedDataParallel, inputs: torch.Tensor) -> tuple[int, float]:
    """Collectives in the trace of some steps, and their time in ms."""
    from torch.profiler import ProfilerActivity, profile

    from bucketlab.analysis import analyze_trace
    from bucketlab.trace.kineto import read_trace

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank.json"
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            for _ in range(_TRACED_STEPS):
                _backward(module, inputs)
        recorded.export_chrome_trace(str(path))
        total = analyze_trace(read_trace(path)).total
    return total.collectives, total.communication_ns / 1e6


def _backward(module: DistributedDataParallel, inputs: torch.Tensor) -> None:
    import torch

    module.zero_grad()
    module(inputs).square().mean().backward()
    torch.cuda.synchronize()


def main() -> None:
    try:
        for figure in figures(Wanted()):
            print(f"{figure.name}: {figure.value:.3g} {figure.unit}  {figure.ratio or ''} {figure.over}")
    except Skipped as reason:
        print(f"skipped: {reason}")


if __name__ == "__main__":
    _as_rank() if is_rank() else main()
