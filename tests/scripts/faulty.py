"""An ordinary training in which one rank, rank 1 unless FAULTY_RANK says another, meets a fault: FAULT is `how@when`.

`how` is killed, segfault, raises, memory (as much as there is nowhere), exits, leaves (os._exit), hangs, or waits, as
long as there is the file FAULTY_WHILE. `when` is

    90              the beginning of that step
    any             the beginning of a step
    event:TEXT      when a file with this text in its name is opened or renamed, once DDP is built
    inside:NAME     while the main thread is in a function of this name

With FAULTY_ONCE, a file, it is met once: not before there is this file, which is then removed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, finish, network, start
from torch.nn.parallel import DistributedDataParallel

_AUDITED = ("open", "os.rename")


def meet(fault: str) -> None:
    once = os.environ.get("FAULTY_ONCE")
    if once is not None:
        if not Path(once).exists():
            return
        Path(once).unlink()
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
    if fault == "waits":
        while Path(os.environ["FAULTY_WHILE"]).exists():
            time.sleep(0.01)
        return
    raise AssertionError(f"no such fault: {fault}")


def meet_at_an_event(fault: str, text: str) -> None:
    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event in _AUDITED and text in f"{event} {arguments}":
            meet(fault)

    sys.addaudithook(look)


def meet_inside(fault: str, name: str) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def look() -> None:
        while True:
            if name in _functions(sys._current_frames().get(main)):
                meet(fault)
            time.sleep(0.0005)

    threading.Thread(target=look, daemon=True).start()


def _functions(frame: FrameType | None) -> set[str]:
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


fault, _, when = os.environ["FAULT"].partition("@")
kind, _, what = when.partition(":")
rank = start()
unlucky = rank == int(os.environ.get("FAULTY_RANK", "1"))
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if unlucky and kind == "event":
    meet_at_an_event(fault, what)
if unlucky and kind == "inside":
    meet_inside(fault, what)
for step in range(STEPS):
    if unlucky and when in (str(step), "any"):
        meet(fault)
    inputs, targets = batch(step)
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    optimizer.step()
finish()
