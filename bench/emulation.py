"""How exact an emulated link is, and what it costs the backward thread. Prints medians, for noisy machines.

    python -m bench.emulation

With one rank the link alone is seen; with two, what the real reduction and the agreement of the ranks add. Blocks of
steps with and without the link take turns, and each block is compared with the one beside it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.figures import Figure, Wanted
from bench.launching import in_ranks, is_rank, tell
from bucketlab.link.curve import LinkCurve
from bucketlab.worker import ddp
from bucketlab.worker.emulate import Emulation

_UNTIL_SETTLED = 4  # backward passes until DDP tells its buckets
_TRANSFER_MS = (1, 2, 5, 20)
_STEPS, _BLOCKS = 6, 8
_BUCKET_CAPS_MB = (25.0, 1.0)


class Seen(msgspec.Struct):
    """What rank 0 found, and in how many ranks."""

    ranks: int
    exactness: list[Exactness]
    costs: list[LinkCost]


class Exactness(msgspec.Struct):
    """Of transfers of one length."""

    milliseconds: int
    median_error: float  # how late they came, over the modelled time
    transfers: int


class LinkCost(msgspec.Struct):
    """Of a backward pass with the link, over one without. Medians of blocks."""

    buckets: int
    compute: float  # until the last gradient is written
    processor: float  # time on a core of the backward thread


def figures(_: Wanted) -> list[Figure]:
    """With one rank, where the link alone is seen, and with two."""
    found = []
    for ranks in (1, 2):
        seen = in_ranks("bench.emulation", ranks, Seen)
        for one in seen.exactness:
            name = f"late, transfers of {one.milliseconds} ms, {ranks} rank(s)"
            late = 100 * one.median_error
            found.append(Figure(name=name, value=late, unit="%", kind="emulated", samples=one.transfers))
        for cost in seen.costs:
            name = f"backward on a core, {cost.buckets} bucket(s), {ranks} rank(s)"
            over = "without the link"
            found.append(
                Figure(name=name, value=cost.processor, unit="", ratio=cost.processor, over=over, samples=_BLOCKS)
            )
    return found


def main() -> None:
    for ranks in (1, 2):
        in_ranks("bench.emulation", ranks, Seen, output=sys.stdout)


def as_rank() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    say(f"{dist.get_world_size()} rank(s) on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, emulated links")
    exactness = [report_exactness(milliseconds) for milliseconds in _TRANSFER_MS]
    costs = [report_cost(cap_mb) for cap_mb in _BUCKET_CAPS_MB]
    if dist.get_rank() == 0:
        tell(Seen(dist.get_world_size(), exactness, costs))
    dist.barrier()
    os._exit(0)  # gloo of torch 2.13 now and then aborts at interpreter exit


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def settled(network: nn.Module, cap_mb: float, inputs: torch.Tensor) -> DistributedDataParallel:
    # As views, so that the end of the backward pass copies no gradients back, which DDP does without a link too.
    module = DistributedDataParallel(network, bucket_cap_mb=cap_mb, gradient_as_bucket_view=True)
    for _ in range(_UNTIL_SETTLED):
        backward(module, inputs)
    return module


def layers(count: int, width: int) -> nn.Module:
    return nn.Sequential(*[part for _ in range(count) for part in (nn.Linear(width, width), nn.Tanh())])


# ---- exactness -----------------------------------------------------------------------------------------------------


def report_exactness(milliseconds: int) -> Exactness:
    """Transfers of this length, back to back: how late each comes, and how late the backward pass is over."""
    inputs = torch.randn(4, 256)
    module = settled(layers(6, 256), 0.25, inputs)
    parameters = [parameter.nbytes for _, parameter in ddp.named_parameters(module)]
    bucket_bytes = max(sum(parameters[one] for one in bucket) for bucket in ddp.layout(module))
    emulation = Emulation(LinkCurve.straight(0, bucket_bytes / (milliseconds * 1e6)))
    emulation.install(module)
    backward(module, inputs)
    emulation.reset()
    returned = []
    for _ in range(200 // milliseconds + 20):
        backward(module, inputs)
        over_ns = time.perf_counter_ns()
        last = emulation.newest_transfers()[-1]
        assert last.end_ns is not None
        returned.append((over_ns - last.end_ns) / 1000)
    report = emulation.report()
    emulation.remove()
    assert report.median_error is not None and report.worst_error is not None
    say(
        f"transfers of {milliseconds} ms came {report.median_error:.2%} late (median of {report.transfers}; worst "
        f"{report.worst_error:.0%}); backward returned {statistics.median(returned):.0f} us after the last one's end; "
        f"in {report.late_steps} of {report.steps} steps the real link was slower"
    )
    return Exactness(milliseconds, report.median_error, report.transfers)


# ---- cost ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Of one backward pass, ns."""

    compute: float  # until the last gradient is written: what the link may slow
    processor: float  # time on a core of the backward thread alone, which other programs disturb less


def report_cost(cap_mb: float) -> LinkCost:
    """Blocks with the link over the blocks without, each over the mean of its two neighbours."""
    inputs = torch.randn(128, 512)
    module = settled(layers(24, 512), cap_mb, inputs)
    gradient_bytes = sum(parameter.nbytes for parameter in module.parameters())
    alone = block(module, inputs)
    curve = LinkCurve.straight(50_000, gradient_bytes / (0.7 * alone.compute))
    without, linked = [alone], []
    for _ in range(_BLOCKS):
        emulation = Emulation(curve)
        emulation.install(module)
        linked.append(block(module, inputs))
        emulation.remove()
        without.append(block(module, inputs))
    compute = [2 * on.compute / (a.compute + b.compute) for on, (a, b) in zip(linked, pairwise(without), strict=True)]
    cpu = [2 * on.processor / (a.processor + b.processor) for on, (a, b) in zip(linked, pairwise(without), strict=True)]
    buckets = len(ddp.layout(module))
    job = f"{buckets} buckets, {gradient_bytes / 2**20:.0f} MiB"
    say(
        f"{job}, a backward pass of {alone.compute / 1e6:.0f} ms: "
        f"with the link over without, compute {spread(compute)}, time on a core {spread(cpu)}"
    )
    return LinkCost(buckets, statistics.median(compute), statistics.median(cpu))


def spread(ratios: list[float]) -> str:
    return f"x{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def block(module: DistributedDataParallel, inputs: torch.Tensor) -> Cost:
    for _ in range(_UNTIL_SETTLED):
        backward(module, inputs)
    costs = [backward(module, inputs) for _ in range(_STEPS)]
    return Cost(statistics.median(cost.compute for cost in costs), statistics.median(cost.processor for cost in costs))


def backward(module: DistributedDataParallel, inputs: torch.Tensor) -> Cost:
    """The first layer's bias or weight is the last gradient to be written."""
    written_ns: list[int] = []
    first = next(module.parameters())
    handle = first.register_post_accumulate_grad_hook(lambda _: written_ns.append(time.perf_counter_ns()))
    module.zero_grad()
    loss = module(inputs).square().mean()
    began_ns, began_processor_ns = time.perf_counter_ns(), time.thread_time_ns()
    loss.backward()
    processor_ns = time.thread_time_ns() - began_processor_ns
    handle.remove()
    return Cost(written_ns[-1] - began_ns, processor_ns)


if __name__ == "__main__":
    as_rank() if is_rank() else main()
