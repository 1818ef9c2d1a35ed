"""Medians over values of which some are not known; None where none is."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median


def median_known(values: Iterable[float | None]) -> float | None:
    """Of rates and the like."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def median_ns(values: Iterable[int | None]) -> int | None:
    """Of times, which stay whole numbers."""
    middle = median_known(values)
    return None if middle is None else round(middle)
