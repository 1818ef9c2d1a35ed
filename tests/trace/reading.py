"""What tests of the reader share: traces of a few events as text, and an independent way to read a trace."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np

from bucketlab.trace.columns import Category
from bucketlab.trace.kineto import read_trace
from tests.trace.synthetic import NEW_CATEGORIES, OLD_CATEGORIES

CATEGORIES = {name: category for table in (OLD_CATEGORIES, NEW_CATEGORIES) for category, name in table.items()}


def event(ts="1.000", dur="2.000", cat="kernel", name="gemm", pid=0, tid=7, args="{}", ph="X"):
    """One event as text; what is given goes in as it is."""
    return (
        f'{{"ph": "{ph}", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {json.dumps(pid)}, '
        f'"tid": {json.dumps(tid)}, "ts": {ts}, "dur": {dur}, "args": {args}}}'
    )


def document(*events, header='"schemaVersion": 1', footer='"displayTimeUnit": "ms"'):
    return f'{{{header}, "traceEvents": [{", ".join(events)}], {footer}}}'


def read(tmp_path, text, name="trace.json"):
    """The trace in a file of this text (or bytes)."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


def times(trace):
    return list(zip(trace.events.start_ns.tolist(), trace.events.end_ns.tolist(), strict=True))


def rows(trace):
    """The trace's events as tuples, in the file's order."""
    events = trace.events
    columns = (events.device, events.stream, events.correlation, events.external)
    return [
        (start, end, trace.names[name], category, trace.tracks[track].pid, trace.tracks[track].tid, *ids)
        for (start, end), name, category, track, ids in zip(
            times(trace),
            events.name.tolist(),
            events.category.tolist(),
            events.track.tolist(),
            np.stack(columns, axis=1).tolist(),
            strict=True,
        )
    ]


def rows_of(text):
    """The same from the text of a well-formed trace, event by event, by the standard library's json and decimal."""
    trace = json.loads(text, parse_float=Decimal)
    listed = trace if isinstance(trace, list) else trace["traceEvents"]
    return [_row(one) for one in listed if one["ph"] == "X" and one.get("cat") in CATEGORIES]


def _row(one):
    args = one.get("args", {})
    category = CATEGORIES[one["cat"]]
    start, length = _ns(one["ts"]), _ns(one["dur"])
    device = stream = -1
    if category in (Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.GPU_ANNOTATION):
        device = args.get("device", one["pid"])
        stream = args.get("stream", one["tid"])
    ids = (args.get("correlation", -1), args.get("External id", args.get("external id", -1)))
    return (
        start,
        start + length,
        one["name"],
        category,
        str(one["pid"]),
        str(one["tid"]),
        *(int(str(value).removeprefix("stream ")) for value in (device, stream, *ids)),
    )


def _ns(value):
    exact = Decimal(value) * 1000
    assert exact == int(exact)
    return int(exact)
