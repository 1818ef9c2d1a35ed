"""What being watched costs a step: the same training with and without bucketlab's hooks, in alternating blocks.

    python -m bench.instrumentation

Prints the ratio of step times, pair by pair of neighbouring blocks, and the hooks' own time in microseconds. Only
the hooks that stay for the whole run count here: the trace window and the ready times are phases of a few steps.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bucketlab.worker.config import VARIABLE, WorkerConfig

_ROOT = Path(__file__).parents[1]
_BLOCK_STEPS, _PAIRS = 20, 15
_CALLS = 20_000


def main() -> None:
    if "RANK" in os.environ:
        _train()
        return
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
        path = os.pathsep.join([str(_ROOT / "bucketlab" / "worker" / "sitepath"), str(_ROOT)])
        environment = {**os.environ, VARIABLE: msgspec.json.encode(config).decode(), "PYTHONPATH": path}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        subprocess.run(command, env=environment, check=True)


def _train() -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    from bucketlab.examples.models import Transformer
    from bucketlab.worker.bootstrap import observer

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Transformer(vocab=2048, sequence=64, width=192, heads=6, layers=4, tied=False))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(2048, (4, 65))

    ddp: Any = DistributedDataParallel
    autograd: Any = torch.autograd
    watcher = observer()
    watched = (ddp.forward, autograd.backward, watcher.optimizer_stepped)
    plain = (ddp.forward.__wrapped__, autograd.backward.__wrapped__, lambda *_: None)

    def steps(hooks: tuple[Any, Any, Any]) -> float:
        ddp.forward, autograd.backward, watcher.optimizer_stepped = hooks
        began = time.perf_counter()
        for _ in range(_BLOCK_STEPS):
            optimizer.zero_grad()
            logits = model(tokens[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
        return (time.perf_counter() - began) / _BLOCK_STEPS

    steps(watched)
    pairs = []
    for number in range(_PAIRS):  # which comes first takes turns, so that a drift of the machine favours neither
        first, second = (watched, plain) if number % 2 else (plain, watched)
        times = {first: steps(first), second: steps(second)}
        pairs.append((times[watched], times[plain]))
    steps(watched)
    own_us = _own_microseconds(watcher, model, optimizer)
    if dist.get_rank() == 0:
        ratios = sorted(one / other for one, other in pairs)
        plain_ms = statistics.median(other for _, other in pairs) * 1e3
        print(f"step without hooks    {plain_ms:8.1f} ms   median of {_PAIRS} blocks of {_BLOCK_STEPS} steps")
        print(f"with / without        {statistics.median(ratios):8.4f}      from {ratios[0]:.4f} to {ratios[-1]:.4f}")
        print(f"the hooks themselves  {own_us:8.1f} us   {own_us / plain_ms / 10:.3f} % of a step")
    dist.barrier()
    dist.destroy_process_group()


def _own_microseconds(watcher: Any, model: Any, optimizer: Any) -> float:
    """Time of everything that bucketlab does in one step of the script, called alone."""
    began = time.perf_counter()
    for _ in range(_CALLS):
        watcher._forward_begins(model, True)
        watcher._backward_ends(watcher._backward_begins())
        watcher.optimizer_stepped(optimizer)
    return (time.perf_counter() - began) / _CALLS * 1e6


if __name__ == "__main__":
    main()
