"""One rank's figures: against a reference that counts single nanoseconds, and on traces whose answer is plain."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.analysis import analyze_trace
from bucketlab.errors import BadInput
from bucketlab.trace.classify import Rules
from bucketlab.trace.columns import Category
from tests.analysis.building import ACCUMULATE, NCCL_ALL_REDUCE, TraceBuilder, all_reduce_args

# ---- against a reference --------------------------------------------------------------------------------------

STEP_NS = 30
KINDS = {
    "collective": (Category.KERNEL, NCCL_ALL_REDUCE),
    "compute": (Category.KERNEL, "gemm"),
    "memory": (Category.MEMCPY, "Memcpy HtoD"),
}


def test_the_reference_itself_is_right_on_an_example():
    items = [("collective", 0, 7, 0, 5, 10), ("compute", 0, 8, 0, 8, 4), ("memory", 0, 8, 0, 30, 1)]
    assert reference(items) == {
        "communication_ns": 10,
        "compute_ns": 4,
        "memory_ns": 1,
        "overlap_ns": 4,
        "exposed_ns": 6,
        "busy_ns": 11,
        "kernels": 2,
        "collectives": 1,
    }


# kind, device, stream, time of launch (or None), start, length
device_events = st.tuples(
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 1),
    st.integers(7, 9),
    st.none() | st.integers(-5, 3 * STEP_NS + 5),
    st.integers(0, 120),
    st.integers(0, 40),
)


def reference(items):
    """`Totals` by sets of nanoseconds, device by device."""
    sums = dict.fromkeys(("communication_ns", "compute_ns", "memory_ns", "overlap_ns", "busy_ns"), 0)
    for device in {item[1] for item in items}:
        covered = {kind: set() for kind in KINDS}
        for kind, on, _, _, start, ns in items:
            if on == device:
                covered[kind] |= set(range(start, start + ns))
        sums["communication_ns"] += len(covered["collective"])
        sums["compute_ns"] += len(covered["compute"])
        sums["memory_ns"] += len(covered["memory"])
        sums["overlap_ns"] += len(covered["collective"] & covered["compute"])
        sums["busy_ns"] += len(set.union(*covered.values()))
    kinds = [item[0] for item in items]
    return {
        **sums,
        "exposed_ns": sums["communication_ns"] - sums["overlap_ns"],
        "kernels": len(kinds) - kinds.count("memory"),
        "collectives": kinds.count("collective"),
    }


def build(items, epoch, steps=3):
    trace = TraceBuilder()
    for number in range(steps):
        trace.step(number, epoch + number * STEP_NS, epoch + (number + 1) * STEP_NS)
    for kind, device, stream, at, start, ns in items:
        category, name = KINDS[kind]
        at = None if at is None else epoch + at
        trace.device_event(category, name, epoch + start, epoch + start + ns, at, device=device, stream=stream)
    return trace.build()


def in_step(items, number):
    return [item for item in items if item[3] is not None and number * STEP_NS <= item[3] < (number + 1) * STEP_NS]


@given(st.lists(device_events, min_size=1, max_size=14), st.sampled_from([0, 1_790_857_026_123_456_789]))
def test_figures_of_trace_and_steps_are_those_of_counting_nanoseconds(items, epoch):
    analysis = analyze_trace(build(items, epoch))
    assert msgspec.to_builtins(analysis.total) == reference(items)
    for number, step in enumerate(analysis.steps):
        expected = reference(in_step(items, number))
        assert {key: getattr(step, key) for key in expected} == expected
    kernels = [item for item in items if item[0] != "memory"]
    attributed = sum(len(in_step(kernels, number)) for number in range(3))
    assert analysis.unattributed_kernels == len(kernels) - attributed


@given(st.lists(device_events, min_size=1, max_size=14))
def test_idle_is_the_part_of_a_step_in_which_no_device_runs_anything(items):
    busy = {t for *_, start, ns in items for t in range(start, start + ns)}
    for number, step in enumerate(analyze_trace(build(items, epoch=0)).steps):
        window = range(number * STEP_NS, (number + 1) * STEP_NS)
        assert step.wall_ns == STEP_NS
        assert step.idle_ns == len(set(window) - busy)


@given(st.lists(device_events, min_size=1, max_size=14))
def test_each_collective_overlaps_with_its_own_steps_compute_on_its_device(items):
    for number, step in enumerate(analyze_trace(build(items, epoch=0)).steps):
        mine = in_step(items, number)
        collectives = [item for item in mine if item[0] == "collective"]
        computing = [
            (device, t) for kind, device, _, _, start, ns in mine if kind == "compute" for t in range(start, start + ns)
        ]
        expected = []
        for _, device, _, _, start, ns in collectives:
            overlap = len({(device, t) for t in range(start, start + ns)} & set(computing))
            expected.append((start - number * STEP_NS, start + ns - number * STEP_NS, overlap, ns - overlap))
        found = [(e.start_ns, e.end_ns, e.overlap_ns, e.exposed_ns) for e in step.events]
        assert sorted(found) == sorted(expected)
        assert [e.start_ns for e in step.events] == sorted(e.start_ns for e in step.events)


@given(st.lists(device_events, min_size=1, max_size=14), st.randoms())
def test_the_order_of_events_in_the_file_does_not_matter(items, random):
    shuffled = random.sample(items, len(items))
    one, other = analyze_trace(build(items, epoch=0)), analyze_trace(build(shuffled, epoch=0))
    assert one.total == other.total
    # events that start together may come in either order
    assert [msgspec.structs.replace(s, events=[]) for s in one.steps] == [
        msgspec.structs.replace(s, events=[]) for s in other.steps
    ]


# ---- single rules ---------------------------------------------------------------------------------------------


def test_a_kernel_belongs_to_the_step_that_launched_it_even_if_it_runs_in_the_next():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.step(2, 100, 200)
    trace.kernel(NCCL_ALL_REDUCE, 90, 150, at=80, stream=20)
    trace.kernel("gemm", 120, 140, at=95)
    first, second = analyze_trace(trace.build()).steps
    assert (first.communication_ns, first.overlap_ns, first.events[0].end_ns) == (60, 20, 150)
    assert (second.busy_ns, second.idle_ns) == (0, 50)


def test_events_outside_every_step_stay_in_the_total_and_are_counted():
    trace = TraceBuilder()
    trace.step(1, 100, 200)
    trace.kernel("gemm", 10, 20, at=5)
    trace.kernel(NCCL_ALL_REDUCE, 30, 50, at=None, stream=20)
    trace.kernel("gemm", 110, 120, at=105)
    analysis = analyze_trace(trace.build())
    assert analysis.unattributed_kernels == 2
    assert (analysis.total.compute_ns, analysis.total.communication_ns, analysis.total.kernels) == (20, 20, 3)
    assert (analysis.steps[0].compute_ns, analysis.steps[0].kernels) == (10, 1)
    assert any("1 of 1 collectives" in warning for warning in analysis.warnings)


def test_without_steps_the_whole_trace_is_the_window_and_nothing_is_outside():
    trace = TraceBuilder()
    trace.kernel("gemm", 10, 20, at=5)
    trace.kernel(NCCL_ALL_REDUCE, 30, 50, at=None, stream=20)
    analysis = analyze_trace(trace.build())
    (step,) = analysis.steps
    assert analysis.unattributed_kernels == 0
    assert (step.communication_ns, step.compute_ns, step.wall_ns) == (20, 10, 45)


def test_input_is_the_steps_own_threads_wait_for_the_data_loader():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.step(2, 100, 200)
    trace.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 10, 40)
    trace.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 120, 190, thread="prefetcher")
    trace.kernel("gemm", 50, 60, at=45)
    assert [step.input_ns for step in analyze_trace(trace.build()).steps] == [30, 0]


def test_a_users_rules_make_a_kernel_a_collective(tmp_path):
    file = tmp_path / "rules.toml"
    file.write_text('[kernels]\n"^my_ring" = "allreduce"\n')
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.kernel("my_ring(int)", 20, 50, at=10)
    assert analyze_trace(trace.build()).total.communication_ns == 0
    assert analyze_trace(trace.build(), Rules.from_toml(file)).total.communication_ns == 30


def test_an_empty_trace_has_an_empty_analysis():
    analysis = analyze_trace(TraceBuilder().build())
    assert analysis.total.busy_ns == 0
    assert [step.collectives for step in analysis.steps] == [0]


def test_a_gpu_job_without_kernels_in_its_trace_is_warned_of():
    trace = TraceBuilder(backend="nccl")
    trace.operator("aten::mm", 0, 10)
    assert any("ProfilerActivity.CUDA" in warning for warning in analyze_trace(trace.build()).warnings)


# ---- CPU ------------------------------------------------------------------------------------------------------


def test_on_cpu_compute_is_operators_without_calls_and_waits_of_collectives():
    trace = TraceBuilder(backend="gloo")
    trace.step(1, 0, 100)
    trace.operator("aten::linear", 10, 30)
    trace.operator("aten::addmm", 12, 28)  # inside the one above: counts once
    trace.operator(ACCUMULATE, 40, 70)
    trace.operator("c10d::allreduce_", 50, 60)
    trace.annotation("gloo:all_reduce", 55, 90, thread="worker a")
    trace.operator("aten::add_", 60, 80, thread="worker a")  # the worker's own sums are communication
    trace.operator("_c10d_functional::wait_tensor", 85, 95)
    analysis = analyze_trace(trace.build())
    (step,) = analysis.steps
    assert (step.compute_ns, step.communication_ns, step.overlap_ns) == (20 + 20, 35, 10)
    assert (step.busy_ns, step.idle_ns) == (20 + 10 + 35, 35)
    assert (step.kernels, step.memory_ns, analysis.unattributed_kernels) == (0, 0, 0)
    assert analysis.total.collectives == 1


def test_a_wait_on_one_thread_takes_nothing_from_anothers_compute():
    trace = TraceBuilder(backend="gloo")
    trace.step(1, 0, 100)
    trace.operator("c10d::barrier", 10, 90)
    trace.operator("autograd::engine::evaluate_function: MmBackward0", 20, 60, thread="autograd")
    assert analyze_trace(trace.build()).total.compute_ns == 40


operators = st.tuples(
    st.sampled_from(["aten::mm", "c10d::allreduce_"]),
    st.sampled_from(["main", "autograd"]),
    st.integers(0, 2 * STEP_NS - 1),
    st.integers(0, 25),
)


@given(st.lists(operators, max_size=12))
def test_cpu_compute_is_that_of_counting_nanoseconds(items):
    trace = TraceBuilder(backend="gloo")
    for number in range(2):
        trace.step(number, number * STEP_NS, (number + 1) * STEP_NS)
    trace.operator("autograd::engine::evaluate_function: MmBackward0", 0, 0, thread="autograd")
    for name, thread, start, ns in items:
        trace.operator(name, start, start + ns, thread)

    for number, step in enumerate(analyze_trace(trace.build()).steps):
        computing = set()
        for thread in ("main", "autograd"):
            covered = {"aten::mm": set(), "c10d::allreduce_": set()}
            for name, on, start, ns in items:
                if on == thread and start // STEP_NS == number:
                    covered[name] |= set(range(start, start + ns))
            computing |= covered["aten::mm"] - covered["c10d::allreduce_"]
        assert step.compute_ns == len(computing)


def test_gloo_beside_a_gpus_kernels_is_communication():
    trace = TraceBuilder(backend="gloo")
    trace.step(1, 0, 100)
    trace.operator("c10d::allreduce_", 10, 12)
    trace.annotation("gloo:all_reduce", 20, 60, thread="worker a")
    trace.kernel("gemm", 50, 80, at=15)
    (step,) = analyze_trace(trace.build()).steps
    assert (step.communication_ns, step.overlap_ns, step.kernels, step.collectives) == (40, 10, 1, 1)


def test_times_that_span_centuries_are_refused_with_the_files_name():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    for device in range(2):
        trace.kernel("gemm", -(2**61), 2**61, at=5, device=device)
    with pytest.raises(BadInput, match=r"made\.json: .* cannot be real"):
        analyze_trace(trace.build())


def test_sizes_that_no_computer_has_are_unknown():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.kernel(NCCL_ALL_REDUCE, 10, 20, at=5, stream=20, args=all_reduce_args(10**30, sequence=-5))
    (event,) = analyze_trace(trace.build()).steps[0].events
    assert (event.elements, event.bytes, event.sequence) == (None, None, None)


@pytest.mark.parametrize("ns", [0, 1])
def test_events_of_no_length_count_and_take_no_time(ns):
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.kernel(NCCL_ALL_REDUCE, 10, 10 + ns, at=5, stream=20)
    total = analyze_trace(trace.build()).total
    assert (total.collectives, total.communication_ns) == (1, ns)


def test_collectives_without_a_size_are_warned_of_once_with_the_remedy():
    trace = TraceBuilder()
    for start in (0, 100):
        trace.kernel(NCCL_ALL_REDUCE, start, start + 50, at=start)
    (warning,) = analyze_trace(trace.build()).warnings
    assert "2 of 2 collectives have no size" in warning
    assert "record_shapes=True" in warning

    trace = TraceBuilder()
    trace.kernel(NCCL_ALL_REDUCE, 0, 50, at=0, args=all_reduce_args(1000))
    assert analyze_trace(trace.build()).warnings == []


def test_a_graph_that_is_launched_again_in_each_step_gives_each_step_its_own_kernels():
    """A replay has a correlation id of its own, and its kernels the nodes of the one graph that was captured."""
    trace = TraceBuilder()
    for number in range(3):
        begin = number * 1000
        trace.step(number, begin, begin + 1000)
        replay = trace.launch(begin + 900, name="cudaGraphLaunch")  # runs in the next step's range
        trace.kernel("gemm", begin + 1000, begin + 1100, correlation=replay)
        trace.kernel(NCCL_ALL_REDUCE, begin + 1050, begin + 1200, correlation=replay, stream=20)
    steps = analyze_trace(trace.build()).steps
    assert [(one.kernels, one.collectives, one.overlap_ns, one.exposed_ns) for one in steps] == [(2, 1, 50, 100)] * 3
