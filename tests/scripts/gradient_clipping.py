"""Clips the gradients' norm between backward and step, and logs what it was."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
losses = []
norms = []
for step in range(STEPS):
    inputs, targets = batch(step)
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
dump(model, losses=losses, norms=norms)
finish()
