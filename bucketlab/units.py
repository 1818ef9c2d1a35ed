"""Figures as people read them: times, sizes, shares and rates with their unit, and names made safe to print.

Only turns numbers into text; which figures are shown, and how they are laid out, is each report's business.
All of it is ASCII (microseconds are "us", as nccl-tests writes them), so that it prints on any terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "-"  # what a table shows for a figure that is not there

_TIMES = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))
_SIZES = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))
_COUNTS = (("", 1), (" K", 10**3), (" M", 10**6), (" B", 10**9), (" T", 10**12))
_CARRIED_TO_MINUTES_NS = 120 * 10**9  # from two minutes on, seconds alone are hard to picture


def duration(ns: int | float | None) -> str:
    """Time in nanoseconds, three digits and the unit that suits it: "214 ms", "3.21 us", "2 min 5 s"."""
    if ns is None:
        return NOTHING
    if abs(ns) >= _CARRIED_TO_MINUTES_NS:
        minutes, seconds = divmod(round(abs(ns) / 10**9), 60)
        sign = "-" if ns < 0 else ""
        return f"{sign}{minutes:,} min {seconds} s"
    return _scaled(ns, _TIMES)


def milliseconds(ns: int | float | None) -> str:
    """Time in nanoseconds as a number of milliseconds, for a column whose heading says "ms"."""
    if ns is None:
        return NOTHING
    ms = ns / 1_000_000
    if ms == 0:
        return "0"
    if abs(ms) < 0.0005:
        return "<0.001" if ms > 0 else ">-0.001"
    return f"{ms:.3f}" if abs(ms) < 0.9995 else f"{ms:.2f}" if abs(ms) < 9.995 else f"{ms:,.1f}"


def milliseconds_alike(column_ns: Sequence[int | float | None]) -> list[str]:
    """Times of one column in milliseconds, all with as many decimals as the largest needs for three digits."""
    largest_ms = max((abs(ns) for ns in column_ns if ns is not None), default=0) / 1_000_000
    decimals = 1 if largest_ms >= 9.95 else 2 if largest_ms >= 0.995 else 3
    return [_with_decimals(ns, decimals) for ns in column_ns]


def _with_decimals(ns: int | float | None, decimals: int) -> str:
    if ns is None:
        return NOTHING
    written = f"{ns / 1_000_000:,.{decimals}f}"
    vanishes = ns != 0 and not written.strip("-0.")
    return f"<{10.0**-decimals:.{decimals}f}" if vanishes else "0" if ns == 0 else written


def size(count_bytes: int | float | None) -> str:
    """Bytes with three significant digits and a binary unit: "25.0 MiB"."""
    return NOTHING if count_bytes is None else _scaled(count_bytes, _SIZES)


def mebibytes(count_bytes: int | float | None) -> str:
    """Bytes as a number of MiB, for a column whose heading says "MiB"."""
    if count_bytes is None:
        return NOTHING
    mib = count_bytes / 2**20
    if 0 < mib < 0.0005:
        return "<0.001"
    return f"{mib:.3f}" if 0 < mib < 0.0995 else f"{mib:,.1f}"


def capacity(mb: float) -> str:
    """A bucket capacity in DDP's "mb", which are MiB: "25 MiB"."""
    return f"{mb:g} MiB"


def share(part: int | float | None, whole: int | float | None) -> str:
    """`part` of `whole` in per cent: "28 %", below 10 % with one decimal; "-" where there is no whole."""
    if part is None or not whole:
        return NOTHING
    per_cent = 100 * part / whole
    if per_cent == 0 or abs(per_cent) >= 9.95:
        return f"{per_cent:,.0f} %"
    return f"{per_cent:.1f} %" if abs(per_cent) >= 0.05 else "<0.1 %"


def rate(gb_s: float | None) -> str:
    """A bandwidth in 1e9 bytes per second: "11.3 GB/s"."""
    return NOTHING if gb_s is None else f"{_three_digits(gb_s)} GB/s"


def rate_number(gb_s: float | None) -> str:
    """A bandwidth as a number, for a column whose heading says "GB/s"."""
    return NOTHING if gb_s is None else _three_digits(gb_s)


def quantity(number: int) -> str:
    """A large count with three significant digits: "124 M", "1.30 B"."""
    return _scaled(number, _COUNTS, space="")


def counted(number: int, noun: str) -> str:
    """A count with its noun: "1 step", "1,000 steps"."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def shown(name: str, encoding: str = "utf-8") -> str:
    """A name that comes from data, with all that a terminal would obey instead of print written as escapes.

    Control characters, line breaks, surrogates and marks that turn the writing direction are replaced, and so is
    what `encoding`, the console's, cannot write. Pass the result to rich inside a `Text`, or with
    `markup=False`: brackets are left as they are.
    """
    harmless = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)
    return harmless.encode(encoding, "backslashreplace").decode(encoding)


def _scaled(value: int | float, units: tuple[tuple[str, int], ...], space: str = " ") -> str:
    """`value` in the largest unit in which it is at least one once it is rounded to three digits."""
    unit, factor = units[0]
    for candidate, candidate_factor in units[1:]:
        if abs(value) / candidate_factor < 0.9995:
            break
        unit, factor = candidate, candidate_factor
    number = f"{value:,.0f}" if factor == 1 else _three_digits(value / factor)
    return f"{number}{space}{unit}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude == 0:
        return "0"
    if magnitude < 0.0995:
        return f"{value:.2g}"
    return f"{value:.2f}" if magnitude < 9.995 else f"{value:.1f}" if magnitude < 99.95 else f"{value:,.0f}"
