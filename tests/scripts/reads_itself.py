"""Reads its own source, a file beside itself, a file named relative to the working directory, its arguments."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from tiny import STEPS, batch, dump, finish, network, start
from torch.nn.parallel import DistributedDataParallel

print(f"module level runs as {__name__}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="a file, relative to the working directory")
    args, others = parser.parse_known_args()
    start()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dump(
        model,
        losses=losses,
        name=__name__,
        file=__file__,
        docstring_found="Reads its own source" in Path(__file__).read_text(),
        beside=Path(__file__).with_name("reads_itself.txt").read_text(),
        data=args.data.read_text() if args.data else None,
        main_file=sys.modules["__main__"].__file__,
        path0=sys.path[0],
        argv=sys.argv,
        others=others,
    )
    finish()


if __name__ == "__main__":
    main()
