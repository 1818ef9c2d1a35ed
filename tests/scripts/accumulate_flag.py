"""Accumulates three backward passes per optimizer step by setting `require_backward_grad_sync`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 3

start()
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
losses = []
for number in range(STEPS * ACCUMULATE):
    inputs, targets = batch(number)
    model.require_backward_grad_sync = number % ACCUMULATE == ACCUMULATE - 1
    loss = F.mse_loss(model(inputs), targets) / ACCUMULATE
    loss.backward()
    losses.append(loss.item())
    if model.require_backward_grad_sync:
        optimizer.step()
        optimizer.zero_grad()
dump(model, losses=losses)
finish()
