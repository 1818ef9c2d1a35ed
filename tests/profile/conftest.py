"""One profiled run of each script, shared by the tests that look at it from different sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bucketlab.schema.profile import Profile
from tests.commands import SCRIPTS, profiled

TIMED_STEPS = 60


@dataclass(frozen=True)
class Run:
    profile: Profile
    dumped: dict[str, str]  # what each rank wrote of its weights and losses at its end


Measured = Callable[..., Run]


def dumped(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("rank*.json"))}


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Profiles tests/scripts/NAME.py with so many ranks and lets it train on to its end."""
    runs: dict[tuple[str, int], Run] = {}

    def run(name: str, ranks: int = 2) -> Run:
        if (name, ranks) not in runs:
            folder = tmp_path_factory.mktemp(name)
            options = ["--keep-running", "--steps", str(TIMED_STEPS), "--out", str(folder / "traces")]
            profile = profiled(
                SCRIPTS / f"{name}.py",
                *options,
                *("--nproc-per-node", str(ranks)),
                cwd=SCRIPTS,
                environment={"DUMP": str(folder)},
            )
            runs[name, ranks] = Run(profile, dumped(folder))
        return runs[name, ranks]

    return run
