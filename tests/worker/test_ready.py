"""Communication is held back until the last gradient, also a second time at once, and no bit changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.commands import ROOT, SCRIPTS
from tests.profile.conftest import dumped


def trained(folder: Path, *arguments: str) -> list[dict]:
    folder.mkdir()
    # Of two numbers the order of a sum would not show: three ranks.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    environment = {
        "DUMP": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{SCRIPTS}",
        "PATH": "/usr/bin:/bin",
    }
    script = str(SCRIPTS / "held_back_twice.py")
    done = subprocess.run([*command, script, *arguments], env=environment, capture_output=True, text=True, timeout=200)
    assert len(dumped(folder)) == 3, done.stderr[-3000:]
    return [json.loads(text) for text in dumped(folder).values()]


def test_every_all_reduce_follows_the_last_gradient_and_the_weights_are_the_same_bits(tmp_path: Path) -> None:
    held, plain = trained(tmp_path / "held", "held"), trained(tmp_path / "plain")
    for one in held:
        buckets = one["buckets"]
        assert len(buckets) > 1
        gradients = sum(map(len, buckets))
        assert one.pop("orders") == ["g" * gradients + "r" * len(buckets)] * 6
    assert held == plain
