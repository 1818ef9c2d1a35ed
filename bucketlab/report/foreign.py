"""Ranges of step time against bucket size, predicted from a trace that bucketlab did not record."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bucketlab import units
from bucketlab.predict.foreign import TracePrediction


def print_trace_prediction(made: TracePrediction, console: Console) -> None:
    """The screen of `bucketlab predict TRACE`."""
    name = units.shown(Path(made.source).name, console.encoding)
    console.print(
        f"Step time against bucket size of {name}: predicted ranges, not measured", style="bold", markup=False
    )
    ranks = units.counted(made.ranks, "rank") if made.ranks else "an unknown number of ranks"
    sizes = ", ".join(f"{size / 2**20:.3g}" for size in made.bucket_bytes[:12])
    more = ", ..." if len(made.bucket_bytes) > 12 else ""
    console.print(
        f"Traced: {units.counted(made.steps, 'step')} of {ranks}, {units.duration(made.measured_step_ns)} each "
        f"(measured), with {units.counted(len(made.bucket_bytes), 'bucket')} of {sizes}{more} MiB.\n"
        f"Its all-reduces took up to {units.duration(made.latency_ns)} and 1 ms per "
        f"{made.bandwidth_gb_s * 1e6 / 2**20:.3g} MiB. No bucketing gets below {units.duration(made.floor_ns)} "
        "(predicted).",
        highlight=False,
        markup=False,
    )
    table = Table(box=box.ASCII if console.options.ascii_only else box.SIMPLE, pad_edge=False)
    for heading in ("MiB", "no less than", "no more than"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in made.ranges:
        table.add_row(f"{one.bucket_cap_mb:g}", units.duration(one.low_ns), units.duration(one.high_ns))
    console.print(table)
    for line in made.notes:
        console.print(f"Note: {line}.", highlight=False, markup=False)
