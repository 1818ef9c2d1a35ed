"""Builds the page of two runs against each other: steps over each other, their parts, their curves, every figure.

Shows what `bucketlab.comparing` found and what the two profiles hold, and computes no figure of its own.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bucketlab import __version__, units
from bucketlab.report.compare import figure_cells, interval_of
from bucketlab.report.html.document import Page, assemble, write_page
from bucketlab.report.html.page import Phase, phases_of, thinned
from bucketlab.report.parts import Part, parts_of
from bucketlab.schema.comparison import Comparison
from bucketlab.schema.profile import Breakdown, Bucket, PredictedPoint, Prediction, Profile, StepTime

_SCRIPTS = ("units.js", "draw.js", "timeline.js", "parts.js", "compare.js")


class Side(msgspec.Struct, kw_only=True):
    """What the page draws of one run."""

    run: str
    created: str
    kind: str
    command: list[str]
    several_modules: bool
    tells_buckets: bool  # traces of other programs tell collectives, and not which of them are buckets
    current_cap_mb: float | None  # of the largest module
    step: StepTime | None
    breakdown: Breakdown | None
    parts: list[Part]  # of the breakdown
    buckets: list[Bucket]
    phases: list[Phase]
    points: list[PredictedPoint]  # by rising capacity
    best: PredictedPoint | None
    floor_ns: int | None
    prediction_notes: list[str]

    @classmethod
    def of(cls, profile: Profile) -> Side:
        prediction: Prediction | None = profile.prediction
        largest = max(profile.modules, key=lambda one: one.parameters, default=None)
        return cls(
            run=profile.run,
            created=profile.created,
            kind=profile.kind,
            command=profile.command,
            several_modules=len(profile.modules) > 1,
            tells_buckets=bool(profile.modules or profile.command),
            current_cap_mb=largest.bucket_cap_mb if largest else None,
            step=thinned(profile.step),
            breakdown=profile.breakdown,
            parts=parts_of(profile.breakdown) if profile.breakdown else [],
            buckets=profile.buckets,
            phases=phases_of(profile),
            points=prediction.points if prediction else [],
            best=prediction.best if prediction else None,
            floor_ns=prediction.floor_ns if prediction else None,
            prediction_notes=prediction.notes if prediction else [],
        )


class ComparisonData(msgspec.Struct, kw_only=True):
    """The JSON inside the page."""

    version: str
    comparison: Comparison
    cells: list[tuple[str, str, str, str]]  # of each figure: A, B, difference, interval, as the terminal has them
    intervals: list[str]  # of each row of buckets, of what more is exposed; "" where there is none
    a: Side
    b: Side


def render_comparison(comparison: Comparison, a: Profile, b: Profile) -> Page:
    """The page of two runs.

    Args:
        comparison: of the two.
        a: before.
        b: after.
    """
    data = ComparisonData(
        version=__version__,
        comparison=comparison,
        cells=[figure_cells(one) for one in comparison.figures],
        intervals=[interval_of(one.exposed_low_ns, one.exposed_high_ns, "ns") for one in comparison.buckets],
        a=Side.of(a),
        b=Side.of(b),
    )
    return assemble(data, f"{units.shown(a.run)} against {units.shown(b.run)}", _SCRIPTS)


def write_comparison(comparison: Comparison, a: Profile, b: Profile, path: Path) -> None:
    """Writes the page: a whole file or none. Raises OSError where it cannot be written."""
    write_page(render_comparison(comparison, a, b), path)
