"""Rank 1 raises ValueError at step 10; the other ranks are left waiting for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel

rank = start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    if step == 10 and rank == 1:
        raise ValueError("a bad sample, on rank 1 alone")
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    optimizer.step()
finish()
