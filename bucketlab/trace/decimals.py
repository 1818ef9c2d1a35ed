"""Microseconds written as decimal text -> integer nanoseconds, exactly: nothing passes through float64.

Measured for 200,000 timestamps of three decimals, joining them included: numpy.fromstring 7 ms; a matrix of digits
8 ms; int() on each 24 ms; Decimal on each 85 ms.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bucketlab.trace.columns import Int64s

LATEST_NS = 2**62  # sums and differences of two such times stay within int64
_LONGEST_PLAIN = 18  # characters: int64 holds any number of so many digits
_LONGEST_ODD = 400
_DECIMALS = 3
_SCALE = 10 ** np.arange(_DECIMALS, -1, -1)  # by the number of decimals
_LATEST = LATEST_NS // _SCALE
_QUOTED_PLAIN = re.compile(rb"(?:\d+(?:\.\d+)?,)*")


def nanoseconds(values: Sequence[msgspec.Raw]) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Times in ns, to the nearest where there are more than three decimals, and which of them can be used.

    Args:
        values: JSON values that should be numbers of microseconds, or strings of such.

    Returns:
        Arrays of shape (len(values),). A time that is no number, or LATEST_NS or more, is 0 and cannot be used.
    """
    if not values:
        return np.zeros(0, np.int64), np.zeros(0, bool)
    text = b",".join(values) + b","
    if b'"' in text:
        text = text.replace(b'"', b"")
        if _QUOTED_PLAIN.fullmatch(text) is None:
            return _each(values)
    if text.translate(None, b"0123456789.,"):
        return _each(values)
    codes = np.frombuffer(text, np.uint8)
    marks = np.flatnonzero(codes < ord("0"))  # commas and points
    is_point = codes[marks] == ord(".")
    last = np.flatnonzero(~is_point)
    ends = marks[last]
    lengths = np.diff(ends, prepend=-1) - 1
    if len(ends) != len(values) or not 0 < lengths.min() <= lengths.max() <= _LONGEST_PLAIN:
        return _each(values)
    decimals = np.where(is_point[last - 1], ends - marks[last - 1] - 1, 0)
    if decimals.max() > _DECIMALS:
        return _each(values)
    digits = np.fromstring(text.replace(b".", b""), np.int64, sep=",")
    usable = digits < _LATEST[decimals]
    return np.where(usable, digits * _SCALE[decimals], 0), usable


def _each(values: Sequence[msgspec.Raw]) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    times = [_nanoseconds(bytes(value)) for value in values]
    usable = np.array([time is not None for time in times], bool)
    return np.array([time or 0 for time in times], np.int64), usable


def _nanoseconds(text: bytes) -> int | None:
    """Of one JSON value; None for what is no time."""
    if len(text) > _LONGEST_ODD:
        return None
    try:
        time = decimal.Decimal(text.strip(b'"').decode()).scaleb(_DECIMALS)
        if not time.is_finite() or time.adjusted() > len(str(LATEST_NS)):
            return None
        ns = int(time.to_integral_value(decimal.ROUND_HALF_EVEN))
    except (decimal.DecimalException, UnicodeDecodeError):
        return None
    return ns if abs(ns) < LATEST_NS else None
