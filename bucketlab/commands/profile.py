"""`bucketlab profile`: one launch of a script, measured, and its report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from bucketlab.commands.common import LaunchCommand, job_of, launch_options, runs_option
from bucketlab.errors import BadInput
from bucketlab.saying import say


@click.command(cls=LaunchCommand, context_settings={"allow_interspersed_args": False})
@launch_options
@runs_option
@click.option(
    "--warmup",
    type=click.IntRange(2),
    default=5,
    help="Steps before anything is measured.",
    show_default=True,
)
@click.option("--steps", type=click.IntRange(2), help="Steps to time.  [default: as many as fit in 5 s, 20 to 200]")
@click.option("--traced", type=click.IntRange(1), default=8, help="Steps to trace.", show_default=True)
@click.option(
    "--link-seconds",
    type=click.FloatRange(0.5),
    default=10.0,
    help="Time box for the link; less on links that reach the whole gradient sooner.",
    show_default=True,
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=1800.0,
    help="Seconds without a step before the job is stopped.",
    show_default=True,
)
@click.option("--sweep", metavar="NAME|FILE", help="Pin the link of a sweep, such as infiniband, and check NCCL's log.")
@click.option("--emulate", metavar="NAME|FILE", help="Run the job on a sweep's link that is not there.")
@click.option(
    "--compare-topologies", is_flag=True, help="Also time steps with a ring and a parameter server, on the CPU."
)
@click.option("--keep-running", is_flag=True, help="Let the script train on after the measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print profile.json on stdout, and nothing else there.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def profile(
    target: tuple[str, ...],
    own_launcher: bool,
    out: Path,
    warmup: int,
    steps: int | None,
    traced: int,
    link_seconds: float,
    timeout: float,
    sweep: str | None,
    emulate: str | None,
    compare_topologies: bool,
    keep_running: bool,
    as_json: bool,
    **launch: Any,
) -> None:
    """Run SCRIPT once under torchrun and show where its step time goes.

    The script is not changed. It is ended after the measurement. Another launcher goes after two dashes:
    bucketlab profile -- accelerate launch train.py
    """
    from bucketlab.link.sweep import load_sweep
    from bucketlab.profiling import ProfileOptions
    from bucketlab.profiling import profile as run

    if emulate and compare_topologies:
        raise BadInput("--compare-topologies takes the real link, --emulate one that is not there: give one of them.")
    job = job_of(target, own_launcher, launch)
    options = ProfileOptions(
        out=out,
        sweep=load_sweep(sweep) if sweep else None,
        emulate=load_sweep(emulate) if emulate else None,
        warmup_steps=warmup,
        timed_steps=steps,
        traced_steps=traced,
        compare_topologies=compare_topologies,
        link_seconds=link_seconds,
        timeout_seconds=timeout,
        keep_running=keep_running,
        output_to_stderr=as_json,
    )
    profiled = run(job, options)
    if profiled.remark:
        say(profiled.remark)
    if profiled.folder is not None:
        _show_profile(profiled.folder, as_json)


def _show_profile(folder: Path, as_json: bool) -> None:
    from bucketlab.runs import PROFILE, load_profile

    if as_json:
        sys.stdout.buffer.write((folder / PROFILE).read_bytes() + b"\n")
        return
    from rich.console import Console

    from bucketlab.report.profile import print_profile

    print_profile(load_profile(folder), Console(), folder)
