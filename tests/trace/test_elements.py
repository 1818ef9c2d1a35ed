"""Cutting JSON that comes in blocks: the same elements whatever the blocks are; of damaged text all that is whole."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.trace import elements
from bucketlab.trace.elements import Document, NoJson, Scanner
from bucketlab.trace.source import Damaged

# strings that look like the places where a cut may be made, or like the end of the string
tricky = st.text(st.sampled_from('{}[],:"\\ \nx'), max_size=8) | st.just('}, {"ph": "X"') | st.just('], "a": [')
values = st.recursive(
    st.none() | st.integers(-9, 9) | tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=8,
)
events = st.lists(st.dictionaries(tricky | st.just("args"), values, max_size=4), max_size=8)
AFTER = (b"", b"]", b',[1,2],{"a":3,"b":4}', b'}, "x": [')
layouts = st.sampled_from([(None, (",", ":")), (None, (", ", ": ")), (2, (",", ": ")), (0, (" ,\r\n\t", " : "))])


def written(document, layout):
    return json.dumps(document, indent=layout[0], separators=layout[1]).encode()


def in_blocks(text, size):
    return (text[i : i + size] for i in range(0, len(text), size))


def decode(array):
    return msgspec.json.decode(array, type=list[dict])


def read(blocks, repair=lambda element: None):
    document = Document(blocks, decode, repair)
    return [event for piece in document.pieces() for event in piece], document


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that texts of a few bytes are cut as those of many megabytes are."""
    monkeypatch.setattr(elements, "BLOCK_BYTES", 40)
    monkeypatch.setattr(elements, "_WINDOW_BYTES", 32)


def scanned(text, size):
    """Offsets of commas and of the closing bracket when the text is fed in parts."""
    scanner, commas, offset = Scanner(), [], 0
    for part in in_blocks(text, size):
        found, end = scanner.feed(part)
        commas += [offset + comma for comma in found]
        if end is not None:
            return commas, offset + end
        offset += len(part)
    return commas, None


@settings(deadline=None)
@given(
    st.lists(values, max_size=6),
    layouts,
    st.integers(1, 30),
    st.sampled_from([b"", b"]", b',[1,2],{"a":3,"b":4}', b'}, "x": [']),
)
def test_the_scanner_finds_exactly_the_commas_between_elements(array, layout, size, after):
    text = written(array, layout)[1:]
    commas, end = scanned(text + after, size)
    assert end == len(text) - 1
    bounds = [-1, *commas, end]
    parts = [text[low + 1 : high] for low, high in itertools.pairwise(bounds)]
    assert [json.loads(part) for part in parts if part.strip()] == array


@settings(deadline=None)
@given(events, layouts, st.integers(1, 90), st.booleans())
def test_no_event_is_lost_wherever_the_blocks_end(array, layout, size, bare):
    document = array if bare else {"before": ["}, {", {"x": 1}], "traceEvents": array, "after": [{"y": 2}, {"z": 3}]}
    found, read_document = read(in_blocks(written(document, layout), size))
    assert found == array
    assert read_document.damage == []
    assert read_document.malformed == 0
    if not bare:
        members = {name: json.loads(bytes(value)) for name, value in read_document.members.items()}
        assert members == {"before": ["}, {", {"x": 1}], "after": [{"y": 2}, {"z": 3}]}


@settings(deadline=None)
@given(events, layouts, st.integers(1, 90), st.data())
def test_of_a_text_that_is_cut_off_every_whole_event_remains(array, layout, size, data):
    text = written({"traceEvents": array}, layout)
    length = data.draw(st.integers(1, len(text) - 1))
    found, document = read(in_blocks(text[:length], size))
    assert found == array[: len(found)]
    assert len(document.damage) == 1
    assert str(length) in document.damage[0]
    # what stands whole in the text is there: at most the one event that the cut went through is missing
    whole = sum(ends <= length for ends in ends_of(text, layout, len(array)))
    assert len(found) >= whole


def ends_of(text, layout, count):
    """Offset behind each event, told by the scanner that the test above holds against json."""
    begins = text.index(b"[") + 1
    commas, end = scanned(text[begins:], 1000)
    return [begins + at for at in [*commas, end][:count]]


@settings(deadline=None)
@given(events, st.lists(events, min_size=1, max_size=3), st.sampled_from([b"{nan}", b"7", b'{"a" 1}', b"\xff"]))
def test_a_malformed_event_costs_no_other(before, more, broken):
    parts = [[json.dumps(event).encode() for event in some] for some in (before, *more)]
    text = b"[" + b",".join(part for some in parts for part in (*some, broken)) + b"]"
    found, document = read(in_blocks(text, 30))
    assert found == [event for some in (before, *more) for event in some]
    assert document.malformed == len(parts)
    assert text[document.first_malformed :].startswith(broken)


def test_what_a_repair_makes_of_a_malformed_event_stands_in_its_place():
    text = b'[{"a":1},{"a":nan},{"a":3}]'
    found, document = read(iter([text]), repair=lambda element: {"repaired": element.decode()})
    assert found == [{"a": 1}, {"repaired": '{"a":nan}'}, {"a": 3}]
    assert document.malformed == 0


@pytest.mark.parametrize("text", [b"", b"  ", b"hello", b"\x00\x01", b"<html>", b'"a"', b"17", b"\xff\xfe[\x00"])
def test_what_does_not_begin_as_json_is_none(text):
    with pytest.raises(NoJson):
        read(iter([text] if text else []))


def test_a_byte_order_mark_is_skipped():
    assert read(iter([b'\xef\xbb\xbf[{"a":1}]']))[0] == [{"a": 1}]


def test_events_may_come_in_several_arrays_and_none_may_be_missing():
    found, document = read(iter([b'{"traceEvents":[{"a":1}],"x":0,"traceEvents" : [ ],"traceEvents":[{"a":2}]}']))
    assert found == [{"a": 1}, {"a": 2}]
    assert document.has_events
    assert not read(iter([b'{"x":{"traceEvents":[{"a":1}]}}']))[1].has_events


def test_text_behind_the_end_is_noticed():
    found, document = read(iter([b'[{"a":1}]', b' \n [{"a":2}]']))
    assert found == [{"a": 1}]
    assert document.damage == ["the trace ends at byte 12, and the file does not"]


def test_damage_of_the_file_is_told_also_where_the_text_is_whole():
    def blocks():
        yield b'[{"a":1}]'
        raise Damaged("wrong checksum")

    found, document = read(blocks())
    assert found == [{"a": 1}]
    assert document.damage == ["wrong checksum"]


@pytest.mark.parametrize("filler", [b" ", b"[", b"x", b'"', b'{"a":', b"\\"])
def test_what_never_ends_is_given_up_after_16_mib(monkeypatch, filler):
    monkeypatch.setattr(elements, "_WINDOW_BYTES", 1 << 16)
    taken = 0

    def blocks():
        nonlocal taken
        yield b'[{"a":1},"'
        while True:
            taken += 1
            yield filler * ((1 << 20) // len(filler))

    found, document = read(blocks())
    assert found == [{"a": 1}]
    assert "16 MiB" in document.damage[0]
    assert taken < 20


def test_a_list_of_no_events_is_given_up():
    found, document = read(no_events())
    assert found == []
    assert "no events" in document.damage[-1]


def no_events():
    yield b"["
    while True:
        yield b"1," * 50
