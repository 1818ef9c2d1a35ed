"""A profile as one screen of text: the answer first, then what it rests on, then what to do.

Each section says whether its figures are measured or predicted. Names of parameters, hosts and files are data: they
are printed as they are, without markup and without anything that a terminal would obey.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bucketlab import units
from bucketlab.medians import median_ns
from bucketlab.predict import advice
from bucketlab.report import timeline, topologies
from bucketlab.report.link import doubt_of_fit
from bucketlab.report.parts import REST, WHAT_REST_IS, parts_of
from bucketlab.report.screen import width_of, without_trailing_blanks
from bucketlab.schema.profile import (
    Breakdown,
    Bucket,
    LinkPoint,
    Memory,
    Module,
    PredictedPoint,
    Prediction,
    Profile,
    StepTime,
)

# From here on there is room for wider gaps between columns and for two names in a bucket's row.
WIDE_COLUMNS = 96
MOST_BUCKET_ROWS = 12
MOST_RANK_ROWS = 8
WORST_RANK_ROWS = 4
MOST_MODULES = 6
MOST_POINTS = 7
LABEL_CELLS = 14  # of what rows of points are called
# Smaller buckets than these hold a bias each; nobody would choose them.
LEAST_SHOWN_MB = 0.01
STEPS_BEFORE_TRACE = 20  # timed before the trace; the others after everything else
# The profiler always slows a step a little; from here on a reader who compares the figures would wonder.
SLOWED_BY_PROFILER_SHARE = 0.10
# In less than this, two names lose the layer they belong to; one name in all the room keeps it.
LEAST_NAME_CELLS = 18
_INDENT = 2
_STYLE_OF_PART = {
    "compute": "cyan",
    "overlap": "green",
    "exposed": "red",
    "copies": "cyan",
    "idle": "magenta",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Page:
    """What the sections must know of the console."""

    width: int  # of a section's body
    ascii_only: bool
    encoding: str

    def data(self, text: str, style: str = "") -> Text:
        return Text(units.shown(text, self.encoding), style)

    @property
    def gap(self) -> int:
        """Blank cells between the columns of a table."""
        return 2 if self.width >= WIDE_COLUMNS else 1

    def table(self, *headings: str) -> Table:
        """A plain table whose columns begin with these, right-justified; rich's own ellipsis would not be ASCII."""
        table = Table(box=None, padding=(0, self.gap, 0, 0), pad_edge=False, header_style="dim")
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True, overflow="crop")
        return table


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    remark: str
    body: Sequence[RenderableType]


def print_profile(profile: Profile, console: Console, folder: Path) -> None:
    """Print the report of one profiled run.

    Args:
        profile: any of its optional parts may be None or empty; the report then says that it is not there.
        console: its width, colours and encoding are respected: without UTF-8 everything is ASCII.
        folder: the run's folder, as the user would type it; `tensorboard --logdir` gets the one above it.
    """
    page = _Page(
        width=width_of(console) - _INDENT,
        ascii_only=console.options.ascii_only,
        encoding=console.encoding,
    )
    console.print(headline(profile), style="bold", width=page.width)
    console.print(page.data(job(profile)), style="dim", width=page.width)
    if profile.step is not None:
        console.print(Text(spread_of(profile.step, profile.kind), "dim"), width=page.width)
    for section in _sections(profile, page):
        _print_section(section, console, page)
    console.print()
    _print_files(profile, folder, console, page)


def _print_section(section: _Section, console: Console, page: _Page) -> None:
    """Heading and indented body."""
    console.print()
    remark = Text("  " + section.remark if section.remark else "", "dim")
    console.print(Text.assemble((section.title, "bold"), remark), width=page.width + _INDENT)
    lines = console.render_lines(Group(*section.body), console.options.update(width=page.width), pad=False)
    for line in lines:
        console.print(Text(" " * _INDENT).append_text(without_trailing_blanks(line)), soft_wrap=True)


def _sections(profile: Profile, page: _Page) -> list[_Section]:
    writers: list[Callable[[Profile, _Page], _Section | None]] = [
        _breakdown,
        _picture,
        _buckets,
        _ranks,
        _link,
        _topologies,
        _prediction,
        _memory,
        _not_measured,
        _notes,
        _next,
    ]
    return [section for write in writers if (section := write(profile, page)) is not None]


# ---- the answer -----------------------------------------------------------------------------------------------


def headline(profile: Profile) -> Text:
    """One sentence. Shares are of traced steps; the time they stand for is that share of the untraced step."""
    step, breakdown = profile.step, profile.breakdown
    if step is None and breakdown is None:
        return Text("No step was measured.")
    step_ns = step.median_ns if step else breakdown.wall_ns if breakdown else 0
    begin = f"Step {units.duration(step_ns)}" + ("" if step else " (traced)")
    if profile.kind == "emulated" and profile.link is not None:
        return Text(f"{begin} on a link that is not there: emulated, {profile.link.what}.")
    if profile.world_size == 1:
        return Text(f"{begin} on one rank: nobody to exchange gradients with, nothing to overlap.")
    if breakdown is None:
        return Text(f"{begin}; how much of it is communication was not measured.")
    if breakdown.communication_ns == 0:
        return Text(f"{begin}; its trace shows no communication.")

    def part(ns: int, style: str) -> Text:
        time = units.duration(step_ns * ns / max(1, breakdown.wall_ns))
        return Text(f"{time} of it, {units.share(ns, breakdown.wall_ns)},", style)

    if advice.is_input_bound(profile):
        return Text.assemble(f"{begin}; ", part(advice.input_wait_ns(profile), "red"), " is spent waiting for input.")
    if advice.is_hidden(profile):
        return Text.assemble(
            f"{begin}; ",
            ("communication is hidden", "green"),
            f": {units.share(breakdown.exposed_ns, breakdown.wall_ns)} of the step is exposed.",
        )
    late = advice.late_rank(profile)
    whom = f"rank {late.rank}" if late and advice.is_always_late(late) else "one another"
    return Text.assemble(
        f"{begin}; ",
        part(breakdown.exposed_ns, "red"),
        " is exposed communication",
        f", most of it waiting for {whom}." if late else ".",
    )


def job(profile: Profile) -> str:
    """Script, ranks, backend, device and versions, in one line."""
    torch = profile.versions.get("torch")
    nodes = f" on {units.counted(profile.nodes, 'node')}" if profile.nodes else ""  # traces may not tell
    parts = [
        profile.script,
        f"{units.counted(profile.world_size, 'rank')}{nodes}",
        profile.backend,
        profile.device,
        f"torch {torch}" if torch else "",
        f"{profile.accumulation} backwards a step" if profile.accumulation > 1 else "",
        ", ".join(profile.optimizers),
    ]
    return ", ".join(part for part in parts if part)


def spread_of(step: StepTime, kind: str) -> str:
    """How steps spread, in one line."""
    excluded = f", {step.excluded:,} excluded" if step.excluded else ""
    return (
        f"{kind} untraced: median {units.duration(step.median_ns)}, p10 {units.duration(step.p10_ns)}, "
        f"p90 {units.duration(step.p90_ns)}; {units.counted(len(step.samples), 'step')}{excluded}"
    )


def _breakdown(profile: Profile, page: _Page) -> _Section | None:
    breakdown = profile.breakdown
    if breakdown is None:
        return None
    parts = parts_of(breakdown)
    table = page.table("", "ms", "of step", "")
    table.columns[0].justify = table.columns[-1].justify = "left"
    cells = min(50, page.width - 40)
    times = units.milliseconds_alike([*(one.ns for one in parts), breakdown.wall_ns])
    for part, time in zip(parts, times, strict=False):
        bar = ("#" if page.ascii_only else "█") * _cells_of(part.ns, breakdown.wall_ns, cells)
        table.add_row(part.name, time, part.per_cent, Text(bar, _STYLE_OF_PART.get(part.tone, "")))
    table.add_row("step", times[-1], "100.0 %", style="dim")
    body: list[RenderableType] = [table, Text(within_the_parts(breakdown))]
    if any(one.name == REST for one in parts):
        body.append(Text(WHAT_REST_IS, "dim"))
    if (slowed := slowed_by_profiler(profile)) is not None:
        body.append(Text(slowed, "magenta"))
    traced = units.duration(breakdown.wall_ns)
    return _Section(
        "Where a step goes", f"measured in traced steps of {traced}, medians over {_ranks_traced(profile)}", body
    )


def _ranks_traced(profile: Profile) -> str:
    traced = sum(rank.breakdown is not None for rank in profile.ranks) or 1
    every = units.counted(profile.world_size, "rank")
    return every if traced == profile.world_size else f"{traced:,} of {every}"


def within_the_parts(breakdown: Breakdown) -> str:
    """Figures that are no parts of their own: what counts the overlap too, and the wait for input, in one sentence."""
    compute, communication, waiting = (
        f"{units.duration(ns)} ({units.share(ns, breakdown.wall_ns)})"
        for ns in (breakdown.compute_ns, breakdown.communication_ns, breakdown.input_ns)
    )
    said = f"With the overlap, compute takes {compute} and communication {communication}"
    return f"{said}; waiting for input, idle or not, {waiting}." if breakdown.input_ns else f"{said}."


def _cells_of(ns: int, whole_ns: int, cells: int) -> int:
    """Length of a bar; what is there at all shows."""
    if ns <= 0 or whole_ns <= 0:
        return 0
    return min(cells, max(1, round(cells * ns / whole_ns)))


def slowed_by_profiler(profile: Profile) -> str | None:
    """Traced steps beside the untraced ones just before them: a machine's pace may change within a run."""
    if profile.step is None or profile.breakdown is None or not profile.step.samples:
        return None
    before_ns = median(profile.step.samples[:STEPS_BEFORE_TRACE])
    slower = profile.breakdown.wall_ns / max(1, before_ns) - 1
    timed = units.duration(profile.step.median_ns)
    remark = f"the headline is their shares of the {timed} of all untraced steps."
    if abs(slower) > SLOWED_BY_PROFILER_SHARE:
        than = f"{units.share(abs(slower), 1)} {'slower' if slower > 0 else 'faster'}"
        cause = "the profiler's cost" if slower > 0 else "by chance"
        return f"These steps are {than} than the untraced ones just before them ({cause}); {remark}"
    if abs(profile.breakdown.wall_ns / max(1, profile.step.median_ns) - 1) > SLOWED_BY_PROFILER_SHARE:
        return f"The machine's pace changed during the run; {remark}"
    return None


def _picture(profile: Profile, page: _Page) -> _Section | None:
    lines = timeline.draw(profile, page.width, page.ascii_only)
    if not lines:
        return None
    return _Section("Overlap", "measured, rank 0; a bucket's exposed part is drawn at its end", lines)


# ---- buckets --------------------------------------------------------------------------------------------------


def _buckets(profile: Profile, page: _Page) -> _Section | None:
    if not profile.modules:
        return None
    body: list[RenderableType] = [
        _setting(index, module, page, several=len(profile.modules) > 1)
        for index, module in enumerate(profile.modules[:MOST_MODULES])
    ]
    if len(profile.modules) > MOST_MODULES:
        body.append(Text(f"and {len(profile.modules) - MOST_MODULES} more DDP modules", "dim"))
    remark = "the setting in force"
    if profile.buckets:
        if any(bucket.end_ns is not None for bucket in profile.buckets):
            remark = "measured, rank 0, medians; times from the step's start"
        body.append(_bucket_table(profile, page))
    return _Section("Buckets", remark, body)


def _setting(index: int, module: Module, page: _Page, several: bool) -> Text:
    """The setting in force on one module, and whether it is DDP's default."""
    if module.bucket_cap_mb_list:
        caps = ", ".join(f"{cap:g}" for cap in module.bucket_cap_mb_list[:8])
        more = f", ... {len(module.bucket_cap_mb_list)} in all" if len(module.bucket_cap_mb_list) > 8 else ""
        capacity = f"bucket_cap_mb_list=[{caps}{more}]"
    else:
        capacity = f"bucket_cap_mb={module.bucket_cap_mb:g}"
        if module.first_bucket_mb != module.bucket_cap_mb:
            capacity += f", first {units.capacity(module.first_bucket_mb)}"
    origin = "DDP's default" if module.is_default else "set by the script"
    flags = [
        f"{name} {'on' if on else 'off'}"
        for name, on in (
            ("gradient_as_bucket_view", module.gradient_as_bucket_view),
            ("find_unused_parameters", module.find_unused_parameters),
            ("static_graph", module.static_graph),
        )
    ]
    if module.compiled:
        flags.append("compiled")
    text = Text()
    if several:
        text.append_text(page.data(f"{index} {module.name}: "))
    text.append(capacity, "bold")
    text.append(f": {origin}")
    if module.bucket_bytes:
        text.append(f"; {units.counted(len(module.bucket_bytes), 'bucket')}{_range_of(module.bucket_bytes)}")
    text.append("\n")
    text.append(", ".join(flags), "dim")
    if module.communication_hook is not None:
        text.append("\nthe script's own communication hook: ")
        text.append_text(page.data(module.communication_hook, "bold"))
    return text


def _range_of(sizes: Sequence[int]) -> str:
    smallest, largest = units.size(min(sizes)), units.size(max(sizes))
    return f" of {smallest}" if smallest == largest else f", {smallest} to {largest}"


def _bucket_table(profile: Profile, page: _Page) -> Table:
    head, folded, tail = _fold(profile.buckets, MOST_BUCKET_ROWS)
    buckets = [*head, *tail]
    several = len(profile.modules) > 1
    times = units.milliseconds_alike([ns for b in buckets for ns in (b.ready_ns, b.start_ns, b.end_ns)])
    *exposed, exposed_in_fold = units.milliseconds_alike([*(b.exposed_ns for b in buckets), _sum_exposed(folded)])
    columns = {
        "\n#": [f"{b.module}:{b.index}" if several else str(b.index) for b in buckets],
        "ten-\nsors": [f"{len(b.parameters):,}" for b in buckets],
        "\nMiB": [units.mebibytes(b.bytes) for b in buckets],
        "ready\nms": times[0::3],
        "start\nms": times[1::3],
        "end\nms": times[2::3],
        "bus\nGB/s": [units.rate_number(b.bus_gb_s) for b in buckets],
        "exposed\nms": exposed,
    }
    columns = _known(columns)
    in_fold = {
        "\n#": "...",
        "ten-\nsors": f"{sum(len(b.parameters) for b in folded):,}",
        "\nMiB": units.mebibytes(sum(b.bytes for b in folded)),
        "exposed\nms": exposed_in_fold,
    }
    cells = [[*heading.split("\n"), *values, in_fold.get(heading, "")] for heading, values in columns.items()]
    room = page.width - sum(max(map(cell_len, column)) + page.gap for column in cells) - page.gap
    table = page.table(*columns)
    both = "\nparameters (first to last)" if page.width >= WIDE_COLUMNS else "\nfirst parameter"
    table.add_column(both, no_wrap=True)
    for at, (bucket, row) in enumerate(zip(buckets, zip(*columns.values(), strict=True), strict=True)):
        if folded and at == len(head):
            sums = [in_fold.get(heading, "") for heading in columns]
            table.add_row(*sums, f"{len(folded):,} more buckets, sums", style="dim")
        table.add_row(
            *row[:-1], Text(row[-1], "red" if bucket.exposed_ns else ""), _names(bucket.parameters, room, page)
        )
    return table


def _sum_exposed(buckets: Sequence[Bucket]) -> int | None:
    known = [bucket.exposed_ns for bucket in buckets if bucket.exposed_ns is not None]
    return sum(known) if known else None


def _known(columns: dict[str, list[str]]) -> dict[str, list[str]]:
    """The columns in which at least one figure is there."""
    return {heading: values for heading, values in columns.items() if set(values) != {units.NOTHING}}


def _fold(items: Sequence[T], most: int) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
    """Head, folded middle and tail; all in the head where there are no more than `most`."""
    if len(items) <= most:
        return items, [], []
    half = (most - 1) // 2
    return items[:half], items[half:-half], items[-half:]


def _names(names: Sequence[str], room: int, page: _Page) -> Text:
    """First and last name where both can be told in `room` cells, otherwise the first."""
    if not names:
        return Text(units.NOTHING)
    first, last = (page.data(name).plain for name in (names[0], names[-1]))
    joint = " to "
    if len(names) == 1:
        return Text(_shortened(first, room, page))
    share = (room - len(joint)) // 2
    if share < LEAST_NAME_CELLS:
        return Text(_shortened(first, room, page))
    if cell_len(first) <= share or cell_len(last) <= share:
        shorter = min(cell_len(first), cell_len(last))
        first_room = cell_len(first) if cell_len(first) == shorter else room - len(joint) - shorter
    else:
        first_room = share
    both = f"{_shortened(first, first_room, page)}{joint}{_shortened(last, room - len(joint) - first_room, page)}"
    return Text(both)


def _shortened(name: str, room: int, page: _Page) -> str:
    """The end of a dotted name, which tells most: whole parts of it if they fit."""
    if cell_len(name) <= room:
        return name
    mark = ".." if page.ascii_only else "…"
    parts = name.split(".")
    for first in range(1, len(parts)):
        end = mark + ".".join(parts[first:])
        if cell_len(end) <= room:
            return end
    end = parts[-1]
    while end and cell_len(mark + end) > room:
        end = end[1:]
    return mark + end


# ---- ranks, link, prediction, memory --------------------------------------------------------------------------


def _ranks(profile: Profile, page: _Page) -> _Section | None:
    if profile.world_size == 1 or not profile.ranks:
        return None
    by_rank = {one.rank: one for one in profile.stragglers.by_rank} if profile.stragglers else {}
    everyone = list(profile.ranks)
    if len(everyone) <= MOST_RANK_ROWS:
        worst, others = everyone, []
    else:
        lags = {rank: one.arrival_lag_ns for rank, one in by_rank.items()}
        order = sorted(everyone, key=lambda one: (-lags.get(one.rank, 0), -(one.step_median_ns or 0), one.rank))
        worst, others = order[:WORST_RANK_ROWS], order[WORST_RANK_ROWS:]
    lag = [by_rank[one.rank].arrival_lag_ns if one.rank in by_rank else None for one in worst]
    wait = [by_rank[one.rank].wait_ns if one.rank in by_rank else None for one in worst]
    times: dict[str, list[int | None]] = {
        "step\nms": [one.step_median_ns for one in worst],
        "exposed\nms": [one.breakdown.exposed_ns if one.breakdown else None for one in worst],
        "comes late\nms": lag,
        "waits\nms": wait,
    }
    ranks, peaks = [str(one.rank) for one in worst], [units.size(one.peak_bytes) for one in worst]
    where = [f"{one.host} {one.device}" for one in worst]
    if others:
        known = [by_rank[one.rank] for one in others if one.rank in by_rank]
        times["step\nms"].append(median_ns(one.step_median_ns for one in others))
        times["exposed\nms"].append(median_ns(one.breakdown.exposed_ns if one.breakdown else None for one in others))
        lag.append(median_ns(late.arrival_lag_ns for late in known))
        wait.append(median_ns(late.wait_ns for late in known))
        ranks.append("...")
        peaks.append(units.size(median(one.peak_bytes for one in others)))
        where.append(f"{len(others):,} others, medians")
    written = _known({heading: units.milliseconds_alike(values) for heading, values in times.items()})
    columns = {"\nrank": ranks, **written, "peak\nmemory": peaks}
    table = page.table(*columns)
    table.add_column("\nwhere", overflow="fold")
    for at, row in enumerate(zip(*columns.values(), strict=True)):
        table.add_row(*row, page.data(where[at]), style="dim" if at == len(worst) else "")
    body: list[RenderableType] = [table]
    if profile.stragglers and profile.stragglers.verdict:
        body.insert(0, page.data(profile.stragglers.verdict))
    remark = "measured; how late each comes to all-reduces, and waits there for others" if by_rank else "measured"
    return _Section("Ranks", remark, body)


def _link(profile: Profile, page: _Page) -> _Section | None:
    link = profile.link
    if link is None:
        return None
    at_a_time = "one all-reduce" if link.concurrency == 1 else f"{link.concurrency} all-reduces"
    fit = f"{units.duration(link.latency_ns)} + bytes / {units.rate(link.bandwidth_gb_s)}"
    body: list[RenderableType] = [
        Text.assemble(
            page.data(f"{link.what}, {link.dtype}: "),
            (fit, "bold"),
            f" (fit, rms error {units.share(link.residual, 1)}); {at_a_time} at a time",
        )
    ]
    if (doubt := doubt_of_fit(link)) is not None:
        body.append(doubt)
    if link.used:
        body.append(Text.assemble("used, by its own log: ", page.data(link.used)))
    points = _spread([point for point in link.points if point.in_flight == 1], MOST_POINTS)
    if points:
        body.append(_link_table(points, page))
    how = "measured while nothing else ran" if link.kind == "measured" else "emulated: it was not there"
    return _Section("Link", f"{how}; nccl-tests' terms", body)


def _topologies(profile: Profile, page: _Page) -> _Section | None:
    if not profile.topologies:
        return None
    return _Section("Topologies", topologies.REMARK, topologies.comparison(profile.topologies, page.table))


def _link_table(points: Sequence[LinkPoint], page: _Page) -> Table:
    table = _lying_table(page, "all-reduce of", [units.size(point.bytes) for point in points])
    table.add_row("time", *(units.duration(point.ns) for point in points))
    table.add_row("algbw, GB/s", *(units.rate_number(point.algorithm_gb_s) for point in points))
    table.add_row("busbw, GB/s", *(units.rate_number(point.bus_gb_s) for point in points))
    return table


def _prediction(profile: Profile, page: _Page) -> _Section | None:
    prediction = profile.prediction
    if prediction is None:
        return None
    body: list[RenderableType] = [prediction_sentence(profile, prediction)]
    points = _around(prediction)
    if points and advice.buckets_matter(profile):
        table = _lying_table(page, "MiB", ["in force", *(_size_of(point) for point in points)])
        styles = ["", *("bold" if point == prediction.best else "" for point in points)]
        times = units.milliseconds_alike([prediction.current_step_ns, *(point.step_ns for point in points)])
        table.add_row("step, ms", *map(Text, times, styles))
        current = prediction.current or prediction.best
        for label, bound in (("at least", "low_ns"), ("at most", "high_ns")):
            bounds = [getattr(point, bound) for point in [current, *points]]
            if prediction.current is not None and all(one is not None for one in bounds):
                table.add_row(label, *map(Text, units.milliseconds_alike(bounds), styles))
        body.append(table)
    body += [page.data(f"Note: {line}.", "dim") for line in prediction.notes]
    return _Section("Other bucket sizes", "predicted from ready times and the link, not measured", body)


def _size_of(point: PredictedPoint) -> str:
    """DDP told nothing has a small first bucket, so its 25 MiB are not those of bucket_cap_mb=25."""
    return "default" if point.first_bucket_mb is not None else f"{point.bucket_cap_mb:.3g}"


def prediction_sentence(profile: Profile, prediction: Prediction) -> Text:
    """The best bucket size and the floor, or why there is none, in some sentences."""
    now = units.duration(prediction.current_step_ns)
    error = advice.prediction_error(profile)
    trust = f", {units.share(abs(error), 1)} {'above' if error > 0 else 'below'} the measured one" if error else ""
    floor = f"No bucketing, however clever, gets below {units.duration(prediction.floor_ns)}."
    if not advice.buckets_matter(profile):
        return Text(f"Buckets are not what bounds this step. In force: {now}{trust}. {floor}")
    gain = advice.predicted_gain(prediction)
    if gain <= advice.noise(profile):
        return Text(f"No size beats the setting in force ({now}{trust}) by more than noise. {floor}")
    best = prediction.best
    less = f"{units.share(gain, 1)} less than the setting in force ({now}{trust})"
    return Text.assemble(
        (f"Best: bucket_cap_mb={best.bucket_cap_mb:g}", "bold"), f", {units.duration(best.step_ns)}, {less}. {floor}"
    )


def _memory(profile: Profile, page: _Page) -> _Section | None:
    memory = profile.memory
    if memory is None:
        return None
    viewed = all(module.gradient_as_bucket_view for module in profile.modules)
    columns = [
        ("parameters", memory.parameters_bytes),
        ("gradients", memory.gradients_bytes),
        ("buckets", memory.bucket_buffers_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("buffers", memory.buffers_bytes),
        ("peak", memory.peak_bytes),
        ("device", memory.capacity_bytes),
    ]
    table = page.table(*(name for name, _ in columns))
    table.add_row(*(units.size(count) for _, count in columns))
    saved = units.size(memory.saved_by_view_bytes)
    view = (
        f"Gradients lie inside the buckets: gradient_as_bucket_view saves {saved}."
        if viewed
        else f"Gradients lie beside the buckets: gradient_as_bucket_view would save {saved}."
    )
    return _Section("Memory", "measured, each rank", [table, Text(f"{view} {largest_model(memory)}")])


def largest_model(memory: Memory) -> str:
    """What plain DDP could train here, in one sentence."""
    return (
        f"Plain DDP fits up to about {units.quantity(memory.largest_model_parameters)} parameters of this shape at "
        "this batch (predicted); beyond that, shard."
    )


def _lying_table(page: _Page, label: str, headings: Sequence[str]) -> Table:
    """A table on its side: one column for each point of a curve."""
    table = page.table(label, *headings)
    table.columns[0].justify = "left"
    for column in table.columns[1:]:
        column.min_width = min(8, (page.width - LABEL_CELLS) // len(headings) - page.gap)
    return table


def _spread(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of them at even distances, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _around(prediction: Prediction) -> list[PredictedPoint]:
    """A few points over the whole range, the best among them."""
    explicit = [point for point in prediction.points if point.first_bucket_mb is None]
    ordered = sorted(explicit, key=lambda point: point.bucket_cap_mb)
    ordered = [point for point in ordered if point.bucket_cap_mb >= LEAST_SHOWN_MB] or ordered
    chosen = _spread(ordered, MOST_POINTS - 1)
    if prediction.best not in chosen:
        chosen.append(prediction.best)
    return sorted(chosen, key=lambda point: point.bucket_cap_mb)


# ---- what is missing, what to do, where it is -----------------------------------------------------------------


def _not_measured(profile: Profile, page: _Page) -> _Section | None:
    """What is not there: the reasons the run gave, and the parts for which it gave none by name."""
    parts = {
        "step time": profile.step is not None,
        "trace": profile.breakdown is not None,
        "bucket times": any(bucket.end_ns is not None for bucket in profile.buckets),
        "ready times": any(gradient.ready_ns is not None for gradient in profile.gradients),
        "late ranks": profile.stragglers is not None,
        "link": profile.link is not None,
        "prediction": profile.prediction is not None,
        "memory": profile.memory is not None,
    }
    absent = [name for name, there in parts.items() if not there]
    unexplained = [name for name in absent if not any(name.split()[0] in line.lower() for line in profile.missing)]
    lines = list(profile.missing)
    if unexplained:
        reason = " (they take two ranks)" if profile.world_size == 1 and not profile.missing else ""
        lines.append(f"not there: {', '.join(unexplained)}{reason}")
    return _Section("Not measured", "and why", [_list(lines, page)]) if lines else None


def _notes(profile: Profile, page: _Page) -> _Section | None:
    return _Section("Notes", "on these figures", [_list(profile.notes, page)]) if profile.notes else None


def _next(profile: Profile, page: _Page) -> _Section | None:
    if not profile.advice:
        return None
    return _Section("What to do next", "", [_list(profile.advice, page, numbered=True)])


def _list(lines: Sequence[str], page: _Page, numbered: bool = False) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, line in enumerate(lines, 1):
        text = page.data(line)
        text.highlight_regex(r"`[^`]+`", "cyan")
        table.add_row(f"{number}." if numbered else "-", text)
    return table


def _print_files(profile: Profile, folder: Path, console: Console, page: _Page) -> None:
    """Never wrapped, so that a path or a command can be copied whole."""
    traced = profile.breakdown is not None
    console.print(Text.assemble(("Files", "bold"), ("  and the same run in TensorBoard" if traced else "", "dim")))
    console.print(page.data(f"  {folder}"), soft_wrap=True)
    if traced:
        console.print(page.data(f"  tensorboard --logdir {shlex.quote(str(folder.parent))}"), soft_wrap=True)
