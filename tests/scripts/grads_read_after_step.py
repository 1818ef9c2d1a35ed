"""Reads the gradients after the step, to log their norm, and zeroes them in place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
norms = []
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad(set_to_none=False)
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
dump(model, losses=losses, norms=norms)
finish()
