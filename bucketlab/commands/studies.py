"""What commands that make studies share: their options, and how a study is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bucketlab.tuning import TuneOptions

_STUDY_OPTIONS = [
    click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("sweeps"),
        help="Folder of studies.",
        show_default=True,
    ),
    click.option("--study", help="Name of the study; one that exists goes on.  [default: one for each command]"),
    click.option("--storage", metavar="URL", help="Where Optuna keeps it.  [default: SQLite in the study's folder]"),
    click.option("--trials", type=click.IntRange(1), default=40, help="Layouts to try.", show_default=True),
    click.option(
        "--rounds",
        type=click.IntRange(12),
        help="Rounds of the final race, at most; it takes no more than its interval needs. If not given: 30, or as "
        "many as take a minute and a half.",
    ),
    click.option("--steps", type=click.IntRange(50), help="Training steps to spend in a launch, at most."),
    click.option(
        "--no-prediction",
        "predict",
        flag_value=False,
        default=True,
        help="Do not begin with what prediction thinks best.",
    ),
    click.option(
        "--timeout",
        "timeout_seconds",
        type=click.FloatRange(1),
        default=1800.0,
        help="Seconds without a step before the job is stopped.",
        show_default=True,
    ),
]


def study_options(command: Any) -> Any:
    """The options that `tune` and `run --autotune` share."""
    for option in reversed(_STUDY_OPTIONS):
        command = option(command)
    return command


def study_of(options: dict[str, Any]) -> TuneOptions:
    """What the options of studies said; other commands' own options come on top of it."""
    from bucketlab.tuning import TuneOptions

    names = ("out", "study", "storage", "trials", "rounds", "steps", "predict", "timeout_seconds")
    return TuneOptions(**{name: options[name] for name in names})


def show_study(folder: Path | None) -> None:
    """The screen of a study; nothing where rank 0 ran elsewhere and has it."""
    from rich.console import Console

    from bucketlab.report.tuning import print_tuning
    from bucketlab.tune.files import load_result

    if folder is not None:
        console = Console()
        print_tuning(load_result(folder), console)
        console.print(f"\nStudy: {folder}", soft_wrap=True, highlight=False)
