"""Pauses for PAUSE_SECONDS in one step of each epoch, or in two, for the reasons that its arguments name, one an epoch.

Each epoch of 83 samples ends with a batch of three, and the loader starts anew. Reasons:

    evaluation  of the module inside DDP, between two steps
    validation  by DDP itself, gradients enabled
    log         on rank 0 alone, between backward and optimizer
    checkpoint  on rank 1 alone, after the optimizer
    skip        infinite gradients, for which the GradScaler skips the step
    tail        the small batch
    restart     the sampler makes its order
    rebuild     DDP has a new reducer, in its first two steps

Says how long a step was that took as long as one with a pause and had none: the machine had other things to do.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from tiny import batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset

PAUSE_SECONDS = 0.4
STEP_SECONDS = 0.05
SAMPLES = 83
SIZE = 8
LAST = SAMPLES // SIZE  # batch of an epoch
MOST_REBUILDS = 4  # that are paused for


class Order(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        pause_for("restart")
        return iter(range(SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


def pause_for(*possible: str, only_on: int | None = None) -> None:
    global paused
    if reason not in possible:
        return
    paused = 2  # in this step, and on the other rank in the next
    if only_on not in (None, rank):
        return
    print(f"rank {rank} pauses: {reason}", flush=True)
    time.sleep(PAUSE_SECONDS)


def optimizer_stepped() -> None:
    global paused, began
    now = time.perf_counter()
    if not paused and now - began > 0.9 * PAUSE_SECONDS:
        print(f"rank {rank} stalls: {now - began:.3f} s", flush=True)
    began, paused = now, max(0, paused - 1)


def new_reducers() -> Iterator[bool]:
    """Whether a step is one of the first two of a reducer other than the script's own."""
    steps, changes, known = 2, 0, model.reducer
    while True:
        if model.reducer is not known:
            steps, changes, known = 0, changes + 1, model.reducer
        yield steps < 2 and changes <= MOST_REBUILDS
        steps += 1


reason = ""
paused = 0  # steps, from this one on, that a pause shows in
began = time.perf_counter()
rank = start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
rebuilt = new_reducers()
loader = DataLoader(TensorDataset(*batch(0, SAMPLES)), batch_size=SIZE, sampler=Order())
for next_reason in itertools.cycle(sys.argv[1:]):
    reason = next_reason
    for number, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        half_way = number == LAST // 2
        if half_way and reason == "skip":
            inputs[0, 0] = float("inf")
        if half_way and reason == "validation":
            model(inputs)
            pause_for("validation")
        loss = F.mse_loss(model(inputs), targets)
        time.sleep(STEP_SECONDS)
        if half_way:
            pause_for("skip")
        if number == LAST:
            pause_for("tail")
        if next(rebuilt):
            pause_for("rebuild")
        scaler.scale(loss).backward()
        if half_way:
            pause_for("log", only_on=0)
        scaler.step(optimizer)
        optimizer_stepped()
        scaler.update()
        if half_way:
            pause_for("checkpoint", only_on=1)
        if half_way and reason == "evaluation":
            with torch.no_grad():
                model.module(inputs)
            pause_for("evaluation")
finish()
