"""`bucketlab tune`: a study over one launch of a script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bucketlab.commands.common import LaunchCommand, job_of, launch_options, print_json, say_all
from bucketlab.commands.studies import show_study, study_of, study_options
from bucketlab.errors import BadInput
from bucketlab.launch.command import TORCHRUN_OPTIONS, Job
from bucketlab.saying import say


@click.command(cls=LaunchCommand, context_settings={"allow_interspersed_args": False})
@launch_options
@study_options
@click.option("--relaunch", is_flag=True, help="Try each setting in a launch of its own: slow, for jobs that need it.")
@click.option("--sweep", "sweeps", multiple=True, metavar="NAME|FILE", help="Link and search space; one study each.")
@click.option("--emulate", metavar="NAME|FILE", help="Tune on a sweep's link that is not there.")
@click.option("--nccl", "with_nccl", is_flag=True, help="Search NCCL's settings too, in launches of their own.")
@click.option(
    "--launches",
    type=click.IntRange(1),
    default=36,
    help="Launches that environment variables may take, NCCL's or those in a sweep; 15 at least.",
    show_default=True,
)
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json on stdout, and nothing else there.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]")
def tune(
    target: tuple[str, ...],
    own_launcher: bool,
    emulate: str | None,
    relaunch: bool,
    sweeps: tuple[str, ...],
    with_nccl: bool,
    launches: int,
    runs: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the bucket size that trains SCRIPT fastest, with a confidence interval, in one launch of it.

    The buckets are changed between training steps; the script is not, and ends when the answer is found. Without a
    SCRIPT, the one last profiled.
    """
    from bucketlab.environments import choices_of, search_environment
    from bucketlab.link.sweep import load_sweep
    from bucketlab.tuning import search_of, what_profiles_tell
    from bucketlab.tuning import tune as run

    if emulate and sweeps:
        raise BadInput("--sweep pins a link that is here, --emulate stands in for one that is not: give one of them.")
    if with_nccl and emulate:
        raise BadInput("--nccl searches what shapes the real link, --emulate stands in for it: give one of them.")
    job = job_of(target, own_launcher, options) if target else _last_profiled(runs, options)
    names: tuple[str | None, ...] = sweeps or (None,)
    loaded = [load_sweep(name) if name else None for name in names]
    tuned = []
    emulated = load_sweep(emulate) if emulate else None
    searched = [choices_of(sweep or emulated, with_nccl, job, launches) for sweep in loaded]
    if relaunch and any(searched):
        raise BadInput("--relaunch tries buckets in launches, and variables of the environment would multiply them.")
    for sweep, choices in zip(loaded, searched, strict=True):
        study = replace(
            study_of(options),
            sweep=sweep,
            emulate=emulated,
            choices=choices,
            relaunch=relaunch,
            output_to_stderr=as_json,
        )
        if len(loaded) > 1 and study.study and sweep is not None:
            study = replace(study, study=f"{study.study}-{sweep.name}")
        if (told := what_profiles_tell(job, runs, search_of(study))) is not None:
            say(told)
        done = run(job, study)
        if choices:
            done = search_environment(job, study, launches, done)
        say_all(done.remarks)
        if not as_json:
            show_study(done.folder)
        if done.result is not None:
            tuned.append(done.result)
    if as_json and tuned:
        print_json(tuned[0] if len(loaded) == 1 else tuned)


def _last_profiled(runs: Path, options: dict[str, Any]) -> Job:
    from bucketlab.profiling import last_profiled

    if any(options[name.replace("-", "_")] is not None for name in TORCHRUN_OPTIONS):
        raise BadInput("launch options need a script after them. Usage: bucketlab tune [options] train.py")
    job = last_profiled(runs)
    say(f"tunes what was profiled last: {' '.join(job.target)}")
    return job
