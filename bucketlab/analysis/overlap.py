"""One rank's trace -> its exact figures: how much communication ran beside compute, in all, per step, per collective.

The definitions are the README's; nothing here compares ranks (see `ranks`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bucketlab.errors import BadInput
from bucketlab.link.bandwidth import bus_gb_s
from bucketlab.schema.analysis import CollectiveEvent, RankAnalysis, StepAnalysis, Totals
from bucketlab.trace import classify
from bucketlab.trace.collectives import NEVER, Collectives, kernel_collectives, worker_collectives
from bucketlab.trace.columns import Category, Int8s, Int64s, Trace
from bucketlab.trace.intervals import (
    Lanes,
    Union,
    difference,
    intersection,
    overlap_of_each,
    union,
)
from bucketlab.trace.steps import NO_STEP, Steps, find_steps, launches

COMMUNICATION, COMPUTE, MEMORY = range(3)


@dataclass(slots=True)
class _Work:
    """What ran, in columns of equal length n: of each piece its kind, its device (numbered from 0) and its step."""

    start_ns: Int64s
    end_ns: Int64s
    kind: Int8s
    device: Int64s
    step: Int64s
    devices: int

    def inside_steps(self) -> _Work:
        inside = self.step != NO_STEP
        return _Work(
            self.start_ns[inside],
            self.end_ns[inside],
            self.kind[inside],
            self.device[inside],
            self.step[inside],
            self.devices,
        )


@dataclass(slots=True)
class _Found:
    """A trace's work, the collectives in it with the device of each, and the step of each kernel."""

    work: _Work
    collectives: Collectives
    collective_device: Int64s
    kernel_steps: Int64s


@dataclass(slots=True)
class _Measured:
    """The lengths of `Totals` that are unions, one value per group; each of shape (groups,)."""

    lanes: Lanes  # the axis on which the groups lie
    compute: Union  # on that axis

    communication_ns: Int64s
    compute_ns: Int64s
    memory_ns: Int64s
    overlap_ns: Int64s
    busy_ns: Int64s


def analyze_trace(trace: Trace, rules: classify.Rules = classify.BUILT_IN) -> RankAnalysis:
    """Everything that one rank's trace tells by itself. Raises BadInput where its times cannot be real."""
    try:
        return _analysis(trace, rules)
    except OverflowError as error:
        raise BadInput(f"{trace.source}: {error}: its times cannot be real") from None


def _analysis(trace: Trace, rules: classify.Rules) -> RankAnalysis:
    steps = find_steps(trace)
    device_rows = np.flatnonzero(np.isin(trace.events.category, (Category.KERNEL, Category.MEMCPY, Category.MEMSET)))
    found = _on_devices(trace, steps, device_rows, rules) if len(device_rows) else _on_cpu(trace, steps)
    return RankAnalysis(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        backend=trace.backend,
        host=trace.host,
        total=_total(found),
        steps=_steps(trace, steps, found),
        unattributed_kernels=int((found.kernel_steps == NO_STEP).sum()),
        warnings=trace.warnings + _warnings(trace, found),
    )


def _on_devices(trace: Trace, steps: Steps, rows: Int64s, rules: classify.Rules) -> _Found:
    """`rows` are all kernels, memcpys and memsets."""
    events = trace.events
    launch = launches(events, rows)
    if steps.are_windows:
        step = np.where(launch >= 0, steps.at(events.start_ns[launch]), NO_STEP)
    else:
        step = np.zeros(len(rows), np.int64)
    kernels = events.category[rows] == Category.KERNEL
    names = np.flatnonzero(np.bincount(events.name[rows[kernels]])).tolist()  # np.unique would load numpy.ma
    communicates = classify.kernel_operations(trace.names, names, rules)
    collectives = kernel_collectives(trace, steps, rows, launch, step, communicates)
    kind = np.where(kernels, COMPUTE, MEMORY).astype(np.int8)
    collective = np.searchsorted(rows, collectives.row)
    kind[collective] = COMMUNICATION
    ordinals, device = np.unique(events.device[rows], return_inverse=True)
    work = _Work(events.start_ns[rows], events.end_ns[rows], kind, device, step, len(ordinals))
    if not len(collectives):
        # gloo moves the tensors of GPUs too
        return _with_workers(work, worker_collectives(trace, steps), step[kernels])
    return _Found(work, collectives, device[collective], step[kernels])


def _on_cpu(trace: Trace, steps: Steps) -> _Found:
    pieces, step = _host_compute(trace, steps)
    device = np.zeros(len(step), np.int64)
    kind = np.full(len(step), COMPUTE, np.int8)
    work = _Work(pieces.start, pieces.end, kind, device, step, devices=1)
    return _with_workers(work, worker_collectives(trace, steps), kernel_steps=np.zeros(0, np.int64))


def _with_workers(work: _Work, collectives: Collectives, kernel_steps: Int64s) -> _Found:
    """Collectives of worker threads beside the work of the first device, or of the CPU."""
    count = len(collectives)
    device = np.zeros(count, np.int64)
    both = _Work(
        np.concatenate((work.start_ns, collectives.start_ns)),
        np.concatenate((work.end_ns, collectives.end_ns)),
        np.concatenate((work.kind, np.full(count, COMMUNICATION, np.int8))),
        np.concatenate((work.device, device)),
        np.concatenate((work.step, collectives.step)),
        work.devices,
    )
    return _Found(both, collectives, device, kernel_steps)


def _host_compute(trace: Trace, steps: Steps) -> tuple[Union, Int64s]:
    """Time in operators on the threads of the forward and backward pass, calls and waits of collectives cut out.

    Also the step of each piece. An operator belongs to the step in which it began.
    """
    events = trace.events
    rows = np.flatnonzero(events.category == Category.OPERATOR)
    rows = rows[np.isin(events.track[rows], _computing_threads(trace, steps, rows))]
    start, end = events.start_ns[rows], events.end_ns[rows]
    lane = (steps.at(start) + 1) * len(trace.tracks) + events.track[rows]
    lanes = Lanes(start, end, lane, (len(steps.names) + 1) * len(trace.tracks))
    start, end = lanes.place(start, lane), lanes.place(end, lane)
    waits = classify.matching(trace.names, classify.NO_COMPUTE)[events.name[rows]]
    computing = difference(union(start[~waits], end[~waits]), union(start[waits], end[waits]))
    pieces, lane = lanes.back(computing)
    return pieces, lane // len(trace.tracks) - 1


def _computing_threads(trace: Trace, steps: Steps, operators: Int64s) -> Int64s:
    """Threads that run steps or autograd; where no thread is known to, all that run operators."""
    events = trace.events
    backward = classify.matching(trace.names, classify.BACKWARD)[events.name[operators]]
    threads = np.union1d(steps.track[steps.track >= 0], events.track[operators[backward]])
    return threads if len(threads) else np.flatnonzero(np.bincount(events.track[operators]))


def _measure(work: _Work, group: Int64s, count: int) -> _Measured:
    """Unions within each of `count` groups; `group` gives each piece's, shape (n,)."""
    lanes = Lanes(work.start_ns, work.end_ns, group, count)
    start = lanes.place(work.start_ns, group)
    order = np.argsort(start, kind="stable")
    start, end, kind = start[order], lanes.place(work.end_ns, group)[order], work.kind[order]
    communication, compute, memory = (union(start[kind == k], end[kind == k]) for k in (COMMUNICATION, COMPUTE, MEMORY))
    return _Measured(
        lanes=lanes,
        compute=compute,
        communication_ns=lanes.lengths(communication),
        compute_ns=lanes.lengths(compute),
        memory_ns=lanes.lengths(memory),
        overlap_ns=lanes.lengths(intersection(communication, compute)),
        busy_ns=lanes.lengths(union(start, end)),
    )


def _total(found: _Found) -> Totals:
    work = found.work
    measured = _measure(work, work.device, work.devices)
    communication, overlap = int(measured.communication_ns.sum()), int(measured.overlap_ns.sum())
    return Totals(
        communication_ns=communication,
        compute_ns=int(measured.compute_ns.sum()),
        memory_ns=int(measured.memory_ns.sum()),
        overlap_ns=overlap,
        exposed_ns=communication - overlap,
        busy_ns=int(measured.busy_ns.sum()),
        kernels=len(found.kernel_steps),
        collectives=len(found.collectives),
    )


def _steps(trace: Trace, steps: Steps, found: _Found) -> list[StepAnalysis]:
    """The figures of all steps. Those of a step with several devices are summed over them."""
    count, devices = len(steps.names), found.work.devices
    own = found.work.inside_steps()
    measured = _measure(own, own.step * devices + own.device, count * devices)

    def per_step(lengths: Int64s) -> list[int]:
        return lengths.reshape(count, devices).sum(axis=1).tolist()  # type: ignore[no-any-return]

    communication, overlap = per_step(measured.communication_ns), per_step(measured.overlap_ns)
    compute, memory, busy = (
        per_step(lengths) for lengths in (measured.compute_ns, measured.memory_ns, measured.busy_ns)
    )
    kernels = np.bincount(found.kernel_steps[found.kernel_steps != NO_STEP], minlength=count).tolist()
    start, wall = steps.start_ns.tolist(), (steps.end_ns - steps.start_ns).tolist()
    idle, waiting = _idle(found.work, steps).tolist(), _input(trace, steps).tolist()
    events = _collective_events(found, steps, measured)
    return [
        StepAnalysis(
            name=name,
            start_ns=start[i],
            wall_ns=wall[i],
            communication_ns=communication[i],
            compute_ns=compute[i],
            memory_ns=memory[i],
            overlap_ns=overlap[i],
            exposed_ns=communication[i] - overlap[i],
            busy_ns=busy[i],
            kernels=kernels[i],
            collectives=len(events[i]),
            idle_ns=idle[i],
            input_ns=waiting[i],
            events=events[i],
        )
        for i, name in enumerate(steps.names)
    ]


def _idle(work: _Work, steps: Steps) -> Int64s:
    """Of each step, the part of its range on the host in which no device ran anything, whoever launched it."""
    busy = union(work.start_ns, work.end_ns)
    return steps.end_ns - steps.start_ns - overlap_of_each(steps.start_ns, steps.end_ns, busy)


def _input(trace: Trace, steps: Steps) -> Int64s:
    """Of each step, the time in a DataLoader's `__next__` on a thread that runs steps; another's delays nobody."""
    events = trace.events
    waits = classify.matching(trace.names, classify.INPUT_WAIT)[events.name]
    rows = np.flatnonzero(waits & (events.category == Category.ANNOTATION))
    if steps.are_windows:
        rows = rows[np.isin(events.track[rows], steps.track)]
    waiting = union(events.start_ns[rows], events.end_ns[rows])
    return overlap_of_each(steps.start_ns, steps.end_ns, waiting)


def _collective_events(found: _Found, steps: Steps, measured: _Measured) -> list[list[CollectiveEvent]]:
    """Of each step its collectives in order of start, each measured against its own step's compute on its device."""
    listed: list[list[CollectiveEvent]] = [[] for _ in steps.names]
    collectives = found.collectives
    members = np.flatnonzero(collectives.step != NO_STEP)
    step, start, end = (column[members] for column in (collectives.step, collectives.start_ns, collectives.end_ns))
    lane = step * found.work.devices + found.collective_device[members]
    overlap = overlap_of_each(measured.lanes.place(start, lane), measured.lanes.place(end, lane), measured.compute)
    begin = steps.start_ns[step]
    ready, queued = collectives.ready_ns[members], collectives.queued_ns()[members]
    columns = (step, start - begin, end - begin, overlap, ready == NEVER, ready - begin, queued)
    for member, values in zip(members.tolist(), zip(*(c.tolist() for c in columns), strict=True), strict=True):
        in_step, start_ns, end_ns, overlap_ns, unready, ready_ns, queued_ns = values
        what, bucket = collectives.descriptions[member], int(collectives.bucket[member])
        listed[in_step].append(
            CollectiveEvent(
                op=what.op,
                elements=what.elements,
                bytes=what.size_bytes,
                dtype=what.dtype,
                group=what.group,
                group_size=what.group_size,
                sequence=what.sequence,
                bucket=None if bucket < 0 else bucket,
                ready_ns=None if unready else ready_ns,
                start_ns=start_ns,
                end_ns=end_ns,
                overlap_ns=overlap_ns,
                exposed_ns=end_ns - start_ns - overlap_ns,
                bus_gb_s=bus_gb_s(what.op, what.size_bytes, what.group_size, end_ns - start_ns),
                queued_ns=None if unready else queued_ns,
            )
        )
    return listed


def _warnings(trace: Trace, found: _Found) -> list[str]:
    """What a reader of the figures must know about this trace."""
    collectives = found.collectives
    on_device = len(found.kernel_steps)
    warnings = []
    if not on_device and trace.backend in ("nccl", "rccl"):
        warnings.append(
            f"{trace.source}: {trace.backend} ran on a GPU, but the trace has no kernels: "
            "profile with ProfilerActivity.CUDA"
        )
    outside = int((collectives.step == NO_STEP).sum())
    if outside:
        warnings.append(
            f"{trace.source}: {outside} of {len(collectives)} collectives were launched in no step of the trace; "
            "they count in the totals alone"
        )
    sizeless = sum(
        what.size_bytes is None and what.op != "barrier" and not what.contradicted for what in collectives.descriptions
    )
    if sizeless:
        warnings.append(
            f"{trace.source}: {sizeless} of {len(collectives)} collectives have no size in the trace, so neither bytes "
            "nor bus bandwidth are known: profile with record_shapes=True"
        )
    contradicted = sum(what.contradicted for what in collectives.descriptions)
    if contradicted:
        warnings.append(
            f"{trace.source}: {contradicted} collective kernels are named after another operation than the operator "
            "that launched them; the kernel's name was believed and their size is unknown"
        )
    return warnings
