"""Trains for some steps with its communication held back by the package's own means, twice in a row."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from tiny import batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

from bucketlab.worker import ddp, ready

start()
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
events: list[str] = []
losses, orders = [], []
reduce = ready.dist.all_reduce


def noted(*args: object, **kwargs: object) -> object:
    events.append("r")
    return reduce(*args, **kwargs)


def step(number: int) -> None:
    inputs, targets = batch(number)
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())


for number in range(4):
    step(number)
buckets = ddp.layout(model)
if "held" in sys.argv:
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: events.append("g"))
    ready.dist.all_reduce = noted
    for half in range(2):
        with ready.HeldBack([model], [buckets]):
            for number in range(4 + 3 * half, 7 + 3 * half):
                events.clear()
                step(number)
                orders.append("".join(events))
    ready.dist.all_reduce = reduce
else:
    for number in range(4, 10):
        step(number)
for number in range(10, 14):
    step(number)
dump(model, losses=losses, buckets=buckets, **({"orders": orders} if orders else {}))
finish()
