"""Temporary folders of launches: gone with the command that made them; if it was killed, the next one removes them.

A folder belongs to a living command for as long as the command holds the lock on a file in it. The system lets go of
the lock when the process ends, however it ends, and knows no ids that are given out again or differ between containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "bucketlab-"
_LOCK = ".owner"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, removed on leaving. First removes those of commands that were killed."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        lock = _locked(folder)
        try:
            yield folder
        finally:
            os.close(lock)


def _locked(folder: Path) -> int:
    """The lock on a folder, as an open file that no child inherits."""
    unfinished = folder / f"{_LOCK}.tmp"
    descriptor = os.open(unfinished, os.O_CREAT | os.O_RDWR, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unfinished.rename(folder / _LOCK)  # under this name it is never seen without its lock
    return descriptor


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, in use, or gone just now
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
