"""The predicted curve on the terminal: step time for every layout of buckets, the plan, the floor. Predicts nothing."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from bucketlab import units
from bucketlab.schema.profile import PredictedPoint, Prediction

_BAR_CELLS = 16
_MOST_ROWS = 24
_TOLD = 0.0005  # parts below are told without their sign


def print_prediction(prediction: Prediction, run: str, console: Console) -> None:
    """Args:
    prediction: of one profiled run.
    run: its name.
    """
    console.print(
        f"Step time against bucket size of {units.shown(run)}: predicted, not measured", style="bold", markup=False
    )
    console.print(_sentence(prediction), highlight=False, markup=False)
    console.print(_table(prediction, console.options.ascii_only))
    for line in prediction.notes:
        console.print(f"Note: {units.shown(line, console.encoding)}.", highlight=False, markup=False)


def _sentence(prediction: Prediction) -> str:
    best, now_ns = prediction.best, prediction.current_step_ns
    gain = units.share(now_ns - best.step_ns, now_ns)
    lines = [
        f"Best: {_named(best)}, {units.duration(best.step_ns)}, {gain} less than the setting in force "
        f"({units.duration(now_ns)}). No bucketing, however clever, gets below {units.duration(prediction.floor_ns)}."
    ]
    plan = prediction.plan
    if plan is not None:
        how = (
            f"bucket_cap_mb_list={plan.bucket_cap_mb_list}"
            if plan.bucket_cap_mb_list
            else "no list of DDP's makes them"
        )
        lines.append(
            f"Best consecutive buckets: {len(plan.bucket_bytes)} of them, {units.duration(plan.step_ns)} ({how})."
        )
    if prediction.error is not None:
        lines.append(f"For the setting in force the prediction is {_signed(prediction.error)} off the measured step.")
    return "\n".join(lines)


def _table(prediction: Prediction, ascii_only: bool) -> Table:
    table = Table(box=box.ASCII if ascii_only else box.SIMPLE, pad_edge=False)
    for heading in ("MiB", "buckets", "step", "band, ms", "exposed"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    longest = max(point.step_ns for point in prediction.points)
    full = "=" if ascii_only else "█"
    for point in _thinned(prediction):
        low, high = units.milliseconds_alike([point.low_ns, point.high_ns])
        table.add_row(
            f"{point.bucket_cap_mb:.4g}",
            str(point.buckets or units.NOTHING),
            units.duration(point.step_ns),
            f"{low} to {high}" if point.low_ns is not None else "",
            units.duration(point.exposed_ns),
            full * round(_BAR_CELLS * point.step_ns / longest),
            style="bold" if point == prediction.best else "",
        )
    return table


def _thinned(prediction: Prediction) -> list[PredictedPoint]:
    """Few enough rows to read, the best and the ends among them."""
    points = prediction.points
    every = -(-len(points) // _MOST_ROWS)
    kept = {id(point) for point in [*points[::every], points[-1], prediction.best]}
    return [point for point in points if id(point) in kept or point == prediction.best]


def _named(point: PredictedPoint) -> str:
    if point.bucket_cap_mb_list:
        return f"bucket_cap_mb_list={point.bucket_cap_mb_list}"
    return f"bucket_cap_mb={point.bucket_cap_mb:g}"


def _signed(part: float) -> str:
    return units.share(part, 1) if abs(part) < _TOLD else f"{'+' if part > 0 else '-'}{units.share(abs(part), 1)}"
