"""Compiles the DDP module; the backend is the first argument, by default one that needs no compiler."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

start()
backend = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"
model = DistributedDataParallel(network())
compiled = torch.compile(model, backend=backend)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss = F.mse_loss(compiled(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
