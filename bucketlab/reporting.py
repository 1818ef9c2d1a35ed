"""`bucketlab report` from its arguments to files: finds the run, the study beside it, and writes the page."""

from __future__ import annotations

import contextlib
import shlex
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from bucketlab import units
from bucketlab.errors import BadInput
from bucketlab.link.curve import LinkCurve
from bucketlab.report.html import REPORT, write_report
from bucketlab.runs import PROFILE, find_run, load_profile
from bucketlab.schema.analysis import CollectiveEvent, RankAnalysis, StepAnalysis
from bucketlab.schema.profile import Breakdown, Bucket, Link, Profile, RankSummary
from bucketlab.schema.tuning import Tuning
from bucketlab.tune.files import RESULT, find_result, load_result
from bucketlab.tune.space import identity_of

STUDIES = Path("sweeps")
# Links of neighbouring speeds differ by a factor of two or more; measured twice, one on a busy host by up to 1.6.
_OTHER_PACE = 1.7


class Made(msgspec.Struct, kw_only=True):
    """Files that were written."""

    report: str
    perfetto: list[str]


def make_report(run: str | None, out: Path, study: str | None, perfetto: bool) -> Made:
    """Writes `report.html` into the folder of the run.

    Args:
        run: name or folder of a run, or a file or folder of traces that no run of ours left; None for the newest run.
        out: folder of runs.
        study: of which the measured trials are drawn; None for the newest one of the same job, if there is any.
        perfetto: also write each rank's trace with tracks of its buckets.

    Raises:
        BadInput: no such run or study, or a study of another job.
    """
    traces = _traces_only(run, out)
    if traces is not None:
        profile, folder = profile_of_traces(traces), traces if traces.is_dir() else traces.parent
        page = write_report(profile, folder, path=folder / REPORT)
    else:
        folder = find_run(run, out)
        profile = load_profile(folder)
        page = write_report(profile, folder, *_study_of(profile, study, folder.parent))
    written: list[str] = []
    if perfetto:
        from bucketlab.report.perfetto import write_perfetto

        written = [str(path) for path in write_perfetto(traces or folder, profile)]
    return Made(report=str(page), perfetto=written)


def _traces_only(run: str | None, out: Path) -> Path | None:
    """The path, where it leads to traces without a profile."""
    if run is None or (out / run / PROFILE).is_file() or not Path(run).exists():
        return None
    path = Path(run)
    return None if (path / PROFILE).is_file() else path


def _study_of(profile: Profile, study: str | None, out: Path) -> tuple[Tuning | None, str]:
    """As `newest_study`; one that is asked for is drawn whatever its link was."""
    if study is None:
        return newest_study(profile, results_near(out))
    folder = find_result(study, STUDIES)
    found = load_result(folder)
    if not _same_job(found, profile):
        raise BadInput(f"the study {study} is of another job than {profile.run}: other gradients or ranks.")
    another = another_link(found, folder, profile)
    return found, f"Study {found.study} was measured on another link than this run: {another}." if another else ""


def results_near(out: Path) -> list[Path]:
    """Results of all studies that lie where `tune` leaves them: in the folder it is run in, or beside the runs'."""
    return [path for top in {STUDIES.resolve(), (out.resolve().parent / STUDIES)} for path in top.glob(f"*/{RESULT}")]


def newest_study(profile: Profile, results: Iterable[Path]) -> tuple[Tuning | None, str]:
    """The newest readable result of a study of the job that was profiled, on such a link; None where there is none.

    Also a sentence on the newest study of the job that was passed over for its link; empty where none was.
    """
    passed_over = ""
    for path in sorted(results, key=lambda one: one.stat().st_mtime, reverse=True):
        with contextlib.suppress(BadInput):
            found = load_result(path.parent)
            if not _same_job(found, profile):
                continue
            another = another_link(found, path.parent, profile)
            if not another:
                return found, passed_over
            passed_over = passed_over or (
                f"Trials of study {found.study} are not drawn: it was measured on another link, {another}. "
                f"`--study {shlex.quote(str(path.parent))}` draws them all the same."
            )
    return None, passed_over


def another_link(tuning: Tuning, folder: Path, profile: Profile) -> str:
    """What the study's link was, where it was another than the run's; empty where it was not, as far as they tell.

    Args:
        tuning: the study.
        folder: the study's, which holds what its first launch measured of the job.
        profile: of the run.
    """
    link = profile.link
    if link is None:
        return ""
    if tuning.interconnect and link.what and tuning.interconnect != link.what:
        return f"{tuning.interconnect} and not {link.what}"
    theirs = _link_in(folder)
    sizes = [size for module in profile.modules for size in module.bucket_bytes]
    if theirs is None or not sizes:
        return ""
    then_ns, now_ns = (float(LinkCurve.of(one).time_ns(sizes).sum()) for one in (theirs, link))
    if max(then_ns, now_ns) < _OTHER_PACE * min(then_ns, now_ns):
        return ""
    return f"where all-reduces of this run's buckets take {units.duration(then_ns)} and not {units.duration(now_ns)}"


def _link_in(folder: Path) -> Link | None:
    try:
        return load_profile(folder).link
    except BadInput:
        return None


def _same_job(tuning: Tuning, profile: Profile) -> bool:
    if tuning.kind != profile.kind:  # measured and emulated trials are not drawn on one curve
        return False
    return tuning.job == identity_of(
        [(one.module, one.bytes, one.dtype) for one in profile.gradients], profile.world_size
    )


# ---- traces of other programs -----------------------------------------------------------------------------------


def profile_of_traces(path: Path) -> Profile:
    """What traces alone tell, as a profile whose other parts are missing and say so.

    Each collective of a step stands as a bucket; what is known of it in place of its parameters is its operation.

    Raises:
        BadInput: no trace there can be read, or none has a step.
    """
    from bucketlab.analysis.files import analyze_paths, runs_apart

    apart = runs_apart(analyze_paths([path]))
    if len(apart) > 1:
        raise BadInput(f"{path} holds several runs: give the folder of one, such as {next(iter(apart))}")
    analysis = next(iter(apart.values()))
    first = next((one for one in analysis.ranks if one.steps), None)
    if first is None:
        raise BadInput(f"{path}: no trace here has a step (ProfilerStep#N): profile with torch.profiler's schedule")
    steps = [step for one in analysis.ranks for step in one.steps]
    world_size = first.world_size or len(analysis.ranks)
    breakdown, collectives = _breakdown(steps), _collectives(first)
    return Profile(
        run=path.name,
        created="",
        script=str(path),
        command=[],
        versions={},
        world_size=world_size,
        nodes=len({one.host for one in analysis.ranks if one.host}) if len(analysis.ranks) == world_size else 0,
        backend=first.backend or "",
        device="",
        accumulation=1,
        modules=[],
        optimizers=[],
        step=None,
        breakdown=breakdown,
        ranks=[_rank(one, at) for at, one in enumerate(analysis.ranks)],
        buckets=collectives,
        gradients=[],
        forward_ns=None,
        backward_ns=None,
        optimizer_ns=None,
        input_ns=None,
        link=None,
        stragglers=analysis.stragglers if len(analysis.ranks) > 1 else None,
        memory=None,
        prediction=None,
        missing=["steps without a profiler, link, ready times of gradients and memory: these are traces alone"],
        notes=[
            f"each collective of rank {first.rank if first.rank is not None else 'unknown'} stands as a bucket, "
            "named by its operation; medians over its steps where all have as many, else its last step",
            *dict.fromkeys([*analysis.warnings, *(line for one in analysis.ranks for line in one.warnings)]),
        ],
        advice=_advice(path, breakdown, collectives, any(event.bucket is not None for event in _events(steps))),
        seconds={},
    )


def _events(steps: list[StepAnalysis]) -> Iterator[CollectiveEvent]:
    return (event for step in steps for event in step.events)


def _advice(path: Path, breakdown: Breakdown, collectives: list[Bucket], of_ddp: bool) -> list[str]:
    """What to look at next: of traces alone little is sure.

    Args:
        of_ddp: some of the collectives carry DDP's buckets.
    """
    if not breakdown.communication_ns:
        return ["These steps show no communication: trace two ranks or more, with ProfilerActivity.CUDA on GPUs."]
    lines = []
    worst = max(collectives, key=lambda one: one.exposed_ns or 0, default=None)
    if worst is not None and worst.exposed_ns:
        exposed = f"{units.duration(worst.exposed_ns)} of a step, {units.share(worst.exposed_ns, breakdown.wall_ns)}"
        lines.append(f"Most exposed is collective {worst.index}, {worst.parameters[0]}: {exposed}.")
    if of_ddp:
        lines.append(
            f"`bucketlab predict {shlex.quote(str(path.absolute()))}` says how far other bucket sizes could move the "
            "step; `bucketlab profile train.py` measures what figures need in place of ranges."
        )
    else:
        lines.append("None of the collectives carries a bucket of DDP's: bucket sizes are not what to change here.")
    return lines


def _breakdown(steps: list[StepAnalysis]) -> Breakdown:
    names = Breakdown.__struct_fields__
    return Breakdown(**{name: round(statistics.median(getattr(step, name) for step in steps)) for name in names})


def _rank(one: RankAnalysis, position: int) -> RankSummary:
    return RankSummary(
        rank=position if one.rank is None else one.rank,
        host=one.host or "",
        device="",
        step_median_ns=round(statistics.median(step.wall_ns for step in one.steps)) if one.steps else None,
        breakdown=_breakdown(list(one.steps)) if one.steps else None,
        peak_bytes=0,
    )


def _collectives(rank: RankAnalysis) -> list[Bucket]:
    steps = [step for step in rank.steps if step.events]
    if not steps:
        return []
    alike = len({len(step.events) for step in steps}) == 1
    rows = list(zip(*(step.events for step in (steps if alike else steps[-1:])), strict=True))
    return [_as_bucket(index, list(row)) for index, row in enumerate(rows)]


def _as_bucket(index: int, events: list[CollectiveEvent]) -> Bucket:
    def median(name: str) -> int | None:
        known = [value for event in events if (value := getattr(event, name)) is not None]
        return round(statistics.median(known)) if known else None

    rates = [event.bus_gb_s for event in events if event.bus_gb_s is not None]
    return Bucket(
        module=0,
        index=index,
        parameters=[" ".join(filter(None, [events[0].op, events[0].dtype]))],
        bytes=events[0].bytes or 0,
        ready_ns=median("ready_ns"),
        start_ns=median("start_ns"),
        end_ns=median("end_ns"),
        overlap_ns=median("overlap_ns"),
        exposed_ns=median("exposed_ns"),
        bus_gb_s=statistics.median(rates) if rates else None,
    )
