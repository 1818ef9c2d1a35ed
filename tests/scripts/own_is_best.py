"""Trains fastest with its own buckets of 1 MiB, and says that it runs out of memory, on rank 1, above 2.04 MiB."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel

OWN_MB, MOST_MB = 1, 2.04

start()
model = DistributedDataParallel(network(), bucket_cap_mb=OWN_MB)
cap_mb = model.bucket_bytes_cap / 2**20
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    time.sleep(0.02 if cap_mb == OWN_MB else 0.04)
    if cap_mb > MOST_MB and dist.get_rank() == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    optimizer.step()
finish()
