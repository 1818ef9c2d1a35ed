"""An embedding with sparse gradients, which DDP reduces apart from the buckets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, dump, finish, network, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = start()
model = DistributedDataParallel(nn.Sequential(nn.Embedding(1000, 32, sparse=True), network()))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
random = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    words = torch.randint(0, 1000, (8,), generator=random)
    optimizer.zero_grad()
    F.mse_loss(model(words), torch.zeros(8, 1)).backward()
    optimizer.step()
dump(model)
finish()
