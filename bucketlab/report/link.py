"""A measured link on the terminal: every point in nccl-tests' terms, the fit, and the bandwidth as a picture."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from bucketlab import units
from bucketlab.schema.profile import Link, LinkPoint

_BAR_CELLS = 18
_NO_BANDWIDTH_GB_S = 1e5  # no link has it; a fit does where time does not grow with size
_POOR_FIT = 0.1  # rms of the relative errors; on an idle machine it is a few per cent


def print_link(link: Link, console: Console) -> None:
    """The screen of `bucketlab link`."""
    full = "=" if console.options.ascii_only else "█"
    console.print(f"Link  {link.kind}: {link.what}, {link.dtype}", style="bold", highlight=False, markup=False)
    console.print(
        f"latency {units.duration(link.latency_ns)}, bandwidth {units.rate(link.bandwidth_gb_s)} "
        f"(fit of latency + bytes / bandwidth, rms error {units.share(link.residual, 1)}); "
        f"{link.concurrency} at a time",
        highlight=False,
    )
    if (doubt := doubt_of_fit(link)) is not None:
        console.print(doubt, highlight=False)
    for line in _where(link):
        console.print(line, highlight=False, markup=False)
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


def doubt_of_fit(link: Link) -> str | None:
    """What to trust instead where latency and bandwidth of the fit say little, in one line; None where they hold."""
    if link.bandwidth_gb_s >= _NO_BANDWIDTH_GB_S:
        return (
            "All-reduces took no longer the larger they were, so these sizes do not tell the link's bandwidth. Trust "
            "the times of each size, which prediction uses too."
        )
    if link.residual <= _POOR_FIT:
        return None
    return (
        "The fit is poor: this link is no straight line, or other programs took turns on the hosts. Trust the times of "
        "each size, which prediction uses too, and not the fitted latency and bandwidth."
    )


def _where(link: Link) -> list[str]:
    """What NCCL used, and what there is on the hosts; hosts that are alike on one line."""
    lines = [f"used, by NCCL's own log: {link.used}"] if link.used else []
    alike: dict[str, list[str]] = {}
    for host, found in link.found.items():
        alike.setdefault("; ".join(found) or "nothing that joins ranks", []).append(host)
    return lines + [f"on {', '.join(hosts)}: {found}" for found, hosts in alike.items()]


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
