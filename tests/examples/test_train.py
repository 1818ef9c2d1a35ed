"""The shipped example trains, under real torchrun, and its models are of the sizes that they claim."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bucketlab.examples import models

TRAIN = Path(models.__file__).with_name("train.py")

# Small enough that starting Python takes most of the time.
SMALL = {
    "transformer": "--layers 1 --width 32 --vocab 256 --sequence 32 --accumulate 2 --bf16 --tied --lr 1e-2",
    "convnet": "--layers 1 --width 8 --batch 8 --bottleneck --lr 1e-2",
    "wide": "--width 16 --vocab 512 --workers 1 --lr 1e-2",
}


@pytest.mark.parametrize("model", SMALL)
def test_example_learns_and_writes_its_checkpoint(model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.pt"
    sizes = ["--epochs", "2", "--steps-per-epoch", "20", "--log-every", "5", *SMALL[model].split()]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(TRAIN), "--model", model, *sizes, "--checkpoint", str(checkpoint)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stderr)]
    assert len(losses) == 8  # rank 0 alone logs, every fifth step of two epochs of twenty
    assert losses[-1] < 0.95 * losses[0]
    assert all(torch.isfinite(tensor).all() for tensor in torch.load(checkpoint).values())


def test_wide_model_is_the_one_whose_last_layer_dwarfs_any_bucket() -> None:
    with torch.device("meta"):
        wide = models.Wide(vocab=32_000, width=1024)
    shapes = [tuple(p.shape) for p in wide.parameters()]
    assert shapes == [(32_000, 1024), (4096, 1024), (4096,), (32_000, 4096), (32_000,)]


def test_transformer_of_gpt2_sizes_has_as_many_parameters_as_gpt2() -> None:
    with torch.device("meta"):
        gpt2 = models.Transformer(vocab=50257, sequence=1024, width=768, heads=12, layers=12, tied=True)
    assert sum(p.numel() for p in gpt2.parameters()) == 124_439_808


def test_convnet_of_resnet18_sizes_has_as_many_parameters_as_resnet18() -> None:
    with torch.device("meta"):
        resnet18 = models.ConvNet(classes=1000, pixels=224, width=64, layers=2, bottleneck=False)
    assert sum(p.numel() for p in resnet18.parameters()) == 11_689_512
    assert sum(b.numel() for b in resnet18.buffers()) > 0


def test_transformer_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = models.Transformer(vocab=16, sequence=8, width=16, heads=2, layers=2, tied=False)
    tokens = torch.randint(16, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 16
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])
