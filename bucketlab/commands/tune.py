"""`bucketlab tune`: a study over one launch of a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bucketlab.commands.common import LaunchCommand, job_of, launch_options, print_json, say, say_all
from bucketlab.commands.studies import show_study, study_options
from bucketlab.errors import BadInput
from bucketlab.launch.command import HIDDEN, TORCHRUN_OPTIONS, Job


@click.command(cls=LaunchCommand, context_settings={"allow_interspersed_args": False})
@launch_options
@study_options
@click.option("--relaunch", is_flag=True, help="Try each setting in a launch of its own: slow, for jobs that need it.")
@click.option("--sweep", "sweeps", multiple=True, metavar="NAME|FILE", help="Link and search space; one study each.")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json on stdout, and nothing else there.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]")
def tune(
    target: tuple[str, ...],
    own_launcher: bool,
    out: Path,
    study: str | None,
    storage: str | None,
    trials: int,
    steps: int | None,
    emulate: str | None,
    no_prediction: bool,
    timeout: float,
    relaunch: bool,
    sweeps: tuple[str, ...],
    runs: Path,
    as_json: bool,
    **launch: Any,
) -> None:
    """Find the bucket size that trains SCRIPT fastest, with a confidence interval, in one launch of it.

    The buckets are changed between training steps; the script is not, and ends when the answer is found. Without a
    SCRIPT, the one last profiled.
    """
    from bucketlab.link.sweep import load_sweep
    from bucketlab.tuning import TuneOptions
    from bucketlab.tuning import tune as run

    if emulate and sweeps:
        raise BadInput("--sweep pins a link that is here, --emulate stands in for one that is not: give one of them.")
    job = job_of(target, own_launcher, launch) if target else _last_profiled(runs, launch)
    names: tuple[str | None, ...] = sweeps or (None,)
    loaded = [load_sweep(name) if name else None for name in names]
    tuned = []
    for sweep in loaded:
        options = TuneOptions(
            out=out,
            study=study if len(loaded) == 1 or not study or sweep is None else f"{study}-{sweep.name}",
            storage=storage,
            trials=trials,
            steps=steps,
            sweep=sweep,
            emulate=load_sweep(emulate) if emulate else None,
            predict=not no_prediction,
            timeout_seconds=timeout,
            relaunch=relaunch,
            output_to_stderr=as_json,
        )
        done = run(job, options)
        say_all(done.remarks)
        if not as_json:
            show_study(done.folder)
        if done.result is not None:
            tuned.append(done.result)
    if as_json and tuned:
        print_json(tuned[0] if len(loaded) == 1 else tuned)


def _last_profiled(runs: Path, launch: dict[str, Any]) -> Job:
    from bucketlab.runs import find_run, load_card

    if any(launch[name.replace("-", "_")] is not None for name in TORCHRUN_OPTIONS):
        raise BadInput("launch options need a script after them. Usage: bucketlab tune [options] train.py")
    card = load_card(find_run(None, runs))
    how = card.launch
    if any(HIDDEN in word for word in card.command):
        raise BadInput(
            f"the command of run {card.run} had a secret, which is not stored. Name the script and its options."
        )
    if how.folder and how.folder != str(Path.cwd()):
        raise BadInput(f"run {card.run} was launched in {how.folder}. Go there, or name the script.")
    say(f"tunes what was profiled last: {' '.join(card.command)}")
    return Job(tuple(card.command), how.own_launcher, tuple(how.options.items()), tuple(how.flags))
