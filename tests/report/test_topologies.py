"""What the screen says of ring and parameter server."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from bucketlab.report.profile import print_profile
from bucketlab.schema.profile import Profile, RankVolume, StepTime, Topology
from tests.report.profiles import MIB, exposed

RANKS, GRADIENT = 4, 64 * MIB


def topology(name: str, step_ms: float, root_bytes: int, other_bytes: int) -> Topology:
    step_ns = round(step_ms * 1e6)
    received = [root_bytes] + [other_bytes] * (RANKS - 1) if name != "ddp" else []
    volumes = [
        RankVolume(rank=rank, sent_bytes=one, received_bytes=one, formula_sent_bytes=one, formula_received_bytes=one)
        for rank, one in enumerate(received)
    ]
    step = StepTime(median_ns=step_ns, p10_ns=step_ns, p90_ns=step_ns, samples=[step_ns], excluded=0)
    return Topology(name=name, step=step, volumes=volumes)


def screen(profile: Profile) -> str:
    text = io.StringIO()
    print_profile(profile, Console(file=text, width=100), Path("traces/x"))
    return " ".join(text.getvalue().split())


def test_one_root_stands_beside_the_ring_with_what_it_receives() -> None:
    ring = topology("ring", 200, 96 * MIB, 96 * MIB)
    server = topology("parameter-server", 500, 192 * MIB, GRADIENT)
    profile = msgspec.structs.replace(exposed(), topologies=[topology("ddp", 100, 0, 0), ring, server])
    shown = screen(profile)
    assert "DDP's own all-reduce 100.0 x1.00 not counted - not counted -" in shown
    assert "ring 200.0 x2.00 96.0 96.0 96.0 96.0" in shown
    assert "parameter server 500.0 x5.00 192.0 192.0 64.0 64.0" in shown
    assert "takes x2.50 of the ring's; rank 0 receives 192 MiB in a step, in the ring 96.0 MiB." in shown


def test_nothing_is_said_where_nothing_was_compared() -> None:
    assert "Topologies" not in screen(exposed())
