"""Ends well, all ranks after the same step, once there is the file that the argument names, which is then removed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel

now = Path(sys.argv[1])
rank = start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    told = torch.tensor([float(now.exists())])
    dist.all_reduce(told)
    if told:
        break
dist.barrier()  # all have looked
if rank == 0:
    now.unlink(missing_ok=True)
finish()
