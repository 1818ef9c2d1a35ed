"""Waits for its data: each sample takes 15 ms to load, a batch of four far longer than the step on it."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class SlowDisk(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return STEPS * 4

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.015)
        inputs, targets = batch(index, size=1)
        return inputs[0], targets[0]


start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for inputs, targets in DataLoader(SlowDisk(), batch_size=4):
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
