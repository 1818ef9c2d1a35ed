"""Rank 1 sleeps for ever at step 10; the other ranks wait for it in their all-reduce."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel

rank = start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    if step == 10 and rank == 1:
        print("rank 1 hangs", flush=True)
        time.sleep(10**8)
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    optimizer.step()
finish()
