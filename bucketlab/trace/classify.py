"""Which names mean communication, which operation they carry, how large elements are: tables, and look-ups in them.

What counts as a collective is decided here and nowhere else. Users add their own kernels with `Rules.from_toml`:

    [kernels]                            # pattern (regular expression, anywhere in the kernel's name) -> operation
    "my_fused_allreduce_[a-z]+" = "allreduce"
    "vendor_comm_kernel" = "unknown"

Only names of kernels are held against the kernel patterns; a Python function, an operator or a runtime call with nccl
in its name is never asked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bucketlab.errors import BadInput

UNKNOWN = "unknown"

OPERATIONS = (
    "allreduce",
    "reducescatter",
    "allgather",
    "alltoall",
    "broadcast",
    "sendrecv",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    UNKNOWN,
)
"""All values that an event's `op` takes: nccl-tests' names in lower case, barrier, and unknown."""

SYNCHRONISING = frozenset({"allreduce", "reducescatter", "allgather", "alltoall", "barrier"})
"""Operations that no rank can finish before the last one has begun."""

_SPELLINGS = (
    # Looked for in this order in a name without its underscores: "reduce" is part of two others, "gather" of one.
    ("reducescatter", "reducescatter"),
    ("allreduce", "allreduce"),
    ("allgather", "allgather"),
    ("alltoall", "alltoall"),
    ("all2all", "alltoall"),
    ("broadcast", "broadcast"),
    ("sendrecv", "sendrecv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("barrier", "barrier"),
    ("send", "sendrecv"),
    ("recv", "sendrecv"),
)

_WORD = r"(?<![A-Za-z_])"  # keeps "my_nccl_buffer_fill" out, and lets a mangled "_Z31ncclDevKernel_..." in

_KERNELS = tuple(
    (_WORD + pattern, op)
    for pattern, op in (
        # NCCL up to 2.8: ncclAllReduceRingLLKernel_sum_f32; to 2.17: ncclKernel_AllReduce_RING_LL_Sum_float; from
        # 2.18: ncclDevKernel_AllReduce_Sum_f32_RING_LL; symmetric memory, from 2.27: ncclSymkDevKernel_AllReduce_...;
        # RCCL: ncclDevKernel_Generic, ncclDevKernelDebug_Generic_4
        (r"[nr]ccl\w*Kernel", None),
        (r"msccl(pp)?\w*Kernel", None),  # Microsoft's algorithms inside NCCL and RCCL
        # torch.distributed._symmetric_memory, and the older communicator inside a node
        (r"(multimem_)?(one_shot_|two_shot_)?all_reduce_kernel", "allreduce"),
        (r"(oneShot|twoShot|hybridCubeMesh)AllReduceKernel", "allreduce"),
        (r"(multimem_)?all_gather_kernel", "allgather"),
        (r"(multimem_)?reduce_scatter_kernel", "reducescatter"),
        (r"nvshmem\w*_kernel", None),
        # Transformer Engine's user buffers: ..._rr_rs_oop, ..._rr_ag, kuserbuffers_pushsend
        (r"k?userbuffers_\w*_rs(?![a-z])", "reducescatter"),
        (r"k?userbuffers_\w*_ag(?![a-z])", "allgather"),
        (r"k?userbuffers_\w*(send|recv)", "sendrecv"),
        (r"k?userbuffers_", "allreduce"),
        (r"cross_device_reduce_[12]stage", "allreduce"),  # vLLM and SGLang
        (r"allreduce_fusion_kernel", "allreduce"),  # FlashInfer
    )
)

WORKER_RANGE = re.compile(r"^(gloo|ucc|mpi):")
"""Annotations that span a collective's run on a worker thread of a CPU backend: "gloo:all_reduce"."""

COLLECTIVE_OPERATOR = re.compile(r"^c10d::")
"""Operators that call a collective: "c10d::allreduce_"."""

LAUNCH_RANGE = re.compile(r"^(nccl|rccl|xccl):")
"""Annotations around the launch of a collective kernel: "nccl:all_reduce"."""

NO_COMPUTE = re.compile(r"^(c10d|_?c10d_functional|_c10d_functional_autograd)::|^record_param_comms$")
"""Operators of the host that only call or await communication."""

BUCKET_READY = re.compile(r"^autograd::engine::evaluate_function: .*AccumulateGrad")
"""The operator inside which DDP's hook launches a bucket's all-reduce: a gradient has just been accumulated."""

BACKWARD = re.compile(r"^autograd::engine::evaluate_function: ")

STEP = re.compile(r"^ProfilerStep#\d+$|^ProfilerStep\*$")

INPUT_WAIT = re.compile(r"^enumerate\(DataLoader\)#")

_DTYPES = {
    # torch's name -> bytes, other spellings: the C++ scalar types of kernel args, the type names of "Input type"
    "float64": (8, ("double",)),
    "float32": (4, ("float",)),
    "float16": (2, ("half", "c10::half")),
    "bfloat16": (2, ("c10::bfloat16",)),
    "float8_e4m3fn": (1, ("c10::float8_e4m3fn",)),
    "float8_e5m2": (1, ("c10::float8_e5m2",)),
    "float8_e4m3fnuz": (1, ("c10::float8_e4m3fnuz",)),
    "float8_e5m2fnuz": (1, ("c10::float8_e5m2fnuz",)),
    "int64": (8, ("long", "long int", "long long")),
    "int32": (4, ("int",)),
    "int16": (2, ("short", "short int")),
    "int8": (1, ("char", "signed char")),
    "uint8": (1, ("byte", "unsigned char")),
    "bool": (1, ()),
    "complex64": (8, ("complexfloat", "c10::complex<float>")),
    "complex128": (16, ("complexdouble", "c10::complex<double>")),
}
NO_DTYPES = frozenset({"", "TensorList", "GenericList", "Scalar", "ScalarList"})
"""What "Input type" says of an argument that is no tensor."""

_DTYPE_OF = {spelling: name for name, (_, others) in _DTYPES.items() for spelling in (name, *others)}


@dataclass(frozen=True)
class Rules:
    """Which kernels are collectives: (pattern, operation), the first match holds; None reads it from the name."""

    kernels: tuple[tuple[re.Pattern[str], str | None], ...]

    @classmethod
    def from_toml(cls, path: Path) -> Rules:
        """The built-in rules with a user's own before them. Raises BadInput that names the file and the entry."""
        try:
            rules = msgspec.toml.decode(path.read_bytes(), type=_RulesFile)
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise BadInput(f"{path}: {error}; want a table [kernels] of pattern = operation") from None
        return cls(tuple(_user_rule(path, *entry) for entry in rules.kernels.items()) + BUILT_IN.kernels)

    def operation(self, kernel: str) -> str | None:
        """The operation that a kernel's name tells, "unknown" for a collective that it does not, None for compute."""
        for pattern, op in self.kernels:
            if pattern.search(kernel):
                return op or operation_of(kernel.partition("(")[0]) or UNKNOWN
        return None


class _RulesFile(msgspec.Struct, forbid_unknown_fields=True):
    kernels: dict[str, str]


def _user_rule(path: Path, pattern: str, op: str) -> tuple[re.Pattern[str], str]:
    if op not in OPERATIONS:
        raise BadInput(f'{path}: "{pattern}" = "{op}": want one of {", ".join(OPERATIONS)}')
    try:
        return re.compile(pattern), op
    except re.error as error:
        raise BadInput(f'{path}: "{pattern}" is no regular expression: {error}') from None


BUILT_IN = Rules(tuple((re.compile(pattern), op) for pattern, op in _KERNELS))


@functools.cache
def operation_of(name: str) -> str | None:
    """The operation in "c10d::_allgather_base_", "nccl:all_reduce", "reduce_scatter_tensor_coalesced", ...; or None."""
    plain = name.replace("_", "").lower()
    return next((op for spelling, op in _SPELLINGS if spelling in plain), None)


@functools.cache
def dtype_of(spelling: str) -> tuple[str, int | None]:
    """torch's name of an element type, and its bytes: ("float32", 4); the spelling itself and None where unknown."""
    name = _DTYPE_OF.get(spelling.lower())
    return (name, _DTYPES[name][0]) if name else (spelling, None)


def matching(names: Sequence[str], pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Of each name, whether the pattern is found in it; shape (len(names),)."""
    return np.fromiter((pattern.search(name) is not None for name in names), bool, len(names))


def kernel_operations(names: Sequence[str], used: Iterable[int], rules: Rules = BUILT_IN) -> dict[int, str]:
    """Of the names used by kernels (indices into `names`), those that are collectives and their operation."""
    found = ((index, rules.operation(names[index])) for index in used)
    return {index: op for index, op in found if op is not None}
