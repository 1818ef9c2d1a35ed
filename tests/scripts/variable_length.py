"""Sequences of many lengths in batches of many sizes, other ones on each rank."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, WIDTH, dump, finish, network, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.body = network()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.embedding(tokens).mean(dim=1))


rank = start()
model = DistributedDataParallel(Bag())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
random = torch.Generator().manual_seed(rank)
losses = []
for _ in range(STEPS):
    size, length = torch.randint(1, 64, (2,), generator=random).tolist()
    tokens = torch.randint(100, (size, length), generator=random)
    optimizer.zero_grad()
    loss = F.mse_loss(model(tokens), tokens.float().mean(dim=1, keepdim=True) / 100)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
