"""Accumulates four backward passes per optimizer step, the first three under `no_sync()`."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 4

start()
model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for number in range(STEPS * ACCUMULATE):
    inputs, targets = batch(number)
    last = number % ACCUMULATE == ACCUMULATE - 1
    with contextlib.nullcontext() if last else model.no_sync():
        loss = F.mse_loss(model(inputs), targets) / ACCUMULATE
        loss.backward()
    losses.append(loss.item())
    if last:
        optimizer.step()
        optimizer.zero_grad()
dump(model, losses=losses)
finish()
