"""What the small training scripts in this folder share: a tiny network, its data, a record of the outcome.

Not a test helper: it runs inside the training processes, and like the scripts it knows nothing of BucketLab.
The environment may set STEPS, the optimizer steps to make, and DUMP, a folder that every rank then writes
`rank<N>.json` to, so that the same training done twice can be compared bit by bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS = int(os.environ.get("STEPS", "120"))
WIDTH = 32


def start() -> int:
    """Joins the process group that the environment describes and returns this process's rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank()


def network() -> nn.Sequential:
    """Its gradients fill more than the first of DDP's default buckets, which is 1 MiB."""
    return nn.Sequential(
        nn.Linear(WIDTH, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 1),
    )


def batch(number: int, size: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs (size, WIDTH) and targets (size, 1), other ones for each rank and number."""
    random = torch.Generator().manual_seed(1000 * number + _rank())
    inputs = torch.randn(size, WIDTH, generator=random)
    return inputs, inputs[:, :1] - 0.5 * inputs[:, 1:2]


def dump(*models: nn.Module, **record: object) -> None:
    """Writes the weights' and buffers' hash, and whatever else is given, if the environment asks for it."""
    if "DUMP" not in os.environ:
        return
    digest = hashlib.sha256()
    for model in models:
        for tensor in model.state_dict().values():
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    path = Path(os.environ["DUMP"], f"rank{_rank()}.json")
    path.write_text(json.dumps({"sha256": digest.hexdigest(), **record}))


def finish() -> None:
    """Leaves the process group, and gives gloo's threads the moment that they need to let go of their last work.

    It holds a Python object, and torch 2.13 aborts (exit code -6, "terminate called without an active exception")
    when such a thread asks for the interpreter's lock while the interpreter is already shutting down.
    """
    dist.destroy_process_group()
    time.sleep(0.1)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
