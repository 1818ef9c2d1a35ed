"""Trains a model with DistributedDataParallel, as a user's own script would: under torchrun, on GPUs or CPUs.

It knows nothing of BucketLab. The data is synthetic, made from a seed, so that nothing has to be downloaded
and every run sees the same. The defaults suit two ranks on two CPU cores; to fill GPUs, raise the sizes:

    torchrun --nproc-per-node 8 train.py --model transformer --bf16 --layers 24 --width 2048 --heads 16 \
        --vocab 50304 --sequence 1024 --batch 16
    torchrun --nproc-per-node 8 train.py --model convnet --bf16 --bottleneck --layers 4 --width 64 \
        --classes 1000 --pixels 224 --batch 256 --workers 8
    torchrun --nproc-per-node 8 train.py --model wide --bf16 --width 1024 --sequence 512 --batch 32
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import ConvNet, Transformer, Wide  # type: ignore[import-not-found] # found when run as a script
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("train")

# Sizes at which two ranks on two CPU cores make several steps a second.
DEFAULTS = {
    "transformer": {"layers": 4, "width": 256, "vocab": 8192, "sequence": 32, "batch": 4},
    "convnet": {"layers": 2, "width": 32, "batch": 4},
    "wide": {"width": 128, "vocab": 32000, "sequence": 8, "batch": 2},
}


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Token sequences with their successors: ids by Zipf's law, half of them followed by a fixed next id."""

    def __init__(self, items: int, *, vocab: int, sequence: int) -> None:
        self.items = items
        self.vocab = vocab
        self.sequence = sequence

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(index)
        ids = (self.vocab ** torch.rand(self.sequence + 1, generator=random)).long() - 1
        follows = torch.rand(self.sequence, generator=random) < 0.5
        ids[1:] = torch.where(follows, (3 * ids[:-1] + 1) % self.vocab, ids[1:])
        return ids[:-1], ids[1:]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images with their class: a pattern of four by four colours for each class, under noise."""

    def __init__(self, items: int, *, classes: int, pixels: int) -> None:
        self.items = items
        self.pixels = pixels
        self.patterns = torch.randn(classes, 3, 4, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(index)
        label = index % len(self.patterns)
        image = F.interpolate(self.patterns[label : label + 1], size=self.pixels)[0]
        return image + torch.randn(image.shape, generator=random), torch.tensor(label)


def arguments() -> argparse.Namespace:
    """What the command line says; defaults depend on the model."""
    parser = argparse.ArgumentParser(description="Trains a model with DistributedDataParallel; start with torchrun.")
    parser.add_argument("--model", choices=DEFAULTS, default="transformer")
    parser.add_argument("--layers", type=int, help="transformer blocks, or residual blocks in each of four stages")
    parser.add_argument("--width", type=int, help="embedding width, or channels of the first stage")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--vocab", type=int, help="different tokens")
    parser.add_argument("--sequence", type=int, help="tokens in a sequence")
    parser.add_argument("--tied", action="store_true", help="output layer shares the embedding's weight")
    parser.add_argument("--classes", type=int, default=10, help="classes of images")
    parser.add_argument("--pixels", type=int, default=32, help="height and width of images")
    parser.add_argument("--bottleneck", action="store_true", help="residual blocks of ResNet-50 and deeper")
    parser.add_argument("--batch", type=int, help="samples per rank and backward pass")
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes per optimizer step")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps-per-epoch", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader processes per rank")
    parser.add_argument("--backend", help="default: nccl where there are GPUs, gloo otherwise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=25, help="steps between two lines of log")
    parser.add_argument("--checkpoint", help="file that rank 0 writes the trained model to")
    parser.set_defaults(**DEFAULTS[parser.parse_known_args()[0].model])
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> nn.Module:
    """The model that was asked for, with fresh weights."""
    model: nn.Module
    match args.model:
        case "transformer":
            model = Transformer(
                vocab=args.vocab,
                sequence=args.sequence,
                width=args.width,
                heads=args.heads,
                layers=args.layers,
                tied=args.tied,
            )
        case "convnet":
            model = ConvNet(
                classes=args.classes,
                pixels=args.pixels,
                width=args.width,
                layers=args.layers,
                bottleneck=args.bottleneck,
            )
        case "wide":
            model = Wide(vocab=args.vocab, width=args.width)
    return model


def build_dataset(args: argparse.Namespace, items: int) -> Dataset[tuple[Tensor, Tensor]]:
    """Made-up data for the model: images for the convolutional net, tokens for the others."""
    if args.model == "convnet":
        return Images(items, classes=args.classes, pixels=args.pixels)
    return Tokens(items, vocab=args.vocab, sequence=args.sequence)


def train(args: argparse.Namespace) -> None:
    """All epochs on this rank."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # Ranks share a GPU where there are fewer GPUs than ranks; only gloo allows that.
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend or ("nccl" if device.type == "cuda" else "gloo"))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(args.seed)
    model = DistributedDataParallel(
        build_model(args).to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    dataset = build_dataset(args, world_size * args.batch * args.accumulate * args.steps_per_epoch)
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(
        dataset,
        batch_size=args.batch,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )
    parameters = sum(p.numel() for p in model.parameters())
    log.info("%s, %.1f million parameters, %d ranks on %s", args.model, parameters / 1e6, world_size, device.type)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        logged_at, loss_sum = time.perf_counter(), torch.zeros((), device=device)
        for index, (inputs, targets) in enumerate(loader):
            inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            last = (index + 1) % args.accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.bf16):
                    logits = model(inputs)
                    loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
                (loss / args.accumulate).backward()
            loss_sum += loss.detach() / args.accumulate
            if not last:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

            step = (index + 1) // args.accumulate
            if step % args.log_every == 0:
                mean_loss = loss_sum.item() / args.log_every  # waits for the GPU, so the time is real
                step_s = (time.perf_counter() - logged_at) / args.log_every
                log.info("epoch %d step %d loss %.3f, %.1f ms a step", epoch, step, mean_loss, 1e3 * step_s)
                logged_at, loss_sum = time.perf_counter(), torch.zeros((), device=device)

    if args.checkpoint and rank == 0:
        torch.save(model.module.state_dict(), args.checkpoint)
    dist.barrier()  # no rank leaves while rank 0 still writes
    dist.destroy_process_group()


if __name__ == "__main__":
    train(arguments())
