"""Scales the loss; every eighth step has infinite gradients, and the GradScaler skips it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    if step % 8 == 3:
        inputs[0, 0] = float("inf")
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(repr(loss.item()))
dump(model, losses=losses, scale=scaler.get_scale())
finish()
