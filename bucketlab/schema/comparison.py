"""What `bucketlab compare --json` prints (`bucketlab.comparison/1`): two runs figure by figure. Plain data.

A difference is B's figure less A's. Intervals are 95 %; a figure without one says why.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "bucketlab.comparison/1"

Unit = Literal["ns", "bytes", "share", "gb_s", "count"]


class Figure(msgspec.Struct, kw_only=True):
    """One figure of both runs."""

    name: str
    unit: Unit
    a: float | None
    b: float | None
    difference: float | None
    low: float | None = None  # 95 % interval of the difference
    high: float | None = None
    samples: tuple[int, int] = (0, 0)  # that the interval rests on; (0, 0): it has none
    no_interval: str = ""  # why it has none


class AlignedBuckets(msgspec.Struct, kw_only=True):
    """The fewest buckets of A and of B that hold the same parameters. Times count from the step's start."""

    parameters: list[str]
    bytes: int
    a_indices: list[int]
    b_indices: list[int]
    a_ready_ns: int | None  # when the last of them is ready
    b_ready_ns: int | None
    a_end_ns: int | None  # when the last of them has arrived
    b_end_ns: int | None
    a_exposed_ns: int | None  # all of them together
    b_exposed_ns: int | None
    exposed_difference_ns: int | None = None
    exposed_low_ns: float | None = None  # 95 % interval of the difference; None where traces do not tell
    exposed_high_ns: float | None = None


class Comparison(msgspec.Struct, kw_only=True):
    """Run A (before) and run B (after)."""

    schema: str = SCHEMA
    a: str
    b: str
    verdict: str  # one line
    comparable: bool  # the same gradients on as many ranks, both measured or both emulated alike
    kind: tuple[str, str]
    speedup: float | None  # steps that B does in the time in which A does one, less one
    ci95: tuple[float, float] | None
    significant: bool  # the interval of the speed-up does not hold zero
    differences: list[str]  # of the jobs themselves, one line each
    figures: list[Figure]
    buckets: list[AlignedBuckets]
    notes: list[str]
