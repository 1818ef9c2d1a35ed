"""Time of a step from what each rank timed. Knows nothing of what a step spends it on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bucketlab.schema.profile import StepTime
from bucketlab.schema.rank import TimedStep


def regular_rows(by_rank: Sequence[Sequence[TimedStep]]) -> list[list[TimedStep]]:
    """Steps that are regular on every rank, each as one row over the ranks."""
    rows = list(zip(*by_rank, strict=False))
    return [list(row) for row in rows if all(step.regular for step in row)]


def step_time(by_rank: Sequence[Sequence[TimedStep]]) -> StepTime | None:
    """Of each step the slowest rank's time; None where no step was regular."""
    rows = regular_rows(by_rank)
    if not rows:
        return None
    slowest = np.array([max(step.wall_ns for step in row) for row in rows], dtype=np.int64)
    p10, median, p90 = (round(float(one)) for one in np.percentile(slowest, [10, 50, 90]))
    return StepTime(
        median_ns=median,
        p10_ns=p10,
        p90_ns=p90,
        samples=[int(one) for one in slowest],
        excluded=min(map(len, by_rank)) - len(rows),
    )
