"""What each collective of a trace is: operation, size, group, when its data was ready, which DDP bucket it carries.

Gathers what the trace says in several places; how much of it ran beside compute is measured in `bucketlab.analysis`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from bucketlab.trace import classify
from bucketlab.trace.columns import Category, CollectiveArgs, Int64s, Trace
from bucketlab.trace.intervals import Lanes
from bucketlab.trace.steps import NO_STEP, Steps

LARGEST_COUNT = 2**48  # elements, ranks or collectives
NEVER = int(np.iinfo(np.int64).min)  # stands for a time that the trace does not tell


@dataclass(slots=True)
class Description:
    """What is known of one collective; None where the trace does not say it. Sizes as nccl-tests counts them."""

    op: str
    elements: int | None = None
    size_bytes: int | None = None
    dtype: str | None = None
    group: str | None = None
    group_size: int | None = None
    sequence: int | None = None
    contradicted: bool = False  # the operator that launched the kernel cannot be what the kernel's name says


@dataclass(slots=True)
class Collectives:
    """Columns of equal length n, in order of start."""

    row: Int64s  # (n,), index into the trace's events
    start_ns: Int64s  # (n,)
    end_ns: Int64s  # (n,)
    step: Int64s  # (n,), NO_STEP where it was called in none
    queue: Int64s  # (n,), the stream or worker thread: collectives with the same number run one after another
    ready_ns: Int64s  # (n,), NEVER where unknown
    bucket: Int64s  # (n,), index within its step, -1 for what is no DDP bucket
    descriptions: list[Description]  # (n,)

    def __len__(self) -> int:
        return len(self.row)

    def queued_ns(self) -> Int64s:
        """How long each, once ready, had to wait for the one before it in its queue; NEVER where unknown."""
        queued = np.zeros(len(self), np.int64)
        order = np.lexsort((self.start_ns, self.queue))
        same = self.queue[order[1:]] == self.queue[order[:-1]]
        after, before = order[1:][same], order[:-1][same]
        freed = np.minimum(self.end_ns[before], self.start_ns[after])
        queued[after] = np.maximum(freed - self.ready_ns[after], 0)
        queued[self.ready_ns == NEVER] = NEVER
        return queued


class Host:
    """What the host's threads were doing at a time, for a chosen kind of range."""

    def __init__(self, trace: Trace, categories: Iterable[Category], pattern: re.Pattern[str]) -> None:
        events = trace.events
        chosen = classify.matching(trace.names, pattern)[events.name]
        chosen &= np.isin(events.category, [int(category) for category in categories])
        rows = np.flatnonzero(chosen)
        self.rows = rows[np.lexsort((events.start_ns[rows], events.track[rows]))]
        self._events = events

    def around(self, track: Int64s, times: Int64s) -> Int64s:
        """Of each time on a thread, the row of the range that was open there (the last begun), or -1.

        Ranges of one kind do not lie inside one another on a thread, but for wrappers of the same call.
        """
        found = np.full(len(times), -1, np.int64)
        events = self._events
        tracks = events.track[self.rows]
        for thread in np.flatnonzero(np.bincount(track[track >= 0])):
            rows = self.rows[np.searchsorted(tracks, thread) : np.searchsorted(tracks, thread, "right")]
            here = np.flatnonzero(track == thread)
            if not len(rows):
                continue
            at = np.searchsorted(events.start_ns[rows], times[here], side="right") - 1
            open_then = (at >= 0) & (times[here] <= events.end_ns[rows[at]])
            found[here] = np.where(open_then, rows[at], -1)
        return found


def kernel_collectives(
    trace: Trace, steps: Steps, rows: Int64s, launch: Int64s, step: Int64s, communicates: dict[int, str]
) -> Collectives:
    """Collectives that run as kernels.

    `rows` are all device events, `launch` the runtime calls that launched them (-1 unknown), `step` their steps;
    `communicates` maps the names of collective kernels to the operation the name tells.
    """
    events = trace.events
    names = np.fromiter(communicates, np.int64, len(communicates))
    collective = (events.category[rows] == Category.KERNEL) & np.isin(events.name[rows], names)
    which = np.flatnonzero(collective)
    which = which[np.argsort(events.start_ns[rows[which]], kind="stable")]
    ready = _ready_on_device(trace, rows, launch, collective)[which]
    row, launch, step = rows[which], launch[which], step[which]
    start = events.start_ns[row]
    descriptions = list(_describe_kernels(trace, row, launch, communicates))
    return Collectives(
        row=row,
        start_ns=start,
        end_ns=events.end_ns[row],
        step=step,
        queue=np.unique(events.track[row], return_inverse=True)[1].astype(np.int64),
        ready_ns=np.where(ready > start, NEVER, ready),
        bucket=_bucket_indices(trace, steps, launch, step, descriptions),
        descriptions=descriptions,
    )


def worker_collectives(trace: Trace, steps: Steps) -> Collectives:
    """Collectives that run on a CPU backend's worker threads: gloo's.

    A range belongs to the step of the c10d operator that put it into the queue, which is also when its data was ready.
    The queue is first in, first out: the k-th operator is the k-th range, counted for each operation by itself.
    """
    events = trace.events
    ranges = Host(trace, [Category.ANNOTATION], classify.WORKER_RANGE).rows
    ranges = ranges[np.argsort(events.start_ns[ranges], kind="stable")]
    call = _calls_of(trace, ranges)
    start = events.start_ns[ranges]
    called = np.where(call >= 0, events.start_ns[call], start)
    step = steps.at(called)
    world = trace.world_size
    descriptions = [
        _described(
            classify.operation_of(trace.names[events.name[row]]) or classify.UNKNOWN,
            [trace.collective_args.get(int(row)), trace.collective_args.get(int(op)) if op >= 0 else None],
            world,
        )
        for row, op in zip(ranges, call, strict=True)
    ]
    return Collectives(
        row=ranges,
        start_ns=start,
        end_ns=events.end_ns[ranges],
        step=step,
        queue=events.track[ranges].astype(np.int64),
        ready_ns=np.where(call >= 0, called, NEVER),
        bucket=_bucket_indices(trace, steps, call, step, descriptions),
        descriptions=descriptions,
    )


def _calls_of(trace: Trace, ranges: Int64s) -> Int64s:
    """Of each worker range, in order of start, the row of the operator that called it, or -1."""
    events = trace.events
    calls = Host(trace, [Category.OPERATOR], classify.COLLECTIVE_OPERATOR).rows
    calls = calls[np.argsort(events.start_ns[calls], kind="stable")]
    op_of_range = np.array([classify.operation_of(trace.names[i]) for i in events.name[ranges]], object)
    op_of_call = np.array([classify.operation_of(trace.names[i]) for i in events.name[calls]], object)
    found = np.full(len(ranges), -1, np.int64)
    for op in set(op_of_range):
        mine, theirs = np.flatnonzero(op_of_range == op), calls[op_of_call == op]
        skipped = _called_before_trace(events.start_ns[ranges[mine]], events.start_ns[theirs])
        paired = mine[skipped : skipped + len(theirs)]
        found[paired] = theirs[: len(paired)]
    return found


def _called_before_trace(ran: Int64s, called: Int64s) -> int:
    """How many of the first ranges were called before the trace began: the fewest for which none precedes its call."""

    def possible(skipped: int) -> bool:
        pairs = min(len(ran) - skipped, len(called))
        return bool((ran[skipped : skipped + pairs] >= called[:pairs]).all())

    fewest = max(0, len(ran) - len(called))
    return fewest + bisect_left(range(fewest, len(ran)), True, key=possible)


def _ready_on_device(trace: Trace, rows: Int64s, launch: Int64s, collective: np.ndarray) -> Int64s:
    """Of each device event that is a collective, when its data was there; NEVER elsewhere and where unknown.

    The communication's stream is made to wait for what the launching thread has put on the device so far, so that is
    the end of the last other work which the same thread launched before it.
    """
    events = trace.events
    ready = np.full(len(rows), NEVER, np.int64)
    known = launch >= 0
    ask, work = np.flatnonzero(known & collective), np.flatnonzero(known & ~collective)
    if not len(ask) or not len(work):
        return ready
    thread = events.track[launch].astype(np.int64)
    time = events.start_ns[launch]
    lanes = Lanes(time[known], time[known], thread[known], len(trace.tracks))
    work_at = lanes.place(time[work], thread[work])
    order = np.lexsort((events.end_ns[rows[work]], work_at))
    work, work_at = work[order], work_at[order]
    ask_at = lanes.place(time[ask], thread[ask])
    before = np.searchsorted(work_at, ask_at) - 1
    same_thread = (before >= 0) & (thread[work[before]] == thread[ask])
    in_a_graph = np.searchsorted(work_at, ask_at, side="right") - 1 > before
    ready[ask] = np.where(same_thread & ~in_a_graph, events.end_ns[rows[work[before]]], NEVER)
    return ready


def _bucket_indices(trace: Trace, steps: Steps, call: Int64s, step: Int64s, descriptions: list[Description]) -> Int64s:
    """Numbers the all-reduces that DDP's hook launched, in order of their call within each step; -1 for the others.

    DDP launches a bucket from the hook of its last gradient, so inside the autograd engine's AccumulateGrad. An
    all-reduce of another kind of node (SyncBatchNorm's, say) is none. In a trace without operators the best sign
    is that another thread than the step's launched it. `call` are rows of host events, -1 unknown.
    """
    events = trace.events
    index = np.full(len(call), -1, np.int64)
    reduces = np.array([d.op == "allreduce" for d in descriptions], bool)
    candidates = np.flatnonzero(reduces & (call >= 0) & (step != NO_STEP))
    if not len(candidates):
        return index
    hooks = Host(trace, [Category.OPERATOR], classify.BUCKET_READY)
    thread = events.track[call[candidates]].astype(np.int64)
    if len(hooks.rows):
        from_hook = hooks.around(thread, events.start_ns[call[candidates]]) >= 0
    else:
        own = steps.track[step[candidates]]
        from_hook = (own >= 0) & (thread != own)
    buckets = candidates[from_hook]
    buckets = buckets[np.lexsort((events.start_ns[call[buckets]], step[buckets]))]
    first_of_step = np.searchsorted(step[buckets], step[buckets])
    index[buckets] = np.arange(len(buckets)) - first_of_step
    return index


def _describe_kernels(trace: Trace, row: Int64s, launch: Int64s, communicates: dict[int, str]) -> Iterator[Description]:
    """From the kernel's args, else from `record_param_comms`, else from the ranges around its launch."""
    events, args = trace.events, trace.collective_args
    records = {
        int(events.external[i]): said
        for i, said in args.items()
        if said.op is not None and events.category[i] == Category.OPERATOR and events.external[i] >= 0
    }
    thread = np.where(launch >= 0, events.track[launch], -1).astype(np.int64)
    time = events.start_ns[launch]
    launched = Host(trace, [Category.ANNOTATION, Category.OPERATOR], classify.LAUNCH_RANGE).around(thread, time)
    operator = Host(trace, [Category.OPERATOR], classify.COLLECTIVE_OPERATOR).around(thread, time)
    for k, i in enumerate(row.tolist()):
        said = [args.get(i), records.get(int(events.external[i]))]
        around = [int(where[k]) for where in (launched, operator) if where[k] >= 0]
        told = next((op for s in said if s and s.op and (op := classify.operation_of(s.op))), None)
        named = communicates[int(events.name[i])]
        called = next((op for j in around if (op := classify.operation_of(trace.names[events.name[j]]))), None)
        if told is None and called is not None and not _may_be(named, called):
            yield replace(_described(named, said, trace.world_size), contradicted=True)
            continue
        said += [args.get(j) for j in around]
        yield _described(told or called or named, said, trace.world_size)


def _may_be(named: str, called: str) -> bool:
    """Whether a kernel of that name can be how the called operation runs. NCCL sends and receives for several."""
    if named in (classify.UNKNOWN, called):
        return True
    return named == "sendrecv" and called in ("alltoall", "gather", "scatter")


def _described(op: str, said: Iterable[CollectiveArgs | None], world_size: int | None) -> Description:
    """Each field from the first that says it; a collective that names no group is taken to be the whole job's."""
    merged = CollectiveArgs()
    for source in said:
        if source is None:
            continue
        for field in CollectiveArgs.__slots__:
            value = getattr(source, field)
            if value is not None and getattr(merged, field) is None and _is_plausible(value):
                setattr(merged, field, value)
    group_size = merged.group_size or (world_size if merged.group is None else None)
    elements = _elements(op, merged.in_elements, merged.out_elements, group_size)
    dtype, item_bytes = classify.dtype_of(merged.dtype) if merged.dtype else (None, None)
    return Description(
        op=op,
        elements=elements,
        size_bytes=None if elements is None or item_bytes is None else elements * item_bytes,
        dtype=dtype,
        group=_group_label(merged, group_size, world_size),
        group_size=group_size,
        sequence=merged.sequence,
    )


def _is_plausible(value: object) -> bool:
    """A damaged trace may hold any number; those that no computer has are as good as not told."""
    return 0 <= value < LARGEST_COUNT if isinstance(value, int) else value not in classify.NO_DTYPES


def _elements(op: str, given: int | None, returned: int | None, ranks: int | None) -> int | None:
    """The size as nccl-tests counts it, in elements: of gathering and scattering, what all ranks hold together."""
    if given is None or returned is None:
        one = given if returned is None else returned
        if one is None or op not in ("allgather", "gather"):
            return one
        return one * ranks if ranks is not None and returned is None else returned
    return max(given, returned)


def _group_label(args: CollectiveArgs, group_size: int | None, world_size: int | None) -> str | None:
    """A name that is the same on all ranks of the group and on no others: groups of one name exist side by side."""
    if args.group is None or group_size == world_size:
        return args.group
    members = re.findall(r"\d+", args.group_ranks or "")
    return f"{args.group}[{members[0]}..{members[-1]}]" if members else args.group
