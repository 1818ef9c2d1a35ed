"""Microseconds as text become exact nanoseconds, whatever they are written like."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.trace.decimals import LATEST_NS, nanoseconds

whole_ns = st.integers(-LATEST_NS + 1, LATEST_NS - 1)
epoch_ns = st.integers(1_600_000_000 * 10**9, 1_900_000_000 * 10**9)


def raw(*texts):
    return msgspec.json.decode("[" + ",".join(texts) + "]", type=list[msgspec.Raw])


def microseconds(ns, decimals=3):
    """Kineto's own spelling where `decimals` is 3; fewer drop zeros, as Python's json does."""
    sign, ns = "-" if ns < 0 else "", abs(ns)
    text = f"{sign}{ns // 1000}.{ns % 1000:03d}"
    return text if decimals == 3 else text.rstrip("0").rstrip(".")


def read(*texts):
    times, usable = nanoseconds(raw(*texts))
    return [int(time) if ok else None for time, ok in zip(times, usable, strict=True)]


@settings(deadline=None)
@given(st.lists(whole_ns, max_size=20), st.sampled_from([0, 3]), st.booleans())
def test_every_nanosecond_survives(times, decimals, quoted):
    texts = [microseconds(ns, decimals) for ns in times]
    assert read(*(f'"{text}"' if quoted else text for text in texts)) == times


@settings(deadline=None)
@given(st.lists(epoch_ns, min_size=1, max_size=20))
def test_epoch_sized_times_survive_where_a_float_would_lose_them(times):
    assert read(*map(microseconds, times)) == times


def test_the_times_above_are_ones_that_a_float_loses():
    text = "1711964646123456.789"
    assert round(float(text) * 1000) != 1711964646123456789
    assert read(text) == [1711964646123456789]


@settings(deadline=None)
@given(st.lists(st.decimals(-(10**15), 10**15, allow_nan=False, places=9), min_size=1, max_size=10))
def test_more_than_three_decimals_go_to_the_nearest_nanosecond(times):
    texts = [f"{time:f}" for time in times]
    assert read(*texts) == [int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN)) for text in texts]


@settings(deadline=None)
@given(st.lists(whole_ns, min_size=1, max_size=10), st.data())
def test_one_odd_value_among_many_changes_no_other(times, data):
    texts = [microseconds(ns) for ns in times]
    at = data.draw(st.integers(0, len(texts)))
    odd = data.draw(st.sampled_from(["null", "true", '""', '"."', '"1.2.3"', '"1,2"', "[1]", "{}", '"NaN"', "1e400"]))
    texts.insert(at, odd)
    assert read(*texts) == [*times[:at], None, *times[at:]]


def test_exponents_are_read():
    assert read("1e3", "1.5E+3", '"2e-3"') == [1_000_000, 1_500_000, 2]


def test_absurd_numbers_are_no_times_and_cost_nothing():
    digits = "9" * 4000
    assert read("1e999999999", "-1e999999999", digits, f'"{digits}"', "9" * 19, "0." + digits) == [None] * 6
    assert read(str(LATEST_NS // 1000 + 1)) == [None]
    assert read("1e-999999999") == [0]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text()), max_size=8))
def test_any_json_value_gives_a_time_or_none(values):
    texts = [json.dumps(value).replace("NaN", '"NaN"').replace("Infinity", '"Infinity"') for value in values]
    texts = [text.replace('-"Inf', '"-Inf') for text in texts]
    times, usable = nanoseconds([msgspec.Raw(text.encode()) for text in texts])
    assert times.dtype == np.int64
    assert len(times) == len(usable) == len(values)
    assert (np.abs(times) < LATEST_NS).all()
    assert not times[~usable].any()
