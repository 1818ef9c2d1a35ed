"""Two runs on the terminal: the verdict, what differs in the jobs, figures side by side, buckets by parameters."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bucketlab.report import units
from bucketlab.schema.comparison import Comparison, Figure

MOST_BUCKETS = 16


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Names of runs and parameters are data: printed without markup and without what a terminal would obey."""

    def data(text: str, style: str = "") -> Text:
        return Text(units.shown(text, console.encoding), style)

    console.print(data(comparison.verdict, "bold"))
    console.print(Text.assemble("A  ", data(comparison.a), f" ({comparison.kind[0]})"), style="dim")
    console.print(Text.assemble("B  ", data(comparison.b), f" ({comparison.kind[1]})"), style="dim")
    if comparison.differences:
        console.print()
        console.print(Text("What differs in the jobs", "bold"))
        for line in comparison.differences:
            console.print(data(f"  {line}"))
    console.print()
    table = _table("", "A", "B", "B - A", "95 % interval")
    for figure in comparison.figures:
        table.add_row(figure.name, *figure_cells(figure))
    console.print(table)
    if comparison.buckets and comparison.comparable:
        console.print()
        console.print(Text("Buckets with the same parameters", "bold"))
        console.print(_buckets(comparison, console))
    console.print()
    for note in comparison.notes:
        console.print(data(f"- {note}", "dim"))


def figure_cells(figure: Figure) -> tuple[str, str, str, str]:
    """A, B, their difference and its interval, with units."""
    interval = units.NOTHING
    if figure.low is not None and figure.high is not None:
        interval = f"{_signed(figure.low, figure.unit)} to {_signed(figure.high, figure.unit)}"
    return (
        _value(figure.a, figure.unit),
        _value(figure.b, figure.unit),
        units.NOTHING if figure.difference is None else _signed(figure.difference, figure.unit),
        interval,
    )


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return units.NOTHING
    if unit == "ns":
        return units.duration(value)
    if unit == "bytes":
        return units.size(value)
    if unit == "share":
        return units.share(value, 1)
    return units.rate(value) if unit == "gb_s" else f"{value:,.0f}"


def _signed(value: float, unit: str) -> str:
    if value == 0:
        return "0"
    if unit == "share":
        return f"{100 * value:+.1f} points"
    return f"{'+' if value > 0 else '-'}{_value(abs(value), unit)}"


def _buckets(comparison: Comparison, console: Console) -> Table:
    table = _table("A", "B", "MiB", "A ready", "B ready", "A end", "B end", "A exposed", "B exposed", "parameters")
    table.columns[-1].justify = "left"
    table.columns[-1].overflow = "fold"
    for row in comparison.buckets[:MOST_BUCKETS]:
        names = row.parameters
        said = units.shown(
            names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else "", console.encoding
        )
        times = (row.a_ready_ns, row.b_ready_ns, row.a_end_ns, row.b_end_ns, row.a_exposed_ns, row.b_exposed_ns)
        table.add_row(
            _indices(row.a_indices),
            _indices(row.b_indices),
            units.mebibytes(row.bytes),
            *(units.duration(one) for one in times),
            Text(said),
        )
    if len(comparison.buckets) > MOST_BUCKETS:
        table.add_row(*[""] * 9, f"and {len(comparison.buckets) - MOST_BUCKETS:,} more")
    return table


def _indices(indices: list[int]) -> str:
    if not indices:
        return units.NOTHING
    return str(indices[0]) if len(indices) == 1 else f"{min(indices)}..{max(indices)}"


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=heading != "parameters")
    table.columns[0].justify = "left"
    return table
