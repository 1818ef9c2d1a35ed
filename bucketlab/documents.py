"""Our JSON files, whatever they hold: written whole or not at all, and read with a word on what is wrong with one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from bucketlab.errors import BadInput
from bucketlab.schema.limits import wrong_in

_LARGEST_BYTES = 2**29

T = TypeVar("T")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives a name to write a file under that then takes its place. Raises OSError with the file's own name."""
    temporary = _unfinished(path, os.getpid())
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Writes a whole file or none. Raises OSError with the file's own name."""
    with written_whole(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))


def remove_unfinished(path: Path, pids: Iterable[int]) -> None:
    """What `written_whole` left of a file in processes that were killed meanwhile, and are gone."""
    for pid in pids:
        with contextlib.suppress(OSError):
            _unfinished(path, pid).unlink(missing_ok=True)


def _unfinished(path: Path, pid: int) -> Path:
    return path.with_name(f".{path.name}.{pid}.tmp")


def load_document(path: Path, kind: type[T], schema: str, whose: str, remedy: str) -> T:
    """One of our JSON files.

    Args:
        path: of the file.
        kind: its type, which has a field `schema`.
        schema: that this release reads.
        whose: what the folder that it stands in holds, such as "a profiled run".
        remedy: what to do where the file cannot be used.

    Raises:
        BadInput: it is not there, is damaged, or is of another schema.
    """
    try:
        text = path.read_bytes() if path.stat().st_size <= _LARGEST_BYTES else b""
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}. Give the folder of {whose}.") from error
    if not text:
        raise BadInput(f"{path} is empty, or too large for a {schema} file. {remedy}")
    try:
        found = msgspec.json.decode(text, type=_Versioned).schema
        if found != schema:
            raise BadInput(f"{path} is {found[:80]!r}; this release reads {schema}. {remedy}")
        document = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # text that is none, or nested without end
        raise BadInput(f"{path} is no {schema} file ({error}). {remedy}") from error
    wrong = wrong_in(document)
    if wrong is not None:
        raise BadInput(f"{path} is no {schema} file that can be used: {wrong}. {remedy}")
    return document


class _Versioned(msgspec.Struct):
    """What any of our files says first of itself: another release's may have other fields altogether."""

    schema: str
