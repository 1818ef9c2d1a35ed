"""Finds the same collective on all ranks that took part in it, and how far each rank's clock is ahead.

By group and sequence number where the traces have one. Where they do not: by its place among the collectives of the
same operation and group within the step of the same name, and only among ranks whose steps show the same series.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bucketlab.schema.analysis import CollectiveEvent, RankAnalysis, StepAnalysis
from bucketlab.trace import classify
from bucketlab.trace.columns import Int64s

SAME_CLOCK_NS = 1_000_000  # ranks of one host whose clocks seem to differ by less than this read the same clock

_SAME_SIZE_EVERYWHERE = frozenset({"allreduce", "broadcast", "reduce"})

Rows = npt.NDArray[np.void]
ROW = np.dtype(
    [
        ("collective", np.int64),  # number of the collective, the same on all its ranks
        ("rank", np.int64),  # index into Matches.ranks
        ("analysis", np.int64),  # index into the analyses that were given
        ("step", np.int64),  # index into that analysis' steps
        ("event", np.int64),  # index into that step's events
        ("step_name", np.int64),  # index into Matches.step_names
        ("group", np.int64),  # number of the process group
        ("synchronises", np.bool_),  # no rank can end before all have begun
        ("start_ns", np.int64),  # in the rank's own clock
        ("end_ns", np.int64),
    ]
)


class _Series(NamedTuple):
    """Collectives that are told apart by their order alone."""

    step: str | None  # None where a sequence number makes the step needless
    group: str | None
    op: str
    sequence: int | None


class _Part(NamedTuple):
    """Where one rank's part in a collective is to be found."""

    analysis: int
    step: int
    event: int


@dataclass(slots=True)
class Matches:
    """`rows`, sorted by collective: one for each rank's part in each collective that two ranks or more show."""

    rows: Rows  # (n,), of dtype ROW
    ranks: list[int]
    step_names: list[str]
    odd: list[tuple[str, int]]  # where, and which rank's collectives there are not those of most ranks

    def of_each(self, reduce: np.ufunc, values: Int64s) -> Int64s:
        """`reduce` (np.minimum, np.maximum) over the ranks of each collective, at each of its rows; shape (n,)."""
        if not len(values):
            return values
        first = np.flatnonzero(np.diff(self.rows["collective"], prepend=-1))
        return np.repeat(reduce.reduceat(values, first), np.diff(first, append=len(values)))


def match(analyses: Sequence[RankAnalysis]) -> Matches:
    """Each of the analyses must have a rank; those of one rank are taken together."""
    ranks = sorted({_rank(one) for one in analyses})
    index_of = {rank: index for index, rank in enumerate(ranks)}
    taken: dict[_Series, dict[int, list[_Part]]] = defaultdict(dict)
    for a, analysis in enumerate(analyses):
        for series, parts in _series(a, analysis).items():
            taken[series].setdefault(index_of[_rank(analysis)], parts)
    names: dict[str, int] = {}
    groups: dict[str | None, int] = {}
    rows: list[tuple[int | bool, ...]] = []
    odd: list[tuple[str, int]] = []
    collective = 0
    for series, by_rank in taken.items():
        alike = _alike(analyses, by_rank)
        where = series.step or f"collective {series.sequence}"
        odd += [(where, ranks[rank]) for rank in by_rank.keys() - alike]
        if len(alike) < 2:
            continue
        group = groups.setdefault(series.group, len(groups))
        synchronises = series.op in classify.SYNCHRONISING
        for k in range(len(by_rank[alike[0]])):
            for rank in alike:
                a, s, e = by_rank[rank][k]
                step = analyses[a].steps[s]
                event = step.events[e]
                name = names.setdefault(step.name, len(names))
                start, end = step.start_ns + event.start_ns, step.start_ns + event.end_ns
                rows.append((collective, rank, a, s, e, name, group, synchronises, start, end))
            collective += 1
    return Matches(np.array(rows, ROW), ranks, list(names), odd)


def _rank(analysis: RankAnalysis) -> int:
    assert analysis.rank is not None
    return analysis.rank


def _series(number: int, analysis: RankAnalysis) -> dict[_Series, list[_Part]]:
    """The collectives of one trace by series, in an order that is the same on all ranks."""
    found: dict[_Series, list[_Part]] = defaultdict(list)
    seen: set[str] = set()
    for s, step in enumerate(analysis.steps):
        if step.name in seen:
            continue
        seen.add(step.name)
        for e in _order(step, on_cpu=analysis.total.kernels == 0):
            event = step.events[e]
            # a send has its counterpart in another rank's receive, not in its n-th send
            if event.op != "sendrecv":
                name = step.name if event.sequence is None else None
                found[_Series(name, event.group, event.op, event.sequence)].append(_Part(number, s, e))
    return found


def _order(step: StepAnalysis, on_cpu: bool) -> Sequence[int]:
    """Kernels of a group start in the order of their call on all ranks; gloo's workers may swap two, calls may not."""
    if not on_cpu:
        return range(len(step.events))

    def called(e: int) -> int:
        event = step.events[e]
        return event.start_ns if event.ready_ns is None else event.ready_ns

    return sorted(range(len(step.events)), key=called)


def _alike(analyses: Sequence[RankAnalysis], by_rank: dict[int, list[_Part]]) -> list[int]:
    """The ranks that show the series as most of them do: as many collectives, and of the sizes that must agree."""
    signature = {
        rank: tuple(_size(analyses[a].steps[s].events[e]) for a, s, e in parts) for rank, parts in by_rank.items()
    }
    usual, _ = Counter(signature.values()).most_common(1)[0]
    return sorted(rank for rank, one in signature.items() if one == usual)


def _size(event: CollectiveEvent) -> int | None:
    return event.elements if event.op in _SAME_SIZE_EVERYWHERE else None


def clock_offsets(matches: Matches, hosts: Sequence[str | None]) -> Int64s:
    """How far each rank's clock is ahead of the first rank's, in ns; shape (ranks,). `hosts` names each rank's.

    Ranks leave a collective that synchronises at the same moment, so the median difference of their ends is the
    difference of their clocks. Ranks that no collective joins to the others keep their own clock.
    """
    rows = matches.rows[matches.rows["synchronises"]]
    offsets = np.zeros(len(matches.ranks), np.int64)
    known = np.zeros(len(matches.ranks), bool)
    waiting = sorted(_by_group(rows), key=len, reverse=True)
    while waiting:
        # next a group that shares a rank with what is known, or else the largest that is left
        at = next((i for i, group in enumerate(waiting) if known[group["rank"]].any()), 0)
        _align(waiting.pop(at), offsets, known)
    return _one_clock_per_host(offsets, hosts)


def _by_group(rows: Rows) -> list[Rows]:
    rows = rows[np.argsort(rows["group"], kind="stable")]
    return np.split(rows, np.flatnonzero(np.diff(rows["group"])) + 1) if len(rows) else []


def _align(group: Rows, offsets: Int64s, known: npt.NDArray[np.bool_]) -> None:
    """Fills in the offsets of the group's ranks that are not known yet, by those that are."""
    members, row = np.unique(group["rank"], return_inverse=True)
    collectives, column = np.unique(group["collective"], return_inverse=True)
    if not known[members].any():
        known[members[0]] = True
    anchors = known[members]
    ends = np.full((len(members), len(collectives)), np.nan)
    # float64 is exact for differences of up to 104 days, not for times since 1970
    ends[row, column] = group["end_ns"] - group["end_ns"].min()
    ends[anchors] -= offsets[members[anchors], None]
    ends = ends[:, ~np.isnan(ends[anchors]).all(axis=0)]
    reference = np.nanmedian(ends[anchors], axis=0)
    joined = ~anchors & ~np.isnan(ends).all(axis=1)
    offsets[members[joined]] = np.rint(np.nanmedian(ends[joined] - reference, axis=1))
    known[members[joined]] = True


def _one_clock_per_host(offsets: Int64s, hosts: Sequence[str | None]) -> Int64s:
    """Ranks of one host get one offset, unless theirs are so far apart that its name stands for several machines."""
    shared = offsets.copy()
    for host in set(hosts) - {None}:
        members = np.flatnonzero([one == host for one in hosts])
        middle = np.median(offsets[members])
        if np.abs(offsets[members] - middle).max() < SAME_CLOCK_NS:
            shared[members] = round(middle)
    return shared
