"""What several commands share: options of a launch, JSON on stdout, lines on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from bucketlab.launch.command import TORCHRUN_FLAGS, TORCHRUN_OPTIONS, Job
from bucketlab.saying import say

F = TypeVar("F", bound=Callable[..., Any])

runs_option = click.option(
    "--out", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


class LaunchCommand(click.Command):
    """A command in front of a script: options end where the script begins; after `--` stands a whole command line.

    Besides its own parameters it gets `own_launcher`, and `words`: what stood before the target, as it was typed.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        target = ctx.params["target"]
        before = len(given) - len(target) - 1
        ctx.params["own_launcher"] = bool(target) and before >= 0 and given[before] == "--"
        ctx.params["words"] = tuple(given[: len(given) - len(target)])
        return rest


def launch_options(command: F) -> F:
    """torchrun's options, as options of a command of ours."""
    for name, text in reversed(list(TORCHRUN_OPTIONS.items())):
        command = click.option(*_spellings(name), help=text, metavar="")(command)
    for name, text in reversed(list(TORCHRUN_FLAGS.items())):
        command = click.option(*_spellings(name), is_flag=True, help=text)(command)
    return command


def _spellings(name: str) -> list[str]:
    """torchrun takes its options with dashes and with underscores, and -m for --module."""
    names = [f"--{name}", *([f"--{name.replace('-', '_')}"] if "-" in name else [])]
    return [*names, "-m"] if name == "module" else names


def job_of(target: tuple[str, ...], own_launcher: bool, options: dict[str, Any]) -> Job:
    """The job that a command was asked for, from its target and the options of the launch.

    What is not given may stand in torchrun's own variables, such as PET_NNODES, which operators set in each pod.
    """
    given = {}
    for name in TORCHRUN_OPTIONS:
        option = name.replace("-", "_")
        variable = None if own_launcher else os.environ.get(f"PET_{option.upper()}")
        given[name] = variable if options[option] is None else options[option]
    flags = tuple(name for name in TORCHRUN_FLAGS if options[name.replace("-", "_")])
    chosen = tuple((name, str(value)) for name, value in given.items() if value is not None)
    return Job(target=target, own_launcher=own_launcher, options=chosen, flags=flags, words=options["words"])


def print_json(document: object) -> None:
    """One document on stdout."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def say_all(lines: Sequence[str]) -> None:
    """Each line on stderr."""
    for line in lines:
        say(line)
