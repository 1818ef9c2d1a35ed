"""Trains in a thread; the main thread waits for it, and writes whether it was let clean up."""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel


def train() -> None:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    trained.set()


start()
trained = threading.Event()
threading.Thread(target=train).start()
try:
    trained.wait()
finally:
    print("cleaned up", flush=True)
finish()
