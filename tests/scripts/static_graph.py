"""A static graph with what only `static_graph=True` allows: a shared block that is checkpointed twice."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, WIDTH, batch, dump, finish, network, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = network()

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(2):
            inputs = checkpoint(self.shared, inputs, use_reentrant=False)
        return self.head(inputs)


start()
model = DistributedDataParallel(Shared(), static_graph=True)
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
