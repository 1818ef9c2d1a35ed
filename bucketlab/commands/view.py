"""`bucketlab view`: TensorBoard on the folder of runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from bucketlab.errors import BadInput


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option("--host", default="127.0.0.1", help="Address to serve at.", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=6006, help="Port to serve at.", show_default=True)
def view(out: Path, host: str, port: int) -> None:
    """TensorBoard on the folder of runs, until Ctrl-C."""
    if not out.is_dir():
        raise BadInput(f"there is no folder {out}. Make a run first: bucketlab profile train.py")
    arguments = ["--logdir", str(out), "--host", host, "--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *arguments])
