"""Runs a benchmark's own module in several ranks under torchrun, and hands back what rank 0 found."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec

_ROOT = Path(__file__).parents[1]
_RESULT = "BENCH_RESULT"

T = TypeVar("T")


def in_ranks(
    module: str,
    ranks: int,
    kind: type[T],
    environment: Mapping[str, str] | None = None,
    output: TextIO = sys.stderr,
) -> T:
    """What rank 0 of `python -m MODULE` told with `tell`; what ranks print goes to `output`.

    Raises:
        subprocess.CalledProcessError: a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        path = os.pathsep.join(filter(None, [(environment or {}).get("PYTHONPATH"), str(_ROOT)]))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        subprocess.run(
            [*command, "-m", module],
            env={**os.environ, **(environment or {}), "PYTHONPATH": path, _RESULT: str(result)},
            stdout=output,
            check=True,
        )
        return msgspec.json.decode(result.read_bytes(), type=kind)


def is_rank() -> bool:
    """Whether this process was started by `in_ranks`."""
    return _RESULT in os.environ and "RANK" in os.environ


def tell(result: object) -> None:
    """Hands this back to who called `in_ranks`. For rank 0 alone."""
    Path(os.environ[_RESULT]).write_bytes(msgspec.json.encode(result))
