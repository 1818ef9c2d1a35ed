"""profile.json: printed, drawn, predicted from, compared."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from bucketlab.comparing import compare_profiles
from bucketlab.predict import predict
from bucketlab.predict.forecast import timeline_of
from bucketlab.predict.whatif import ask
from bucketlab.report.compare import print_comparison
from bucketlab.report.html import render
from bucketlab.report.profile import print_profile
from bucketlab.report.whatif import print_whatif
from bucketlab.runs import PROFILE, load_profile
from bucketlab.schema.profile import Profile, Rehearsal
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


def rehearsal_of(profile: Profile, part: int, end_ns: int) -> Rehearsal:
    """Of buckets that hold so small a part of the gradients each."""
    [module] = timeline_of(profile).modules
    cap_bytes = sum(module.bytes) // part
    bucket_bytes = [sum(module.bytes[at] for at in bucket) for bucket in module.buckets([cap_bytes])]
    return Rehearsal(cap_bytes=cap_bytes, bucket_bytes=bucket_bytes, steps=4, compute_ns=end_ns, end_ns=end_ns)


def seeds() -> list[bytes]:
    small = profiles.gpt(1, 64)
    rehearsed = profiles.exposed(parameters=small)
    rehearsed.rehearsals = [rehearsal_of(rehearsed, part, 40_000_000) for part in (16, 4)]
    made = [profiles.nothing(), profiles.straggler(parameters=small), profiles.hidden(parameters=small), rehearsed]
    return [msgspec.json.encode(one) for one in made]
