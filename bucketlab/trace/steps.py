"""Which step an event belongs to: the one in which the host launched it. Finds steps and launches; measures nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bucketlab.trace import classify
from bucketlab.trace.columns import Category, Events, Int64s, Trace

NO_STEP = -1
WHOLE_TRACE = "whole trace"  # name of the one window of a trace without steps


@dataclass(slots=True)
class Steps:
    """The trace's steps in order of time; arrays of shape (k,). A trace without steps has one that holds everything."""

    names: list[str]
    start_ns: Int64s
    end_ns: Int64s
    track: Int64s  # the thread that ran the step, -1 for the window of a trace without steps

    @property
    def are_windows(self) -> bool:
        """False for a trace without `ProfilerStep`: then everything belongs to its one window, launched or not."""
        return bool(self.track[0] >= 0)

    def at(self, times: Int64s) -> Int64s:
        """Of each time the step that was running on the host, or NO_STEP; shape as `times`."""
        if not self.are_windows:
            return np.zeros(len(times), np.int64)
        index = np.searchsorted(self.start_ns, times, side="right") - 1
        return np.where((index >= 0) & (times < self.end_ns[index]), index, NO_STEP)


def find_steps(trace: Trace) -> Steps:
    """The `ProfilerStep#N` ranges on the host. Of ranges that lie inside one another, the outermost counts."""
    events = trace.events
    named = classify.matching(trace.names, classify.STEP)[events.name]
    rows = np.flatnonzero(named & (events.category == Category.ANNOTATION))
    if not len(rows):
        return _one_window(events)
    rows = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    end = events.end_ns[rows]
    outermost = np.r_[True, end[1:] > np.maximum.accumulate(end)[:-1]]
    rows = rows[outermost]
    return Steps(
        names=[trace.names[i] for i in events.name[rows]],
        start_ns=events.start_ns[rows],
        end_ns=events.end_ns[rows],
        track=events.track[rows].astype(np.int64),
    )


def _one_window(events: Events) -> Steps:
    start = events.start_ns.min() if len(events) else 0
    end = events.end_ns.max() if len(events) else 0
    return Steps([WHOLE_TRACE], np.array([start], np.int64), np.array([end], np.int64), np.array([-1]))


def launches(events: Events, rows: Int64s) -> Int64s:
    """Of each device event in `rows`, the row of the runtime call that launched it, -1 where the trace has none.

    Joined by correlation id. Where the runtime's and the driver's call carry the same id, the outer one, which starts
    first, counts. All kernels of a CUDA graph share the graph's launch.
    """
    calls = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation > 0))
    if not len(calls) or not len(rows):
        return np.full(len(rows), -1, np.int64)
    ids = events.correlation[calls]
    order = np.lexsort((events.start_ns[calls], ids))
    calls, ids = calls[order], ids[order]
    wanted = events.correlation[rows]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, calls[at], -1)
