"""Numbers as text: three digits, one unit, nothing that a terminal would obey."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab import units

_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(
    ("ns", "written"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999_499, "999 us"),
        (999_600, "1.00 ms"),
        (61_234_567, "61.2 ms"),
        (214_000_000, "214 ms"),
        (1_500_000_000, "1.50 s"),
        (125_000_000_000, "2 min 5 s"),
        (None, "-"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(ns, written):
    assert units.duration(ns) == written


@given(st.integers(1, 119 * 10**9))
def test_a_duration_says_the_time_to_three_digits_and_never_needs_four(ns):
    number, unit = units.duration(ns).split()
    assert float(number) < 1000
    assert math.isclose(float(number) * _NS[unit], ns, rel_tol=0.005)


@given(st.integers(1, 2**49))
def test_a_size_says_the_bytes_to_half_a_per_cent(count_bytes):
    number, unit = units.size(count_bytes).split()
    assert math.isclose(float(number.replace(",", "")) * _BYTES[unit], count_bytes, rel_tol=0.005)


@given(st.lists(st.none() | st.integers(10**5, 10**10), min_size=1))
def test_times_of_one_column_have_the_same_number_of_decimals(column):
    written = [text for text in units.milliseconds_alike(column) if text not in ("-", "0")]
    assert len({len(text.partition(".")[2]) for text in written}) <= 1


def test_a_time_too_short_for_its_column_is_not_shown_as_zero():
    assert units.milliseconds_alike([100_000_000, 10, 0]) == ["100.0", "<0.1", "0"]


@pytest.mark.parametrize(
    ("part", "whole", "written"),
    [(61, 214, "29 %"), (1, 214, "0.5 %"), (0, 3, "0 %"), (1, 100_000, "<0.1 %"), (1, 0, "-"), (None, 1, "-")],
)
def test_a_share_of_nothing_is_no_number(part, whole, written):
    assert units.share(part, whole) == written


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=40))
def test_a_shown_name_holds_nothing_a_terminal_obeys(name):
    assert all(character.isprintable() for character in units.shown(name))
    assert units.shown(name, "ascii").isascii()


@pytest.mark.parametrize("name", ["[bold]weight", "<script>", "h.0.attn", "gewicht é 层"])
def test_a_harmless_name_is_shown_as_it_is(name):
    assert units.shown(name) == name
