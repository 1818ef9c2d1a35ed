"""Ports for servers that are told where to listen."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress
from pathlib import Path

_GIVEN_TO_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15_000
_numbers = itertools.count(10 * os.getpid())  # test runs beside this one begin elsewhere


def free_port() -> int:
    """Nobody listens there, nor at the port after it.

    None of those that the kernel gives to connections: before the server has come up, one could have been given away.
    """
    highest = int(_GIVEN_TO_CONNECTIONS.read_text().split()[0]) if _GIVEN_TO_CONNECTIONS.exists() else 32_768
    candidates = range(_LOWEST, highest - 1, 2)
    if not candidates:  # the kernel gives away nearly all there are
        with socket.create_server(("", 0)) as probe:
            return int(probe.getsockname()[1])
    for number in itertools.islice(_numbers, len(candidates)):
        port = candidates[number % len(candidates)]
        with suppress(OSError), socket.create_server(("", port)), socket.create_server(("", port + 1)):
            return port
    raise OSError("no port is free")
