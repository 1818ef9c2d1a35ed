"""The command line: which commands there are, and how errors of ours end. Each command is a file in `commands/`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from bucketlab import __version__
from bucketlab.errors import BucketlabError
from bucketlab.saying import say

_COMMANDS = ("profile", "tune", "run", "predict", "analyze", "report", "compare", "view", "link", "doctor")


class _Commands(click.Group):
    """Imports a command's file when it is called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"bucketlab.commands.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="bucketlab")
def cli() -> None:
    """Where a DistributedDataParallel step's time goes, and which gradient buckets suit the job's own link."""


def main() -> NoReturn:
    """The command line. Errors of ours become one line; a closed pipe is no error."""
    try:
        cli(prog_name="bucketlab", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except click.ClickException as error:
        say(f"{error.format_message()} (bucketlab --help tells what there is)")
        sys.exit(2)
    except click.Abort:
        say("interrupted.")
        sys.exit(1)
    except BucketlabError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        say(f"{error.filename or 'the output'}: {error.strerror}.")
        sys.exit(1)
    except UnicodeEncodeError:
        say("a name or an argument is no valid text in this locale, and cannot be passed on.")
        sys.exit(2)
    sys.exit(0)
