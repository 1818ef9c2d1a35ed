"""A job that is as fast as a variable of its environment says, and that one value of it crashes."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel

if "--sets-own" in sys.argv:
    os.environ["PACE_OF"] = "the script"
pace = os.environ.get("PACE", "as it is")
start()
if dist.get_rank() == 0:
    print(f"pace {pace}", flush=True)
if pace == "none":
    raise RuntimeError("no such pace")
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    time.sleep(0.0 if pace == "fast" else 0.04)
    optimizer.step()
finish()
