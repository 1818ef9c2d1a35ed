"""An ordinary training in which rank 1 meets what FAULT of the environment names, at the step that it names.

FAULT is `how@step`: killed, segfault, raises, memory (as much as there is nowhere), exits, leaves (os._exit) or hangs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel


def meet(fault: str) -> None:
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "raises":
        raise ValueError("a bad sample, on rank 1 alone")
    if fault == "memory":
        torch.empty(2**46)
    if fault == "exits":
        sys.exit(0)
    if fault == "leaves":
        os._exit(0)
    if fault == "hangs":
        time.sleep(10**8)
    raise AssertionError(f"no such fault: {fault}")


fault, _, at = os.environ["FAULT"].partition("@")
rank = start()
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    if rank == 1 and step == int(at):
        meet(fault)
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    optimizer.step()
finish()
