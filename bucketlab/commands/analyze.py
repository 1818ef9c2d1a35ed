"""`bucketlab analyze`: traces that exist already."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click

from bucketlab.commands.common import json_option, print_json
from bucketlab.errors import BadInput


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="PATH...")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print rows for traces, steps and collectives, for spreadsheets.")
@click.option(
    "--summaries",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write each rank's summary into this folder, to be analyzed with others' elsewhere.",
)
@click.option(
    "--collectives",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with further kernel names that count as communication.",
)
def analyze(
    paths: tuple[Path, ...], as_json: bool, as_csv: bool, summaries: Path | None, collectives: Path | None
) -> None:
    """Exact overlap of traces that exist already: files or folders, of any torch.profiler run, any number of ranks."""
    # numpy starts threads for linear algebra, and nothing here does any. Not for other commands: jobs would inherit it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from bucketlab.analysis.files import analyze_paths, runs_apart, write_summaries
    from bucketlab.report.progress import files_bar
    from bucketlab.trace import classify

    if not paths:
        raise BadInput("no trace was given. Usage: bucketlab analyze PATH...")
    rules = classify.Rules.from_toml(collectives) if collectives else classify.BUILT_IN
    with files_bar("reading traces") as on_file:
        analysis = analyze_paths(paths, rules, on_file)
    gc.freeze()  # at its end Python would look through all that is left for garbage: 13 of 250 ms
    if summaries:
        write_summaries(analysis, summaries)
    if as_json:
        print_json(analysis)
        return
    if as_csv:
        from bucketlab.report.analysis import write_csv

        write_csv(analysis, sys.stdout)
        return
    from rich.console import Console

    from bucketlab.report.analysis import print_analysis

    console = Console()
    for folder, run in runs_apart(analysis).items():
        if folder:
            console.rule(folder, align="left", characters="-" if console.options.ascii_only else "─")
        print_analysis(run, console)
