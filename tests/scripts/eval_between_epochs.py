"""Evaluates after each of four epochs, with collectives of its own; BatchNorm has buffers."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import STEPS, WIDTH, batch, dump, finish, network, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 4

start()
model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(WIDTH), network()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
evaluations = []
for epoch in range(EPOCHS):
    model.train()
    for step in range(STEPS // EPOCHS):
        inputs, targets = batch(epoch * STEPS + step)
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        total = torch.zeros(())
        for number in range(10):
            inputs, targets = batch(-1 - number)
            total += F.mse_loss(model(inputs), targets)
        dist.all_reduce(total)
    evaluations.append(total.item())
dump(model, losses=losses, evaluations=evaluations)
finish()
