"""The picture of one step: it fits, it is where the times are, and it needs no colour."""

import msgspec
import pytest
from rich.cells import cell_len

from bucketlab.report import timeline
from tests.report import profiles

EVERY = [
    profiles.overlapped,
    profiles.exposed,
    profiles.hidden,
    profiles.input_bound,
    profiles.straggler,
    profiles.one_rank,
    profiles.thousand_buckets,
]


def _plain(profile, width=100, ascii_only=False):
    return [line.plain for line in timeline.draw(profile, width, ascii_only)]


def _rows(lines):
    return [line for line in lines if line.startswith("bucket")]


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("width", [60, 78, 98, 118])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_it_may_be(make, width, ascii_only):
    lines = timeline.draw(make(), width, ascii_only)
    drawn = lines[1:]  # the legend is prose, which may wrap
    assert max(cell_len(line.plain) for line in drawn) <= width
    assert not ascii_only or all(line.plain.isascii() for line in lines)


@pytest.mark.parametrize("glyphs", [timeline.UNICODE, timeline.ASCII])
def test_states_differ_in_shape_and_not_only_in_colour(glyphs):
    assert len({glyphs.ready, glyphs.waiting, glyphs.hidden, glyphs.exposed, " "}) == 5


def test_only_the_bucket_that_outlasts_the_backward_pass_is_drawn_as_exposed():
    profile = profiles.overlapped(cap_mb=128)
    rows = _rows(_plain(profile, ascii_only=True))
    assert [("#" in row) for row in rows] == [(bucket.exposed_ns > 0) for bucket in profile.buckets]
    assert "#" in rows[-1]


def test_bars_stand_where_the_times_are():
    profile = profiles.exposed(cap_mb=128)
    lines = _plain(profile, ascii_only=True)
    axis = next(line for line in lines if line.lstrip().startswith("+"))
    begin, cells = axis.index("+"), len(axis) - axis.index("+")
    cell_ns = profile.breakdown.wall_ns / cells
    for row, bucket in zip(_rows(lines), profile.buckets, strict=True):
        label_end = begin
        bar = row[label_end:]
        assert abs(bar.index("!") * cell_ns - bucket.ready_ns) <= cell_ns
        assert abs(len(bar) * cell_ns - bucket.end_ns) <= cell_ns


def test_a_bucket_that_waits_for_the_link_shows_the_wait():
    waits = profiles.exposed(cap_mb=50)
    assert any("!..." in row for row in _rows(_plain(waits, ascii_only=True)))
    assert not any("!..." in row for row in _rows(_plain(profiles.hidden(cap_mb=50), ascii_only=True)))


def test_a_thousand_buckets_share_a_few_rows_that_name_all_of_them():
    rows = _rows(_plain(profiles.thousand_buckets()))
    assert len(rows) <= timeline.MAX_ROWS
    assert rows[0].startswith("buckets 0-")
    assert "-999 " in rows[-1]


def test_phases_are_named_above_the_buckets():
    compute = next(line for line in _plain(profiles.input_bound()) if line.startswith("compute"))
    assert [compute.index(name) for name in ("input", "forward", "backward")] == sorted(
        compute.index(name) for name in ("input", "forward", "backward")
    )


def test_a_short_backward_after_long_accumulation_is_drawn_large():
    lines = _plain(profiles.overlapped(forward_ms=2000, accumulation=16))
    assert "forward" not in lines[1]
    assert " backward " in lines[1]
    assert "0 ms" not in lines[-1].split()[:1]


def test_without_times_of_buckets_there_is_no_picture():
    assert _plain(profiles.nothing()) == []
    unseen = [msgspec.structs.replace(b, start_ns=None, end_ns=None) for b in profiles.overlapped().buckets]
    assert _plain(profiles.overlapped(buckets=unseen)) == []


def test_without_phases_the_buckets_are_drawn_alone():
    lines = _plain(profiles.overlapped(forward_ns=None))
    assert not any(line.startswith("compute") for line in lines)
    assert _rows(lines)


def test_buckets_of_several_modules_say_whose_they_are():
    profile = profiles.overlapped(cap_mb=128)
    profile.modules = [profile.modules[0], profile.modules[0]]
    assert _rows(_plain(profile))[0].startswith("bucket 0:0")
