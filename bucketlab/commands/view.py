"""`bucketlab view`: TensorBoard on the folder of runs."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import threading
from pathlib import Path

import click

from bucketlab.commands.common import print_json, runs_option
from bucketlab.errors import BadInput


@click.command()
@runs_option
@click.option("--host", default="127.0.0.1", help="Address to serve at.", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=6006, help="Port to serve at.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON document on stdout.")
def view(out: Path, host: str, port: int, as_json: bool) -> None:
    """TensorBoard on the folder of runs, until Ctrl-C."""
    if not out.is_dir():
        raise BadInput(f"there is no folder {out}. Make a run first: bucketlab profile train.py")
    from bucketlab.tensorboard.serving import serve

    address = serve(out, host, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what plugins started is ended too
    if as_json:
        print_json({"address": address})
    else:
        print(f"TensorBoard on {out}: {address} (Ctrl-C ends it)")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    for child in multiprocessing.active_children():
        child.terminate()
