"""A trace as columns: what every reader of traces makes and every analysis reads. Holds no logic.

One row per event that has a duration and can matter: kernels, memcpy, memset, runtime calls, operators and
annotations. Python frames, flow arrows and counters are left out by the reader.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]


class Category(enum.IntEnum):
    """Kineto's `cat`, as far as it matters here. Older releases' spellings are mapped onto these by the reader."""

    KERNEL = 0  # "kernel"
    MEMCPY = 1  # "gpu_memcpy"
    MEMSET = 2  # "gpu_memset"
    RUNTIME = 3  # "cuda_runtime", "cuda_driver", "hip_runtime", ...: host calls that launch device work
    OPERATOR = 4  # "cpu_op"
    ANNOTATION = 5  # "user_annotation": ranges on the host, ProfilerStep#N and gloo's workers among them
    GPU_ANNOTATION = 6  # "gpu_user_annotation": the same ranges projected on the device; never steps


@dataclass(slots=True)
class CollectiveArgs:
    """What an event says of the collective it belongs to; None where it does not say it.

    From the args of NCCL kernels and of `record_param_comms` ("Collective name", "In msg nelems", "dtype",
    "Group size", "Process Group Name", "Process Group Ranks", "Seq"), or from an operator's "Input Dims"/"Input type".
    """

    op: str | None = None  # as written, for example "allreduce" or "_allgather_base"
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None  # as written, for example "Float" or "BFloat16"
    group: str | None = None
    group_size: int | None = None
    group_ranks: str | None = None
    sequence: int | None = None


@dataclass(slots=True)
class Events:
    """Columns of equal length n, in the file's order (which may be any order).

    Times are integer nanoseconds since the trace's own epoch; -1 marks an absent id.
    """

    start_ns: Int64s  # (n,)
    end_ns: Int64s  # (n,), >= start_ns
    name: Int32s  # (n,), index into Trace.names
    category: Int8s  # (n,), a Category
    track: Int32s  # (n,), index into Trace.tracks
    device: Int32s  # (n,), GPU ordinal, -1 on the host
    stream: Int64s  # (n,), stream id, -1 on the host
    correlation: Int64s  # (n,), joins a device event with the runtime call that launched it, -1
    external: Int64s  # (n,), joins events with the operator they came from, -1

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(slots=True)
class Track:
    """One row of the trace viewer: a host thread or a device stream."""

    pid: str
    tid: str
    name: str = ""  # thread name where the trace gives one


@dataclass(slots=True)
class Trace:
    """One rank's trace: its events and what its header says."""

    source: str  # the file, for messages
    events: Events
    names: list[str]
    tracks: list[Track]
    collective_args: dict[int, CollectiveArgs]  # row in events -> args, only where there are any
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None  # as distributedInfo writes it, in lower case
    host: str | None = None
    warnings: list[str] = field(default_factory=list)  # damage that was survived, one line each
