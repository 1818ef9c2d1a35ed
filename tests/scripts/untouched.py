"""Says of each step how long it was outside of what reduces gradients and of what loads data.

Two backward passes a step, the first under `no_sync()`; data before each take longer than all the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import time

import torch
import torch.nn.functional as F
from tiny import batch, network, start
from torch.nn.parallel import DistributedDataParallel

LOADING_SECONDS = 0.06

start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for number in itertools.count():
    seconds = 0.0
    for half in range(2):
        time.sleep(LOADING_SECONDS)
        inputs, targets = batch(2 * number + half, 64)
        with model.no_sync() if half == 0 else contextlib.nullcontext():
            began = time.perf_counter()
            loss = F.mse_loss(model(inputs), targets)
            if half == 0:
                loss.backward()
            seconds += time.perf_counter() - began
            if half == 1:
                loss.backward()
    began = time.perf_counter()
    optimizer.step()
    seconds += time.perf_counter() - began
    print(f"untouched: {number} {seconds:.6f}", flush=True)
    optimizer.zero_grad()
