"""Accumulates two backward passes a step under `no_sync()`, and pauses for PAUSE_SECONDS once or twice an epoch.

Reasons are arguments, one an epoch:

    between     between the two micro-batches of a step
    tail        the last micro-batch of a step is smaller
    incomplete  an epoch ends with a step of one micro-batch
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
                print(f"pauses: {reason}", flush=True)
                time.sleep(PAUSE_SECONDS)
            loss.backward()
        if number == 14 and reason == "between":
            print(f"pauses: {reason}", flush=True)
            time.sleep(PAUSE_SECONDS)
        if synchronises:
            optimizer.step()
            optimizer.zero_grad()
finish()
