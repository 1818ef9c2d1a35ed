"""Accumulates two backward passes a step under `no_sync()`, and pauses for PAUSE_SECONDS once or twice an epoch.

Reasons are arguments, one an epoch:

    between     between the two micro-batches of a step
    tail        the last micro-batch of a step is smaller
    incomplete  an epoch ends with a step of one micro-batch

Says how long a step was that took as long as one with a pause and had none: the machine had other things to do.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time

import torch
import torch.nn.functional as F
from tiny import batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel

PAUSE_SECONDS = 0.4
MICRO_SECONDS = 0.025
MICRO_BATCHES = 21  # of an epoch

paused = 0  # steps, from this one on, that a pause shows in
began = time.perf_counter()
start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for reason in itertools.cycle(sys.argv[1:]):
    for number in range(MICRO_BATCHES):
        smaller = number == 9
        inputs, targets = batch(number, 3 if smaller else 8)
        synchronises = number % 2 == 1 or number == MICRO_BATCHES - 1
        with contextlib.nullcontext() if synchronises else model.no_sync():
            loss = F.mse_loss(model(inputs), targets)
            time.sleep(MICRO_SECONDS)
            if (smaller and reason == "tail") or (number == MICRO_BATCHES - 1 and reason == "incomplete"):
                paused = 2
                print(f"pauses: {reason}", flush=True)
                time.sleep(PAUSE_SECONDS)
            loss.backward()
        if number == 14 and reason == "between":
            paused = 2
            print(f"pauses: {reason}", flush=True)
            time.sleep(PAUSE_SECONDS)
        if synchronises:
            optimizer.step()
            now = time.perf_counter()
            if not paused and now - began > 0.9 * PAUSE_SECONDS:
                print(f"stalls: {now - began:.3f} s", flush=True)
            began, paused = now, max(0, paused - 1)
            optimizer.zero_grad()
finish()
