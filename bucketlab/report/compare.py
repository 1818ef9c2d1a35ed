"""Two runs on the terminal: the verdict, what differs in the jobs, figures side by side, buckets by parameters."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bucketlab import units
from bucketlab.report.screen import data, print_whole
from bucketlab.schema.comparison import Comparison, Figure, Unit

MOST_BUCKETS = 16


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Names of runs and parameters are data: printed without markup and without what a terminal would obey."""
    console.print(data(comparison.verdict, console, "bold"))
    console.print(Text.assemble("A  ", data(comparison.a, console), f" ({comparison.kind[0]})"), style="dim")
    console.print(Text.assemble("B  ", data(comparison.b, console), f" ({comparison.kind[1]})"), style="dim")
    if comparison.differences:
        console.print()
        console.print(Text("What differs in the jobs", "bold"))
        for line in comparison.differences:
            console.print(data(f"  {line}", console))
    console.print()
    table = _table("", "A", "B", "B - A", "95 % interval")
    for figure in comparison.figures:
        table.add_row(figure.name, *figure_cells(figure))
    print_whole(table, console)
    if comparison.buckets and comparison.comparable:
        console.print()
        console.print(Text("Buckets with the same parameters", "bold"))
        print_whole(_buckets(comparison, console), console)
    console.print()
    for note in comparison.notes:
        console.print(data(f"- {note}", console, "dim"))


def figure_cells(figure: Figure) -> tuple[str, str, str, str]:
    """A, B, their difference and its interval, with units; where there is no interval, why."""
    return (
        _value(figure.a, figure.unit),
        _value(figure.b, figure.unit),
        units.NOTHING if figure.difference is None else _signed(figure.difference, figure.unit),
        interval_of(figure.low, figure.high, figure.unit) or figure.no_interval or units.NOTHING,
    )


def interval_of(low: float | None, high: float | None, unit: Unit) -> str:
    """Of a difference, with its unit; "" where there is none."""
    return "" if low is None or high is None else f"{_signed(low, unit)} to {_signed(high, unit)}"


def _value(value: float | None, unit: Unit) -> str:
    if value is None:
        return units.NOTHING
    if unit == "ns":
        return units.duration(value)
    if unit == "bytes":
        return units.size(value)
    if unit == "share":
        return units.share(value, 1)
    return units.rate(value) if unit == "gb_s" else f"{value:,.0f}"


def _signed(value: float, unit: Unit) -> str:
    if value == 0:
        return "0"
    if unit == "share":
        return f"{100 * value:+.1f} points"
    return f"{'+' if value > 0 else '-'}{_value(abs(value), unit)}"


def _buckets(comparison: Comparison, console: Console) -> Table:
    rows = comparison.buckets[:MOST_BUCKETS]
    times = {
        "A ready\nms": [row.a_ready_ns for row in rows],
        "B ready\nms": [row.b_ready_ns for row in rows],
        "A end\nms": [row.a_end_ns for row in rows],
        "B end\nms": [row.b_end_ns for row in rows],
        "A exposed\nms": [row.a_exposed_ns for row in rows],
        "B exposed\nms": [row.b_exposed_ns for row in rows],
    }
    table = _table("\nA", "\nB", "\nMiB", *times, "exposed\nB - A", "\n95 % interval", "\nfirst parameter")
    table.columns[-1].justify = "left"
    columns = [units.milliseconds_alike(column) for column in times.values()]
    for row, *cells in zip(rows, *columns, strict=True):
        difference_ns = row.exposed_difference_ns
        table.add_row(
            _indices(row.a_indices),
            _indices(row.b_indices),
            units.mebibytes(row.bytes),
            *cells,
            units.NOTHING if difference_ns is None else _signed(difference_ns, "ns"),
            interval_of(row.exposed_low_ns, row.exposed_high_ns, "ns") or units.NOTHING,
            data(row.parameters[0] if row.parameters else "", console),
        )
    if len(comparison.buckets) > MOST_BUCKETS:
        table.add_row(*[""] * 11, f"and {len(comparison.buckets) - MOST_BUCKETS:,} more")
    return table


def _indices(indices: list[int]) -> str:
    if not indices:
        return units.NOTHING
    return str(indices[0]) if len(indices) == 1 else f"{min(indices)}..{max(indices)}"


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.columns[0].justify = "left"
    return table
