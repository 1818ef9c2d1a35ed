"""Traces put together event by event, for tests that know by construction what the analysis must say."""

from __future__ import annotations

import itertools

import numpy as np

from bucketlab.trace.columns import Category, CollectiveArgs, Events, Trace, Track

NCCL_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ACCUMULATE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


class TraceBuilder:
    """Collects events in any order; `build` makes the trace. Times in ns."""

    def __init__(self, rank=0, world_size=2, backend="nccl", host=None):
        self._rows = []
        self._args = {}
        self._names = {}
        self._tracks = {}
        self._correlation = itertools.count(1)
        self._header = {"rank": rank, "world_size": world_size, "backend": backend, "host": host}

    def event(self, category, name, start, end, track, device=-1, stream=-1, correlation=-1, external=-1, args=None):
        row = len(self._rows)
        name_index = self._names.setdefault(name, len(self._names))
        track_index = self._tracks.setdefault(track, len(self._tracks))
        self._rows.append((start, end, name_index, category, track_index, device, stream, correlation, external))
        if args is not None:
            self._args[row] = args
        return row

    def step(self, number, start, end, thread="main"):
        return self.annotation(f"ProfilerStep#{number}", start, end, thread)

    def annotation(self, name, start, end, thread="main", args=None):
        return self.event(Category.ANNOTATION, name, start, end, thread, args=args)

    def operator(self, name, start, end, thread="main", args=None, external=-1):
        return self.event(Category.OPERATOR, name, start, end, thread, args=args, external=external)

    def launch(self, at, thread="main", name="cudaLaunchKernel"):
        """A runtime call; returns the correlation id that its device events carry."""
        correlation = next(self._correlation)
        self.event(Category.RUNTIME, name, at, at + 1, thread, correlation=correlation)
        return correlation

    def kernel(self, name, start, end, at=None, thread="main", device=0, stream=7, correlation=None, **more):
        """A kernel, launched at the time `at` unless that is None."""
        return self.device_event(Category.KERNEL, name, start, end, at, thread, device, stream, correlation, **more)

    def device_event(
        self, category, name, start, end, at=None, thread="main", device=0, stream=7, correlation=None, **more
    ):
        if correlation is None:
            correlation = -1 if at is None else self.launch(at, thread)
        track = f"device {device} stream {stream}"
        return self.event(category, name, start, end, track, device, stream, correlation, **more)

    def build(self, source="made.json"):
        types = (np.int64, np.int64, np.int32, np.int8, np.int32, np.int32, np.int64, np.int64, np.int64)
        columns = list(zip(*self._rows, strict=True)) or [()] * len(types)
        events = Events(*(np.array(column, dtype) for column, dtype in zip(columns, types, strict=True)))
        tracks = [Track(pid="1", tid=name) for name in self._tracks]
        return Trace(source, events, list(self._names), tracks, self._args, **self._header)


def all_reduce_args(elements, sequence=None, group="0", group_size=2, dtype="Float", ranks=None):
    return CollectiveArgs(
        op="allreduce",
        in_elements=elements,
        out_elements=elements,
        dtype=dtype,
        group=group,
        group_size=group_size,
        group_ranks=ranks,
        sequence=sequence,
    )
