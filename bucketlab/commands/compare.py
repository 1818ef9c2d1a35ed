"""`bucketlab compare`: two runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from bucketlab.commands.common import print_json


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def compare(a: str, b: str, out: Path, as_json: bool) -> None:
    """Two profiled runs side by side, A before and B after: every figure with its difference and interval."""
    from bucketlab.comparing import compare as compared
    from bucketlab.runs import find_run

    comparison = compared(find_run(a, out), find_run(b, out))
    if as_json:
        print_json(comparison)
        return
    from rich.console import Console

    from bucketlab.report.compare import print_comparison

    print_comparison(comparison, Console())
