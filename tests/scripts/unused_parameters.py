"""Two heads, of which each step uses one: the other's parameters get no gradient in it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, WIDTH, batch, dump, finish, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 512))
        self.heads = nn.ModuleList([nn.Linear(512, 1), nn.Linear(512, 1)])
        self.never = nn.Linear(512, 1)

    def forward(self, inputs: Tensor, head: int) -> Tensor:
        return self.heads[head](self.trunk(inputs).relu())


start()
model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs, step % 2), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
