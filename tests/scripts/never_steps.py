"""Builds DDP and runs forward and backward, but has no optimizer."""

from __future__ import annotations

import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(network())
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    model.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
