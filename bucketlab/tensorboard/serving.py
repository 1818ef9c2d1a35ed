"""Starts TensorBoard in this process. Shows nothing itself: TensorBoard finds plugins, ours too, by entry points."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from bucketlab.errors import BadInput


def serve(logdir: Path, host: str, port: int) -> str:
    """Serves a log folder until the process ends; returns the address.

    Args:
        logdir: with the runs.
        host: name or address to serve at.
        port: 0 for any that is free.

    Raises:
        BadInput: the address cannot be served at; the port may be taken.
    """
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise BadInput(f"cannot serve at {host}: {error.strerror}.") from None
    from tensorboard import default, program  # takes seconds

    logging.getLogger("tensorboard").setLevel(logging.WARNING)
    server = program.TensorBoard(plugins=default.get_plugins())
    server.configure(["bucketlab", "--logdir", str(logdir), "--host", host, "--port", str(port)])
    try:
        address: str = server.launch()
    except program.TensorBoardPortInUseError:
        raise BadInput(f"port {port} is taken. Choose another with --port; 0 takes any that is free.") from None
    except program.TensorBoardServerException as error:
        raise BadInput(f"cannot serve at {host}: {error.msg}.") from None
    except SystemExit:  # TensorBoard's own server ends the process where it cannot bind, with a line on stderr
        raise BadInput(f"cannot serve at {host}, port {port}; the reason is above.") from None
    return address
