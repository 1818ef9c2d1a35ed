"""What is kept while a trace is read has a bound, however odd the trace."""

from __future__ import annotations

import json

import pytest

from bucketlab.errors import BadInput
from bucketlab.trace import kineto
from bucketlab.trace.kineto import read_trace

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1}


def mark(phase, ts, tid=1, name="range"):
    return {"ph": phase, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts}


def read(folder, events):
    path = folder / "rank0.json"
    path.write_text("[" + ",".join(each if isinstance(each, str) else json.dumps(each) for each in events) + "]")
    return read_trace(path)


def test_begins_beyond_the_bound_are_counted_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "_MOST_OPEN", 3)
    trace = read(tmp_path, [KERNEL, *(mark("B", ts) for ts in range(10))])
    assert len(trace.events) == 1
    assert [warning.split(": ")[1].split(",")[0] for warning in trace.warnings] == [
        "7 events begin while too many others are open",
        "3 events only begin",
    ]


def test_the_bound_is_on_ranges_open_at_once_and_not_on_all(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "_MOST_OPEN", 2)
    ranges = [mark(phase, ts) for ts in range(20) for phase in "BE"]
    trace = read(tmp_path, ranges)
    assert len(trace.events) == 20
    assert trace.warnings == []


def test_what_a_repair_makes_must_be_an_event(tmp_path):
    trace = read(
        tmp_path, [KERNEL, '{"a": nan}', '{"ph": "X", "cat": "kernel", "name": "r", "ts": 3, "dur": 1, "z": nan}']
    )
    assert [trace.names[i] for i in trace.events.name] == ["k", "r"]
    assert "1 malformed" in trace.warnings[0]


def test_a_warning_names_no_more_than_fits_a_line(tmp_path):
    trace = read(tmp_path, [KERNEL, KERNEL | {"name": "n" * 10_000, "dur": -1}])
    assert len(trace.warnings[0]) < 300
    with pytest.raises(BadInput) as refusal:
        read(tmp_path, [KERNEL | {"name": "a\nb" * 10_000, "dur": -1}])
    assert len(str(refusal.value)) < 400
    assert "\n" not in str(refusal.value)
