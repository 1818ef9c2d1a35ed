"""`bucketlab run`: a script trained with what a study found, or tuned in its first steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from bucketlab.commands.common import LaunchCommand, job_of, launch_options, print_json, say_all
from bucketlab.commands.studies import show_study, study_of, study_options


@click.command(cls=LaunchCommand, context_settings={"allow_interspersed_args": False})
@launch_options
@click.option("--autotune", is_flag=True, help="Tune in the first steps, then train on with what was found.")
@study_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print result.json of the study on stdout once the training is over, and nothing else there.",
)
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run(
    target: tuple[str, ...],
    own_launcher: bool,
    autotune: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train SCRIPT with the bucket setting that a study found for it; the script is not changed.

    The options of studies matter to --autotune alone, but for --out and --study, which say where the setting is: in the
    newest study of the same SCRIPT if nothing else is said.
    """
    from bucketlab.running import run_with
    from bucketlab.tuning import tune as run_study

    job, study = job_of(target, own_launcher, options), study_of(options)
    if not autotune:
        result = run_with(job, study.study, study.out, as_json)
        if as_json:
            print_json(result)
        return
    done = run_study(job, replace(study, keep_running=True, output_to_stderr=as_json))
    say_all(done.remarks)
    if not as_json:
        show_study(done.folder)
    elif done.result is not None:
        print_json(done.result)
