"""Builds `report.html`: what the page of one run shows of its profile and of a study. The document is `document`'s."""

from __future__ import annotations

import io
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bucketlab import __version__, units
from bucketlab.errors import BadInput
from bucketlab.launch.command import HIDDEN
from bucketlab.medians import median_interval
from bucketlab.predict import predict
from bucketlab.report import profile as terminal
from bucketlab.report import timeline
from bucketlab.report import tuning as tuned
from bucketlab.report.html.document import Page, assemble, write_page
from bucketlab.report.html.model import ReplayModel, Scaling, replay_model, scaling
from bucketlab.report.link import doubt_of_fit
from bucketlab.report.parts import REST, WHAT_REST_IS, Part, parts_of
from bucketlab.runs import load_card
from bucketlab.schema.profile import Profile, StepTime
from bucketlab.schema.tuning import TunedTrial, Tuning
from bucketlab.settings import capacities_in_force, differs_by_module

REPORT = "report.html"

_SCRIPTS = ("units.js", "replay.js", "draw.js", "timeline.js", "parts.js", "sections.js", "main.js")
_TERMINAL_COLUMNS = 110
# Of a run's steps the distribution is told by as many; the rest would only make the file longer.
_MOST_SAMPLES = 2000


class Phase(msgspec.Struct, kw_only=True):
    """What the compute side does, on the time axis of the measured buckets."""

    name: str
    start_ns: float
    end_ns: float


class Trial(msgspec.Struct, kw_only=True):
    """One trial of a study, to be drawn on the curve; its step time is the one that `bucketlab tune` prints."""

    number: int
    setting: str
    capacity_mb: float
    buckets: int
    step_ns: int
    low_ns: int
    high_ns: int
    samples: int
    speedup: float | None
    is_current: bool
    finalist: bool


class Study(msgspec.Struct, kw_only=True):
    """What was measured of other settings of the same job."""

    name: str
    kind: str
    answer: str  # word for word that of the terminal
    basis: str
    trials: list[Trial]
    failed: int


class Texts(msgspec.Struct, kw_only=True):
    """Sentences, word for word those of the terminal report."""

    headline: str
    job: str
    rest: str  # what the rest of the step's parts is, where there is one
    doubt_of_fit: str
    spread: str
    slowed: str
    prediction: str
    studies: str
    in_force: str  # capacities, where modules have different ones
    largest_model: str
    terminal: str


class PageData(msgspec.Struct, kw_only=True):
    """The JSON inside the page."""

    version: str
    profile: Profile
    parts: list[Part]  # of a traced step
    phases: list[Phase]
    model: ReplayModel | None
    scaling: Scaling | None
    study: Study | None
    texts: Texts
    commands: list[tuple[str, str]]  # what it does, the command
    predict: str  # the command that predicts for this run, without options


def write_report(
    profile: Profile, folder: Path, tuning: Tuning | None = None, remark: str = "", path: Path | None = None
) -> Path:
    """Writes the page into the run's folder, or to `path`: a whole file or none.

    Raises:
        OSError: it cannot be written.
    """
    path = path or folder / REPORT
    write_page(render(profile, folder, tuning, remark), path)
    return path


def render(profile: Profile, folder: Path, tuning: Tuning | None = None, remark: str = "") -> Page:
    """The page of one run.

    Args:
        profile: any of its optional parts may be None or empty; the page then says that it is not there.
        folder: the run's, as the user would type it: it stands in the commands.
        tuning: a study of the same job, whose trials are drawn beside the prediction.
        remark: on studies of the job: why trials are not drawn, or what to know of them.
    """
    return assemble(_data(profile, folder, tuning, remark), profile.run, _SCRIPTS)


def _data(profile: Profile, folder: Path, tuning: Tuning | None, remark: str) -> PageData:
    profile = _predicted_as_replayed(profile)
    return PageData(
        version=__version__,
        profile=msgspec.structs.replace(profile, step=thinned(profile.step)),
        parts=parts_of(profile.breakdown) if profile.breakdown else [],
        phases=phases_of(profile),
        model=replay_model(profile),
        scaling=scaling(profile),
        study=_study(tuning) if tuning else None,
        texts=_texts(profile, folder, remark),
        commands=_commands(profile, folder),
        predict=f"bucketlab predict {_pasted(folder)}",
    )


def _predicted_as_replayed(profile: Profile) -> Profile:
    """With the prediction that the page's replay goes by, where another release of BucketLab wrote another one."""
    prediction = predict(profile)
    if prediction is None or prediction == profile.prediction:
        return profile
    notes = list(profile.notes)
    if profile.prediction is not None:
        stored, now = (units.duration(one.current_step_ns) for one in (profile.prediction, prediction))
        notes.append(
            f"profile.json holds the predictions of another release of BucketLab ({stored} for the setting in force); "
            f"those on this page are bucketlab {__version__}'s ({now}), as `bucketlab predict` gives them"
        )
    return msgspec.structs.replace(profile, prediction=prediction, notes=notes)


def thinned(step: StepTime | None) -> StepTime | None:
    """With no more samples than the page can show."""
    if step is None or len(step.samples) <= _MOST_SAMPLES:
        return step
    return msgspec.structs.replace(step, samples=step.samples[:: -(-len(step.samples) // _MOST_SAMPLES)])


def phases_of(profile: Profile) -> list[Phase]:
    """Of a traced step; [] where they, or its buckets, were not measured."""
    buckets = [one for one in profile.buckets if one.start_ns is not None and one.end_ns is not None]
    if not buckets or profile.breakdown is None:
        return []
    end_ns = max([profile.breakdown.wall_ns, *(one.end_ns or 0 for one in buckets)])
    return [
        Phase(name=one.name, start_ns=one.start_ns, end_ns=one.end_ns)
        for one in timeline.phases_of(profile, buckets, end_ns)
    ]


def _study(tuning: Tuning) -> Study:
    return Study(
        name=tuning.study,
        kind=tuning.kind,
        answer=tuned.answer(tuning).plain,
        basis=tuned.basis(tuning),
        trials=[trial for one in tuning.trials if (trial := _trial(one, tuning)) is not None],
        failed=sum(one.state == "failed" for one in tuning.trials),
    )


def _trial(trial: TunedTrial, tuning: Tuning) -> Trial | None:
    step_ns = tuned.step_ns_of(trial, tuning.baseline)
    if trial.state != "complete" or trial.failure or not trial.bucket_bytes or not trial.step_ns or step_ns is None:
        return None
    low_ns, high_ns = median_interval(trial.step_ns)
    pace = step_ns / statistics.median(trial.step_ns)
    return Trial(
        number=trial.number,
        setting=tuned.setting_of(trial),
        capacity_mb=_capacity_mb(trial.params, trial.bucket_bytes, tuning.baseline.bucket_cap_mb),
        buckets=len(trial.bucket_bytes),
        step_ns=round(step_ns),
        low_ns=round(pace * low_ns),
        high_ns=round(pace * high_ns),
        samples=len(trial.step_ns),
        speedup=trial.speedup,
        is_current=trial.is_current,
        finalist=trial.finalist,
    )


def _capacity_mb(params: dict[str, object], bucket_bytes: Sequence[int], current_mb: float | None) -> float:
    """Where on the axis of capacities a trial stands: its own, the script's own, or else its largest bucket."""
    given = params.get("bucket_cap_mb") if params else current_mb
    return float(given) if isinstance(given, (int, float)) else max(bucket_bytes) / 2**20


def _texts(profile: Profile, folder: Path, remark: str) -> Texts:
    slowed = terminal.slowed_by_profiler(profile)
    return Texts(
        headline=terminal.headline(profile).plain,
        rest=WHAT_REST_IS if profile.breakdown and any(one.name == REST for one in parts_of(profile.breakdown)) else "",
        doubt_of_fit=(doubt_of_fit(profile.link) or "") if profile.link else "",
        job=units.shown(terminal.job(profile)),
        spread=terminal.spread_of(profile.step, profile.kind) if profile.step else "",
        slowed=slowed or "",
        prediction=terminal.prediction_sentence(profile, profile.prediction).plain if profile.prediction else "",
        studies=units.shown(remark),
        in_force=units.shown(capacities_in_force(profile.modules)) if differs_by_module(profile.modules) else "",
        largest_model=terminal.largest_model(profile.memory) if profile.memory else "",
        terminal=_terminal(profile, folder),
    )


def _terminal(profile: Profile, folder: Path) -> str:
    console = Console(file=io.StringIO(), width=_TERMINAL_COLUMNS, color_system=None, force_terminal=False)
    with console.capture() as captured:
        terminal.print_profile(profile, console, folder)
    return captured.get()


def _commands(profile: Profile, folder: Path) -> list[tuple[str, str]]:
    """What to do next with this run, as it can be pasted into a shell on the same host, in whatever folder."""
    run, out = _pasted(folder), _pasted(folder.absolute().parent)
    if not profile.command:  # traces of another program
        return [("The same figures, and every step", f"bucketlab analyze {run}")]
    timed = None not in (profile.forward_ns, profile.optimizer_ns)
    ready = any(one.ready_ns is not None for one in profile.gradients)
    elsewhere = f"bucketlab predict {run} --ranks 8..1024 --link infiniband"
    return [
        *_profile_again(profile, folder),
        ("Compare with the newest run, once there is another", f"bucketlab compare {run} --out {out}"),
        *([("Predict other links and rank counts", elsewhere)] if timed and ready else []),
        ("All runs of this folder in TensorBoard", f"bucketlab view --out {out}"),
    ]


def _pasted(path: Path) -> str:
    return shlex.quote(str(path.absolute()))


def _profile_again(profile: Profile, folder: Path) -> list[tuple[str, str]]:
    """The command that made the run, in the folder where it was given; [] where neither was kept."""
    try:
        launch = load_card(folder).launch
    except BadInput:
        return []
    if not launch.folder:
        return []
    words = [*(word for word in launch.words if word != "--json"), *profile.command]
    secret = f" (put back what {HIDDEN} stands for)" if any(HIDDEN in word for word in words) else ""
    command = shlex.join(["bucketlab", "profile", *words])
    return [(f"Profile again{secret}", f"cd {shlex.quote(launch.folder)} && {command}")]
