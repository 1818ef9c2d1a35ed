"""Does to its process what scripts do and profilers do not expect, and writes down whether all of it still holds.

It handles signals, forks a child that leaves with os._exit, changes the working directory, moves its standard output
into a file, and sets variables of NCCL.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

os.environ["NCCL_DEBUG"] = "WARN"
os.environ["NCCL_ALGO"] = "Ring"

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCHLD)
caught: list[int] = []
for number in NUMBERS:
    signal.signal(number, lambda number, frame: caught.append(number))
rank = start()
elsewhere = Path(os.environ["ELSEWHERE"])
os.chdir(elsewhere)
sys.stdout = Path(f"rank{rank}.out").open("w", buffering=1)  # noqa: SIM115  # to the end
os.dup2(sys.stdout.fileno(), 1)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses, children = [], []
for step in range(STEPS):
    if step % 20 == 10:
        child = os.fork()
        if child == 0:
            os._exit(step % 256)
        children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os.kill(os.getpid(), NUMBERS[step // 20 % len(NUMBERS)])
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("trained")
os.write(1, b"to the end\n")
dump(
    model,
    losses=losses,
    children=children,
    signals=[number for number in caught if number != signal.SIGCHLD],
    folder=Path.cwd() == elsewhere,
    nccl=[os.environ["NCCL_DEBUG"], os.environ["NCCL_ALGO"], os.environ.get("NCCL_DEBUG_FILE")],
)
finish()
