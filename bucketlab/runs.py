"""Folders of runs: written so that no half of one is ever taken for a whole, found by name, by path or as the newest.

A run is whole once its `profile.json` stands in it; everything else is written before that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from bucketlab.documents import load_document, write_json
from bucketlab.errors import BadInput
from bucketlab.schema.profile import SCHEMA, Profile
from bucketlab.worker.config import Launch

PROFILE = "profile.json"
RUN = "run.json"
LATEST = "latest"  # for a run's name: the newest
_CARD_SCHEMA = "bucketlab.run/1"
_MOST_NAMED = 8


class RunCard(msgspec.Struct, kw_only=True):
    """`run.json`: what was run, small enough to list a folder of runs by."""

    schema: str = _CARD_SCHEMA
    run: str
    created: str
    script: str
    command: list[str]
    launch: Launch = msgspec.field(default_factory=Launch)
    versions: dict[str, str]
    world_size: int
    nodes: int
    backend: str
    bucket_cap_mb: list[float]  # of each DDP module


def reserve_folder(out: Path, name: str) -> Path:
    """Makes an empty folder of its own for a new run. Raises BadInput where it cannot be made."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", name) or "run"
    base = f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for attempt in range(1000):
            folder = out / (f"{base}-{attempt}" if attempt else base)
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
    except OSError as error:
        raise BadInput(f"cannot write to {out}: {error.strerror}. Choose another folder with --out.") from error
    raise BadInput(f"{out} has a thousand runs of this second. Choose another folder with --out.")


def write_run(folder: Path, profile: Profile, launch: Launch) -> None:
    """Writes the card first and the profile last: with it the run is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    card = RunCard(
        run=profile.run,
        created=profile.created,
        script=profile.script,
        command=profile.command,
        launch=launch,
        versions=profile.versions,
        world_size=profile.world_size,
        nodes=profile.nodes,
        backend=profile.backend,
        bucket_cap_mb=[module.bucket_cap_mb for module in profile.modules],
    )
    write_json(folder / RUN, card)
    write_json(folder / PROFILE, profile)


def load_card(folder: Path) -> RunCard:
    """Raises BadInput for a file that is not there or is no card of a run."""
    return load_document(folder / RUN, RunCard, _CARD_SCHEMA, "a profiled run", "Profile the script again.")


def load_profile(folder: Path) -> Profile:
    """Raises BadInput for a file that is not there or is no profile of this version."""
    return load_document(folder / PROFILE, Profile, SCHEMA, "a profiled run", "Profile the script again.")


def newest_runs(out: Path) -> list[Path]:
    """Folders of all whole runs under `out`, the newest first."""
    profiles = sorted(out.glob(f"*/{PROFILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in profiles]


def find_run(name: str | None, out: Path) -> Path:
    """Folder of a run under `out`, or anywhere by its path.

    Args:
        name: its path, its name, the beginning of its name and of no other's, or "latest"; None for the newest.
        out: folder of runs.

    Raises:
        BadInput: there is no such run, or several; the message names those that there are.
    """
    if name is not None:
        path = Path(name)
        for folder in (path.parent if path.name == PROFILE else path, out / name):
            if (folder / PROFILE).is_file():
                return folder
    runs = newest_runs(out)
    if name is None or name == LATEST:
        if not runs:
            raise BadInput(f"there is no profiled run in {out}. Make one: bucketlab profile train.py")
        return runs[0]
    begun = [run for run in runs if name and run.name.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise BadInput(f"{name!r} begins the names of {len(begun):,} runs: {_some(begun)}. Give more of the name.")
    there = f" There are: {_some(runs)}." if runs else " Make one: bucketlab profile train.py"
    raise BadInput(f"there is no profiled run {name!r}, neither as a path nor in {out}.{there}")


def _some(runs: Sequence[Path]) -> str:
    more = f" and {len(runs) - _MOST_NAMED:,} more" if len(runs) > _MOST_NAMED else ""
    return ", ".join(run.name for run in runs[:_MOST_NAMED]) + more


def is_trace(path: Path) -> bool:
    """Whether it is a file, or a folder of traces that belong to no profiled run."""
    if path.is_dir():
        return not (path / PROFILE).is_file() and any(path.glob("*.json*"))
    return path.is_file()
