"""Profiles itself with torch.profiler, on rank 0 alone, from step WAIT of the environment on, 20 if there is none."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

rank = start()
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
events: list[int] = []
profiler = profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=int(os.environ.get("WAIT", "20")), warmup=2, active=10, repeat=1),
    on_trace_ready=lambda done: events.append(len(done.events())),
)
if rank == 0:
    profiler.start()
losses = []
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if rank == 0:
        profiler.step()
if rank == 0:
    profiler.stop()
    if "DUMP" in os.environ:
        assert len(events) == 1 and events[0] > 100, events
dump(model, losses=losses)
finish()
