"""An embedding of 29 MiB: one gradient that is larger than DDP's default bucket of 25 MiB."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, WIDTH, batch, dump, finish, network, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(nn.Sequential(nn.Embedding(60_000, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), network()))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    tokens = (1000 * inputs[:, 0].abs()).long()
    optimizer.zero_grad()
    loss = F.mse_loss(model(tokens), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
