"""Medians: over values of which some are not known, and how far a median may be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median


def median_known(values: Iterable[float | None]) -> float | None:
    """Of rates and the like; None where no value is known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def median_ns(values: Iterable[int | None]) -> int | None:
    """Of times, which stay whole numbers."""
    middle = median_known(values)
    return None if middle is None else round(middle)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the median from order statistics, whatever the distribution.

    The number of samples below the median is binomial; its normal approximation gives the two ranks (Conover 1999,
    section 3.2). With fewer than six samples the interval is all of them, and holds with less confidence.
    """
    ordered, count = sorted(samples), len(samples)
    reach = 0.98 * math.sqrt(count)
    low, high = math.floor(count / 2 - reach), math.ceil(count / 2 + reach)
    return float(ordered[max(0, low)]), float(ordered[min(count - 1, high)])
