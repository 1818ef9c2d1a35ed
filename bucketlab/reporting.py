"""`bucketlab report` from its arguments to files: finds the run, the study beside it, and writes the page."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bucketlab import units
from bucketlab.analysis.foreign import profile_of_traces
from bucketlab.errors import BadInput
from bucketlab.link.curve import LinkCurve
from bucketlab.report.html import REPORT, write_report
from bucketlab.runs import PROFILE, find_run, load_profile
from bucketlab.schema.profile import Link, Profile
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
