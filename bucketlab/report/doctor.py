"""The checks of `bucketlab doctor` on a terminal: a line each, and what to do where there is something. Checks none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bucketlab.doctor import Check
from bucketlab.report.screen import data
from bucketlab.units import counted, shown

_STYLES = {"ok": "green", "warn": "magenta", "fail": "bold red"}


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """Checks by topic, in the order in which they come, and how many went wrong."""
    what_width = max((len(shown(check.what)) for check in checks), default=0)
    for topic, group in groupby(checks, key=lambda check: check.topic):
        console.print(Text(topic.capitalize(), "bold"))
        console.print(_table(list(group), what_width, console))
        console.print()
    console.print(_summary(checks))


def _table(checks: Sequence[Check], what_width: int, console: Console) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=6, justify="right", no_wrap=True)
    table.add_column(min_width=what_width, overflow="fold")
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(Text(check.status, _STYLES[check.status]), data(check.what, console), data(check.found, console))
        if check.why:
            table.add_row("", "", data(check.why, console, "dim" if check.status == "ok" else ""))
    return table


def _summary(checks: Sequence[Check]) -> Text:
    count = Counter(check.status for check in checks)
    if not count["warn"] and not count["fail"]:
        return Text("All well.", "green")
    return Text.assemble(
        (f"{count['fail']} fail", _STYLES["fail"] if count["fail"] else ""),
        ", ",
        (counted(count["warn"], "warning"), _STYLES["warn"] if count["warn"] else ""),
        f", {count['ok']} ok. ",
        "What fails is needed; a warning limits something or changes figures.",
    )
