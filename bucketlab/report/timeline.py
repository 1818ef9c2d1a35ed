"""A small picture of one step for the terminal: compute above, buckets below, on one time axis.

Drawn with characters that differ in shape as well as in colour, and in plain ASCII where the console asks for
it. A cell is a slice of time; what is shorter than a cell still gets one, so nothing vanishes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.text import Text

from bucketlab.schema.profile import Bucket, Profile

MAX_ROWS = 8  # more buckets than this share rows, neighbours together
# Under long accumulation the last backward would be a few cells: below this part of the step it stands alone.
ZOOM_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One character for each state of a bucket, and the strokes of the compute row and the axis."""

    ready: str
    waiting: str
    hidden: str
    exposed: str
    line: str
    bound: str
    tick: str


UNICODE = Glyphs(ready="╷", waiting="┄", hidden="▒", exposed="█", line="─", bound="│", tick="┴")
ASCII = Glyphs(ready="!", waiting=".", hidden="=", exposed="#", line="-", bound="|", tick="+")

STYLES = {"ready": "", "waiting": "magenta", "hidden": "green", "exposed": "bold red"}


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of compute, in ns from the start of the step."""

    name: str
    short: str
    start_ns: float
    end_ns: float


def draw(profile: Profile, width: int, ascii_only: bool) -> list[Text]:
    """The picture as lines of at most `width` cells: legend, compute, buckets, axis; [] without bucket times.

    A bucket's exposed part is drawn at its end, in the proportion that was measured, wherever in it it fell.
    """
    buckets = [b for b in profile.buckets if b.start_ns is not None and b.end_ns is not None]
    if not buckets or profile.breakdown is None:
        return []
    glyphs = ASCII if ascii_only else UNICODE
    end_ns = max(profile.breakdown.wall_ns, *(b.end_ns or 0 for b in buckets))
    phases = phases_of(profile, buckets, end_ns)
    rows = _rows(buckets, several_modules=len(profile.modules) > 1)
    label_width = max(len("compute"), *(len(label) for label, _ in rows)) + 2
    start_ns = _from(phases, end_ns)
    scale = _Scale(start_ns, end_ns, max(20, width - label_width))
    lines = [_legend(glyphs)]
    if phases:
        lines.append(_labelled("compute", label_width, _compute_row(phases, scale, glyphs)))
    lines += [_labelled(label, label_width, _bucket_row(group, scale, glyphs)) for label, group in rows]
    strokes, numbers = _axis(scale, glyphs)
    return [*lines, _labelled("", label_width, strokes), _labelled("", label_width, numbers)]


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps the times from `start_ns` to `end_ns` onto `cells` character cells."""

    start_ns: float
    end_ns: float
    cells: int

    def at(self, ns: float) -> int:
        """The cell that holds this moment."""
        part = (ns - self.start_ns) / max(1.0, self.end_ns - self.start_ns)
        return min(self.cells - 1, max(0, math.floor(part * self.cells)))

    def edge(self, ns: float) -> int:
        """The boundary between cells that is nearest to this moment."""
        part = (ns - self.start_ns) / max(1.0, self.end_ns - self.start_ns)
        return min(self.cells, max(0, round(part * self.cells)))


def phases_of(profile: Profile, buckets: list[Bucket], end_ns: int) -> list[Phase]:
    """What the compute side does from the step's start on; [] where the phases were not measured.

    Phases are timed without the profiler and buckets with it, so phases are stretched to the traced step, and
    then kept consistent with the buckets: no gradient is ready before the backward pass has begun, and none
    after its compute has ended.
    """
    if profile.forward_ns is None or profile.backward_ns is None or profile.optimizer_ns is None:
        return []
    stretch = end_ns / max(1, profile.forward_ns + profile.backward_ns + profile.optimizer_ns)
    ready_ns = [b.ready_ns if b.ready_ns is not None else (b.start_ns or 0) for b in buckets]
    forward_end_ns = min(profile.forward_ns * stretch, min(ready_ns))
    input_end_ns = min((profile.input_ns or 0) * stretch, forward_end_ns)
    compute_end_ns = max(ready_ns)
    optimizer_ns = max(max(b.end_ns or 0 for b in buckets), end_ns - profile.optimizer_ns * stretch)
    return [
        Phase("input", "in", 0, input_end_ns),
        Phase("forward", "fwd", input_end_ns, forward_end_ns),
        Phase("backward", "bwd", forward_end_ns, compute_end_ns),
        Phase("", "", compute_end_ns, optimizer_ns),
        Phase("optimizer", "opt", optimizer_ns, end_ns),
    ]


def _from(phases: list[Phase], end_ns: int) -> float:
    if not phases:
        return 0.0
    backward_ns = phases[2].start_ns
    return backward_ns if end_ns - backward_ns < ZOOM_SHARE * end_ns else 0.0


def _rows(buckets: list[Bucket], several_modules: bool) -> list[tuple[str, list[Bucket]]]:
    """Buckets by row, with the row's label: neighbours share a row where there are more than `MAX_ROWS`."""
    per_row = math.ceil(len(buckets) / MAX_ROWS)
    groups = [buckets[i : i + per_row] for i in range(0, len(buckets), per_row)]

    def label(bucket: Bucket) -> str:
        return f"{bucket.module}:{bucket.index}" if several_modules else str(bucket.index)

    return [
        (
            f"buckets {label(group[0])}-{label(group[-1])}" if len(group) > 1 else f"bucket {label(group[0])}",
            group,
        )
        for group in groups
    ]


def _compute_row(phases: list[Phase], scale: _Scale, glyphs: Glyphs) -> Text:
    """Phases between strokes, as much named as there is room; blank where nothing computes."""
    row = Text(style="cyan")
    for phase in phases:
        cells = scale.edge(phase.end_ns) - scale.edge(phase.start_ns)
        if cells <= 0:
            continue
        room = cells - (2 if phase is phases[-1] else 1)  # the last one holds the closing stroke too
        written = next((word for word in (f" {phase.name} ", phase.short) if len(word) <= room), "")
        row.append(glyphs.bound + written.center(room, glyphs.line if phase.name else " "))
    row.truncate(scale.cells - 1)
    return row.append(glyphs.bound)


def _bucket_row(group: list[Bucket], scale: _Scale, glyphs: Glyphs) -> Text:
    """One row of cells; where buckets share it, the state that costs most is the one shown."""
    states = [""] * scale.cells
    order = ["", "waiting", "ready", "hidden", "exposed"]

    def paint(first: int, end: int, state: str) -> None:
        for cell in range(first, min(end, scale.cells)):
            if order.index(state) > order.index(states[cell]):
                states[cell] = state

    for bucket in group:
        assert bucket.start_ns is not None
        assert bucket.end_ns is not None
        start = scale.at(bucket.start_ns)
        if bucket.ready_ns is not None:
            ready = scale.at(bucket.ready_ns)
            start = min(max(start, ready + 1), scale.cells - 1)
            paint(ready, ready + 1, "ready")
            paint(ready + 1, start, "waiting")
        end = max(start + 1, scale.edge(bucket.end_ns))
        exposed = _exposed_cells(bucket, end - start)
        paint(start, end - exposed, "hidden")
        paint(end - exposed, end, "exposed")
    row = Text()
    for state in states:
        row.append(getattr(glyphs, state) if state else " ", STYLES.get(state, ""))
    row.rstrip()
    return row


def _exposed_cells(bucket: Bucket, cells: int) -> int:
    exposed_ns, overlap_ns = bucket.exposed_ns or 0, bucket.overlap_ns or 0
    total_ns = exposed_ns + overlap_ns
    return round(cells * exposed_ns / total_ns) if total_ns else 0


def _axis(scale: _Scale, glyphs: Glyphs) -> tuple[Text, Text]:
    """The axis and the times under its ticks, which stand at round numbers."""
    strokes = [glyphs.line] * scale.cells
    numbers = [" "] * (scale.cells + 8)
    gap_ns = _round_gap((scale.end_ns - scale.start_ns) / max(2, scale.cells // 14))
    unit_ns, unit = next(((n, u) for n, u in ((10**9, "s"), (10**6, "ms"), (10**3, "us")) if gap_ns >= n), (1, "ns"))
    tick_ns = math.ceil(scale.start_ns / gap_ns) * gap_ns
    first, free = True, 0
    while tick_ns <= scale.end_ns:
        cell = scale.at(tick_ns)
        strokes[cell] = glyphs.tick
        written = f"{tick_ns // unit_ns:,}" + (f" {unit}" if first else "")
        if cell >= free and cell + len(written) <= scale.cells:
            numbers[cell : cell + len(written)] = list(written)
            free = cell + len(written) + 1
            first = False
        tick_ns += gap_ns
    return Text("".join(strokes), "dim"), Text("".join(numbers).rstrip(), "dim")


def _round_gap(ns: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ... nanoseconds."""
    power: int = 10 ** math.floor(math.log10(max(1.0, ns)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= ns or step == 10)


def _legend(glyphs: Glyphs) -> Text:
    legend = Text()
    for state, words in (
        ("ready", "ready"),
        ("waiting", "waits for the link"),
        ("hidden", "travels, hidden"),
        ("exposed", "travels, exposed"),
    ):
        glyph = getattr(glyphs, state)
        legend.append(glyph if state == "ready" else glyph * 2, STYLES[state])
        legend.append(f" {words}   ", "dim")
    legend.rstrip()
    return legend


def _labelled(label: str, width: int, row: Text) -> Text:
    return Text.assemble((label.ljust(width), "dim" if label != "compute" else ""), row)
