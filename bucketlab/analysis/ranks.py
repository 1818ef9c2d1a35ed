"""Rank analyses -> one analysis of the job: what several ranks tell together. Reads no traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from bucketlab.analysis.matching import Matches, clock_offsets, match
from bucketlab.analysis.stragglers import find_stragglers, lags_by_step
from bucketlab.schema.analysis import Analysis, CollectiveEvent, RankAnalysis
from bucketlab.trace.columns import Int64s

MOST_RUNS = 8  # of numbers in one line


def merge(analyses: Iterable[RankAnalysis]) -> Analysis:
    """Compares the ranks' collectives: each one's wait for the last rank and its transfer, and the stragglers.

    The transfer is the shortest that the same collective took on any rank: the last to arrive waits for nobody. What
    is given is not changed. Ranks may be missing, have other steps, or have their trace in several pieces.
    """
    ranks, warnings = _numbered(list(analyses))
    matches, arrival = _matched(ranks)
    duration = matches.rows["end_ns"] - matches.rows["start_ns"]
    transfer = matches.of_each(np.minimum, duration)
    return Analysis(
        ranks=_with_waits(ranks, matches, transfer),
        stragglers=find_stragglers(ranks, matches, arrival, duration - transfer),
        warnings=[warning for one in ranks for warning in one.warnings]
        + warnings
        + _missing_ranks(ranks)
        + _different_steps(ranks)
        + _odd_ranks(matches),
    )


def arrival_lags(analysis: Analysis) -> dict[int, list[float]]:
    """Rank -> in each step, how long after the first it came to the collective where ranks were furthest apart, ns.

    The samples behind `Analysis.stragglers`; empty where no two ranks share a collective.
    """
    return lags_by_step(analysis.ranks, *_matched(analysis.ranks))


def _matched(ranks: list[RankAnalysis]) -> tuple[Matches, Int64s]:
    """Collectives that ranks share, and of each row its start on a clock that ranks share."""
    matches = match(ranks if len(_worlds(ranks)) < 2 else [])
    hosts = {one.rank: one.host for one in ranks}
    offsets = clock_offsets(matches, [hosts[rank] for rank in matches.ranks])
    return matches, matches.rows["start_ns"] - offsets[matches.rows["rank"]]


def _numbered(analyses: list[RankAnalysis]) -> tuple[list[RankAnalysis], list[str]]:
    """Ranks in order; one that does not know its number gets the lowest that is free."""
    taken = {one.rank for one in analyses if one.rank is not None}
    free = (number for number in range(len(analyses)) if number not in taken)
    numbered, warnings = [], []
    for one in sorted(analyses, key=lambda one: one.source):
        if one.rank is None:
            one = msgspec.structs.replace(one, rank=next(free))
            if len(analyses) > 1:
                warnings.append(f"{one.source} does not say which rank it is: taken for rank {one.rank}")
        numbered.append(one)
    return sorted(numbered, key=lambda one: one.rank or 0), warnings


def _with_waits(ranks: list[RankAnalysis], matches: Matches, transfer: Int64s) -> list[RankAnalysis]:
    """The same analyses with `transfer_ns` and `wait_ns` of the collectives that were matched."""
    known: dict[tuple[int, int], dict[int, int]] = {}
    places = zip(
        *(matches.rows[field].tolist() for field in ("analysis", "step", "event")), transfer.tolist(), strict=True
    )
    for analysis, step, event, ns in places:
        known.setdefault((analysis, step), {})[event] = ns

    def split(event: CollectiveEvent, ns: int | None) -> CollectiveEvent:
        if ns is None:
            return event
        return msgspec.structs.replace(event, transfer_ns=ns, wait_ns=event.end_ns - event.start_ns - ns)

    return [
        msgspec.structs.replace(
            one,
            steps=[
                msgspec.structs.replace(
                    step, events=[split(event, known.get((a, s), {}).get(e)) for e, event in enumerate(step.events)]
                )
                for s, step in enumerate(one.steps)
            ],
        )
        for a, one in enumerate(ranks)
    ]


def _worlds(ranks: Sequence[RankAnalysis]) -> list[int]:
    return sorted({one.world_size for one in ranks if one.world_size is not None})


def _missing_ranks(ranks: Sequence[RankAnalysis]) -> list[str]:
    """Only where several were given: a single trace is its own complete answer."""
    given = {one.rank for one in ranks}
    worlds = _worlds(ranks)
    if len(worlds) > 1:
        sizes = ", ".join(f"{size:,}" for size in worlds)
        return [f"the traces are of jobs of different sizes ({sizes} ranks): their collectives were not compared"]
    if len(given) < 2 or not worlds:
        return []
    world = worlds[0]
    edges = [-1, *sorted(rank for rank in given if rank is not None and rank < world), world]
    gaps = [(before + 1, after - 1) for before, after in pairwise(edges) if after - before > 1]
    if not gaps:
        return []
    count = sum(last - first + 1 for first, last in gaps)
    return [f"{count:,} of {world:,} ranks are missing ({_runs(gaps)}): waits end with the last of those given"]


def _different_steps(ranks: Sequence[RankAnalysis]) -> list[str]:
    steps: dict[int | None, list[str]] = {}
    for one in ranks:
        steps.setdefault(one.rank, []).extend(step.name for step in one.steps)
    repeated = [rank for rank, names in steps.items() if len(set(names)) < len(names)]
    warnings = [
        f"rank {rank} has a step more than once: only its first is compared with other ranks" for rank in repeated
    ]
    ranges = Counter(tuple(dict.fromkeys(names)) for names in steps.values())
    if len(ranges) < 2:
        return warnings
    common = set.intersection(*(set(names) for names in ranges))
    usual, _ = ranges.most_common(1)[0]
    odd = [rank for rank, names in steps.items() if tuple(dict.fromkeys(names)) != usual and rank is not None]
    return [
        *warnings,
        f"not all ranks have the same steps (rank {_ranges(odd)} other than most): {len(common)} are common to all",
    ]


def _odd_ranks(matches: Matches) -> list[str]:
    by_step: dict[str, set[int]] = {}
    for step, rank in matches.odd:
        by_step.setdefault(step, set()).add(rank)
    return [
        f"{step}: the collectives of rank {_ranges(sorted(ranks))} are not those of most ranks and were not compared"
        for step, ranks in by_step.items()
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers in short: "0, 3-5, 9"."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return _runs(runs)


def _runs(runs: Sequence[tuple[int, int]]) -> str:
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in runs[:MOST_RUNS]]
    return ", ".join(shown) + (", ..." if len(runs) > MOST_RUNS else "")
