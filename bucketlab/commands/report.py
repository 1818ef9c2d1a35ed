"""`bucketlab report`: the interactive page of a run."""

from __future__ import annotations

from pathlib import Path

import click

from bucketlab.commands.common import print_json, runs_option


@click.command()
@click.argument("run", required=False)
@runs_option
@click.option(
    "--study", metavar="NAME|FOLDER", help="Draw the trials of this study, and not of the newest one on such a link."
)
@click.option("--perfetto", is_flag=True, help="Also write traces with tracks of buckets, for ui.perfetto.dev.")
@click.option("--json", "as_json", is_flag=True, help="Print the paths of the files as one JSON document on stdout.")
def report(run: str | None, out: Path, study: str | None, perfetto: bool, as_json: bool) -> None:
    """The interactive page of a profiled RUN (the newest, a name, a folder, or traces): report.html."""
    from bucketlab.reporting import make_report

    made = make_report(run, out, study, perfetto)
    if as_json:
        print_json(made)
        return
    for path in [made.report, *made.perfetto]:
        print(path)
