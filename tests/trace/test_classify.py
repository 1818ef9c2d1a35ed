"""Which names are collectives, and what their figures are by definition."""

from __future__ import annotations

import pytest

from bucketlab.errors import BadInput
from bucketlab.trace import classify
from bucketlab.trace.classify import BUILT_IN, Rules


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "allreduce"),  # NCCL 2.4
        ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "broadcast"),
        ("ncclSendRecvKernel_copy_i8(ncclColl)", "sendrecv"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "allreduce"),  # 2.17
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "allgather"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allreduce"),  # 2.20
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reducescatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "sendrecv"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32(ncclSymkDevWorkArgs4K)", "allreduce"),  # 2.27
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "unknown"),  # RCCL
        ("ncclDevKernelDebug_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "unknown"),
        ("void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>(float*)", "allreduce"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16>(int)", "allreduce"),
        ("void c10d::oneShotAllReduceKernel<4, false>(unsigned long)", "allreduce"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)", "reducescatter"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_ag<8>(int, int)", "allgather"),
        ("kuserbuffers_pushsend(int*, int*)", "sendrecv"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "allreduce"),
        ("_Z49ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", "allreduce"),
    ],
)
def test_kernels_that_communicate_are_known_in_all_their_spellings(name, op):
    assert BUILT_IN.operation(name) == op


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(float)",
        "my_nccl_buffer_Kernel_fill(int)",
        "triton_poi_fused_all_reduce_add_0",
        "void at::native::_scatter_gather_elementwise_kernel<128>(int)",
        "memcpy_nccl",
    ],
)
def test_other_kernels_are_compute(name):
    assert BUILT_IN.operation(name) is None


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("c10d::allreduce_", "allreduce"),
        ("nccl:all_reduce", "allreduce"),
        ("gloo:all_reduce", "allreduce"),
        ("_allgather_base", "allgather"),
        ("c10d::_reduce_scatter_base_", "reducescatter"),
        ("reduce_scatter_tensor_coalesced", "reducescatter"),
        ("all_to_allv", "alltoall"),
        ("c10d::alltoall_base_", "alltoall"),
        ("broadcast", "broadcast"),
        ("_reduce_oop", "reduce"),
        ("c10d::send", "sendrecv"),
        ("gather", "gather"),
        ("wait", None),
        ("coalesced", None),
    ],
)
def test_operations_are_read_from_operators_annotations_and_args(name, op):
    assert classify.operation_of(name) == op


@pytest.mark.parametrize(
    ("spelling", "dtype"),
    [
        ("Float", ("float32", 4)),
        ("BFloat16", ("bfloat16", 2)),
        ("c10::BFloat16", ("bfloat16", 2)),
        ("long int", ("int64", 8)),
        ("unsigned char", ("uint8", 1)),
        ("Bool", ("bool", 1)),
        ("Mystery", ("Mystery", None)),
    ],
)
def test_dtypes_have_torchs_names(spelling, dtype):
    assert classify.dtype_of(spelling) == dtype


def test_a_user_adds_kernels_of_his_own(tmp_path):
    file = tmp_path / "rules.toml"
    file.write_text('[kernels]\n"^my_ring_\\\\w+" = "allreduce"\n')
    rules = Rules.from_toml(file)
    assert BUILT_IN.operation("my_ring_reduce(int)") is None
    assert rules.operation("my_ring_reduce(int)") == "allreduce"
    assert rules.operation("ncclDevKernel_AllGather_RING_LL(int)") == "allgather"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kernels = 3", "kernels"),
        ('[kernels]\n"a" = "sum"', '"sum": want one of allreduce'),
        ('[kernels]\n"(" = "allreduce"', "no regular expression"),
        ('[other]\n"a" = "allreduce"', "want a table"),
        ("[kernels", "want a table"),
        (None, "want a table"),
    ],
)
def test_rules_that_cannot_be_used_are_refused_in_one_line(tmp_path, text, problem):
    file = tmp_path / "rules.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadInput) as refusal:
        Rules.from_toml(file)
    message = str(refusal.value)
    assert problem in message
    assert str(file) in message
    assert "\n" not in message
