"""Traces that are cut off, damaged, absurd or none at all: every event that is left, or one line."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bucketlab.analysis import analyze_trace
from bucketlab.errors import BadInput
from bucketlab.trace import elements, kineto, source
from bucketlab.trace.kineto import read_trace
from tests.trace.reading import document, event, read, rows, rows_of, times
from tests.trace.synthetic import gpu_jobs, spelled, spellings

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "traces" / "gloo-2ranks"

EVENTS = [
    event(ts=f"{number}.500", name=name, args=args)
    for number, (name, args) in enumerate(
        [
            ("gemm", '{"device": 0, "stream": 7, "correlation": 3}'),
            ('f"{a}, {b}": "}, {"', '{"grid": [{"x": 1}, {"y": [2, {}]}]}'),
            ('back\\slash \\" é 🙂 ]}', '{"path": "C:\\\\"}'),
            ("gemm", "{}"),
            ("relu", '{"External id": 5}'),
        ]
    )
]
TEXT = document(*EVENTS, footer='"host_name": "node7", "deviceProperties": [{"id": 0}, {"id": 1}]').encode()
ENDS = [TEXT.index(one.encode()) + len(one.encode()) for one in EVENTS]
ALL = rows_of(TEXT)


@pytest.fixture(params=[None, 16, 100], ids="pieces of {} bytes".format)
def pieces(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(source, "BLOCK_BYTES", request.param)
        monkeypatch.setattr(elements, "BLOCK_BYTES", request.param)


def refusal(tmp_path, text, name="trace.json"):
    """The one line that tells why a file cannot be used."""
    with pytest.raises(BadInput) as refused:
        read(tmp_path, text, name)
    line = str(refused.value)
    assert name in line
    assert "\n" not in line
    assert len(line) < 500
    return line


# ---- cut off ----------------------------------------------------------------------------------------------------


def test_a_trace_cut_off_at_any_byte_gives_every_complete_event_and_tells_the_place(tmp_path, pieces):
    assert rows(read(tmp_path, TEXT)) == ALL
    for size in range(len(TEXT)):
        complete = sum(end <= size for end in ENDS)
        if not complete:
            refusal(tmp_path, TEXT[:size])
            continue
        trace = read(tmp_path, TEXT[:size])
        assert rows(trace) == ALL[:complete]
        (warning,) = trace.warnings
        assert "trace.json" in warning
        assert re.search(r"\d", warning.replace("trace.json", "")), warning


def test_a_file_that_is_still_written_is_told_from_one_that_was_cut_off(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT[: ENDS[2]])
    assert any("may not be finished" in warning for warning in read_trace(path).warnings)

    os.utime(path, (1, 1))
    assert read_trace(path).warnings == [f"{path}: cut off at byte {ENDS[2]}"]

    def append_meanwhile(*given):
        with path.open("ab") as file:
            file.write(b",")
        return elements.Document(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto, "Document", append_meanwhile)
        assert any("while it was read" in warning for warning in read_trace(path).warnings)


def test_a_whole_trace_that_was_just_written_is_not_warned_of(tmp_path):
    assert read(tmp_path, TEXT).warnings == []


def test_a_bare_array_cut_off_at_any_byte_gives_every_complete_event(tmp_path, pieces):
    text = f"[{', '.join(EVENTS)}]".encode()
    for size in range(len(text)):
        complete = sum(end <= size + TEXT.index(EVENTS[0].encode()) - 1 for end in ENDS)
        if complete:
            trace = read(tmp_path, text[:size])
            assert rows(trace) == ALL[:complete]
            assert len(trace.warnings) == 1
        else:
            refusal(tmp_path, text[:size])


def test_a_gz_cut_off_at_any_byte_gives_all_that_it_still_holds(tmp_path, pieces):
    packed = gzip.compress(TEXT)
    for size in range(2, len(packed)):
        left = zlib.decompressobj(31).decompress(packed[:size])
        complete = sum(end <= len(left) for end in ENDS)
        if complete:
            trace = read(tmp_path, packed[:size], "trace.json.gz")
            assert rows(trace) == ALL[:complete]
            assert trace.warnings
        else:
            refusal(tmp_path, packed[:size], "trace.json.gz")


def test_a_recorded_trace_cut_in_half_gives_the_first_half(tmp_path):
    text = gzip.decompress(sorted(RECORDED.glob("*.gz"))[0].read_bytes())
    whole = rows_of(text)
    for part in (0.1, 0.5, 0.99):
        trace = read(tmp_path, text[: int(len(text) * part)])
        found = rows(trace)
        assert found == whole[: len(found)]
        assert len(found) > 0.8 * part * len(whole)
        assert len(trace.warnings) == 1


# ---- damaged ----------------------------------------------------------------------------------------------------


# without the brackets in a name, which a wrong quote turns into the end of the array
PLAIN = TEXT.replace(b']}"', b'"', 1)
FIRST, LAST = ENDS[1] + 2, ENDS[2] - 2  # the third event


@pytest.mark.parametrize("byte", [b"\0", b"\xff", b"\x1f", b"}", b"{", b"]", b"[", b",", b":", b"\\", b'"', b"7"])
def test_one_wrong_byte_costs_no_event_before_it_and_at_most_two(tmp_path, pieces, byte):
    assert [row[0] for row in rows(read(tmp_path, PLAIN))] == [row[0] for row in ALL]
    for at in range(FIRST, LAST):
        found = rows(read(tmp_path, PLAIN[:at] + byte + PLAIN[at + 1 :]))
        assert found[:2] == ALL[:2], (at, PLAIN[at : at + 1])
        assert found[-1] == ALL[-1], (at, PLAIN[at : at + 1])


@pytest.mark.parametrize("size", [1, 3, 10, 60])
def test_bytes_lost_in_the_middle_cost_the_events_they_were_of(tmp_path, pieces, size):
    for at in range(FIRST, LAST):
        found = rows(read(tmp_path, PLAIN[:at] + PLAIN[at + size :]))
        assert found[:2] == ALL[:2], at
        assert found[-1] == ALL[-1], at


def test_damage_in_a_large_trace_costs_what_is_damaged(tmp_path):
    texts = [event(ts=str(number)) for number in range(20_000)]
    text = document(*texts).encode()
    at = text.index(b'"ts": 9000,')
    trace = read(tmp_path, text[:at] + b"\0" * 1000 + text[at + 1000 :])
    starts = trace.events.start_ns
    assert set(range(20_000)) - set((starts // 1000).tolist()) <= set(range(9000, 9012))
    assert trace.warnings


def test_an_odd_event_now_and_then_does_not_take_the_others_apart(tmp_path, monkeypatch):
    """Each piece costs a pass over all columns: a piece must not be a single event because one in it is malformed."""
    sizes = []
    add = kineto._Columns.add
    monkeypatch.setattr(
        kineto._Columns, "add", lambda columns, events: sizes.append(len(events)) or add(columns, events)
    )
    texts = [event(ts=str(number), args='{"x": NaN}' if number % 100 == 0 else "{}") for number in range(20_000)]
    assert len(read(tmp_path, document(*texts)).events) == 20_000
    assert sum(sizes) == 20_000
    assert len(sizes) < 50


def test_a_damaged_gz_gives_all_up_to_the_damage(tmp_path):
    packed = bytearray(gzip.compress(document(*(event(ts=str(number)) for number in range(20_000))).encode()))
    packed[len(packed) // 2] ^= 0xFF
    trace = read(tmp_path, bytes(packed), "trace.json.gz")
    assert times(trace)[:9000] == [(number * 1000, number * 1000 + 2000) for number in range(9000)]
    assert trace.warnings


def test_a_footer_that_is_no_json_costs_no_event(tmp_path):
    trace = read(tmp_path, document(*EVENTS, footer='"host_name": "node7'))
    assert rows(trace) == ALL
    assert trace.warnings


def test_a_header_with_bytes_that_are_no_text_costs_no_event(tmp_path):
    header = document(*EVENTS, header='"host_name": "node?", "distributedInfo": {"rank": 3, "backend": "nc?l"}')
    assert rows(read(tmp_path, header.encode().replace(b"?", b"\xff"))) == ALL


def test_what_follows_the_document_costs_no_event(tmp_path):
    trace = read(tmp_path, TEXT + b"\ngarbage } ] {")
    assert rows(trace) == ALL
    assert trace.warnings


@pytest.mark.parametrize(
    "odd", ["null", "5", '"text"', "[]", "[{}]", "{}", '{"ph": 5}', '{"ph": "X"}', "true", "nonsense"]
)
def test_an_element_that_is_no_event_costs_nothing_else(tmp_path, pieces, odd):
    trace = read(tmp_path, document(EVENTS[0], odd, EVENTS[1], odd, odd, *EVENTS[2:]))
    assert rows(trace) == ALL


# ---- no trace ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "empty"),
        (b" \n\t ", ""),
        (b"\xef\xbb\xbf", ""),
        (gzip.compress(b"", mtime=0), ""),
        (gzip.compress(b"", mtime=0)[:7], ""),
        (b"\x1f\x8b", ""),
        (b"hello", "JSON"),
        (b"<html></html>", "JSON"),
        (b"ts,dur\n1,2\n", "JSON"),
        (b"\0" * 1000, "JSON"),
        (random.Random(1).randbytes(1000), ""),
        (b"{}", "traceEvents"),
        (b'{"a": [1, 2, {"b": 3}]}', "traceEvents"),
        (b'{"schema": "bucketlab.profile/1"}', "traceEvents"),
        (b'{"traceEvents": 5}', ""),
        (b'{"traceEvents": null}', ""),
        (b'{"traceEvents": []}', "event"),
        (b'{"traceEvents": {}}', ""),
        (b"[]", "event"),
        (b"[1, 2, 3]", "event"),
        (b'[{"a": 1}]', "event"),
        (b'"text"', ""),
        (b"5", ""),
        (b"null", ""),
        (b"PK\x03\x04 and so on", "zip"),
        (b"\x28\xb5\x2f\xfd and so on", "zstd"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, pieces, text, says):
    assert says in refusal(tmp_path, text)


def test_a_trace_without_any_usable_event_is_refused(tmp_path):
    refusal(tmp_path, document(event(ph="i"), event(cat="python_function")))
    refusal(tmp_path, document(event(ts="null")))


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b", ", b",\r\n"),
        TEXT.replace(b'"correlation": 3', b'"correlation": 4, "correlation": 3'),
        TEXT.replace(b'"External id": 5', b'"External id": 5, "other": NaN, "most": 1e999, "more": ' + b"9" * 5000),
    ],
    ids=["byte order mark", "lines that end in CR LF", "the same key twice", "numbers that are none"],
)
def test_what_other_tools_make_of_a_trace_changes_nothing(tmp_path, text):
    expected = [(*row[:2], *row[3:]) for row in ALL]
    assert [(*row[:2], *row[3:]) for row in rows(read(tmp_path, text))] == expected


def test_utf_16_is_refused_with_the_remedy(tmp_path):
    assert "UTF-8" in refusal(tmp_path, TEXT.decode().encode("utf-16"))


def test_links_that_lead_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    with pytest.raises(BadInput, match=r"a\.json"):
        read_trace(tmp_path / "a.json")


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(BadInput, match=re.escape(str(path))):
            read_trace(path)


# ---- absurd -----------------------------------------------------------------------------------------------------

DEEP = 100_000


@pytest.mark.parametrize(
    "deep", ["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "5" + "}" * DEEP, "[{" * DEEP, '[[["' * DEEP, "]" * DEEP]
)
def test_nesting_deeper_than_any_stack_costs_what_it_is_in(tmp_path, deep):
    inside_an_event = document(EVENTS[0], event(args=f'{{"deep": {deep}}}'))
    assert rows(read(tmp_path, inside_an_event))[0] == ALL[0]
    in_the_footer = document(*EVENTS, footer=f'"deep": {deep}')
    assert rows(read(tmp_path, in_the_footer)) == ALL
    for text in (f"[{deep}", f'{{"traceEvents": {deep}}}', deep):
        refusal(tmp_path, text)


def test_nesting_that_closes_costs_only_its_own_event(tmp_path):
    deep = f'{{"deep": {"[" * DEEP}{"]" * DEEP}}}'
    trace = read(tmp_path, document(EVENTS[0], event(args=deep, ts="1.5"), *EVENTS[2:]))
    assert [row for row in rows(trace) if row != rows(trace)[1]][1:] == ALL[2:] or rows(trace)[1:] == ALL[2:]


_READ_IN_LITTLE_MEMORY = textwrap.dedent(
    """
    import resource, sys
    from pathlib import Path
    from bucketlab.errors import BadInput
    from bucketlab.trace.kineto import read_trace
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 400 * 2**20,) * 2)
    try:
        print(len(read_trace(Path(sys.argv[1])).events))
    except BadInput as refusal:
        print("refused")
    """
)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits of memory are set as Linux knows them")
@pytest.mark.parametrize(
    ("begin", "fill"),
    [
        ("", " "),
        ("[", " "),
        (f"[{EVENTS[0]}", " "),
        (f"[{EVENTS[0]}, ", "0"),
        (f'[{EVENTS[0]}, {{"name": "', "x"),
        (f"[{EVENTS[0]}, ", "["),
        (f"[{EVENTS[0]}", ","),
        (f"[{EVENTS[0]}, {EVENTS[1]}", "}"),
        (f"[{EVENTS[0]}, ", '{"a":'),
        ('{"header": "', "x"),
        ("{", '"a": 1, '),
        (f'{{"traceEvents": [{EVENTS[0]}], "footer": "', "x"),
        (f'{{"traceEvents": [{EVENTS[0]}], ', '"a": {"b": 1}, '),
        (f"[{EVENTS[0]}]", "[]"),
    ],
    ids=lambda text: text[-12:],
)
def test_a_small_gz_that_unpacks_to_a_gigabyte_takes_little_memory(tmp_path, begin, fill):
    path = tmp_path / "bomb.json.gz"
    block = (fill * (2**20 // len(fill))).encode()
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(begin.encode())
        for _ in range(500):
            file.write(block)
    done = subprocess.run(
        [sys.executable, "-c", _READ_IN_LITTLE_MEMORY, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == ("1" if EVENTS[0] in begin else "refused"), done.stderr[-2000:]


# ---- anything ---------------------------------------------------------------------------------------------------


def _small(text, count=60):
    """A trace of a few of the recorded events, each kind at least once."""
    trace = json.loads(text, parse_float=lambda digits: f"${digits}$")
    seen, chosen = set(), []
    for one in trace["traceEvents"]:
        kind = one.get("ph"), one.get("cat"), one["name"][:12]
        if kind not in seen and len(chosen) < count:
            chosen.append(one)
        seen.add(kind)
    trace["traceEvents"] = chosen
    return json.dumps(trace, indent=1).replace('"$', "").replace('$"', "").encode()


SMALL = _small(gzip.decompress(sorted(RECORDED.glob("*.gz"))[0].read_bytes()))
TOKENS = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"},{", b"null", b"1e999", b"-", b"NaN", b"\0", b"\xff"]
TOKENS += [b"9" * 400, b'"ph": "X"', b'"traceEvents": [', b'"ts": "', b"]}", b'"dur": -5', b"\x1f\x8b", b"\\ud800"]
TOKENS += [b"[" * 3000, b'{"a":' * 3000, b"\xef\xbb\xbf", b"\xff\xfe", b"\r\n", b'"ts": 1e18, "ts": 3', b"Infinity"]

changes = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "delete", "repeat", "move"]),
        st.floats(0, 1),
        st.integers(0, 200),
        st.one_of(st.sampled_from(TOKENS), st.binary(max_size=8)),
    ),
    min_size=1,
    max_size=6,
)


def mutated(text: bytes, mutations) -> bytes:
    for kind, where, size, token in mutations:
        at = int(where * len(text))
        piece = text[at : at + size]
        if kind == "replace":
            text = text[:at] + token + text[at + len(token) :]
        elif kind == "insert":
            text = text[:at] + token + text[at:]
        elif kind == "delete":
            text = text[:at] + text[at + size :]
        elif kind == "repeat":
            text = text[:at] + piece + text[at:]
        else:
            text = text[:at] + text[at + size :] + piece
    return text


def must_be_results_or_one_line(folder, text, name):
    path = folder / name
    path.write_bytes(text)
    try:
        trace = read_trace(path)
    except BadInput as refused:
        assert "\n" not in str(refused)
        assert str(path) in str(refused)
        return
    events = trace.events
    count = len(events)
    assert count > 0
    for column in events.__slots__:
        assert len(getattr(events, column)) == count
    assert (events.end_ns >= events.start_ns).all()
    assert ((events.name >= 0) & (events.name < len(trace.names))).all()
    assert ((events.track >= 0) & (events.track < len(trace.tracks))).all()
    assert all("\n" not in warning for warning in trace.warnings)
    try:
        analyze_trace(trace)
    except BadInput as refused:
        assert "\n" not in str(refused)


fuzzing = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@fuzzing
@given(changes, st.integers(1, 5000))
def test_a_recorded_trace_with_anything_done_to_it_gives_results_or_one_line(tmp_path_factory, mutations, piece_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK_BYTES", piece_bytes)
        patch.setattr(elements, "BLOCK_BYTES", piece_bytes)
        must_be_results_or_one_line(tmp_path_factory.getbasetemp(), mutated(SMALL, mutations), "fuzz.json")


@fuzzing
@given(gpu_jobs(), spellings, changes)
def test_a_made_trace_with_anything_done_to_it_gives_results_or_one_line(tmp_path_factory, job, spelling, mutations):
    text = mutated(spelled(job.trace, spelling), mutations)
    must_be_results_or_one_line(tmp_path_factory.getbasetemp(), text, "fuzz.json")


@fuzzing
@given(changes)
@example([("delete", 0.9, 200, b"")])
def test_a_gz_with_anything_done_to_it_gives_results_or_one_line(tmp_path_factory, mutations):
    text = mutated(gzip.compress(SMALL), mutations)
    must_be_results_or_one_line(tmp_path_factory.getbasetemp(), text, "fuzz.json.gz")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_results_or_one_line(tmp_path_factory, text):
    must_be_results_or_one_line(tmp_path_factory.getbasetemp(), text, "fuzz.json")
