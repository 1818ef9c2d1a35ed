"""What screens do alike: their width, names that a terminal cannot obey, lines fit to be pasted, figures never cut."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bucketlab import units

# Longer lines of prose are hard to read, and wider tables are mostly gaps.
MOST_COLUMNS = 120
# On a narrower terminal lines run on: figures that were cut short would be wrong figures.
LEAST_COLUMNS = 80
_WIDEST_TABLE = 1000


def width_of(console: Console) -> int:
    """Columns of a screen on this console."""
    return max(LEAST_COLUMNS, min(console.width, MOST_COLUMNS))


def data(text: str, console: Console, style: str = "") -> Text:
    """A name that comes from data, without markup and without anything that a terminal would obey."""
    return Text(units.shown(text, console.encoding), style)


def without_trailing_blanks(line: Iterable[Segment], style: str = "") -> Text:
    """A rendered line without the blanks that rich fills it up with: reports get pasted."""
    text = Text.assemble(*((segment.text, segment.style or "") for segment in line), style=style)
    text.rstrip()
    return text


def print_whole(table: Table, console: Console) -> None:
    """At the width it needs: on a narrow terminal a line runs over, where rich would cut digits off its numbers."""
    table.width = Measurement.get(console, console.options.update(max_width=_WIDEST_TABLE), table).maximum
    console.print(table, crop=False)
