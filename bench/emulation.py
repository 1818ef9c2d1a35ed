"""How exact an emulated link is, and what it costs the backward thread. Prints medians, for noisy machines.

    python -m bench.emulation

Blocks of steps with and without the link take turns, and each block is compared with the two blocks beside it. Without
the link is plain DDP on the same process group, so with two ranks the real reduction is in both. Four cases:

- one rank: the link alone, on a machine with a core to spare for its thread;
- one rank beside another program that keeps one core busy: what that core was worth to it;
- two ranks: on two cores each backward thread has one, and gloo's threads and the link's have none;
- two ranks with a communication hook in Python that averages and reduces as the link's must, and no link: what of the
  third case is the hook's. DDP without a hook averages while it copies a gradient into its bucket.

Only transfers that the real link could make in time tell how exact the emulation is: for the others it is not valid,
and says so.
"""

# No postponed annotations in this file: DDP looks at those of a communication hook.

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TextIO

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.figures import Figure, Wanted
from bench.launching import in_ranks, is_rank, tell
from bucketlab.link.curve import LinkCurve
from bucketlab.worker import ddp
from bucketlab.worker.averaging import Averaging
from bucketlab.worker.emulate import Emulation, Transfer

_UNTIL_SETTLED = 4  # backward passes until DDP tells its buckets
_JUDGED_FROM_NS = 1_000_000
_BESIDE = "BUCKETLAB_BENCH_BESIDE"
_TRANSFER_MS = (1, 2, 5, 20)
_STEPS, _BLOCKS = 6, 8
_BUCKET_CAPS_MB = (25.0, 1.0)


class Exactness(msgspec.Struct):
    """Of transfers of one length."""

    milliseconds: int
    transfers: int
    in_time: int  # of them, over on the real link before they were over on the emulated one
    median_error: float  # how late those came, over the modelled time


class Cost(msgspec.Struct):
    """Of a backward pass with the link, or with a hook alone, over one without. Medians of blocks."""

    what: str
    buckets: int
    compute: float  # until the last gradient is written
    processor: float  # time on a core of the backward thread


class Seen(msgspec.Struct):
    """What rank 0 found."""

    exactness: list[Exactness]
    costs: list[Cost]


def figures(_: Wanted) -> list[Figure]:
    found = []
    for case, seen in runs(sys.stderr):
        found += [
            Figure(
                name=f"late, transfers of {one.milliseconds} ms, {case}",
                value=100 * one.median_error,
                unit="%",
                kind="emulated",
                samples=one.in_time,
            )
            for one in seen.exactness
        ]
        found += [
            Figure(
                name=f"backward on a core with the {one.what}, {one.buckets} bucket(s), {case}",
                value=one.processor,
                unit="",
                ratio=one.processor,
                over="plain DDP on the same link",
                samples=_BLOCKS,
            )
            for one in seen.costs
        ]
    return found


def main() -> None:
    list(runs(sys.stdout))


def runs(output: TextIO) -> Iterator[tuple[str, Seen]]:
    yield "one rank", in_ranks("bench.emulation", 1, Seen, output=output)
    beside = "one rank beside another program"
    with busy_core():
        yield beside, in_ranks("bench.emulation", 1, Seen, {_BESIDE: beside}, output)
    yield "two ranks", in_ranks("bench.emulation", 2, Seen, output=output)


@contextmanager
def busy_core() -> Iterator[None]:
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def as_rank() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    case = os.environ.get(_BESIDE) or f"{ranks} rank(s)"
    say(f"{case} on {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}, emulated links")
    exactness = [report_exactness(milliseconds) for milliseconds in _TRANSFER_MS]
    costs = [cost for cap_mb in _BUCKET_CAPS_MB for cost in report_costs(cap_mb, with_hook=ranks > 1)]
    if dist.get_rank() == 0:
        tell(Seen(exactness, costs))
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
    inputs = torch.randn(4, 128)
    module = settled(layers(8, 128), 0.0625, inputs)
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
    report, transfers = emulation.report(), emulation.newest_transfers()
    emulation.remove()
    late = [error for one in transfers if (error := lateness(one)) is not None]
    say(
        f"transfers of {milliseconds} ms: of {len(transfers)} the real link made {len(late)} in time, which came "
        f"{statistics.median(late):.2%} late (median; nine of ten within {sorted(late)[len(late) * 9 // 10]:.2%}); "
        f"backward returned {statistics.median(returned):.0f} us after the last one's end; "
        f"in {report.late_steps} of {report.steps} steps the real link was slower"
    )
    return Exactness(milliseconds, len(transfers), len(late), statistics.median(late))


def lateness(transfer: Transfer) -> float | None:
    """How late it came, over its modelled time, of 1 ms and more; None where the real link was the slower one."""
    start_ns, end_ns, reduced_ns, completed_ns = (
        transfer.start_ns,
        transfer.end_ns,
        transfer.reduced_ns,
        transfer.completed_ns,
    )
    assert start_ns is not None and end_ns is not None and reduced_ns is not None and completed_ns is not None
    if reduced_ns > end_ns or end_ns - start_ns < _JUDGED_FROM_NS * (1 - 1e-6):
        return None
    return (completed_ns - end_ns) / (end_ns - start_ns)


# ---- cost ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One backward pass, ns."""

    compute: float  # until the last gradient is written: what the link may slow
    processor: float  # time on a core of the backward thread alone, which other programs disturb less


def report_costs(cap_mb: float, with_hook: bool) -> list[Cost]:
    """Blocks with the link over the blocks without, each over the mean of its two neighbours."""
    inputs = torch.randn(128, 512)
    module = settled(layers(24, 512), cap_mb, inputs)
    gradient_bytes = sum(parameter.nbytes for parameter in module.parameters())
    without = [block(module, inputs)]
    curve = LinkCurve.straight(50_000, gradient_bytes / (0.7 * without[0].compute))
    cases: dict[str, Callable[[], AbstractContextManager[None]]] = {"link": lambda: linked(module, curve)}
    if with_hook:
        cases["hook alone"] = lambda: hooked(module)
    passes: dict[str, list[Pass]] = {name: [] for name in cases}
    for number in range(_BLOCKS * len(cases)):
        name = list(cases)[number % len(cases)]
        with cases[name]():
            passes[name].append(block(module, inputs))
        without.append(block(module, inputs))
    buckets = len(ddp.layout(module))
    say(f"{buckets} buckets, {gradient_bytes / 2**20:.0f} MiB, a backward pass of {without[0].compute / 1e6:.0f} ms:")
    costs = []
    for place, (name, those) in enumerate(passes.items()):
        beside = list(pairwise(without))[place :: len(cases)]
        compute = [2 * on.compute / (a.compute + b.compute) for on, (a, b) in zip(those, beside, strict=True)]
        cpu = [2 * on.processor / (a.processor + b.processor) for on, (a, b) in zip(those, beside, strict=True)]
        say(f"  with the {name} over plain DDP: compute {spread(compute)}, time on a core {spread(cpu)}")
        costs.append(Cost(name, buckets, statistics.median(compute), statistics.median(cpu)))
    return costs


@contextmanager
def linked(module: DistributedDataParallel, curve: LinkCurve) -> Iterator[None]:
    emulation = Emulation(curve)
    emulation.install(module)
    yield
    emulation.remove()


@contextmanager
def hooked(module: DistributedDataParallel) -> Iterator[None]:
    """Averages and reduces in a hook in Python, as the link's must, and does nothing else."""
    buckets = ddp.layout(module)
    ddp.put_in_new_reducer(module, buckets)
    averaging = Averaging(module, dist.get_world_size())

    def reduce(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        averaging.average(bucket)
        future: torch.futures.Future[list[torch.Tensor]] = group.allreduce([bucket.buffer()]).get_future()
        return future.then(lambda done: done.value()[0])

    module.register_comm_hook(module.process_group, reduce)
    module._comm_hooks.clear()  # what `register_comm_hook` remembers outlives the reducer
    yield
    averaging.close()
    ddp.put_in_new_reducer(module, buckets)


def spread(ratios: list[float]) -> str:
    return f"x{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def block(module: DistributedDataParallel, inputs: torch.Tensor) -> Pass:
    for _ in range(_UNTIL_SETTLED):
        backward(module, inputs)
    costs = [backward(module, inputs) for _ in range(_STEPS)]
    return Pass(statistics.median(cost.compute for cost in costs), statistics.median(cost.processor for cost in costs))


def backward(module: DistributedDataParallel, inputs: torch.Tensor) -> Pass:
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
    return Pass(written_ns[-1] - began_ns, processor_ns)


if __name__ == "__main__":
    as_rank() if is_rank() else main()
