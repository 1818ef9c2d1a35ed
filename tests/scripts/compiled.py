"""Compiles the DDP module, with the backend that is the first argument, and what calls the optimizer.

By default with backends that need no compiler.
"""

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


@torch.compile(backend="eager")
def update() -> None:
    optimizer.step()


for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss = F.mse_loss(compiled(inputs), targets)
    loss.backward()
    update()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
