"""What is served, is served to this machine alone unless the user says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tensorboard.serving import tensorboard

LISTENS = "0A"  # include/net/tcp_states.h
LOOPBACK = "0100007F"  # 127.0.0.1 as /proc/net/tcp writes it


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no list of listening sockets on this system")
def test_view_listens_on_loopback_alone(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    with tensorboard(tmp_path / "traces") as address:
        port = int(address.rpartition(":")[2])
        assert _listening(port) == {LOOPBACK}


def _listening(port: int) -> set[str]:
    """Addresses at which somebody listens on a port, in hexadecimal."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    places = [row[1].rpartition(":") for row in rows if row[3] == LISTENS]
    return {host for host, _, number in places if int(number, 16) == port}
