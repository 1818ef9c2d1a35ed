"""Puts together what the ranks of a run measured: reports of all ranks -> Profile. Reads no files."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from bucketlab.analysis import merge
from bucketlab.analysis.buckets import buckets_in, match_buckets
from bucketlab.analysis.steptime import regular_rows, step_time
from bucketlab.analysis.topologies import topologies
from bucketlab.link.measured import emulated_link, measured_link
from bucketlab.link.nccl_log import in_words, joined
from bucketlab.link.sweep import LinkModel, curve_of
from bucketlab.medians import median_known, median_ns
from bucketlab.schema.analysis import CollectiveEvent, RankAnalysis, StepAnalysis, Stragglers
from bucketlab.schema.profile import (
    Breakdown,
    Bucket,
    Current,
    Gradient,
    HeldBack,
    Link,
    Module,
    Profile,
    RankSummary,
    Rehearsal,
)
from bucketlab.schema.rank import RankReport, RunFacts, TimedStep


def build_profile(facts: RunFacts, reports: Sequence[RankReport | None]) -> Profile:
    """One profile of a run. What is predicted of it, and advice, come afterwards: none of either is in it yet.

    Args:
        facts: what rank 0 knows of the job as a whole.
        reports: by rank; None for a rank that did not report. At least rank 0's must be there.
    """
    present = [report for report in reports if report is not None]
    first = present[0]
    analyses = [report.analysis for report in present if report.analysis is not None]
    forward_ns = _median_of(present, lambda step: step.forward_ns)
    return Profile(
        kind="emulated" if facts.emulated is not None else "measured",
        run=facts.run,
        created=facts.created,
        script=facts.script,
        command=facts.command,
        versions=facts.versions,
        world_size=facts.world_size,
        nodes=len({report.host for report in present}),
        backend=facts.backend,
        device=first.device,
        accumulation=facts.accumulation,
        modules=facts.modules,
        optimizers=facts.optimizers,
        step=step_time([report.steps for report in present]),
        breakdown=median_breakdown([step for one in analyses for step in one.steps]),
        ranks=[_summary(report) for report in present],
        buckets=_buckets(facts, [report.analysis if report is not None else None for report in reports]),
        gradients=_gradients(facts.gradients, forward_ns),
        forward_ns=forward_ns,
        backward_ns=_median_of(present, lambda step: step.backward_ns),
        optimizer_ns=_median_of(present, _optimizer_ns),
        held_back=_held_back(present),
        rehearsals=_rehearsals(present),
        input_ns=_median_of(present, lambda step: step.input_ns),
        link=_link(facts, present),
        stragglers=_stragglers(analyses),
        memory=msgspec.structs.replace(first.memory, peak_bytes=max(one.memory.peak_bytes for one in present)),
        prediction=None,
        missing=_missing(facts, reports),
        notes=facts.notes + _unchecked_link(facts, present),
        advice=[],
        seconds=first.seconds,
        topologies=topologies(present, facts.world_size),
        current=_current(facts.modules),
    )


def _current(modules: Sequence[Module]) -> Current | None:
    largest = max(modules, key=lambda one: one.parameters, default=None)
    if largest is None:
        return None
    return Current(
        bucket_cap_mb=largest.bucket_cap_mb,
        first_bucket_mb=largest.first_bucket_mb,
        bucket_cap_mb_list=largest.bucket_cap_mb_list,
        is_default=largest.is_default,
    )


# ---- time of a step -------------------------------------------------------------------------------------------


def _median_of(reports: Sequence[RankReport], part: Callable[[TimedStep], int | None]) -> int | None:
    """Median over steps and ranks; None where the part was never seen."""
    rows = regular_rows([report.steps for report in reports])
    return median_ns(part(step) for row in rows for step in row)


def _held_back(reports: Sequence[RankReport]) -> HeldBack | None:
    rows = [row for row in zip(*(report.held_back for report in reports), strict=False) if all(map(_is_whole, row))]
    if not rows:
        return None
    walls = [max(step.wall_ns for step in row) for row in rows]
    compute = [max((step.forward_ns or 0) + (step.computed_ns or 0) for step in row) for row in rows]
    # The rank that is done last waits for nobody.
    communication = [min((step.backward_ns or 0) - (step.computed_ns or 0) for step in row) for row in rows]
    rest = [max(0, wall - a - b) for wall, a, b in zip(walls, compute, communication, strict=True)]
    p10, median, p90 = (round(float(one)) for one in np.percentile(compute, [10, 50, 90]))
    return HeldBack(
        steps=len(rows),
        step_ns=round(statistics.median(walls)),
        compute_ns=median,
        compute_p10_ns=p10,
        compute_p90_ns=p90,
        communication_ns=round(statistics.median(communication)),
        optimizer_ns=round(statistics.median(_optimizer_ns(step) or 0 for row in rows for step in row)),
        rest_ns=round(statistics.median(rest)),
    )


def _rehearsals(reports: Sequence[RankReport]) -> list[Rehearsal]:
    """Of layouts that every rank rehearsed; a rank's all-reduce ends with the others', the last one's decides."""
    found = []
    for same in zip(*(report.rehearsed for report in reports), strict=False):
        rows = [row for row in zip(*(one.steps for one in same), strict=False) if all(map(_is_rehearsed, row))]
        if rows:
            found.append(
                Rehearsal(
                    cap_bytes=same[0].cap_bytes,
                    bucket_bytes=same[0].bucket_bytes,
                    steps=len(rows),
                    compute_ns=_slowest(rows, lambda step: (step.forward_ns or 0) + (step.computed_ns or 0)),
                    end_ns=_slowest(rows, lambda step: (step.forward_ns or 0) + (step.rehearsed_ns or 0)),
                )
            )
    return found


def _slowest(rows: Sequence[Sequence[TimedStep]], part: Callable[[TimedStep], int]) -> int:
    return round(statistics.median(max(map(part, row)) for row in rows))


def _is_rehearsed(step: TimedStep) -> bool:
    return _is_whole(step) and step.rehearsed_ns is not None


def _is_whole(step: TimedStep) -> bool:
    return step.regular and None not in (step.forward_ns, step.backward_ns, step.computed_ns)


def _optimizer_ns(step: TimedStep) -> int | None:
    if step.forward_ns is None or step.backward_ns is None:
        return None
    return step.wall_ns - step.forward_ns - step.backward_ns


def _gradients(gradients: Iterable[Gradient], forward_ns: int | None) -> list[Gradient]:
    """In ready order, counted from the step's start."""
    placed = [
        msgspec.structs.replace(
            one, ready_ns=None if one.ready_ns is None or forward_ns is None else one.ready_ns + forward_ns
        )
        for one in gradients
    ]
    return sorted(placed, key=lambda one: (one.ready_ns is None, one.ready_ns or 0))


# ---- what the traces show -------------------------------------------------------------------------------------


def median_breakdown(steps: Sequence[StepAnalysis]) -> Breakdown | None:
    """Part by part; None of no steps."""
    if not steps:
        return None
    return Breakdown(
        **{
            name: round(statistics.median(getattr(step, name) for step in steps))
            for name in Breakdown.__struct_fields__
        }
    )


def _summary(report: RankReport) -> RankSummary:
    walls = [step.wall_ns for step in report.steps if step.regular]
    return RankSummary(
        rank=report.rank,
        host=report.host,
        device=report.device,
        step_median_ns=round(statistics.median(walls)) if walls else None,
        breakdown=median_breakdown(report.analysis.steps if report.analysis else []),
        peak_bytes=report.memory.peak_bytes,
    )


def _stragglers(analyses: Sequence[RankAnalysis]) -> Stragglers | None:
    return merge(list(analyses)).stragglers if analyses else None


def _buckets(facts: RunFacts, analyses: Sequence[RankAnalysis | None]) -> list[Bucket]:
    """DDP's buckets with the times at which rank 0's trace shows their all-reduces, medians over its steps.

    Args:
        facts: the buckets.
        analyses: of all ranks, by rank; None for one that has none.
    """
    sizes = {(one.module, one.name): one.bytes for one in facts.gradients}
    keys = [(module, index) for module, buckets in enumerate(facts.bucket_parameters) for index in range(len(buckets))]
    size_of = {key: sum(sizes[key[0], name] for name in facts.bucket_parameters[key[0]][key[1]]) for key in keys}
    traced = [_traced(keys, size_of, analysis) for analysis in analyses]
    seen = {key: [step[key] for step in traced[0] if key in step] for key in keys}
    steps = list(zip(*traced, strict=False))
    return [
        Bucket(
            module=key[0],
            index=key[1],
            parameters=facts.bucket_parameters[key[0]][key[1]],
            bytes=size_of[key],
            ready_ns=median_ns(event.ready_ns for event in seen[key]),
            start_ns=median_ns(event.start_ns for event in seen[key]),
            end_ns=median_ns(event.end_ns for event in seen[key]),
            overlap_ns=median_ns(event.overlap_ns for event in seen[key]),
            exposed_ns=median_ns(event.exposed_ns for event in seen[key]),
            bus_gb_s=median_known(event.bus_gb_s for event in seen[key]),
            last_ready_ns=median_ns(_last_ready_ns([step.get(key) for step in same]) for same in steps),
        )
        for key in keys
    ]


def _traced(
    keys: Sequence[tuple[int, int]], size_of: dict[tuple[int, int], int], analysis: RankAnalysis | None
) -> list[dict[tuple[int, int], CollectiveEvent]]:
    """Of each step, the all-reduces that carried a bucket."""
    steps = analysis.steps if analysis is not None else []
    return [dict(match_buckets(keys, size_of, buckets_in(step))) for step in steps]


def _last_ready_ns(events: Sequence[CollectiveEvent | None]) -> int | None:
    """When the last rank had a bucket ready, by rank 0's clock: an all-reduce ends on all ranks together.

    Args:
        events: of one all-reduce, by rank.
    """
    waited = [one.end_ns - one.ready_ns for one in events if one is not None and one.ready_ns is not None]
    return events[0].end_ns - min(waited) if events[0] is not None and len(waited) == len(events) else None


# ---- the link -------------------------------------------------------------------------------------------------


def _link(facts: RunFacts, reports: Sequence[RankReport]) -> Link | None:
    if facts.emulated is not None:
        return _emulated_link(facts, facts.emulated)
    if not facts.link_points:
        return None
    hosts = [report.host for report in reports]
    link = measured_link(facts.link_points, facts.link_dtype, facts.backend, facts.world_size, hosts)
    used = [report.nccl for report in reports if report.nccl is not None]
    return msgspec.structs.replace(link, used=in_words(joined(used))) if used else link


def _emulated_link(facts: RunFacts, model: LinkModel) -> Link:
    sizes = [4096 * 4**power for power in range(10)]
    gradient_bytes = sum(one.bytes for one in facts.gradients)
    dtype = facts.gradients[0].dtype if facts.gradients else ""
    what = f"{model.kind} {model.preset}".strip() + f" as of {model.ranks} ranks"
    shown = [size for size in sizes if size < gradient_bytes] + [max(gradient_bytes, sizes[0])]
    return emulated_link(curve_of(model), shown, dtype, what, facts.world_size)


def _unchecked_link(facts: RunFacts, reports: Sequence[RankReport]) -> list[str]:
    wanted = facts.wanted_link
    if not wanted or wanted == facts.backend or any(report.nccl and report.nccl.paths for report in reports):
        return []
    if facts.backend != "nccl":
        return [f"the sweep asks for {wanted}, and the job reduces its gradients with {facts.backend}"]
    return [f"the sweep asks for {wanted}; no log of NCCL's tells whether the job used it"]


def _missing(facts: RunFacts, reports: Sequence[RankReport | None]) -> list[str]:
    silent = [str(rank) for rank, report in enumerate(reports) if report is None]
    lines = list(facts.missing)
    if silent:
        lines.append(f"no report came from rank {', '.join(silent)}: the figures are those of the others")
    for report in reports:
        if report is not None:
            lines += [line for line in report.missing if line not in lines]
    return lines
