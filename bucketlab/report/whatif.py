"""What other clusters would do with a profiled job: a table, a plot of efficiency against ranks, where things turn.

All of it is predicted, and each block says so.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from bucketlab import units
from bucketlab.predict.whatif import Row, WhatIf
from bucketlab.report.screen import MOST_COLUMNS, width_of

_PLOT_ROWS = 10
_FEWEST_PLOTTED = 3
_MARKS = {
    "ring": "r",
    "tree": "t",
    "two-level": "2",
    "two-level-tree": "T",
    "in-switch": "s",
    "parameter-server": "p",
}
_SEVERAL = "*"


def print_whatif(answer: WhatIf, console: Console) -> None:
    """Print an answer. It is ASCII but for names: the link's, and a communication hook's."""
    width = width_of(console)
    _line(console, Text.assemble((f"What if: {units.shown(answer.link, console.encoding)}", "bold"), "  predicted"))
    for line in textwrap.wrap(_basis(answer), width):
        _line(console, Text(line, "dim"))
    _line(console, Text())
    heading, *lines = _table(answer.rows, wide=width == MOST_COLUMNS)
    _line(console, Text(heading, "dim"))
    for line in lines:
        _line(console, Text(line))
    if len({row.ranks for row in answer.rows}) >= _FEWEST_PLOTTED:
        _line(console, Text())
        for line in _plot(answer.rows):
            _line(console, Text(line))
    for title, lines in (("Where it turns", answer.findings), ("What it rests on", answer.notes)):
        if lines:
            _line(console, Text())
            _line(console, Text.assemble((title, "bold"), "  predicted"))
        for paragraph in lines:
            said = units.shown(paragraph, console.encoding)
            for line in textwrap.wrap(said, width, initial_indent="  ", subsequent_indent="    "):
                _line(console, Text(line))


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)


def _basis(answer: WhatIf) -> str:
    parts = [
        f"{units.counted(answer.ranks_per_node, 'rank')} per node",
        f"a rank that waits for nobody takes {units.duration(answer.compute_ns)} a step",
    ]
    if answer.measured_step_ns is not None:
        missed = "" if answer.error is None else f", from which this model is {100 * answer.error:+.1f} % off"
        parts.append(f"measured when profiled: {units.duration(answer.measured_step_ns)}{missed}")
    return "; ".join(parts)


def _table(rows: list[Row], wide: bool) -> list[str]:
    """Lines as wide as their figures: on a narrow terminal they run on, where rich would cut figures short."""
    rooted = any(row.root_bytes > row.sent_bytes for row in rows)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("ranks", lambda row: f"{row.ranks:,}"),
        ("algorithm", lambda row: row.algorithm),
        ("step", lambda row: units.duration(row.step_ns)),
        ("efficiency", lambda row: units.share(row.efficiency, 1)),
        ("exposed", lambda row: units.duration(row.exposed_ns)),
        ("bucket MiB", _bucket),
        ("sent", lambda row: units.size(row.sent_bytes)),
    ]
    if rooted:
        columns.append(("by root", lambda row: units.size(row.root_bytes)))
    if wide:
        columns.append(("latency", lambda row: units.share(row.latency_share, 1)))
        columns.append(("step, buckets as now", lambda row: units.duration(row.current_step_ns)))
    written = [[heading, *(cell(row) for row in rows)] for heading, cell in columns]
    padded = [
        [text.ljust(wanted) if cells[0] == "algorithm" else text.rjust(wanted) for text in cells]
        for cells, wanted in ((cells, max(map(len, cells))) for cells in written)
    ]
    gap = "  " if wide else " "
    return [gap.join(cells).rstrip() for cells in zip(*padded, strict=True)]


def _bucket(row: Row) -> str:
    if row.bucket_cap_mb is None:
        return units.NOTHING
    return "as now" if row.step_ns == row.current_step_ns else f"{row.bucket_cap_mb:g}"


def _plot(rows: list[Row]) -> list[str]:
    """Efficiency upwards in per cent; a column for each number of ranks, a letter for each algorithm."""
    ranks = sorted({row.ranks for row in rows})
    labels = [units.quantity(one).replace(" ", "") if one >= 10_000 else str(one) for one in ranks]
    cells = max(map(len, labels)) + 1
    grid = [[" "] * len(ranks) for _ in range(_PLOT_ROWS + 1)]
    for row in rows:
        line, column = round(row.efficiency * _PLOT_ROWS), ranks.index(row.ranks)
        there = grid[line][column]
        grid[line][column] = _MARKS.get(row.algorithm, "o") if there == " " else _SEVERAL
    lines = ["efficiency against ranks  predicted"]
    for line in range(_PLOT_ROWS, -1, -1):
        marks = "".join(mark.rjust(cells) for mark in grid[line])
        lines.append(f"{100 * line // _PLOT_ROWS:>4} % |{marks}".rstrip())
    lines.append(" " * 7 + "+" + "-" * (cells * len(ranks)))
    lines.append(" " * 8 + "".join(label.rjust(cells) for label in labels))
    names = list(dict.fromkeys(row.algorithm for row in rows))
    legend = [f"{_MARKS.get(name, 'o')} {name}" for name in names]
    lines.append(" " * 8 + "  ".join([*legend, *([f"{_SEVERAL} several"] if len(names) > 1 else [])]))
    return lines
