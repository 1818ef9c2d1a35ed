"""From a file to figures that are known by construction, through the reader and the analysis as a user runs them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.large import LAYER_NS, LAYERS, REDUCE_LAYERS, STEP_LAYERS, write_large
from bucketlab.analysis import analyze_trace
from bucketlab.trace.kineto import read_trace
from tests.trace.synthetic import cpu_jobs, gpu_jobs, save, spelled, spellings

TOTALS = (
    "communication_ns", "compute_ns", "memory_ns", "overlap_ns", "exposed_ns", "busy_ns", "kernels", "collectives",
)  # fmt: skip


def analyzed(folder, job, spelling, suffix):
    return analyze_trace(read_trace(save(folder / f"rank0{suffix}", spelled(job.trace, spelling))))


def figures(totals):
    return {key: getattr(totals, key) for key in TOTALS}


def known(totals):
    return {key: totals[key] for key in TOTALS}


@settings(deadline=None)
@given(gpu_jobs(), spellings, st.sampled_from([".json", ".json.gz"]))
def test_a_gpu_jobs_figures_are_those_it_was_built_with(tmp_path_factory, job, spelling, suffix):
    analysis = analyzed(tmp_path_factory.getbasetemp(), job, spelling, suffix)
    assert figures(analysis.total) == known(job.total)
    assert [figures(step) for step in analysis.steps] == [known(step) for step in job.steps]
    assert analysis.unattributed_kernels == job.in_no_step
    found = [
        sorted((event.op, event.elements, event.overlap_ns, event.exposed_ns) for event in step.events)
        for step in analysis.steps
    ]
    assert found == job.collectives


@settings(deadline=None)
@given(cpu_jobs(), spellings, st.sampled_from([".json", ".json.gz"]))
def test_a_cpu_jobs_figures_are_those_it_was_built_with(tmp_path_factory, job, spelling, suffix):
    analysis = analyzed(tmp_path_factory.getbasetemp(), job, spelling, suffix)
    assert figures(analysis.total) == known(job.total)
    assert [figures(step) for step in analysis.steps] == [known(step) for step in job.steps]
    found = [
        sorted((event.op, event.elements, event.overlap_ns, event.exposed_ns) for event in step.events)
        for step in analysis.steps
    ]
    assert found == job.collectives


@settings(max_examples=20, deadline=None)
@given(gpu_jobs(), spellings, spellings)
def test_how_a_trace_is_spelled_does_not_change_a_figure(tmp_path_factory, job, one, other):
    folder = tmp_path_factory.getbasetemp()
    first, second = (analyzed(folder, job, spelling, ".json") for spelling in (one, other))
    assert msgspec.to_builtins(first.total) == msgspec.to_builtins(second.total)
    assert [figures(step) for step in first.steps] == [figures(step) for step in second.steps]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_the_large_trace_of_the_benchmark_has_the_figures_it_was_built_with(tmp_path, suffix):
    path = tmp_path / f"large{suffix}"
    made = write_large(path, megabytes=1.5)
    trace = read_trace(path)
    analysis = analyze_trace(trace)
    assert figures(analysis.total) == known(made.total)
    assert (len(analysis.steps), analysis.unattributed_kernels, trace.warnings) == (made.steps, 0, [])
    step = analysis.steps[0]
    assert step.wall_ns == STEP_LAYERS * LAYER_NS
    assert [event.bucket for event in step.events] == list(range(LAYERS // 2 // 10))
    last = step.events[-1]
    assert (last.overlap_ns, last.exposed_ns) == (0, REDUCE_LAYERS * LAYER_NS)
    assert all(event.ready_ns <= event.start_ns for event in step.events)
    assert [track.name for track in trace.tracks].count("thread 25509 (python)") == 1
