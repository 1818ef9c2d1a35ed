"""`bucketlab compare`: two runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from bucketlab.commands.common import json_option, print_json, runs_option
from bucketlab.saying import say


@click.command()
@click.argument("a", required=False)
@click.argument("b", required=False)
@runs_option
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write a page with charts."
)
@json_option
def compare(a: str | None, b: str | None, out: Path, html: Path | None, as_json: bool) -> None:
    """Two profiled runs side by side, A before and B after: every figure with its difference and interval.

    A run is named by its path, its name, the beginning of its name, or as latest. Without B, A is compared with the
    newest run; without either, the newest with the one before it.
    """
    from bucketlab.comparing import compare as compared
    from bucketlab.comparing import find_pair

    before, after = find_pair(a, b, out)
    comparison = compared(before, after)
    if html is not None:
        from bucketlab.report.html.comparison import write_comparison
        from bucketlab.runs import load_profile

        write_comparison(comparison, load_profile(before), load_profile(after), html)
        say(f"the page with charts is {html}")
    if as_json:
        print_json(comparison)
        return
    from rich.console import Console

    from bucketlab.report.compare import print_comparison

    print_comparison(comparison, Console())
