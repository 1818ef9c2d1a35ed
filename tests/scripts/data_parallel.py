"""Trains with `nn.DataParallel`, which is not DistributedDataParallel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, network
from torch import nn

torch.manual_seed(0)
model = nn.DataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(model, losses=losses)
