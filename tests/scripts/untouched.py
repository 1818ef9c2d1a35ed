"""Says of each step how long it was outside of what reduces gradients and of what loads data.

Two backward passes a step, the first under `no_sync()`; data before each take longer than all the rest. With `closure`
as an argument the optimizer runs both, so that its own part is not to be told from theirs.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time

import torch
import torch.nn.functional as F
from tiny import batch, network, start
from torch.nn.parallel import DistributedDataParallel

LOADING_SECONDS = 0.012

start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
seconds = 0.0


def backward_twice() -> float:
    global seconds
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
    return loss.item()


for number in itertools.count():
    seconds = 0.0
    if "closure" in sys.argv:
        optimizer.step(backward_twice)
    else:
        backward_twice()
        began = time.perf_counter()
        optimizer.step()
        seconds += time.perf_counter() - began
    print(f"untouched: {number} {seconds:.6f}", flush=True)
    optimizer.zero_grad()
