"""Tables whose figures are never cut short, however narrow the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDEST = 1000


def print_whole(table: Table, console: Console) -> None:
    """At the width it needs: on a narrow terminal a line runs over, where rich would cut digits off its numbers."""
    table.width = Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum
    console.print(table, crop=False)
