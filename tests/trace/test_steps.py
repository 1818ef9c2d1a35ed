"""Which events are steps, and which step a launch lies in."""

from __future__ import annotations

import numpy as np

from bucketlab.trace.columns import Category
from bucketlab.trace.steps import NO_STEP, WHOLE_TRACE, find_steps, launches
from tests.analysis.building import TraceBuilder


def test_steps_come_in_order_of_time_whatever_the_order_in_the_file():
    trace = TraceBuilder()
    trace.step(5, 200, 300)
    trace.step(4, 100, 200)
    steps = find_steps(trace.build())
    assert steps.names == ["ProfilerStep#4", "ProfilerStep#5"]
    assert steps.at(np.array([99, 100, 199, 200, 299, 300])).tolist() == [NO_STEP, 0, 0, 1, 1, NO_STEP]


def test_ranges_on_the_device_and_operators_of_that_name_are_no_steps():
    trace = TraceBuilder()
    trace.step(4, 100, 200)
    trace.event(Category.GPU_ANNOTATION, "ProfilerStep#4", 150, 260, "device 0 stream 7", device=0, stream=7)
    trace.operator("ProfilerStep#7", 300, 400)
    trace.annotation("my ProfilerStep#8", 300, 400)
    assert find_steps(trace.build()).names == ["ProfilerStep#4"]


def test_of_nested_and_of_repeated_ranges_the_outermost_counts():
    trace = TraceBuilder()
    trace.step(4, 100, 200)
    trace.step(4, 100, 200)
    trace.step(4, 120, 180)
    trace.step(5, 200, 300)
    steps = find_steps(trace.build())
    assert steps.names == ["ProfilerStep#4", "ProfilerStep#5"]
    assert steps.end_ns.tolist() == [200, 300]


def test_time_between_steps_is_in_none():
    trace = TraceBuilder()
    trace.step(1, 0, 10)
    trace.step(2, 20, 30)
    assert find_steps(trace.build()).at(np.array([10, 15])).tolist() == [NO_STEP, NO_STEP]


def test_a_trace_without_steps_is_one_window():
    trace = TraceBuilder()
    trace.operator("aten::mm", 50, 90)
    steps = find_steps(trace.build())
    assert steps.names == [WHOLE_TRACE]
    assert (steps.start_ns[0], steps.end_ns[0]) == (50, 90)
    assert steps.at(np.array([0, 1000])).tolist() == [0, 0]


def test_an_empty_trace_has_an_empty_window():
    assert find_steps(TraceBuilder().build()).end_ns.tolist() == [0]


def test_kernels_find_their_launch_by_correlation():
    trace = TraceBuilder()
    late = trace.kernel("b", 50, 60, at=20)
    early = trace.kernel("a", 70, 80, at=10)
    unknown = trace.kernel("c", 90, 95, at=None)
    stale = trace.kernel("d", 90, 95, correlation=999)
    built = trace.build()
    rows = launches(built.events, np.array([late, early, unknown, stale]))
    assert built.events.start_ns[rows[:2]].tolist() == [20, 10]
    assert rows[2:].tolist() == [-1, -1]


def test_of_a_runtime_and_a_driver_call_with_one_id_the_outer_counts():
    trace = TraceBuilder()
    trace.event(Category.RUNTIME, "cuLaunchKernel", 12, 14, "main", correlation=77)
    outer = trace.event(Category.RUNTIME, "cudaLaunchKernel", 10, 15, "main", correlation=77)
    kernel = trace.kernel("a", 20, 30, correlation=77)
    assert launches(trace.build().events, np.array([kernel])).tolist() == [outer]


def test_all_kernels_of_a_graph_share_its_launch():
    trace = TraceBuilder()
    graph = trace.launch(10, name="cudaGraphLaunch")
    kernels = [trace.kernel(f"k{i}", 20 + i, 21 + i, correlation=graph) for i in range(5)]
    assert len(set(launches(trace.build().events, np.array(kernels)).tolist())) == 1
