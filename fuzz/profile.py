"""profile.json: printed, drawn, predicted from, compared."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from bucketlab.comparing import compare_profiles
from bucketlab.predict import predict
from bucketlab.predict.whatif import ask
from bucketlab.report.compare import print_comparison
from bucketlab.report.html import render
from bucketlab.report.profile import print_profile
from bucketlab.report.whatif import print_whatif
from bucketlab.runs import PROFILE, load_profile
from bucketlab.schema.profile import Profile
from tests.report import profiles

_OTHER = profiles.exposed(parameters=profiles.gpt(1, 64))


def read(data: bytes, folder: Path) -> None:
    (folder / PROFILE).write_bytes(data)
    profile = load_profile(folder)
    console = Console(file=io.StringIO(), width=100)
    print_profile(profile, console, folder)
    render(profile, folder)
    predict(profile)
    print_comparison(compare_profiles(profile, _OTHER), console)
    print_comparison(compare_profiles(_OTHER, profile), console)
    print_whatif(ask(profile, ranks="4", algorithms=["ring"]), console)  # refuses many, so it comes last


def seeds() -> list[bytes]:
    small = profiles.gpt(1, 64)
    made: list[Profile] = [profiles.nothing(), profiles.straggler(parameters=small), profiles.hidden(parameters=small)]
    return [msgspec.json.encode(one) for one in made]
