"""Wraps the network in a subclass of DDP, as libraries do, that forwards unknown attributes to it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


class Wrapped(DistributedDataParallel):
    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(super().forward(inputs), targets)


start()
net = network()
net.nickname = "tiny"
model = Wrapped(net)
assert model.nickname == "tiny"
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    optimizer.zero_grad()
    loss = model(*batch(step))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
