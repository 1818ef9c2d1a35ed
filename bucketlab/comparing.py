"""Two profiled runs side by side: every figure, its difference and interval, and a verdict. Measures nothing.

A step's time is compared by its untraced steps, the parts of a step by its traced ones, where the traces still lie
beside the profile. All intervals tell what chance within the two runs leaves open; that another hour or another load
on the machine changes both is not in them, and the notes say so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from bucketlab import units
from bucketlab.analysis.differences import (
    FEWEST_SAMPLES,
    Interval,
    link_refits,
    middle_95,
    quantile_resamples,
    welch,
)
from bucketlab.analysis.files import analyze_paths
from bucketlab.analysis.ranks import arrival_lags
from bucketlab.errors import BadInput, BucketlabError
from bucketlab.runs import find_run, load_profile, newest_runs
from bucketlab.schema.analysis import RankAnalysis
from bucketlab.schema.comparison import AlignedBuckets, Comparison, Figure, Unit
from bucketlab.schema.profile import Bucket, Link, LinkPoint, Profile

_PARTS = {
    "compute": "compute_ns",
    "communication": "communication_ns",
    "overlap (hidden)": "overlap_ns",
    "exposed communication": "exposed_ns",
    "idle": "idle_ns",
    "input": "input_ns",
    "copies": "memory_ns",
}
# Without an interval, less than this part of the step is called unchanged.
_NOISE = 0.02

_MOST_HOSTS = 4
# Of fewer steps a tenth is not one.
_FEWEST_FOR_EDGES = 20

_EXACT = "exact"
_ONE_NUMBER = "one number of each run"

# Of each part a value for each traced step, the median over ranks; of `_LATE`, the lag of the rank that is usually
# latest; of rank 0's buckets the exposed time of each.
Samples = dict[str, list[float]]
_LATE = "late_ns"


def find_pair(a: str | None, b: str | None, out: Path) -> tuple[Path, Path]:
    """Folders of the runs before and after, by what names them for `find_run`.

    Args:
        a: None for the newest run but one.
        b: None for the newest run.
        out: folder of runs.

    Raises:
        BadInput: there is no such run, or both names are those of one run.
    """
    after = find_run(b, out)
    if a is None:
        earlier = [run for run in newest_runs(out) if not run.samefile(after)]
        if not earlier:
            raise BadInput(f"{out} holds one profiled run, {after.name}: make another to compare it with.")
        return earlier[0], after
    before = find_run(a, out)
    if before.samefile(after):
        raise BadInput(f"{a} is {'the newest run itself' if b is None else f'{b} itself'}: give two runs.")
    return before, after


def compare(a: Path, b: Path) -> Comparison:
    """Compares the runs in two folders.

    Raises:
        BadInput: one of them holds no profile.
    """
    return compare_profiles(load_profile(a), load_profile(b), traced_steps(a), traced_steps(b))


def compare_profiles(
    a: Profile, b: Profile, a_traced: Samples | None = None, b_traced: Samples | None = None
) -> Comparison:
    """Compares two profiles.

    Args:
        a: before.
        b: after.
        a_traced: samples of A's parts, as `traced_steps` reads them; without them its parts have no intervals.
        b_traced: B's.
    """
    unlike, differences = _differences(a, b)
    speedup, ci95 = _speedup(a, b)
    significant = ci95 is not None and not ci95[0] <= 0 <= ci95[1]
    before, after = a_traced or {}, b_traced or {}
    figures = [*_times(a, b), *_parts(a, b, before, after), *_rest(a, b, before, after)]
    # A trace numbers a step's buckets through all modules, a profile those of each from 0.
    one_module = max(len(a.modules), len(b.modules)) == 1
    tells_buckets: tuple[Samples, Samples] = (before, after) if one_module else ({}, {})
    return Comparison(
        a=a.run,
        b=b.run,
        verdict=_verdict(unlike, speedup, ci95, figures, a, b),
        comparable=not unlike,
        kind=(a.kind, b.kind),
        speedup=speedup,
        ci95=ci95,
        significant=significant and not unlike,
        differences=differences,
        figures=figures,
        buckets=[_row(*row, *tells_buckets) for row in _aligned(a.buckets, b.buckets)],
        notes=_notes(a, b, a_traced, b_traced),
    )


def traced_steps(folder: Path) -> Samples | None:
    """Of each part of a step, its values over the traced steps of a run; None where its traces cannot be read."""
    if not any(folder.glob("*.pt.trace.json*")):
        return None
    try:
        analysis = analyze_paths([folder])
    except BucketlabError:
        return None
    ranks = [one.steps for one in analysis.ranks if one.steps]
    count = min((len(steps) for steps in ranks), default=0)
    lags = sorted(arrival_lags(analysis).values(), key=statistics.median)
    return {
        **{
            part: [statistics.median(getattr(steps[at], part) for steps in ranks) for at in range(count)]
            for part in [*_PARTS.values(), "wall_ns"]
        },
        **({_LATE: lags[-1]} if lags else {}),
        **_exposed_of_buckets(analysis.ranks),
    }


def _exposed_of_buckets(ranks: Sequence[RankAnalysis]) -> Samples:
    """Of each of rank 0's buckets, over its steps, what was exposed; only where each step shows each of them once."""
    steps = next((one.steps for one in ranks if one.rank == 0), [])
    found = [[(event.bucket, event.exposed_ns) for event in step.events if event.bucket is not None] for step in steps]
    numbers = [sorted(number for number, _ in step) for step in found]
    if not numbers or any(one != list(range(len(numbers[0]))) for one in numbers):
        return {}
    by_step = [dict(step) for step in found]
    return {_of_bucket(number): [float(step[number]) for step in by_step] for number in numbers[0]}


def _of_bucket(index: int) -> str:
    return f"exposed_ns of bucket {index}"


# ---- what the jobs are ------------------------------------------------------------------------------------------


def _differences(a: Profile, b: Profile) -> tuple[list[str], list[str]]:
    """Why the two cannot be held against each other, and all that differs."""
    unlike = []
    if a.kind != b.kind:
        unlike.append(f"A is {a.kind}, B is {b.kind}")
    a_model, b_model = ({(one.name, one.bytes) for one in run.gradients} for run in (a, b))
    if a_model != b_model:
        unlike.append(f"other gradients: {_model(a)} in A, {_model(b)} in B")
    if a.world_size != b.world_size:
        unlike.append(f"{units.counted(a.world_size, 'rank')} in A, {b.world_size:,} in B")
    if a.accumulation != b.accumulation:
        unlike.append(f"{a.accumulation} backwards a step in A, {b.accumulation} in B")
    others = {
        "script": (a.script, b.script),
        "arguments": (" ".join(a.command), " ".join(b.command)),
        "nodes": (str(a.nodes), str(b.nodes)),
        "backend": (a.backend, b.backend),
        "device": (a.device, b.device),
        "hosts": (_hosts(a), _hosts(b)),
        "buckets": (_setting(a), _setting(b)),
        "link": (a.link.what if a.link else "not measured", b.link.what if b.link else "not measured"),
        **{
            name: (a.versions.get(name, "none"), b.versions.get(name, "none"))
            for name in sorted(set(a.versions) | set(b.versions))
        },
    }
    return unlike, unlike + [f"{name}: {one} in A, {two} in B" for name, (one, two) in others.items() if one != two]


def _model(run: Profile) -> str:
    names = ", ".join(dict.fromkeys(module.name for module in run.modules))
    total = units.size(sum(one.bytes for one in run.gradients))
    return f"{names or 'unknown model'} with {len(run.gradients):,} of {total}"


def _hosts(run: Profile) -> str:
    hosts = list(dict.fromkeys(one.host for one in run.ranks if one.host))
    return ", ".join(hosts[:_MOST_HOSTS]) + (f" and {len(hosts) - _MOST_HOSTS:,} more" if hosts[_MOST_HOSTS:] else "")


def _setting(run: Profile) -> str:
    said = []
    for module in run.modules:
        if module.bucket_cap_mb_list:
            said.append(f"bucket_cap_mb_list of {len(module.bucket_cap_mb_list)}")
        else:
            origin = " (DDP's default)" if module.is_default else ""
            said.append(f"bucket_cap_mb={module.bucket_cap_mb:g}{origin}")
        said[-1] += f", {units.counted(len(module.bucket_bytes), 'bucket')}"
    return "; ".join(said) or "unknown"


# ---- figures ----------------------------------------------------------------------------------------------------


def _speedup(a: Profile, b: Profile) -> tuple[float | None, tuple[float, float] | None]:
    if a.step is None or b.step is None or not b.step.median_ns:
        return None, None
    speedup = a.step.median_ns / b.step.median_ns - 1
    if min(len(a.step.samples), len(b.step.samples)) < FEWEST_SAMPLES:
        return speedup, None
    before, after = (quantile_resamples(run.step.samples, 0.5, seed) for seed, run in enumerate((a, b)) if run.step)
    return speedup, middle_95(before / after - 1)


def _times(a: Profile, b: Profile) -> list[Figure]:
    if a.step is None and b.step is None:
        return []
    quantiles = {"step, untraced": ("median_ns", 0.5, FEWEST_SAMPLES)} | {
        f"step, {name}": (f"{name}_ns", share, _FEWEST_FOR_EDGES) for name, share in (("p10", 0.1), ("p90", 0.9))
    }
    return [
        _between_steps(_figure(name, "ns", _of(a, field), _of(b, field)), a, b, share, fewest)
        for name, (field, share, fewest) in quantiles.items()
    ]


def _between_steps(figure: Figure, a: Profile, b: Profile, share: float, fewest: int) -> Figure:
    """With a bootstrap interval of the difference between two quantiles of step time."""
    if a.step is None or b.step is None:
        return figure
    counts = (len(a.step.samples), len(b.step.samples))
    if min(counts) < fewest:
        return _without(figure, f"takes {fewest} steps of each run")
    before, after = quantile_resamples(a.step.samples, share, 0), quantile_resamples(b.step.samples, share, 1)
    return _within(figure, middle_95(after - before), counts)


def _of(run: Profile, field: str) -> float | None:
    return None if run.step is None else float(getattr(run.step, field))


def _parts(a: Profile, b: Profile, a_traced: Samples, b_traced: Samples) -> list[Figure]:
    found = [
        _between_samples(
            _figure(name, "ns", _part(a, field), _part(b, field)), a_traced.get(field), b_traced.get(field)
        )
        for name, field in {"step, traced": "wall_ns", **_PARTS}.items()
    ]
    ratio = _between_samples(
        _figure("overlap ratio", "share", _part(a, "overlap_ratio"), _part(b, "overlap_ratio")),
        _ratios(a_traced),
        _ratios(b_traced),
    )
    return [one for one in [*found, ratio] if (one.a or one.b) is not None and (one.a, one.b) != (0, 0)]


def _between_samples(figure: Figure, a: Sequence[float] | None, b: Sequence[float] | None) -> Figure:
    """With Welch's interval: traced steps are few, and their medians fewer."""
    if figure.difference is None:
        return figure
    if not a or not b:
        return _without(figure, f"no traces that tell it beside {' and '.join(_letters_without(a, b))}")
    if min(len(a), len(b)) < FEWEST_SAMPLES:
        return _without(figure, f"takes {FEWEST_SAMPLES} traced steps of each run")
    interval = welch(figure.difference, a, b)
    if interval is None:
        return _without(figure, "the same in every traced step")
    return _within(figure, interval, (len(a), len(b)))


def _letters_without(a: Sequence[float] | None, b: Sequence[float] | None) -> list[str]:
    return [letter for letter, samples in (("A", a), ("B", b)) if not samples]


def _within(figure: Figure, interval: Interval, samples: tuple[int, int]) -> Figure:
    figure.low, figure.high = interval
    figure.samples = samples
    return figure


def _without(figure: Figure, why: str) -> Figure:
    """The reason stays that there is no difference, where there is none."""
    figure.no_interval = figure.no_interval or why
    return figure


def _part(run: Profile, field: str) -> float | None:
    value = None if run.breakdown is None else getattr(run.breakdown, field)
    return None if value is None else float(value)


def _ratios(traced: Samples) -> list[float]:
    pairs = zip(traced.get("overlap_ns", []), traced.get("communication_ns", []), strict=True)
    return [overlap / communication for overlap, communication in pairs if communication]


def _rest(a: Profile, b: Profile, a_traced: Samples, b_traced: Samples) -> list[Figure]:
    late = _figure("latest rank comes late", "ns", _latest(a), _latest(b))
    peak = _figure("peak memory of a rank", "bytes", _maybe(a.memory, "peak_bytes"), _maybe(b.memory, "peak_bytes"))
    buffers = [_maybe(one.memory, "bucket_buffers_bytes") for one in (a, b)]
    figures = [
        _without(_figure("buckets", "count", float(len(a.buckets)), float(len(b.buckets))), _EXACT),
        *_fits(a.link, b.link),
        *_transfers(a.link, b.link),
        _between_samples(late, a_traced.get(_LATE), b_traced.get(_LATE)),
        _without(peak, _ONE_NUMBER),
        _without(_figure("bucket buffers", "bytes", *buffers), _EXACT),
        _without(_figure("predicted best step", "ns", _best(a), _best(b)), "predicted: see each run's band"),
    ]
    return [one for one in figures if one.a is not None or one.b is not None]


def _fits(a: Link | None, b: Link | None) -> list[Figure]:
    """Latency and bandwidth of both links' fits."""
    figures = [
        _figure("link latency", "ns", _maybe(a, "latency_ns"), _maybe(b, "latency_ns")),
        _figure("link bandwidth", "gb_s", _maybe(a, "bandwidth_gb_s"), _maybe(b, "bandwidth_gb_s")),
    ]
    if a is None or b is None:
        return figures
    before, after = (link_refits(link.points, seed) for seed, link in enumerate((a, b)))
    if before is None or after is None:
        return [_without(one, "no intervals of the link's points") for one in figures]
    counts = tuple(sum(point.repetitions for point in link.points if point.in_flight == 1) for link in (a, b))
    return [
        _within(one, middle_95((after - before)[:, column]), (counts[0], counts[1]))
        for column, one in enumerate(figures)
    ]


def _transfers(a: Link | None, b: Link | None) -> list[Figure]:
    """All-reduces of the smallest and of the largest size that both links were measured with."""
    before, after = ({one.bytes: one for one in link.points if one.in_flight == 1} if link else {} for link in (a, b))
    both = sorted(before.keys() & after.keys())
    return [_transfer(before[size], after[size]) for size in dict.fromkeys([*both[:1], *both[-1:]])]


def _transfer(a: LinkPoint, b: LinkPoint) -> Figure:
    """The two were measured apart, so the halves of their intervals add up as the sides of a right angle do."""
    figure = _figure(f"all-reduce of {units.size(a.bytes)}", "ns", float(a.ns), float(b.ns))
    if a.low_ns is None or a.high_ns is None or b.low_ns is None or b.high_ns is None:
        return _without(figure, "no intervals of the link's points")
    low = b.ns - a.ns - math.hypot(b.ns - b.low_ns, a.high_ns - a.ns)
    high = b.ns - a.ns + math.hypot(b.high_ns - b.ns, a.ns - a.low_ns)
    return _within(figure, (low, high), (a.repetitions, b.repetitions))


def _maybe(part: object | None, field: str) -> float | None:
    return None if part is None else float(getattr(part, field))


def _latest(run: Profile) -> float | None:
    lags = [one.arrival_lag_ns for one in run.stragglers.by_rank] if run.stragglers else []
    return float(max(lags)) if lags else None


def _best(run: Profile) -> float | None:
    return None if run.prediction is None else float(run.prediction.best.step_ns)


def _figure(name: str, unit: Unit, a: float | None, b: float | None) -> Figure:
    if a is None or b is None:
        only = "B" if a is None else "A"
        return Figure(name=name, unit=unit, a=a, b=b, difference=None, no_interval=f"only in {only}")
    return Figure(name=name, unit=unit, a=a, b=b, difference=b - a)


# ---- buckets ----------------------------------------------------------------------------------------------------


def _aligned(a: Sequence[Bucket], b: Sequence[Bucket]) -> list[tuple[list[Bucket], list[Bucket]]]:
    """Groups of buckets that hold the same parameters in both runs, in A's order, then what only one of them has."""
    home: dict[tuple[int, str], int] = {}  # parameter -> the first bucket that holds it
    sides = [(0, at, one) for at, one in enumerate(a)] + [(1, at, one) for at, one in enumerate(b)]
    root = list(range(len(sides)))

    def find(at: int) -> int:
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at

    for number, (_, _, bucket) in enumerate(sides):
        for name in bucket.parameters:
            root[find(number)] = find(home.setdefault((bucket.module, name), number))
    groups: dict[int, list[int]] = {}
    for number in range(len(sides)):
        groups.setdefault(find(number), []).append(number)
    rows = [
        ([a[sides[at][1]] for at in group if sides[at][0] == 0], [b[sides[at][1]] for at in group if sides[at][0] == 1])
        for group in groups.values()
    ]
    return sorted(rows, key=lambda row: min(one.index for one in row[0] or row[1]))


def _row(a: list[Bucket], b: list[Bucket], a_traced: Samples, b_traced: Samples) -> AlignedBuckets:
    one, a_exposed_ns, b_exposed_ns = a or b, _all(a, "exposed_ns", sum), _all(b, "exposed_ns", sum)
    difference_ns = None if a_exposed_ns is None or b_exposed_ns is None else b_exposed_ns - a_exposed_ns
    samples = [_exposed_together(*side) for side in ((a, a_traced), (b, b_traced))]
    interval = None if difference_ns is None else welch(difference_ns, *samples)
    return AlignedBuckets(
        parameters=[name for bucket in one for name in bucket.parameters],
        bytes=sum(bucket.bytes for bucket in one),
        a_indices=[bucket.index for bucket in a],
        b_indices=[bucket.index for bucket in b],
        a_ready_ns=_all(a, "ready_ns", max),
        b_ready_ns=_all(b, "ready_ns", max),
        a_end_ns=_all(a, "end_ns", max),
        b_end_ns=_all(b, "end_ns", max),
        a_exposed_ns=a_exposed_ns,
        b_exposed_ns=b_exposed_ns,
        exposed_difference_ns=difference_ns,
        exposed_low_ns=interval[0] if interval else None,
        exposed_high_ns=interval[1] if interval else None,
    )


def _exposed_together(buckets: list[Bucket], traced: Samples) -> list[float]:
    """In each traced step, what of these buckets was exposed; [] where traces do not tell."""
    found = [traced.get(_of_bucket(bucket.index)) for bucket in buckets]
    if not found or any(one is None for one in found):
        return []
    return [sum(step) for step in zip(*(one for one in found if one is not None), strict=True)]


def _all(buckets: list[Bucket], field: str, joined: Callable[[list[int]], int]) -> int | None:
    values = [getattr(bucket, field) for bucket in buckets]
    return None if not values or None in values else joined(values)


# ---- words ------------------------------------------------------------------------------------------------------


def _verdict(
    unlike: list[str],
    speedup: float | None,
    ci95: tuple[float, float] | None,
    figures: list[Figure],
    a: Profile,
    b: Profile,
) -> str:
    if unlike:
        return f"Not the same job, so no verdict on speed: {'; '.join(unlike)}."
    if speedup is None:
        return "No verdict: a run without timed steps cannot be compared."
    why = _why(figures, a, b)
    if ci95 is None:
        return f"{_percent(speedup)}, of too few steps for an interval: {why}."
    low, high = sorted(100 * abs(one) if not ci95[0] <= 0 <= ci95[1] else 100 * one for one in ci95)
    interval = f"[{low:.1f}, {high:.1f}]"
    if ci95[0] <= 0 <= ci95[1]:
        return f"No difference beyond chance: {100 * speedup:+.1f} % steps a second {interval}: {why}."
    if " more " not in why and " less " not in why:
        why += "; the traced steps do not show where"
    return f"{_percent(speedup)} {interval}: {why}."


def _percent(speedup: float) -> str:
    return f"{abs(100 * speedup):.1f} % {'slower' if speedup < 0 else 'faster'}"


def _why(figures: list[Figure], a: Profile, b: Profile) -> str:
    by_name = {one.name: one for one in figures}
    said = [
        _moved(by_name[name], name, a, b) for name in ("exposed communication", "compute", "idle") if name in by_name
    ]
    return "; ".join(line for line in said if line) or "no trace tells which part of the step it is"


def _moved(figure: Figure, name: str, a: Profile, b: Profile) -> str:
    if figure.difference is None:
        return ""
    wall_ns = max((run.breakdown.wall_ns for run in (a, b) if run.breakdown), default=0)
    small = abs(figure.difference) < _NOISE * wall_ns
    by_chance = figure.low is not None and figure.high is not None and figure.low <= 0 <= figure.high
    if by_chance or small:
        return "" if name == "idle" else f"{name} unchanged"
    return f"{units.duration(abs(figure.difference))} {'more' if figure.difference > 0 else 'less'} {name}"


def _notes(a: Profile, b: Profile, a_traced: Samples | None, b_traced: Samples | None) -> list[str]:
    notes = [
        "intervals are 95 % and hold for chance within the two runs, not for what changed around them",
    ]
    for name, run, traced in (("A", a, a_traced), ("B", b, b_traced)):
        if traced is None and run.breakdown is not None:
            notes.append(f"no traces that can be read lie beside {name}'s profile: parts of its step have no interval")
    return notes
