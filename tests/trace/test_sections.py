"""A file that several processes read in sections gives what one that reads it from front to end gives."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bucketlab.errors import BadInput
from bucketlab.trace import kineto, sections
from bucketlab.trace.kineto import read_trace
from tests.trace.reading import document, event, rows
from tests.trace.synthetic import gpu_jobs, spelled, spellings
from tests.trace.test_kineto_damage import changes, mutated

NESTED = '{"list": [{"name": "a"}, {"name": "b"}], "External id": 4}'
EVENTS = [event(ts=f"{number}.250", name=('f "}, {"ph": "X"', "gemm")[number % 2]) for number in range(40)]
REDUCE = '{"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float", "device": 0, "stream": 20}'
EVENTS.append(event(name="ncclDevKernel_AllReduce", args=REDUCE))
EVENTS.append(event(ph="M", name="thread_name", args='{"name": "main"}'))
EVENTS.append(event(name="strange", dur="-5"))


@pytest.fixture(autouse=True)
def _small_sections(monkeypatch):
    monkeypatch.setattr(sections, "SMALLEST_BYTES", 300)


def all_of(path, processes):
    try:
        trace = read_trace(path, processes)
    except BadInput as refused:
        return str(refused)
    header = (trace.rank, trace.world_size, trace.backend, trace.host)
    return rows(trace), trace.collective_args, trace.tracks, trace.names, header, trace.warnings


def in_sections(path, processes=3):
    return kineto._read_in_sections(path, processes) is not None


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
@pytest.mark.parametrize("bare", [False, True], ids=["object", "array"])
def test_a_whole_trace_is_read_in_sections_and_nothing_is_lost(tmp_path, pack, bare):
    text = f"[{', '.join(EVENTS)}]" if bare else document(*EVENTS, footer='"host_name": "node7"')
    path = tmp_path / "rank3.json"
    path.write_bytes(pack(text.encode()))
    for processes in (2, 3, 8):
        assert in_sections(path, processes)
        assert all_of(path, processes) == all_of(path, 1)


HALVES = [event(ph="B", name="long"), *EVENTS, event(ph="E", name="long", ts="90.0")]


@pytest.mark.parametrize(
    "text",
    [
        document(*EVENTS)[:-900],  # cut off
        document(*EVENTS).replace('"tid": 7', '"tid" 7', 1),  # malformed
        document(*[event(args=NESTED)] * 40),  # lists of objects in events
        document(*HALVES),  # begins in one section, ends in another
        document(*EVENTS, footer=f'"others": [{", ".join(EVENTS * 2)}]'),  # what looks like events beside them
        document(EVENTS[0], header=f'"others": [{", ".join(EVENTS * 2)}]'),
        json.dumps({"traceEvents": [], "a": "}, {" * 400}),
    ],
)
def test_what_cannot_be_cut_is_read_from_the_front(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert not all(in_sections(path, processes) for processes in (2, 3, 4, 5))
    for processes in (2, 3, 4, 5):
        assert all_of(path, processes) == all_of(path, 1)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(gpu_jobs(), spellings, st.one_of(st.just([]), changes), st.integers(2, 4))
def test_any_trace_is_the_same_in_sections(tmp_path_factory, job, spelling, mutations, processes):
    path = tmp_path_factory.getbasetemp() / "sections.json"
    path.write_bytes(mutated(spelled(job.trace, spelling), mutations))
    assert all_of(path, processes) == all_of(path, 1)


def test_a_process_that_dies_costs_nothing(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text(document(*EVENTS))
    expected = all_of(path, 1)
    monkeypatch.setattr(kineto, "_joinable", lambda path, part: 1 / 0)
    assert not in_sections(path)
    assert all_of(path, 3) == expected
