"""Builds `report.html`: one self-contained page from a profile, with everything it needs inside.

All text that comes from data travels as JSON and is put into the page by its script as text, never as markup. The
page's own policy lets it run this script and this style sheet and load nothing at all.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec
from rich.console import Console

from bucketlab import __version__
from bucketlab.predict import predict
from bucketlab.report import profile as terminal
from bucketlab.report import timeline, units
from bucketlab.report.html.model import ReplayModel, Scaling, replay_model, scaling
from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import Tuning

REPORT = "report.html"

_SCRIPTS = ("units.js", "replay.js", "draw.js", "timeline.js", "sections.js", "main.js")
_TERMINAL_COLUMNS = 110
# Of a run's steps the distribution is told by as many; the rest would only make the file longer.
_MOST_SAMPLES = 2000


class Phase(msgspec.Struct, kw_only=True):
    """What the compute side does, on the time axis of the measured buckets."""

    name: str
    start_ns: float
    end_ns: float


class Trial(msgspec.Struct, kw_only=True):
    """One measured trial of a study, to be drawn on the curve."""

    number: int
    capacity_mb: float
    step_ns: int
    low_ns: int
    high_ns: int
    samples: int
    is_current: bool
    finalist: bool


class Texts(msgspec.Struct, kw_only=True):
    """Sentences, word for word those of the terminal report."""

    headline: str
    job: str
    spread: str
    slowed: str
    prediction: str
    largest_model: str
    terminal: str


class PageData(msgspec.Struct, kw_only=True):
    """The JSON inside the page."""

    version: str
    profile: Profile
    phases: list[Phase]
    model: ReplayModel | None
    scaling: Scaling | None
    trials: list[Trial]
    study: str
    texts: Texts
    commands: list[tuple[str, str]]  # what it does, the command


@dataclass(frozen=True)
class Page:
    """A whole document, and what a server that sends its own policy must let it run."""

    html: str
    script_sha256: str  # base64


def write_report(profile: Profile, folder: Path, tuning: Tuning | None = None, path: Path | None = None) -> Path:
    """Writes the page into the run's folder, or to `path`: a whole file or none.

    Raises:
        OSError: it cannot be written.
    """
    path = path or folder / REPORT
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(render(profile, folder, tuning).html, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def render(profile: Profile, folder: Path, tuning: Tuning | None = None) -> Page:
    """The page of one run.

    Args:
        profile: any of its optional parts may be None or empty; the page then says that it is not there.
        folder: the run's, as the user would type it: it stands in the commands.
        tuning: a study of the same job, whose trials are drawn beside the prediction.
    """
    return assemble(_data(profile, folder, tuning), profile.run)


def assemble(data: PageData, title: str) -> Page:
    """The document around the data."""
    script = "(() => {\n" + '"use strict";\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "\n})();\n"
    style = _asset("page.css")
    script_sha256, style_sha256 = _sha256(script), _sha256(style)
    policy = (
        f"default-src 'none'; script-src 'sha256-{script_sha256}'; style-src 'sha256-{style_sha256}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "TITLE": _escaped(units.shown(title)),
        "STYLE": style,
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    html = ""
    # Split once: what is put in may itself contain such marks.
    for piece in _asset("page.html").split("@@"):
        html += parts.get(piece, piece)
    return Page(html=html, script_sha256=script_sha256)


def safe_json(value: object) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or begin another."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _data(profile: Profile, folder: Path, tuning: Tuning | None) -> PageData:
    profile = _predicted_as_replayed(profile)
    return PageData(
        version=__version__,
        profile=_thinned(profile),
        phases=_phases(profile),
        model=replay_model(profile),
        scaling=scaling(profile),
        trials=_trials(tuning) if tuning else [],
        study=tuning.study if tuning else "",
        texts=_texts(profile, folder),
        commands=_commands(profile, folder),
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


def _thinned(profile: Profile) -> Profile:
    """Without what the page does not show, which for a thousand ranks would be most of the file."""
    step = profile.step
    if step is not None and len(step.samples) > _MOST_SAMPLES:
        step = msgspec.structs.replace(step, samples=step.samples[:: -(-len(step.samples) // _MOST_SAMPLES)])
    return msgspec.structs.replace(profile, step=step)


def _phases(profile: Profile) -> list[Phase]:
    buckets = [one for one in profile.buckets if one.start_ns is not None and one.end_ns is not None]
    if not buckets or profile.breakdown is None:
        return []
    end_ns = max([profile.breakdown.wall_ns, *(one.end_ns or 0 for one in buckets)])
    return [
        Phase(name=one.name, start_ns=one.start_ns, end_ns=one.end_ns)
        for one in timeline.phases_of(profile, buckets, end_ns)
    ]


def _trials(tuning: Tuning) -> list[Trial]:
    found = []
    for trial in tuning.trials:
        if trial.state != "complete" or not trial.step_ns or not trial.bucket_bytes:
            continue
        low_ns, high_ns = _median_interval(trial.step_ns)
        found.append(
            Trial(
                number=trial.number,
                capacity_mb=_capacity_mb(trial.params, trial.bucket_bytes),
                step_ns=round(statistics.median(trial.step_ns)),
                low_ns=low_ns,
                high_ns=high_ns,
                samples=len(trial.step_ns),
                is_current=trial.is_current,
                finalist=trial.finalist,
            )
        )
    return found


def _capacity_mb(params: dict[str, object], bucket_bytes: Sequence[int]) -> float:
    """Where on the axis of capacities a trial stands: its own, or else its largest bucket."""
    given = params.get("bucket_cap_mb")
    return float(given) if isinstance(given, (int, float)) else max(bucket_bytes) / 2**20


def _median_interval(samples: Sequence[int]) -> tuple[int, int]:
    """95 % interval of the median by order statistics, normal approximation (Conover 1999, section 3.2)."""
    ordered, count = sorted(samples), len(samples)
    reach = 0.98 * count**0.5
    low = max(0, int(count / 2 - reach))
    high = min(count - 1, int(count / 2 + reach))
    return ordered[low], ordered[high]


def _texts(profile: Profile, folder: Path) -> Texts:
    slowed = terminal.slowed_by_profiler(profile)
    return Texts(
        headline=terminal.headline(profile).plain,
        job=units.shown(terminal.job(profile)),
        spread=terminal.spread_of(profile.step, profile.kind) if profile.step else "",
        slowed=slowed or "",
        prediction=terminal.prediction_sentence(profile, profile.prediction).plain if profile.prediction else "",
        largest_model=terminal.largest_model(profile.memory) if profile.memory else "",
        terminal=_terminal(profile, folder),
    )


def _terminal(profile: Profile, folder: Path) -> str:
    console = Console(file=io.StringIO(), width=_TERMINAL_COLUMNS, color_system=None, force_terminal=False)
    with console.capture() as captured:
        terminal.print_profile(profile, console, folder)
    return captured.get()


def _commands(profile: Profile, folder: Path) -> list[tuple[str, str]]:
    run, out = shlex.quote(str(folder)), shlex.quote(str(folder.parent))
    if not profile.command:  # traces of another program
        return [("The same figures, and every step", f"bucketlab analyze {run}")]
    script = shlex.join(profile.command)
    return [
        ("Profile again", f"bucketlab profile {script}"),
        ("Predict other links and rank counts", f"bucketlab predict {run} --ranks 8..1024 --link infiniband"),
        ("Compare with another run", f"bucketlab compare {run} OTHER"),
        ("This run in TensorBoard", f"bucketlab view --out {out}"),
    ]
