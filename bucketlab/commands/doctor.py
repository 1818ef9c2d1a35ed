"""`bucketlab doctor`: what is installed and detected."""

from __future__ import annotations

import click

from bucketlab.commands.common import json_option, print_json


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """What is installed, what was detected, and what would not work here and why."""
    from bucketlab.doctor import examine

    checks = examine()
    if as_json:
        print_json(checks)
        return
    from rich.console import Console

    from bucketlab.report.doctor import print_checks

    print_checks(checks, Console())
