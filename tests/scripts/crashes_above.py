"""Runs out of memory, or so it says, on rank 1 once a bucket may hold more than the MiB that the argument tells."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

start()
most_bytes = float(sys.argv[1]) * 2**20
model = DistributedDataParallel(network(), bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    if model.bucket_bytes_cap > most_bytes and dist.get_rank() == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    optimizer.step()
dump(model)
finish()
