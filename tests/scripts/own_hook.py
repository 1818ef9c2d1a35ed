"""Registers a communication hook of its own: torch's fp16 compression, or with `own` one written here."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel


# No `from __future__ import annotations` here: DDP compares a hook's annotations with the classes themselves.
def summed_in_double(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    gradients = bucket.buffer()
    work = dist.all_reduce(gradients.double(), async_op=True)
    return work.get_future().then(lambda done: gradients.copy_(done.value()[0] / dist.get_world_size()))


start()
model = DistributedDataParallel(network())
model.register_comm_hook(None, summed_in_double if sys.argv[1:] == ["own"] else fp16_compress_hook)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
