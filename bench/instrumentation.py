"""What being watched costs a step: the same training with and without bucketlab's hooks, in alternating blocks.

    python -m bench.instrumentation

Prints the ratio of step times, pair by pair of neighbouring blocks, and the hooks' own time in microseconds. Only
the hooks that stay for the whole run count here: the trace window and the ready times are phases of a few steps.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.figures import Figure, Wanted
from bench.launching import in_ranks, is_rank, tell
from bucketlab.worker.config import VARIABLE, WorkerConfig

_ROOT = Path(__file__).parents[1]
_BLOCK_STEPS, _PAIRS, _QUICK_PAIRS = 20, 16, 4
_CALLS = 20_000


class Cost(msgspec.Struct):
    """What rank 0 measured."""

    plain_ms: float  # a step without hooks, median of blocks
    plain_cpu_ms: float  # its time on cores, in this process
    ratios: list[float]  # of neighbouring blocks' steps, with hooks over without
    cpu_ratios: list[float]  # the same of time on cores
    hooks_us: float  # a step's hooks, called alone
    call_us: float  # an empty Python function


def figures(wanted: Wanted) -> list[Figure]:
    """A step with hooks over one without, and the hooks alone over calls of an empty Python function."""
    pairs = _QUICK_PAIRS if wanted.quick else _PAIRS
    cost = measure(pairs)
    over = "the same, not watched"
    found = [
        Figure(
            name="step, watched, CPU",
            value=cost.plain_cpu_ms * statistics.median(cost.cpu_ratios),
            unit="ms",
            ratio=statistics.median(cost.cpu_ratios),
            over=over,
            samples=pairs,
        ),
        Figure(
            name="hooks of a step",
            value=cost.hooks_us,
            unit="us",
            ratio=cost.hooks_us / cost.call_us,
            over="an empty Python call",
            samples=_CALLS,
        ),
        Figure(name="hooks, of a step", value=cost.hooks_us / cost.plain_ms / 10, unit="%", samples=_CALLS),
    ]
    if not wanted.quick:  # few pairs tell more of what else the machine does
        ratio = statistics.median(cost.ratios)
        watched_ms = cost.plain_ms * ratio
        found.append(Figure(name="step, watched", value=watched_ms, unit="ms", ratio=ratio, over=over, samples=pairs))
    return found


def measure(pairs: int, ranks: int = 2, device: str = "cpu") -> Cost:
    """Trains in so many pairs of blocks: through gloo on "cpu", through NCCL on "cuda", a GPU for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        config = WorkerConfig(
            out=folder,
            run="bench",
            control=folder,
            launcher_pid=os.getpid(),
            script="bench",
            command=[],
            keep_running=True,
            warmup_steps=10**9,  # watch, and never come to a phase
        )
        environment = {
            VARIABLE: msgspec.json.encode(config).decode(),
            "PYTHONPATH": str(_ROOT / "bucketlab" / "worker" / "sitepath"),
            "BENCH_PAIRS": str(pairs),
            "BENCH_DEVICE": device,
        }
        return in_ranks("bench.instrumentation", ranks, Cost, environment)


def _train() -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    from bucketlab.examples.models import Transformer
    from bucketlab.worker.bootstrap import observer

    torch.set_num_threads(1)
    on_gpu = os.environ["BENCH_DEVICE"] == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    network = Transformer(vocab=2048, sequence=64, width=192, heads=6, layers=4, tied=False).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(2048, (4, 65), device=device)
    settle = torch.cuda.synchronize if on_gpu else _nothing

    ddp: Any = DistributedDataParallel
    autograd: Any = torch.autograd
    watcher = observer()
    watched = (ddp.forward, autograd.backward, watcher.optimizer_stepped)
    plain = (ddp.forward.__wrapped__, autograd.backward.__wrapped__, lambda *_: None)

    def steps(hooks: tuple[Any, Any, Any]) -> tuple[float, float]:
        """Seconds of one step, and of them on cores."""
        ddp.forward, autograd.backward, watcher.optimizer_stepped = hooks
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in range(_BLOCK_STEPS):
            optimizer.zero_grad()
            logits = model(tokens[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
        settle()  # the host runs ahead of a GPU
        return (time.perf_counter() - began) / _BLOCK_STEPS, (time.process_time() - began_cpu) / _BLOCK_STEPS

    steps(watched)
    pairs = []
    # Which comes first takes turns, so that a drift of the machine favours neither.
    for number in range(int(os.environ["BENCH_PAIRS"])):
        first, second = (watched, plain) if number % 2 else (plain, watched)
        times = {first: steps(first), second: steps(second)}
        pairs.append((times[watched], times[plain]))
    steps(watched)
    own_us = _own_microseconds(watcher, model, optimizer, tokens[:, :-1])
    if dist.get_rank() == 0:
        plain_ms, plain_cpu_ms = (1e3 * statistics.median(other[which] for _, other in pairs) for which in (0, 1))
        ratios, cpu_ratios = (sorted(one[which] / other[which] for one, other in pairs) for which in (0, 1))
        tell(Cost(plain_ms, plain_cpu_ms, ratios, cpu_ratios, own_us, _call_microseconds()))
    dist.barrier()
    dist.destroy_process_group()


def _own_microseconds(watcher: Any, model: Any, optimizer: Any, inputs: Any) -> float:
    """Time of everything that bucketlab does in one step of the script, called alone: time on a core."""
    began = time.thread_time()
    for _ in range(_CALLS):
        watcher._forward_begins(model, True, (inputs,), {})
        watcher._backward_ends(watcher._backward_begins())
        watcher.optimizer_stepped(optimizer)
    return (time.thread_time() - began) / _CALLS * 1e6


def _nothing() -> None:
    pass


def _call_microseconds() -> float:
    began = time.thread_time()
    for _ in range(50 * _CALLS):
        _nothing()
    return (time.thread_time() - began) / (50 * _CALLS) * 1e6


def main() -> None:
    cost = measure(_PAIRS)
    print(f"step without hooks    {cost.plain_ms:8.1f} ms   median of {_PAIRS} blocks of {_BLOCK_STEPS} steps")
    spread = f"from {cost.ratios[0]:.4f} to {cost.ratios[-1]:.4f}"
    print(f"with / without        {statistics.median(cost.ratios):8.4f}      {spread}")
    print(f"  of time on cores    {statistics.median(cost.cpu_ratios):8.4f}")
    print(f"the hooks themselves  {cost.hooks_us:8.1f} us   {cost.hooks_us / cost.plain_ms / 10:.3f} % of a step")


if __name__ == "__main__":
    _train() if is_rank() else main()
