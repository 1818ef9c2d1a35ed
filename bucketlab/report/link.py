"""A measured link on the terminal: every point in nccl-tests' terms, the fit, and the bandwidth as a picture."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from bucketlab.report import units
from bucketlab.schema.profile import Link, LinkPoint

_BAR_CELLS = 18


def print_link(link: Link, console: Console) -> None:
    full = "=" if console.options.ascii_only else "█"
    console.print(f"Link  {link.kind}: {link.what}, {link.dtype}", style="bold", highlight=False, markup=False)
    console.print(
        f"latency {units.duration(link.latency_ns)}, bandwidth {units.rate(link.bandwidth_gb_s)} "
        f"(fit of latency + bytes / bandwidth, rms error {units.share(link.residual, 1)}); "
        f"{link.concurrency} at a time",
        highlight=False,
    )
    table = Table(box=box.ASCII if console.options.ascii_only else box.SIMPLE, pad_edge=False)
    for heading in ("size", "in flight", "time", "+-", "algbw", "busbw"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    fastest = max((point.bus_gb_s for point in link.points), default=0.0)
    for point in link.points:
        bar = full * round(_BAR_CELLS * point.bus_gb_s / fastest) if fastest else ""
        table.add_row(*_row(point), bar)
    console.print(table)
    console.print(
        "Times of one all-reduce, the slowest rank's, operations back to back, with half the width of their 95 % "
        "interval. Bandwidths in GB/s (1e9 bytes); busbw = algbw * 2(n-1)/n, as nccl-tests defines it.",
        highlight=False,
    )


def _row(point: LinkPoint) -> list[str]:
    spread = ""
    if point.low_ns is not None and point.high_ns is not None:
        spread = units.share((point.high_ns - point.low_ns) / 2, point.ns)
    return [
        units.size(point.bytes),
        str(point.in_flight),
        units.duration(point.ns),
        spread,
        units.rate_number(point.algorithm_gb_s),
        units.rate_number(point.bus_gb_s),
    ]
