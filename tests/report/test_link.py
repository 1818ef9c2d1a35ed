"""A measured link as it is printed: figures, what they are worth, and where they were taken."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bucketlab.link.measured import lone_point, measured_link
from bucketlab.report.link import print_link
from bucketlab.report.profile import print_profile
from bucketlab.schema.profile import Link, Profile
from tests.report import profiles


def printed(report: Callable[[Console], None]) -> str:
    """In one line."""
    console = Console(file=io.StringIO(), width=100)
    report(console)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def printed_link(link: Link) -> str:
    return printed(lambda console: print_link(link, console))


def printed_profile(profile: Profile) -> str:
    return printed(lambda console: print_profile(profile, console, Path("traces/run-1")))


def straight(*disturbed: float) -> Link:
    """1 ms and 1 GB/s at four sizes; the first of them as many times slower as said."""
    sizes = [2**20 << power for power in range(4)]
    times_ns = [1e6 + size for size in sizes]
    for place, factor in enumerate(disturbed):
        times_ns[place] *= factor
    points = [lone_point(size, ns, 2) for size, ns in zip(sizes, times_ns, strict=True)]
    return measured_link(points, "float32", "gloo", 2, ["a", "b"])


def test_a_link_that_is_a_line_is_told_by_its_fit_alone() -> None:
    text = printed_link(straight())
    assert "latency 1.00 ms, bandwidth 1.00 GB/s" in text
    assert "poor" not in text


@pytest.mark.parametrize("disturbed", [(3.0,), (1.0, 2.0)])
def test_a_poor_fit_is_called_poor_and_the_times_of_each_size_are_what_to_trust(disturbed: tuple[float, ...]) -> None:
    text = printed_link(straight(*disturbed))
    assert "The fit is poor" in text
    assert "Trust the times of each size" in text


def test_a_profile_says_so_too() -> None:
    profile = profiles.exposed()
    assert profile.link is not None
    assert "fit is poor" not in printed_profile(profile)
    assert "fit is poor" in printed_profile(msgspec.structs.replace(profile, link=straight(3.0)))


def test_what_joins_the_ranks_is_told_once_for_hosts_that_are_alike() -> None:
    adapter = "mlx5_0:1: InfiniBand, 400 Gb/sec (4X NDR), active"
    link = msgspec.structs.replace(
        straight(),
        found={"node1": [adapter], "node2": [adapter], "node3": []},
        used="NCCL 2.28.9, 2 ranks on 2 hosts: sockets (NET/Socket, eth0); 2 channels",
    )
    text = printed_link(link)
    assert f"on node1, node2: {adapter}" in text
    assert "on node3: nothing that joins ranks" in text
    assert "used, by NCCL's own log: NCCL 2.28.9, 2 ranks on 2 hosts: sockets" in text
