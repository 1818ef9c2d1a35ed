"""The files of a study beside its database, and what a running one tells its launch. Needs neither torch nor Optuna."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from bucketlab.documents import load_document, write_json
from bucketlab.errors import BadInput
from bucketlab.schema.tuning import SCHEMA, Tuning
from bucketlab.tune.tuner import Progress

RESULT = "result.json"
DATABASE = "study.db"
_LIVE = "study.json"


class LiveStudy(msgspec.Struct, kw_only=True):
    """Rank 0's word to the launch on its host, before each block."""

    progress: Progress
    in_force: int | None  # trial whose setting the job trains with; None: the current setting


def write_live(control: Path, live: LiveStudy) -> None:
    write_json(control / _LIVE, live)


def read_live(control: Path) -> LiveStudy | None:
    try:
        return msgspec.json.decode((control / _LIVE).read_bytes(), type=LiveStudy)
    except OSError:
        return None


def study_name(script_name: str, command: list[str], link: str) -> str:
    """The same for the same command on the same link, so that it is gone on with, and another one for any other."""
    digest = hashlib.sha256("\0".join([*command, link]).encode()).hexdigest()[:6]
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", script_name) or "study"
    return "-".join([stem, *([re.sub(r"[^A-Za-z0-9_.-]+", "-", link)] if link else []), digest])


def load_result(folder: Path) -> Tuning:
    """Raises BadInput for a file that is not there or is no result of this version."""
    return load_document(folder / RESULT, Tuning, SCHEMA, "a study", "Tune again.")


def find_result(study: str | None, folder: Path) -> Path:
    """The folder of a study: by path, by name, or of the newest result. Raises BadInput where there is none."""
    if study is not None:
        named = [one for one in (Path(study), folder / study) if (one / RESULT).is_file()]
        if not named:
            raise BadInput(f"there is no result of a study {study} in {folder}. Tune first: bucketlab tune train.py")
        return named[0]
    results = sorted(folder.glob(f"*/{RESULT}"), key=lambda one: one.stat().st_mtime)
    if not results:
        raise BadInput(f"there is no result of a study in {folder}. Tune first: bucketlab tune train.py")
    return results[-1].parent
