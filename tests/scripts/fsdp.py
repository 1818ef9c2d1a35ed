"""Shards the parameters instead of replicating them: `fully_shard`, or with `wrapper` the older class."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

start()
net = network()
if sys.argv[1:] == ["wrapper"]:
    model = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
else:
    model = fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(losses=losses)
finish()
