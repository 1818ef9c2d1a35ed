"""What a collective is and when it was ready, told through the analysis of small traces made by hand."""

from __future__ import annotations

import pytest

from bucketlab.analysis import analyze_trace
from bucketlab.trace.columns import Category, CollectiveArgs
from tests.analysis.building import ACCUMULATE, NCCL_ALL_REDUCE, TraceBuilder, all_reduce_args

GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def only_event(trace: TraceBuilder):
    (step,) = analyze_trace(trace.build()).steps
    (event,) = step.events
    return event


def test_a_kernels_own_args_say_what_it_is():
    trace = TraceBuilder(world_size=8)
    trace.step(1, 0, 100)
    trace.kernel(GENERIC, 40, 60, at=10, stream=20, args=all_reduce_args(1000, sequence=17, group_size=8))
    event = only_event(trace)
    assert (event.op, event.elements, event.bytes, event.dtype) == ("allreduce", 1000, 4000, "float32")
    assert (event.group, event.group_size, event.sequence) == ("0", 8, 17)
    assert event.bus_gb_s == pytest.approx(4000 / 20 * 2 * 7 / 8)


def test_else_the_record_with_its_external_id_does():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.operator("record_param_comms", 5, 30, args=all_reduce_args(64, dtype="BFloat16"), external=9)
    trace.operator("record_param_comms", 31, 32, args=CollectiveArgs(op="wait", in_elements=0), external=10)
    trace.kernel(GENERIC, 40, 60, at=10, stream=20, external=9)
    event = only_event(trace)
    assert (event.op, event.bytes) == ("allreduce", 128)


def test_else_the_operator_that_launched_it_does():
    trace = TraceBuilder(world_size=4)
    trace.step(1, 0, 100)
    trace.operator("c10d::_allgather_base_", 5, 30)
    trace.annotation("nccl:_all_gather_base", 8, 28, args=CollectiveArgs(in_elements=100, dtype="float"))
    trace.kernel(GENERIC, 40, 60, at=10, stream=20)
    event = only_event(trace)
    # nccl-tests counts what an all-gather returns: all four parts
    assert (event.op, event.elements, event.bytes) == ("allgather", 400, 1600)


def test_what_an_all_gather_returns_is_its_size_and_what_a_reduce_scatter_is_given():
    sizes = []
    for op, given, returned in (("_allgather_base", 100, 400), ("_reduce_scatter_base", 400, 100)):
        trace = TraceBuilder(world_size=4)
        trace.step(1, 0, 100)
        args = CollectiveArgs(op=op, in_elements=given, out_elements=returned, dtype="Half")
        trace.kernel(GENERIC, 40, 60, at=10, stream=20, args=args)
        sizes.append(only_event(trace).bytes)
    assert sizes == [800, 800]


def test_a_list_of_tensors_is_no_dtype():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.operator("c10d::allreduce_", 5, 30, args=CollectiveArgs(in_elements=8, dtype="TensorList"))
    trace.kernel(GENERIC, 40, 60, at=10, stream=20)
    event = only_event(trace)
    assert (event.elements, event.dtype, event.bytes) == (8, None, None)


def test_else_it_is_unknown_and_still_communication():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.kernel(GENERIC, 40, 60, at=10, stream=20)
    event = only_event(trace)
    assert (event.op, event.elements, event.bus_gb_s) == ("unknown", None, None)
    assert analyze_trace(trace.build()).total.communication_ns == 20


def test_a_send_kernel_may_be_part_of_an_all_to_all():
    trace = TraceBuilder(world_size=4)
    trace.step(1, 0, 100)
    trace.operator("c10d::alltoall_base_", 5, 30, args=CollectiveArgs(in_elements=100, dtype="long"))
    trace.kernel(SEND_RECV, 40, 60, at=10, stream=20)
    event = only_event(trace)
    assert (event.op, event.bytes) == ("alltoall", 800)


def test_a_kernel_named_after_another_operation_is_believed_and_warned_of():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.operator("c10d::allreduce_", 5, 30, args=CollectiveArgs(in_elements=100, dtype="float"))
    trace.kernel(SEND_RECV, 40, 60, at=10, stream=20)
    event = only_event(trace)
    assert (event.op, event.elements) == ("sendrecv", None)
    assert any("named after another operation" in warning for warning in analyze_trace(trace.build()).warnings)


def test_names_with_nccl_of_anything_but_a_kernel_are_no_collectives():
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    trace.operator("ncclKernel_AllReduce_wrapper", 5, 30)
    trace.annotation("nccl:all_reduce", 5, 30)
    trace.event(Category.RUNTIME, "ncclKernel_AllReduce_launch", 5, 30, "main")
    trace.device_event(Category.MEMCPY, "ncclKernel_AllReduce memcpy", 40, 50, at=10)
    total = analyze_trace(trace.build()).total
    assert (total.collectives, total.communication_ns, total.memory_ns) == (0, 0, 10)


def test_groups_that_share_a_name_are_told_apart_by_their_members():
    def label(ranks, size, world):
        trace = TraceBuilder(world_size=world)
        trace.step(1, 0, 100)
        args = all_reduce_args(10, group="1", group_size=size, ranks=ranks)
        trace.kernel(NCCL_ALL_REDUCE, 40, 60, at=10, stream=20, args=args)
        return only_event(trace).group

    assert label("[0, 1]", 2, 4) != label("[2, 3]", 2, 4)
    assert label("[0, 1]", 2, 2) == "1"


# ---- ready, queueing, buckets ---------------------------------------------------------------------------------


def ddp_step() -> TraceBuilder:
    """Two buckets: the second is ready while the first is under way, and waits for it."""
    trace = TraceBuilder()
    trace.step(1, 0, 1000)
    trace.operator(ACCUMULATE, 100, 130, thread="autograd")
    trace.operator(ACCUMULATE, 200, 230, thread="autograd")
    trace.kernel("gemm", 110, 190, at=90, thread="autograd")
    trace.kernel(NCCL_ALL_REDUCE, 195, 400, at=110, thread="autograd", stream=20, args=all_reduce_args(10))
    trace.kernel("gemm", 190, 250, at=150, thread="autograd")
    trace.kernel(NCCL_ALL_REDUCE, 405, 500, at=210, thread="autograd", stream=20, args=all_reduce_args(20))
    trace.kernel("gemm", 250, 300, at=240, thread="autograd")
    return trace


def test_a_bucket_is_ready_when_the_work_launched_before_it_has_ended():
    (step,) = analyze_trace(ddp_step().build()).steps
    assert [event.ready_ns for event in step.events] == [190, 250]


def test_a_bucket_that_was_ready_earlier_queues_until_the_one_before_it_ends():
    (step,) = analyze_trace(ddp_step().build()).steps
    assert [event.queued_ns for event in step.events] == [0, 150]


def test_all_reduces_launched_by_ddps_hook_are_numbered_as_buckets():
    trace = ddp_step()
    trace.kernel(NCCL_ALL_REDUCE, 600, 610, at=550, stream=20, args=all_reduce_args(1))  # a metric, from the script
    trace.operator("autograd::engine::evaluate_function: SyncBatchNormBackward", 300, 330, thread="autograd")
    trace.kernel(NCCL_ALL_REDUCE, 510, 520, at=310, thread="autograd", stream=20, args=all_reduce_args(2))
    broadcast = CollectiveArgs(op="broadcast", in_elements=5, out_elements=5, dtype="Float")
    trace.kernel("ncclDevKernel_Broadcast_RING_LL(x)", 20, 30, at=10, stream=20, args=broadcast)
    (step,) = analyze_trace(trace.build()).steps
    assert [(event.op, event.elements, event.bucket) for event in step.events] == [
        ("broadcast", 5, None),
        ("allreduce", 10, 0),
        ("allreduce", 20, 1),
        ("allreduce", 2, None),
        ("allreduce", 1, None),
    ]


def test_buckets_are_numbered_anew_in_each_step():
    trace = TraceBuilder()
    for number in range(2):
        base = 1000 * number
        trace.step(number, base, base + 1000)
        for k in range(3):
            at = base + 100 * k
            trace.operator(ACCUMULATE, at, at + 20, thread="autograd")
            args = all_reduce_args(k + 1)
            trace.kernel(NCCL_ALL_REDUCE, at + 30, at + 60, at=at + 10, thread="autograd", stream=20, args=args)
    steps = analyze_trace(trace.build()).steps
    assert [[(event.bucket, event.elements) for event in step.events] for step in steps] == [
        [(0, 1), (1, 2), (2, 3)]
    ] * 2


def test_without_operators_all_reduces_of_another_thread_than_the_steps_are_buckets():
    trace = TraceBuilder()
    trace.step(1, 0, 1000)
    trace.kernel(NCCL_ALL_REDUCE, 100, 200, at=50, thread="autograd", stream=20, args=all_reduce_args(10))
    trace.kernel(NCCL_ALL_REDUCE, 300, 310, at=250, thread="main", stream=20, args=all_reduce_args(1))
    (step,) = analyze_trace(trace.build()).steps
    assert [event.bucket for event in step.events] == [0, None]


def test_ready_is_unknown_inside_a_cuda_graph_and_where_nothing_was_launched_before():
    trace = TraceBuilder()
    trace.step(1, 0, 1000)
    trace.kernel(NCCL_ALL_REDUCE, 10, 20, at=5, stream=20)
    trace.kernel("gemm", 30, 40, at=25)
    graph = trace.launch(50, name="cudaGraphLaunch")
    trace.kernel("gemm", 60, 80, correlation=graph)
    trace.kernel(NCCL_ALL_REDUCE, 80, 90, correlation=graph, stream=20)
    (step,) = analyze_trace(trace.build()).steps
    assert [(event.ready_ns, event.queued_ns) for event in step.events] == [(None, None)] * 2


def test_ready_is_unknown_where_the_work_before_it_ran_on():
    # the thread launched it on another stream, so it was not what the collective waited for
    trace = TraceBuilder()
    trace.step(1, 0, 1000)
    trace.kernel("copy", 20, 300, at=10, stream=9)
    trace.kernel(NCCL_ALL_REDUCE, 100, 200, at=50, stream=20)
    assert only_event(trace).ready_ns is None


def test_a_bucket_that_is_ready_after_the_one_before_it_ended_does_not_queue():
    trace = TraceBuilder()
    trace.step(1, 0, 1000)
    trace.kernel("gemm", 20, 90, at=10)
    trace.kernel(NCCL_ALL_REDUCE, 100, 200, at=50, stream=20)
    trace.kernel("gemm", 90, 300, at=60)
    trace.kernel(NCCL_ALL_REDUCE, 310, 400, at=70, stream=20)
    (step,) = analyze_trace(trace.build()).steps
    assert [(event.ready_ns, event.queued_ns) for event in step.events] == [(90, 0), (300, 0)]


# ---- gloo -----------------------------------------------------------------------------------------------------


def test_gloo_ranges_belong_to_the_step_that_called_them_in_the_order_of_the_queue():
    trace = TraceBuilder(backend="gloo")
    trace.step(1, 0, 100)
    trace.step(2, 100, 200)
    for at, elements in ((20, 8), (40, 16), (120, 8)):
        trace.operator(ACCUMULATE, at - 2, at + 6)
        trace.operator("c10d::allreduce_", at, at + 5, args=CollectiveArgs(in_elements=elements, dtype="TensorList"))
    run = CollectiveArgs(dtype="float")
    trace.annotation("gloo:all_reduce", 22, 60, thread="worker a", args=run)
    trace.annotation("gloo:all_reduce", 43, 150, thread="worker b", args=run)
    trace.annotation("gloo:all_reduce", 151, 170, thread="worker b", args=run)
    first, second = analyze_trace(trace.build()).steps
    assert [(e.bucket, e.bytes, e.ready_ns, e.start_ns, e.end_ns) for e in first.events] == [
        (0, 32, 20, 22, 60),
        (1, 64, 40, 43, 150),
    ]
    assert [(e.bucket, e.bytes, e.ready_ns, e.start_ns, e.queued_ns) for e in second.events] == [(0, 32, 20, 51, 30)]
    assert second.collectives == 1
    assert first.kernels == 0


def test_a_gloo_range_called_before_the_trace_began_is_paired_with_no_operator():
    trace = TraceBuilder(backend="gloo")
    trace.step(1, 10, 100)
    trace.annotation("gloo:all_reduce", 5, 30, thread="worker a")
    trace.operator("c10d::allreduce_", 20, 25)
    trace.annotation("gloo:all_reduce", 31, 50, thread="worker a")
    analysis = analyze_trace(trace.build())
    (event,) = analysis.steps[0].events
    assert event.ready_ns == 10  # the step began at 10, the call came at 20
    assert analysis.total.collectives == 2


def gloo_pairs(ranges, calls):
    """Start of each range and of the operator it was paired with."""
    trace = TraceBuilder(backend="gloo")
    trace.step(0, 0, 1000)
    for at in calls:
        trace.operator("c10d::allreduce_", at, at + 1)
    for start in ranges:
        trace.annotation("gloo:all_reduce", start, start + 10, thread=f"worker {start}")
    (step,) = analyze_trace(trace.build()).steps
    return [(event.start_ns, event.ready_ns) for event in step.events]


def test_with_more_gloo_ranges_than_operators_the_first_ranges_were_called_earlier():
    assert gloo_pairs([22, 23, 40], calls=[20, 22]) == [(22, None), (23, 20), (40, 22)]


def test_a_last_operator_whose_gloo_range_never_ended_is_left_over():
    assert gloo_pairs([30, 50], calls=[20, 40, 60]) == [(30, 20), (50, 40)]


def test_a_gloo_range_never_runs_before_its_call():
    assert gloo_pairs([5, 40], calls=[20, 60]) == [(5, None), (40, 20)]


def test_gloo_operations_are_paired_each_by_itself():
    trace = TraceBuilder(backend="gloo")
    trace.step(1, 0, 100)
    trace.operator("c10d::broadcast_", 10, 12)
    trace.operator("c10d::allreduce_", 20, 22)
    trace.annotation("gloo:all_reduce", 23, 40, thread="worker a")
    trace.annotation("gloo:broadcast", 24, 30, thread="worker b")
    (step,) = analyze_trace(trace.build()).steps
    assert [(event.op, event.ready_ns) for event in step.events] == [("allreduce", 20), ("broadcast", 10)]
