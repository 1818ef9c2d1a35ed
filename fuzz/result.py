"""result.json of a study: printed, drawn beside a profile, applied."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from bucketlab.report.html import render
from bucketlab.report.tuning import print_tuning
from bucketlab.tune.files import RESULT, load_result
from tests.report import profiles
from tests.report.html.studies import study_of

_PROFILE = profiles.exposed(parameters=profiles.gpt(1, 64))


def read(data: bytes, folder: Path) -> None:
    (folder / RESULT).write_bytes(data)
    result = load_result(folder)
    print_tuning(result, Console(file=io.StringIO(), width=100))
    render(_PROFILE, folder, result)
    assert result.best.candidate().capacities.mb() is not None


def seeds() -> list[bytes]:
    return [msgspec.json.encode(study_of(_PROFILE))]
