"""Points of a link -> the link: its fit, its concurrency, and what it is. Points come from elsewhere; it takes none."""

from __future__ import annotations

from collections.abc import Sequence

from bucketlab.link.bandwidth import bus_factor
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
    return Link(
        kind="measured",
        what=path_name(backend, ranks, len(names)),
        dtype=dtype,
        ranks=ranks,
        points=list(points),
        concurrency=concurrency(points),
        latency_ns=curve.latency_ns,
        bandwidth_gb_s=curve.bandwidth_gb_s,
        residual=curve.residual,
        hosts=names,
    )


def path_name(backend: str, ranks: int, hosts: int) -> str:
    """What to call a link by what is known without measuring it."""
    place = "within one host" if hosts == 1 else f"across {hosts} hosts"
    return f"{backend}, {ranks} rank{'s' if ranks != 1 else ''} {place}"


def lone_point(size: int, ns: float, ranks: int, repetitions: int = 0) -> LinkPoint:
    """An all-reduce of so many bytes alone on the link, of which one time in ns is known, of so many repetitions."""
    return LinkPoint(
        bytes=size,
        in_flight=1,
        ns=round(ns),
        p10_ns=round(ns),
        p90_ns=round(ns),
        repetitions=repetitions,
        algorithm_gb_s=size / ns,
        bus_gb_s=size / ns * (bus_factor("allreduce", ranks) or 0.0),
    )


def emulated_link(curve: LinkCurve, sizes: Sequence[int], dtype: str, what: str, ranks: int) -> Link:
    """The modelled link that a job ran on, in the form of a measured one.

    Args:
        curve: the model.
        sizes: bytes of the all-reduces to show.
        dtype: of the job's gradients.
        what: the model's name.
        ranks: of the job, not of the model.
    """
    times_ns = curve.time_ns(list(sizes)).tolist()
    points = [lone_point(size, ns, ranks) for size, ns in zip(sizes, times_ns, strict=True)]
    return Link(
        kind="emulated",
        what=what,
        dtype=dtype,
        ranks=ranks,
        points=points,
        concurrency=curve.concurrency,
        latency_ns=curve.latency_ns,
        bandwidth_gb_s=curve.bandwidth_gb_s,
        residual=curve.residual,
    )
