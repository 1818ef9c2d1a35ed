"""Measured points -> the link: its fit, its concurrency, and what it is. Used by every command that measures one."""

from __future__ import annotations

from collections.abc import Sequence

from bucketlab.link.curve import LinkCurve, concurrency
from bucketlab.schema.profile import Link, LinkPoint


def measured_link(points: Sequence[LinkPoint], dtype: str, backend: str, ranks: int, hosts: Sequence[str]) -> Link:
    """Args:
    points: all-reduces, at least one of them with one in flight.
    dtype: torch's name of the element type.
    backend: of the process group, "nccl" or "gloo".
    ranks: of the process group.
    hosts: those that the ranks run on; repetitions do not matter.
    """
    curve = LinkCurve.fit(points)
    names = sorted(set(hosts))
    place = "within one host" if len(names) == 1 else f"across {len(names)} hosts"
    return Link(
        kind="measured",
        what=f"{backend}, {ranks} rank{'s' if ranks != 1 else ''} {place}",
        dtype=dtype,
        ranks=ranks,
        points=list(points),
        concurrency=concurrency(points),
        latency_ns=curve.latency_ns,
        bandwidth_gb_s=curve.bandwidth_gb_s,
        residual=curve.residual,
        hosts=names,
    )
