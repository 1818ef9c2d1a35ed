"""Who keeps the others waiting: lags of ranks at collectives, and a sentence on the likely cause. Reads no traces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bucketlab import units
from bucketlab.analysis.matching import Matches
from bucketlab.schema.analysis import RankAnalysis, RankStragglers, Stragglers
from bucketlab.trace.columns import Int64s

Table = npt.NDArray[np.float64]

NEGLIGIBLE = 0.02  # of a step: ranks that arrive within this share of it are not worth a name
STEADY = 0.5  # who is late by this share of his usual lag even in his best tenth of steps is late in every step
LATE = 0.5  # of the latest rank's lag: from here on another rank is late like it
FEWEST_STEPS = 3
BY_CHANCE = 0.01  # what may come from chance more often than this is not told as a fact
EXPLAINS = 0.5  # of a lag: that much more compute, or waiting for input, than the other ranks' is its cause


@dataclass(slots=True)
class _Seen:
    """What each rank did in each step that it shares with another; tables of shape (ranks, steps), NaN for nothing."""

    ranks: list[int]
    hosts: list[str | None]
    lag: Table  # after the first rank, at the collective of the step where ranks are furthest apart
    wait: Table  # for the last rank, over all collectives of the step
    wall: Table
    compute: Table
    input: Table


def find_stragglers(
    analyses: Sequence[RankAnalysis], matches: Matches, arrival_ns: Int64s, wait_ns: Int64s
) -> Stragglers:
    """Of each matched row `arrival_ns` is the start on a clock that ranks share, `wait_ns` the wait for the last."""
    seen = _look(analyses, matches, arrival_ns, wait_ns)
    if seen is None:
        return Stragglers(by_rank=[], verdict=_nothing_to_compare(analyses))
    by_rank = [
        RankStragglers(
            rank=rank,
            arrival_lag_ns=round(np.nanmedian(lag)),
            wait_ns=round(np.nanmedian(wait)),
            lag_p10_ns=round(np.nanpercentile(lag, 10)),
            lag_p90_ns=round(np.nanpercentile(lag, 90)),
        )
        for rank, lag, wait in zip(seen.ranks, seen.lag, seen.wait, strict=True)
    ]
    return Stragglers(by_rank=by_rank, verdict=_verdict(seen))


def lags_by_step(analyses: Sequence[RankAnalysis], matches: Matches, arrival_ns: Int64s) -> dict[int, list[float]]:
    """Rank -> in each step that it shares with another, how long it came after the first, ns."""
    seen = _look(analyses, matches, arrival_ns, np.zeros_like(arrival_ns))
    if seen is None:
        return {}
    return {rank: lag[~np.isnan(lag)].tolist() for rank, lag in zip(seen.ranks, seen.lag, strict=True)}


def _nothing_to_compare(analyses: Sequence[RankAnalysis]) -> str:
    if len({one.rank for one in analyses}) < 2:
        return "Only one rank was given; who waits for whom shows when the traces of several are read together."
    return "The ranks given show no collective in common that makes them wait for one another."


def _look(analyses: Sequence[RankAnalysis], matches: Matches, arrival_ns: Int64s, wait_ns: Int64s) -> _Seen | None:
    """None where no two ranks share a collective that synchronises them."""
    counts = matches.rows["synchronises"]
    rows = matches.rows[counts]
    if not len(rows):
        return None
    shape = (len(matches.ranks), len(matches.step_names))
    cell = (rows["rank"], rows["step_name"])
    wait = np.zeros(shape)
    np.add.at(wait, cell, wait_ns[counts])
    lag = np.full(shape, -np.inf)
    delay = (arrival_ns - matches.of_each(np.minimum, arrival_ns))[counts]
    widest = _widest(rows, matches.of_each(np.maximum, arrival_ns)[counts] - arrival_ns[counts] + delay)
    np.maximum.at(lag, (rows["rank"][widest], rows["step_name"][widest]), delay[widest])
    lag[np.isinf(lag)] = np.nan
    wait[np.isnan(lag)] = np.nan

    wall, compute, waiting = (np.full(shape, np.nan) for _ in range(3))
    for row in rows[np.unique(rows["rank"] * shape[1] + rows["step_name"], return_index=True)[1]]:
        step = analyses[row["analysis"]].steps[row["step"]]
        at = row["rank"], row["step_name"]
        wall[at], compute[at], waiting[at] = step.wall_ns, step.compute_ns, step.input_ns

    present = ~np.isnan(lag).all(axis=1)
    steps = ~np.isnan(lag).all(axis=0)
    hosts = _hosts(analyses, matches)
    return _Seen(
        [rank for rank, there in zip(matches.ranks, present, strict=True) if there],
        [host for host, there in zip(hosts, present, strict=True) if there],
        *(table[present][:, steps] for table in (lag, wait, wall, compute, waiting)),
    )


def _hosts(analyses: Sequence[RankAnalysis], matches: Matches) -> list[str | None]:
    by_rank = {one.rank: one.host for one in analyses}
    return [by_rank[rank] for rank in matches.ranks]


def _widest(rows: npt.NDArray[np.void], spread: Int64s) -> Int64s:
    """Of each step and group, the rows of the collective at which the ranks arrive furthest apart."""
    order = np.lexsort((rows["collective"], -spread, rows["group"], rows["step_name"]))
    sorted_rows = rows[order]
    new = (np.diff(sorted_rows["group"], prepend=-1) != 0) | (np.diff(sorted_rows["step_name"], prepend=-1) != 0)
    chosen = sorted_rows["collective"][np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))]
    rows_of_chosen: Int64s = order[sorted_rows["collective"] == chosen]
    return rows_of_chosen


def _verdict(seen: _Seen) -> str:
    step_ns = float(np.nanmedian(seen.wall))
    spread_ns = float(np.median(np.nanmax(seen.lag, axis=0)))
    if spread_ns < NEGLIGIBLE * step_ns:
        return f"No stragglers: ranks arrive within {_of_step(spread_ns, step_ns)} of one another."
    if seen.lag.shape[1] < FEWEST_STEPS:
        return (
            f"The last rank comes {_of_step(spread_ns, step_ns)} after the first; "
            f"it takes {_steps_needed(len(seen.ranks), 1)} steps or more to tell whether it is always the same one."
        )
    # against the middle rank (of two, the earlier), so that a rank is not late because a single one was early
    behind = seen.lag - np.nanpercentile(seen.lag, 50, axis=0, method="lower")
    usual = np.nanmedian(behind, axis=1)
    steady = np.nanpercentile(behind, 10, axis=1) >= STEADY * usual
    late = steady & (usual >= LATE * usual.max()) & (usual > 0)
    if usual.max() < LATE * spread_ns or not late[usual.argmax()]:
        return _noise(seen, spread_ns, step_ns)
    return _blame(seen, np.flatnonzero(late), behind, step_ns)


def _steps_needed(ranks: int, late: int) -> int:
    """In how many steps the same ranks must be the last before chance explains it in 1 of 100 cases or fewer.

    If all were alike, any `late` of them would be the last ones equally often: that they are in each further step the
    ones of the first has the probability 1 / C(ranks, late).
    """
    choices = math.comb(ranks, late)
    return max(FEWEST_STEPS, 1 + math.ceil(math.log(1 / BY_CHANCE) / math.log(choices)))


def _noise(seen: _Seen, spread_ns: float, step_ns: float) -> str:
    last = Counter(np.nanargmax(seen.lag, axis=0).tolist())
    rank, times = last.most_common(1)[0]
    return (
        f"Random noise: in a typical step the last rank comes {_of_step(spread_ns, step_ns)} after the first, and "
        f"it is not always the same (most often rank {seen.ranks[rank]}, in {times} of {seen.lag.shape[1]} steps)."
    )


def _blame(seen: _Seen, late: Int64s, behind: Table, step_ns: float) -> str:
    """Names the late ranks; a cause only where they were late too often for chance, and it held in those steps."""
    lag_ns = float(np.median(np.nanmedian(behind[late], axis=1)))
    count = behind.shape[1]
    in_all = (behind[late] >= STEADY * lag_ns / 2).all(axis=0)
    times = int(in_all.sum())
    who, several = _who(seen, late)
    often = "every step" if times == count else f"{times} of {count} steps"
    comes = f"{who} {'come' if several else 'comes'} {_of_step(lag_ns, step_ns)} late in {often}"
    needed = _steps_needed(len(seen.ranks), len(late))
    if times < needed:
        return (
            f"Perhaps a straggler: {comes}, which with {len(seen.ranks)} ranks and {count} steps may be chance. "
            f"It takes {needed} such steps to tell."
        )
    return _cause(seen, late, lag_ns, comes, several)


def _cause(seen: _Seen, late: Int64s, lag_ns: float, comes: str, several: bool) -> str:
    its, it, waits = ("their", "they", "wait") if several else ("its", "it", "waits")
    for table, kind, does in (
        (seen.input, "Slow input", f"{it} {waits} {{}} longer for the DataLoader than the others"),
        (
            seen.compute,
            "Slow devices" if several else "A slow device",
            f"{its} compute takes {{}} longer than the others'",
        ),
    ):
        usual, least = _longer(table, late)
        if usual < EXPLAINS * lag_ns:
            continue
        if least < EXPLAINS * lag_ns / 2:
            unsteady = does.format(units.duration(usual))
            return f"Late for a reason that is not sure: {comes}; {unsteady}, but in some steps hardly any longer."
        return f"{kind}: {comes}, and {does.format(units.duration(usual))}."
    return f"Slow host: {comes}, though neither compute nor the DataLoader takes longer there."


def _longer(table: Table, late: Int64s) -> tuple[float, float]:
    """By how much the late ranks' value exceeds the others': usually, and in the tenth of steps where it is least."""
    others = np.setdiff1d(np.arange(len(table)), late)
    known = ~(np.isnan(table[late]).all(axis=0) | np.isnan(table[others]).all(axis=0))
    if not known.any():
        return 0.0, 0.0
    excess = np.nanmedian(table[late][:, known], axis=0) - np.nanmedian(table[others][:, known], axis=0)
    return float(np.median(excess)), float(np.percentile(excess, 10))


def _who(seen: _Seen, late: Int64s) -> tuple[str, bool]:
    """The late ranks in words, and whether they are several; a host is named where its ranks are just those."""
    hosts = {seen.hosts[index] for index in late}
    everybody = [index for index, host in enumerate(seen.hosts) if host in hosts]
    if len(late) > 1 and len(hosts) == 1 and None not in hosts and everybody == late.tolist():
        return f"all {len(late)} ranks of {hosts.pop()}", True
    named = [str(seen.ranks[index]) for index in late[:8]]
    if len(late) == 1:
        return f"rank {named[0]}", False
    rest = f" and {len(late) - len(named)} more" if len(late) > len(named) else ""
    return f"ranks {', '.join(named)}{rest}", True


def _of_step(ns: float, step_ns: float) -> str:
    return f"{units.duration(ns)} ({units.share(ns, step_ns)} of a step)"
