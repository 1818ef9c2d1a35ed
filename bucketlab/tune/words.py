"""What a study has to say in words: its answer, how far it is, its settings and speed-ups. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bucketlab import units
from bucketlab.schema.tuning import CURRENT, Candidate, Tuning

if TYPE_CHECKING:
    from bucketlab.tune.tuner import Progress

MOST_LISTED = 6  # capacities of a list


def answer(result: Tuning) -> str:
    """The sentence that a study ends in; where something is faster it begins with `best`."""
    if result.significant and result.speedup is not None:
        times = f"{units.duration(result.best.step_ns)} a step instead of {units.duration(result.baseline.step_ns)}"
        return f"{best(result)}: {signed(result.speedup)} steps per second ({_interval_of(result)}), {times}."
    if result.speedup is None or result.best == result.baseline:
        return f"Keep your setting: {result.reason}."
    if result.ci95 is None:
        return f"Keep your setting for now: the study is not finished. {best(result)} looked best."
    if result.ci95[1] < 0:
        return f"Keep your setting: the best other, {best(result)}, is slower by {signed(result.speedup)[1:]}."
    return (
        f"Keep your setting: nothing else is surely faster. The best other, {best(result)}, "
        f"makes {signed(result.speedup)} ({_interval_of(result)})."
    )


def best(result: Tuning) -> str:
    """The best setting of a study, with the variables of the environment that belong to it."""
    setting = named(result.best.candidate())
    if result.environment is not None and result.environment.significant:
        return f"{spelt(result.environment.variables)} with {setting}"
    return setting


def _interval_of(result: Tuning) -> str:
    assert result.ci95 is not None
    return interval(result.ci95)


def interval(ci95: tuple[float, float]) -> str:
    return f"95 % interval {signed(ci95[0])} to {signed(ci95[1])}"


def named(candidate: Candidate) -> str:
    """A setting in DDP's words."""
    capacities = candidate.capacities
    words = []
    if capacities.bucket_cap_mb_list:
        shown = ", ".join(f"{cap:g}" for cap in capacities.bucket_cap_mb_list[:MOST_LISTED])
        more = ", ..." if len(capacities.bucket_cap_mb_list) > MOST_LISTED else ""
        words.append(f"bucket_cap_mb_list=[{shown}{more}]")
    elif capacities.bucket_cap_mb is not None:
        words.append(f"bucket_cap_mb={capacities.bucket_cap_mb:g}")
        if capacities.first_bucket_mb not in (None, capacities.bucket_cap_mb):
            words.append(f"first {units.capacity(capacities.first_bucket_mb or 0)}")
    words += [
        f"{name}={value}"
        for name in ("gradient_as_bucket_view", "static_graph")
        if (value := getattr(candidate, name)) is not None
    ]
    if candidate.compression is not None:
        words.append(f"{candidate.compression} compression (changes numerics)")
    return ", ".join(words) if candidate != CURRENT else "the current setting"


def signed(part: float) -> str:
    """A speed-up: "+12.3 %"."""
    digits = 1 if abs(part) < 0.995 else 0
    text = f"{100 * part:+.{digits}f}"
    return ("0.0" if float(text) == 0 else text) + " %"


def spelt(variables: Mapping[str, str]) -> str:
    """Variables of the environment in one order."""
    return " ".join(f"{name}={units.shown(value)}" for name, value in sorted(variables.items()))


def progress_line(progress: Progress) -> str:
    """What a running study has to say, in one line: trials, the best so far, time left."""
    if progress.phase == "final race":
        begin = f"final race, round {progress.rounds + 1}"
    elif progress.phase == "search":
        begin = f"trial {min(progress.trials + 1, progress.most_trials)} of {progress.most_trials}"
    else:
        begin = progress.phase
    parts = [begin]
    if progress.best is not None and progress.best_speedup is not None:
        if progress.best_speedup > 0:
            parts.append(f"best so far {named(progress.best)}: {signed(progress.best_speedup)}")
        else:
            parts.append("nothing faster than the current setting so far")
    if progress.seconds_left:
        parts.append(f"about {units.duration(progress.seconds_left * 1e9)} left")
    return ", ".join(parts)
