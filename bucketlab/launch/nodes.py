"""Commands of one job on several nodes agree on what each next launch is; no disk is shared. Launches nothing.

The nodes meet at the job's own rendezvous only while it runs, so between launches the commands talk over a store of
torch's, on the host of the rendezvous and at the port after its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from bucketlab.errors import BadInput, WorkFailed
from bucketlab.launch.command import Job

if TYPE_CHECKING:
    from torch.distributed import Store

# torchrun's: of --rdzv-endpoint, and of --master-port.
_ENDPOINT_PORT, _MASTER_PORT = 29400, 29500
_CONNECT_SECONDS = 300.0
_GOODBYE_SECONDS = 60.0
# What the command that leads says of a launch whose rank 0 it did not start.
RANK_0_MOVED = (
    "rank 0 has moved to another node or command: give the command that is to have it --node-rank 0, and each the "
    "--master-addr of its node."
)


def count_of(job: Job) -> int:
    """Nodes that a command is called on. Raises BadInput for a number that is not fixed."""
    words = dict(job.options).get("nnodes", "1").split(":")
    if len(set(words)) > 1:
        raise BadInput(f"--nnodes {':'.join(words)}: launches are compared, so give the number of nodes that all have.")
    return int(words[0])


def check(job: Job) -> None:
    """Raises BadInput where the commands of several nodes could not meet."""
    if count_of(job) > 1:
        _place(dict(job.options))


class Nodes:
    """The command's part in the agreement; one of them leads."""

    def __init__(self, store: Store, count: int, is_host: bool) -> None:
        self._store, self._count, self._is_host = store, count, is_host
        self._number = 0

    def tell(self, launch: dict[str, str]) -> None:
        """The leader's word to the others before each launch."""
        self._store.set(f"launch/{self._number}", msgspec.json.encode(launch).decode())
        self._number += 1

    def tell_end(self) -> None:
        self._store.set(f"launch/{self._number}", "null")

    def heard(self) -> Iterator[dict[str, str]]:
        """Each next launch, until the leader says that there is none.

        Raises:
            WorkFailed: the leader is gone.
        """
        while True:
            try:
                told = self._store.get(f"launch/{self._number}")
            except Exception as error:  # the store has a class for each way in which a connection ends
                raise WorkFailed("the command that has rank 0 ended; its message says why.") from error
            launch = msgspec.json.decode(told, type=dict[str, str] | None)
            if launch is None:
                return
            self._number += 1
            yield launch

    def part(self) -> None:
        """The host of the store stays until all have heard the last word."""
        everybody = self._store.add("goodbye", 1)
        until = time.monotonic() + _GOODBYE_SECONDS
        while self._is_host and everybody < self._count and time.monotonic() < until:
            time.sleep(0.1)
            everybody = self._store.add("goodbye", 0)


@contextmanager
def meeting(job: Job, timeout_seconds: float) -> Iterator[Nodes]:
    """Joins the job's other commands.

    Raises:
        BadInput: the options do not say where, or which node this is.
        WorkFailed: node 0's command did not come.
    """
    from torch.distributed import TCPStore

    options = dict(job.options)
    host, port = _place(options)
    is_host = options["node-rank"] == "0"
    try:
        connecting = timedelta(seconds=_CONNECT_SECONDS)
        store = TCPStore(host, port, is_master=is_host, timeout=connecting, wait_for_workers=False)
    except Exception as error:  # likewise
        what = "cannot be listened at" if is_host else "does not answer"
        raise WorkFailed(f"{host}:{port}, where the nodes' commands meet between launches, {what}.") from error
    store.set_timeout(timedelta(seconds=timeout_seconds + _CONNECT_SECONDS))
    nodes = Nodes(store, count_of(job), is_host)
    try:
        yield nodes
    finally:
        with contextlib.suppress(Exception):  # the others are gone
            nodes.part()


def _place(options: dict[str, str]) -> tuple[str, int]:
    if "node-rank" not in options:
        raise BadInput("several nodes that launch together need --node-rank on each; node 0 has the rendezvous.")
    endpoint, default_port = options.get("rdzv-endpoint", ""), _ENDPOINT_PORT
    if not endpoint:
        endpoint, default_port = f"{options.get('master-addr', '')}:{options.get('master-port', '')}", _MASTER_PORT
    host, _, port = endpoint.rpartition(":") if ":" in endpoint else (endpoint, "", "")
    if not host:
        raise BadInput("several nodes that launch together need --rdzv-endpoint HOST:PORT, or --master-addr.")
    return host.strip("[]"), int(port or default_port) + 1
