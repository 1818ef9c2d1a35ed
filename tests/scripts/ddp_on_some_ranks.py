"""The first two ranks train, in a group of their own; the others wait until they are ended, as those that serve do."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel

rank = start()
group = dist.new_group([0, 1])
if rank > 1:
    time.sleep(10**8)
model = DistributedDataParallel(network(), process_group=group)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    optimizer.step()
finish()
