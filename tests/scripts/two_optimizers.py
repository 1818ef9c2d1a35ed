"""One DDP module whose weights and biases are stepped by two optimizers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
weights = [p for p in model.parameters() if p.dim() == 2]
biases = [p for p in model.parameters() if p.dim() == 1]
optimizers = [torch.optim.AdamW(weights, lr=1e-3), torch.optim.SGD(biases, lr=1e-2, momentum=0.9)]
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    losses.append(loss.item())
dump(model, losses=losses)
finish()
