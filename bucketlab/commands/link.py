"""`bucketlab link`, and `link testbed` beneath it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bucketlab.commands.common import LaunchCommand, job_of, json_option, launch_options, print_json
from bucketlab.errors import BadInput, WorkFailed
from bucketlab.saying import say


@click.command(cls=LaunchCommand, context_settings={"allow_interspersed_args": False})
@launch_options
@click.option("--seconds", type=click.FloatRange(1), default=10.0, help="Time box.", show_default=True)
@click.option(
    "--max-mb", type=click.FloatRange(0.004), default=128.0, help="Largest all-reduce, MiB.", show_default=True
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
@click.option(
    "--timeout", type=click.FloatRange(1), default=300.0, help="Seconds to wait for a result.", show_default=True
)
@json_option
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[-- LAUNCHER...]")
def link(
    target: tuple[str, ...],
    own_launcher: bool,
    seconds: float,
    max_mb: float,
    dtype: Any,
    timeout: float,
    as_json: bool,
    **launch: Any,
) -> None:
    """Measure the link between the ranks of a launch: all-reduces of growing size, in nccl-tests' terms.

    No script is needed. Another launcher goes after two dashes: bucketlab link -- torchrun --nproc-per-node 8

    `bucketlab link testbed` makes hosts on this machine and runs a script across them; see its --help.
    """
    if target[:1] == ("testbed",) and not own_launcher:
        testbed.main(list(target[1:]), prog_name="bucketlab link testbed", standalone_mode=False)
        return
    from bucketlab.linking import LinkTask, measure_link

    if target and not own_launcher:
        raise BadInput(f"{target[0]}: a link is measured without a script; a launcher goes after --")
    task = LinkTask(result="", largest_bytes=int(max_mb * 2**20), dtype=dtype, seconds=seconds)
    measured = measure_link(job_of(target, own_launcher, launch), task, timeout, as_json)
    if measured is None:
        say("rank 0 runs on another node or under another command: the figures are there.")
    elif as_json:
        print_json(measured)
    else:
        from rich.console import Console

        from bucketlab.report.link import print_link

        print_link(measured, Console())


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@click.option("--hosts", type=click.IntRange(2, 64), default=2, help="Network namespaces to make.", show_default=True)
@click.option("--mbit-per-s", type=click.IntRange(1), default=1000, help="Rate of each link.", show_default=True)
@click.option("--nproc-per-node", type=click.IntRange(1), default=1, help="Ranks on each host.", show_default=True)
@click.argument("target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def testbed(target: tuple[str, ...], hosts: int, mbit_per_s: int, nproc_per_node: int) -> None:
    """Run SCRIPT under torchrun across hosts made on this machine, joined by links of a chosen rate (root, Linux).

    The rate is shaped and nothing else: latency cannot be set and is that of the machine itself, tens of microseconds.
    """
    from bucketlab.link.testbed import reason_unavailable, run_torchrun

    if (reason := reason_unavailable()) is not None:
        raise BadInput(f"no hosts to be had: {reason}.")
    if not Path(target[0]).is_file():
        raise BadInput(f"there is no script {target[0]}.")
    if code := run_torchrun(target, hosts, mbit_per_s, nproc_per_node):
        raise WorkFailed(f"{target[0]} ended with exit code {code}; what it printed is above.")
