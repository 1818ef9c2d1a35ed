"""Made-up traces: spelled as kineto has spelled them over the years, and with a right answer that is known.

A timeline is laid out segment by segment, and what runs in a segment is chosen first. Each length that the analysis
must find is then a sum of segments, and no interval is ever compared with another.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from bucketlab.trace.columns import Category, CollectiveArgs, Trace
from tests.analysis.building import NCCL_ALL_REDUCE, TraceBuilder, all_reduce_args

# ---- spelling ---------------------------------------------------------------------------------------------------

NEW_CATEGORIES = {
    Category.KERNEL: "kernel",
    Category.MEMCPY: "gpu_memcpy",
    Category.MEMSET: "gpu_memset",
    Category.RUNTIME: "cuda_runtime",
    Category.OPERATOR: "cpu_op",
    Category.ANNOTATION: "user_annotation",
    Category.GPU_ANNOTATION: "gpu_user_annotation",
}
OLD_CATEGORIES = {
    **NEW_CATEGORIES,
    Category.KERNEL: "Kernel",
    Category.MEMCPY: "Memcpy",
    Category.MEMSET: "Memset",
    Category.RUNTIME: "Runtime",
    Category.OPERATOR: "Operator",
}


class Text(str):
    """JSON that goes into the document as it is: `json` has no way to write a number exactly."""


@dataclass(frozen=True)
class Spelling:
    """One of the ways in which the same trace may be written."""

    old: bool = False  # as torch 1.x: capitalised categories, "external id"
    times: str = "three decimals"
    ids_as_text: bool = False
    placed_by: str = "args"  # where device and stream of a kernel stand: "args" or "pid and tid"
    document: str = "header first"  # or "header last", "bare array"
    indent: str | None = None  # None is compact, with no space at all
    noise: bool = False  # flow arrows, counters, Python frames between the events


spellings = st.builds(
    Spelling,
    old=st.booleans(),
    times=st.sampled_from(["three decimals", "shortest", "exponent", "text"]),
    ids_as_text=st.booleans(),
    placed_by=st.sampled_from(["args", "pid and tid"]),
    document=st.sampled_from(["header first", "header last", "bare array"]),
    indent=st.sampled_from([None, "", "\n    "]),
    noise=st.booleans(),
)


def microseconds(ns: int, spelling: str = "three decimals") -> str:
    """A time as JSON."""
    sign, (whole, rest) = "-" if ns < 0 else "", divmod(abs(ns), 1000)
    exact = f"{sign}{whole}.{rest:03}"
    shortest = exact.rstrip("0").rstrip(".")
    return {"three decimals": exact, "shortest": shortest, "exponent": f"{ns}e-3", "text": f'"{exact}"'}[spelling]


def spelled(trace: Trace, spelling: Spelling | None = None) -> bytes:
    """The trace as a JSON document."""
    spelling = spelling or Spelling()
    events = ",".join(written(event, spelling.indent) for event in _dictionaries(trace, spelling))
    if spelling.document == "bare array":
        return f"[{events}]".encode()
    header = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": trace.backend, "rank": trace.rank, "world_size": trace.world_size},
        "deviceProperties": [{"id": 0, "name": 'a "device", {really}'}, {"id": 1, "name": "}],["}],
        "displayTimeUnit": "ms",
    }
    if trace.host is not None:
        header["host_name"] = trace.host
    members = [written(header, spelling.indent)[1:-1], f'"traceEvents": [{events}]']
    if spelling.document == "header last":
        members.reverse()
    return f"{{{','.join(members)}}}".encode()


def written(value: object, indent: str | None = None) -> str:
    """As `json.dumps`, with `Text` left as it is and each member behind `indent`."""
    if isinstance(value, Text):
        return str(value)
    space, colon = ("", ":") if indent is None else (indent or " ", ": ")
    if isinstance(value, dict):
        return f"{{{','.join(f'{space}{json.dumps(k)}{colon}{written(v, indent)}' for k, v in value.items())}{space}}}"
    if isinstance(value, list):
        return f"[{','.join(space + written(one, indent) for one in value)}]"
    return json.dumps(value)


def _dictionaries(trace: Trace, spelling: Spelling):
    for number, track in enumerate(trace.tracks):
        if track.name:
            yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": track.name}}
    for row in range(len(trace.events)):
        yield _dictionary(trace, row, spelling)
        if spelling.noise:
            yield from _noise(row)


def _dictionary(trace: Trace, row: int, spelling: Spelling) -> dict[str, object]:
    events = trace.events
    categories = OLD_CATEGORIES if spelling.old else NEW_CATEGORIES
    device, stream, start = int(events.device[row]), int(events.stream[row]), int(events.start_ns[row])
    args: dict[str, object] = {}
    pid, tid = 1, int(events.track[row])
    if device >= 0 and spelling.placed_by == "args":
        args |= {"device": device, "stream": stream}
    elif device >= 0:
        pid, tid = device, f"stream {stream}"
    for key, ids in (("correlation", events.correlation), ("External id", events.external)):
        if ids[row] >= 0:
            args[key.lower() if spelling.old else key] = str(ids[row]) if spelling.ids_as_text else int(ids[row])
    args |= _collective(trace.collective_args.get(row))
    return {
        "ph": "X",
        "cat": categories[Category(events.category[row])],
        "name": trace.names[events.name[row]],
        "pid": pid,
        "tid": tid,
        "ts": Text(microseconds(start, spelling.times)),
        "dur": Text(microseconds(int(events.end_ns[row]) - start, spelling.times)),
        "args": args,
    }


def _collective(args: CollectiveArgs | None) -> dict[str, object]:
    if args is None:
        return {}
    if args.op is None:
        return {"Input Dims": [[args.in_elements]], "Input type": [args.dtype]}
    named = {
        "Collective name": args.op,
        "In msg nelems": args.in_elements,
        "Out msg nelems": args.out_elements,
        "dtype": args.dtype,
        "Process Group Name": args.group,
        "Group size": args.group_size,
        "Process Group Ranks": args.group_ranks,
        "Seq": args.sequence,
    }
    return {key: value for key, value in named.items() if value is not None}


def _noise(row: int):
    yield {"ph": "f", "id": row, "pid": 1, "tid": 1, "ts": row, "cat": "ac2g", "name": "ac2g", "bp": "e"}
    yield {"ph": "X", "cat": "python_function", "name": 'f"{a},{b}": \\', "pid": 1, "tid": 1, "ts": row, "dur": 0}
    yield {"ph": "C", "name": "GPU memory", "pid": 0, "ts": row, "args": {"used": [{"a": 1}, {"b": 2}]}}


def save(path: Path, document: bytes, members: int = 1) -> Path:
    """As gzip where the name says so, in as many members."""
    if path.suffix != ".gz":
        path.write_bytes(document)
        return path
    size = len(document) // members + 1
    path.write_bytes(b"".join(gzip.compress(document[i : i + size], 1) for i in range(0, len(document), size)))
    return path


# ---- known answers ----------------------------------------------------------------------------------------------


@dataclass
class Job:
    """One rank's trace and what its analysis must say."""

    steps: list[Counter[str]]
    collectives: list[list[tuple[str, int, int, int]]]  # of each step: op, elements, overlap_ns, exposed_ns; sorted
    total: Counter[str] = field(default_factory=Counter)
    trace: Trace | None = None
    in_no_step: int = 0  # kernels


@dataclass
class Segment:
    """A stretch of a device's time: all that is on runs from its begin to its end."""

    ns: int
    on: frozenset[str]
    joined: frozenset[str] = frozenset()  # of these, what goes on from the segment before
    twins: frozenset[str] = frozenset()  # of these, what runs a second time on another stream


kinds = st.frozensets(st.sampled_from(["communication", "compute", "memory"]))
segments = st.lists(st.builds(Segment, ns=st.integers(0, 10**7), on=kinds, joined=kinds, twins=kinds), max_size=6)
epochs_ns = st.sampled_from([0, 1_790_857_026_123_456_789, -5_000])

_CATEGORY = {"communication": Category.KERNEL, "compute": Category.KERNEL, "memory": Category.MEMCPY}
_NAME = {"communication": NCCL_ALL_REDUCE, "compute": "gemm", "memory": "Memcpy HtoD (Pageable -> Device)"}
_STREAM = {"communication": 20, "compute": 7, "memory": 9}
_HOST_STEP_NS = 100_000


@st.composite
def gpu_jobs(draw) -> Job:
    """Up to two devices and three steps, and work that was launched in none before and after them."""
    trace, epoch = TraceBuilder(rank=draw(st.integers(0, 1))), draw(epochs_ns)
    count = draw(st.integers(1, 3))
    job = Job(
        trace=None, total=Counter(), steps=[Counter() for _ in range(count)], collectives=[[] for _ in range(count)]
    )
    for number in range(count):
        trace.step(number, epoch + number * _HOST_STEP_NS, epoch + (number + 1) * _HOST_STEP_NS)
    for device in range(draw(st.integers(1, 2))):
        at = epoch + draw(st.integers(0, 10**6))
        for owner in (None, *range(count), None):
            called = None if owner is None else epoch + owner * _HOST_STEP_NS + draw(st.integers(0, _HOST_STEP_NS - 1))
            at = _lay_out(draw(segments), trace, job, device, at, owner, called)
    job.trace = trace.build()
    for of_step in job.collectives:
        of_step.sort()
    return job


def _lay_out(parts: list[Segment], trace: TraceBuilder, job: Job, device: int, at: int, owner, called) -> int:
    """Puts segments on the device from `at` on and counts them; returns where they end."""
    sums = [job.total] if owner is None else [job.total, job.steps[owner]]
    running: dict[str, _Run] = {}
    for part in parts:
        for kind in running.keys() - (part.on & part.joined):
            _emit(running.pop(kind), trace, job, device, owner, called, sums)
        for kind in part.on - running.keys():
            running[kind] = _Run(kind, at, at)
        for run in running.values():
            run.end += part.ns
            run.overlap_ns += part.ns if "compute" in part.on else 0
        for kind in part.on & part.twins:
            twin = _Run(kind, at, at + part.ns, part.ns if "compute" in part.on else 0, stream=1)
            _emit(twin, trace, job, device, owner, called, sums)
        for sum_ in sums:
            _count(part, sum_)
        at += part.ns
    for run in running.values():
        _emit(run, trace, job, device, owner, called, sums)
    return at


@dataclass
class _Run:
    kind: str
    start: int
    end: int
    overlap_ns: int = 0
    stream: int = 0  # beyond the usual one


def _emit(run: _Run, trace: TraceBuilder, job: Job, device: int, owner, called, sums) -> None:
    communicates = run.kind == "communication"
    elements = 1000 + run.start % 1000
    trace.device_event(
        _CATEGORY[run.kind],
        _NAME[run.kind],
        run.start,
        run.end,
        called,
        device=device,
        stream=_STREAM[run.kind] + run.stream,
        args=all_reduce_args(elements) if communicates else None,
    )
    for sum_ in sums:
        sum_["kernels"] += run.kind != "memory"
        sum_["collectives"] += communicates
    if owner is None:
        job.in_no_step += run.kind != "memory"
    elif communicates:
        exposed_ns = run.end - run.start - run.overlap_ns
        job.collectives[owner].append(("allreduce", elements, run.overlap_ns, exposed_ns))


def _count(part: Segment, sums: Counter[str]) -> None:
    for kind in part.on:
        sums[f"{kind}_ns"] += part.ns
    sums["busy_ns"] += part.ns if part.on else 0
    if "communication" in part.on:
        sums["overlap_ns" if "compute" in part.on else "exposed_ns"] += part.ns


@st.composite
def cpu_jobs(draw) -> Job:
    """A job on gloo: operators on the thread that runs the steps, all-reduces on a worker thread."""
    trace, at = TraceBuilder(backend="gloo"), draw(epochs_ns)
    count = draw(st.integers(1, 3))
    job = Job(
        trace=None, total=Counter(), steps=[Counter() for _ in range(count)], collectives=[[] for _ in range(count)]
    )
    for number in range(count):
        begin = at
        for part in draw(segments):
            part.on -= {"memory"}
            if "compute" in part.on:
                trace.operator("aten::mm", at, at + part.ns)
            if "communication" in part.on:
                _all_reduce_on_worker(trace, at, part.ns)
                overlap_ns = part.ns if "compute" in part.on else 0
                job.collectives[number].append(("allreduce", part.ns + 1, overlap_ns, part.ns - overlap_ns))
            for sums in (job.total, job.steps[number]):
                _count(part, sums)
                sums["collectives"] += "communication" in part.on
            at += part.ns
        at += 10  # an operator that begins where a step ends would belong to the next
        trace.step(number, begin, at)
        job.collectives[number].sort()
    job.trace = trace.build()
    return job


def _all_reduce_on_worker(trace: TraceBuilder, at: int, ns: int) -> None:
    trace.operator("c10d::allreduce_", at, at)
    said = CollectiveArgs(in_elements=ns + 1, dtype="float")
    trace.annotation("gloo:all_reduce", at, at + ns, thread="gloo worker", args=said)
