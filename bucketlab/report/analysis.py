"""An analysis as tables on a terminal and as CSV. Names out of traces are data: no markup, no control codes."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from statistics import median
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bucketlab import units
from bucketlab.medians import median_known
from bucketlab.report.screen import data, print_whole
from bucketlab.schema.analysis import Analysis, CollectiveEvent, RankAnalysis, StepAnalysis, Totals

MOST_STEP_ROWS = 32  # with more steps than fit on a screen, each rank is one row of medians
MOST_ROWS = 16  # of any other table
WIDEST_NAME = 40  # characters; longer names are folded

_TIMES_OF_STEP = {  # heading -> field
    "wall": "wall_ns",
    "compute": "compute_ns",
    "communi-\ncation": "communication_ns",
    "overlap": "overlap_ns",
    "exposed": "exposed_ns",
    "memory": "memory_ns",
    "idle": "idle_ns",
    "input": "input_ns",
}


def print_analysis(analysis: Analysis, console: Console) -> None:
    """Steps by rank, the collectives with the most exposed time, stragglers, warnings."""
    console.print(data(_what(analysis), console), end="\n\n")
    for title, table in (_steps(analysis, console), _collectives(analysis, console), _stragglers(analysis, console)):
        if table.row_count:
            console.print(Text(title, style="bold"))
            print_whole(table, console)
            console.print()
    console.print(data(analysis.stragglers.verdict, console))
    for warning in analysis.warnings:
        console.print(Text.assemble(("warning: ", "yellow"), data(warning, console)), soft_wrap=True)


def _what(analysis: Analysis) -> str:
    """What was read, in a line."""
    given = len({rank.rank for rank in analysis.ranks})
    world = max((rank.world_size for rank in analysis.ranks if rank.world_size is not None), default=None)
    backends = sorted({rank.backend for rank in analysis.ranks if rank.backend is not None})
    names = list(dict.fromkeys(step.name for rank in analysis.ranks for step in rank.steps))
    ranks = units.counted(given, "rank") + (f" of {world:,}" if world is not None else "")
    steps = f"{units.counted(len(names), 'step')}, {names[0]} to {names[-1]}" if len(names) > 1 else "".join(names)
    return ", ".join(part for part in (ranks, "/".join(backends), steps) if part)


def _table(texts: Iterable[str], numbers: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in texts:
        table.add_column(heading, overflow="fold", max_width=WIDEST_NAME)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


# ---- steps ----------------------------------------------------------------------------------------------------


def _steps(analysis: Analysis, console: Console) -> tuple[str, Table]:
    count = sum(len(rank.steps) for rank in analysis.ranks)
    each = count <= MOST_STEP_ROWS
    table = _table(["rank", "step" if each else "steps"], [*_TIMES_OF_STEP, "over-\nlapped", "collec-\ntives"])
    ranks = analysis.ranks if each else _most_exposed(analysis.ranks)
    for rank in ranks:
        if each:
            for step in rank.steps:
                _add_step(table, rank, data(step.name, console), [step])
        elif rank.steps:
            _add_step(table, rank, Text(f"{len(rank.steps)}"), rank.steps)
        _add_whole(table, rank)
    if each:
        return "Steps, times in ms", table
    chosen = f", the {len(ranks)} with the most exposed communication" if len(ranks) < len(analysis.ranks) else ""
    return f"Ranks{chosen}; medians over their steps, times in ms", table


def _most_exposed(ranks: Sequence[RankAnalysis]) -> list[RankAnalysis]:
    return sorted(ranks, key=lambda rank: -rank.total.exposed_ns)[:MOST_ROWS]


def _add_step(table: Table, rank: RankAnalysis, name: Text, steps: Sequence[StepAnalysis]) -> None:
    times = {field: median(getattr(step, field) for step in steps) for field in _TIMES_OF_STEP.values()}
    table.add_row(
        _rank(rank),
        name,
        *(units.milliseconds(times[field]) for field in _TIMES_OF_STEP.values()),
        units.share(times["overlap_ns"], times["communication_ns"]),
        f"{median(step.collectives for step in steps):g}",
    )


def _add_whole(table: Table, rank: RankAnalysis) -> None:
    """The whole trace, which holds more than its steps; a row of its own only where it says something else."""
    total = rank.total
    if len(rank.steps) == 1 and rank.unattributed_kernels == 0 and rank.steps[0].busy_ns == total.busy_ns:
        return
    outside = f", {rank.unattributed_kernels:,} kernels in no step" if rank.unattributed_kernels else ""
    table.add_row(
        _rank(rank),
        f"whole trace{outside}",
        *(
            units.milliseconds(getattr(total, field)) if hasattr(total, field) else units.NOTHING
            for field in _TIMES_OF_STEP.values()
        ),
        units.share(total.overlap_ns, total.communication_ns),
        f"{total.collectives:,}",
        style="dim",
    )


def _rank(rank: RankAnalysis) -> str:
    return units.NOTHING if rank.rank is None else str(rank.rank)


# ---- collectives ----------------------------------------------------------------------------------------------


def _collectives(analysis: Analysis, console: Console) -> tuple[str, Table]:
    """Collectives that are alike (operation, bucket, size, group) in one row, over all steps and ranks."""
    alike: dict[tuple[object, ...], list[CollectiveEvent]] = defaultdict(list)
    for rank in analysis.ranks:
        for step in rank.steps:
            for event in step.events:
                alike[event.op, event.bucket, event.bytes, event.dtype, event.group, event.group_size].append(event)
    table = _table(
        ["operation", "bucket", "group"],
        ["ranks", "MiB", "calls", "time", "exposed", "queued", "wait for\nlast rank", "bus GB/s", "of all\nexposed"],
    )
    exposed = {key: sum(event.exposed_ns for event in events) for key, events in alike.items()}
    everything = sum(exposed.values())
    for key in sorted(alike, key=lambda key: -exposed[key])[:MOST_ROWS]:
        events = alike[key]
        first = events[0]
        dtype = f" {first.dtype}" if first.dtype else ""
        table.add_row(
            data(f"{first.op}{dtype}", console),
            units.NOTHING if first.bucket is None else str(first.bucket),
            units.NOTHING if first.group is None else data(first.group, console),
            units.NOTHING if first.group_size is None else str(first.group_size),
            units.mebibytes(first.bytes),
            f"{len(events):,}",
            units.milliseconds(median(event.end_ns - event.start_ns for event in events)),
            units.milliseconds(median(event.exposed_ns for event in events)),
            units.milliseconds(median_known(event.queued_ns for event in events)),
            units.milliseconds(median_known(event.wait_ns for event in events)),
            units.rate_number(median_known(event.bus_gb_s for event in events)),
            units.share(exposed[key], everything),
        )
    return "Collectives with the most exposed time; medians over steps and ranks, times in ms", table


# ---- stragglers -----------------------------------------------------------------------------------------------


def _stragglers(analysis: Analysis, console: Console) -> tuple[str, Table]:
    table = _table(
        ["rank", "host"],
        ["lag", "lag p10", "lag p90", "waits for others"],
    )
    hosts = {rank.rank: rank.host for rank in analysis.ranks}
    for one in sorted(analysis.stragglers.by_rank, key=lambda one: -one.arrival_lag_ns)[:MOST_ROWS]:
        table.add_row(
            str(one.rank),
            data(hosts.get(one.rank) or units.NOTHING, console),
            *map(units.milliseconds, (one.arrival_lag_ns, one.lag_p10_ns, one.lag_p90_ns, one.wait_ns)),
        )
    return "Arrival after the first rank, the latest on top; medians over steps, times in ms", table


# ---- CSV ------------------------------------------------------------------------------------------------------

_TOTALS = Totals.__struct_fields__
_STEP = tuple(field for field in StepAnalysis.__struct_fields__ if field not in (*_TOTALS, "name", "events"))
_EVENT = tuple(field for field in CollectiveEvent.__struct_fields__ if field not in (*_TOTALS, *_STEP))
CSV_COLUMNS = ("row", "source", "rank", "step", *_TOTALS, *_STEP, *_EVENT)
"""`row` says what a line is: "trace", "step" or "collective". The others are the JSON's names, with their units."""


def write_csv(analysis: Analysis, file: TextIO) -> None:
    """One line for each trace, step and collective, told apart by the first column; empty where nothing is known.

    Open `file` with `newline=""`.
    """
    writer = csv.DictWriter(file, CSV_COLUMNS)
    writer.writeheader()
    for line in _lines(analysis):
        writer.writerow({column: _cell(value) for column, value in line.items()})


def _lines(analysis: Analysis) -> Iterator[dict[str, object]]:
    for rank in analysis.ranks:
        where = {"source": PurePath(rank.source).name, "rank": rank.rank}
        yield {"row": "trace", **where, **_fields(rank.total, _TOTALS)}
        for step in rank.steps:
            of_step = {**where, "step": step.name}
            yield {"row": "step", **of_step, **_fields(step, (*_TOTALS, *_STEP))}
            for event in step.events:
                known = tuple(field for field in CSV_COLUMNS if field in CollectiveEvent.__struct_fields__)
                yield {"row": "collective", **of_step, **_fields(event, known)}


def _fields(item: object, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(item, name) for name in names}


def _cell(value: object) -> object:
    """A name out of a trace must not begin like a formula: a spreadsheet would run it."""
    if not isinstance(value, str):
        return value
    text = units.shown(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
