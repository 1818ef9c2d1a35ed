"""Traces with the tracks of their buckets beside the kernels, for ui.perfetto.dev or chrome://tracing.

The rank's own trace, byte for byte, with some events more at the head of its list: for each step, when each bucket was
ready, how long it waited and how long it travelled. Named so that neither TensorBoard nor `analyze` takes it for a
trace of its own.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bucketlab.analysis.buckets import buckets_in, match_buckets
from bucketlab.analysis.files import find_traces
from bucketlab.analysis.overlap import analyze_trace
from bucketlab.documents import written_whole
from bucketlab.errors import BadInput
from bucketlab.schema.analysis import CollectiveEvent, RankAnalysis, StepAnalysis
from bucketlab.schema.profile import Bucket, Profile
from bucketlab.trace.kineto import read_trace
from bucketlab.trace.source import Damaged, blocks

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
# A process, and threads from it on, that no trace has: Kineto's are those of the host, small numbers for devices and
# streams, and 2**63-1. Perfetto names threads by their number alone, whatever their process (`UpdateThreadName` in its
# json_trace_parser_impl.cc), so a number that the trace has too would name the wrong one. It reads 32 bits.
_PROCESS = 1_000_000_007
_HEAD_BYTES = 1 << 24  # the list begins within it; what stands before it are a few lines on devices


def write_perfetto(path: Path, profile: Profile) -> list[Path]:
    """One `<trace>.perfetto.json.gz` beside each trace; returns them.

    Args:
        path: a trace, or a folder of them.
        profile: for the names of the buckets' parameters.

    Raises:
        BadInput: there is no trace, or one that cannot be read.
    """
    traces = [one for one in find_traces([path]) if not _is_ours(one)]
    if not traces:
        raise BadInput(f"{path}: no traces to add bucket tracks to")
    return [_write(trace, profile) for trace in traces]


def _is_ours(path: Path) -> bool:
    return path.name.endswith(".perfetto.json.gz")


def _write(trace: Path, profile: Profile) -> Path:
    analysis = analyze_trace(read_trace(trace))
    added = b",".join(msgspec.json.encode(event) for event in _events(analysis, profile))
    stem = re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", trace.name)
    path = trace.with_name(f"{stem}.perfetto.json.gz")
    try:
        with written_whole(path) as temporary, gzip.open(temporary, "wb", compresslevel=5) as out:
            for block in _with(trace, added):
                out.write(block)
    except Damaged as damage:
        raise BadInput(f"{trace}: {damage}: no track can be added to a damaged trace") from None
    return path


def _with(trace: Path, added: bytes) -> Iterator[bytes]:
    """The trace's bytes with events put in where its list begins."""
    head = b""
    content = blocks(trace)
    for block in content:
        head += block
        found = _LIST.search(head)
        if found is not None:
            at = found.end()
            following = head[at:].lstrip()
            while not following and (more := next(content, b"")):
                head += more
                following = head[at:].lstrip()
            yield head[:at]
            yield added if following.startswith(b"]") or not added else added + b","
            yield head[at:]
            yield from content
            return
        if len(head) > _HEAD_BYTES:
            break
    raise BadInput(f"{trace}: has no list of traceEvents to add tracks to")


def _events(analysis: RankAnalysis, profile: Profile) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": "BucketLab: buckets"}}
    yield {"ph": "M", "pid": _PROCESS, "name": "process_sort_index", "args": {"sort_index": -1}}
    tracks = _Tracks()
    for step in analysis.steps:
        for track, bucket, event in _travelling(step, profile):
            ready_ns = event.start_ns if event.ready_ns is None else min(event.ready_ns, event.start_ns)
            begin_ns, start_ns, end_ns = (step.start_ns + one for one in (ready_ns, event.start_ns, event.end_ns))
            thread, metadata = tracks.place(track, begin_ns, end_ns)
            yield from metadata
            if begin_ns < start_ns:
                yield _range(thread, "ready, waits for the link", begin_ns, start_ns)
            args = {
                "step": step.name,
                "bytes": event.bytes,
                "exposed_us": event.exposed_ns / 1000,
                "bus_gb_s": event.bus_gb_s,
                "parameters": bucket.parameters if bucket else [],
            }
            yield _range(thread, event.op, start_ns, end_ns, args)


class _Tracks:
    """A track for each bucket, and further ones where a host that runs ahead has it twice at a time.

    Ranges of one thread may follow one another or nest; those that overlap otherwise are drawn wrong.
    """

    def __init__(self) -> None:
        self._threads: dict[tuple[str, int], int] = {}  # name, which of the tracks of that name
        self._over_ns: dict[int, int] = {}  # until when each thread is taken

    def place(self, name: str, from_ns: int, to_ns: int) -> tuple[int, list[dict[str, Any]]]:
        """A thread that is free from then on, and what names it where it is new."""
        number = 0
        while (known := self._threads.get((name, number))) is not None and self._over_ns[known] > from_ns:
            number += 1
        metadata = []
        if known is None:
            order = len(self._threads)
            known = self._threads[name, number] = _PROCESS + 1 + order
            shown = name if number == 0 else f"{name}, of the next step"
            metadata = [
                {"ph": "M", "pid": _PROCESS, "tid": known, "name": "thread_name", "args": {"name": shown}},
                {"ph": "M", "pid": _PROCESS, "tid": known, "name": "thread_sort_index", "args": {"sort_index": order}},
            ]
        self._over_ns[known] = to_ns
        return known, metadata


def _travelling(step: StepAnalysis, profile: Profile) -> Iterator[tuple[str, Bucket | None, CollectiveEvent]]:
    """Buckets of a step, each with its track and what the profile knows of it; where there are none, all collectives.

    A trace numbers all buckets of a step; whose they are in a script of several modules their sizes tell.
    """
    events = buckets_in(step)
    if not events:
        yield from ((f"collective {position}", None, event) for position, event in enumerate(step.events))
        return
    bucket_of = _known_buckets(events, profile) if profile.modules else {}
    for event in events:
        bucket = bucket_of.get(id(event))
        if bucket is None or len(profile.modules) == 1:
            yield f"bucket {event.bucket}", bucket, event
        else:
            yield f"module {bucket.module} {profile.modules[bucket.module].name}, bucket {bucket.index}", bucket, event


def _known_buckets(events: list[CollectiveEvent], profile: Profile) -> dict[int, Bucket]:
    """By the event's id(); a step may send a bucket more than once, as one that goes backward twice does."""
    known = {(one.module, one.index): one for one in profile.buckets}
    sizes = {key: one.bytes for key, one in known.items()}
    found: dict[int, Bucket] = {}
    while pairs := match_buckets(list(known), sizes, [one for one in events if id(one) not in found]):
        found |= {id(event): known[key] for key, event in pairs}
    return found


def _range(thread: int, name: str, from_ns: int, to_ns: int, args: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": thread,
        "cat": "bucketlab",
        "name": name,
        "ts": msgspec.Raw(_microseconds(from_ns)),
        "dur": msgspec.Raw(_microseconds(to_ns - from_ns)),
        "args": args or {},
    }


def _microseconds(ns: int) -> bytes:
    """With three decimals: a double would lose them in a time since 1970."""
    return f"{ns // 1000}.{ns % 1000:03d}".encode()
