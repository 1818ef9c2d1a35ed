"""A large trace's text in sections, each a trace by itself, for several processes to read at once.

The cuts are guesses, at what looks like the begin of an event. They are right if and only if every section is read
without damage and all but the last end with their events: a cut inside a string or inside an element leaves something
open in the section before it. The reader sees to that, and reads from front to end what cannot be cut.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from bucketlab.errors import BadInput
from bucketlab.trace import source

T = TypeVar("T")

SMALLEST_BYTES = 1 << 23  # below, a process costs more than it saves
MOST = 8  # of a gz, each process also unpacks all that lies before its section
_FARTHEST_BYTES = 1 << 20  # from where a cut is wanted to where one is found
_CUT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|args|ts)"\s*:)')
_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?\s*([\[{])")
_WRAPPING = {b"{": (b'{"traceEvents":[', b"]}"), b"[": (b"[", b"]")}


class NoCut(Exception):
    """The text has no event near where it should be cut, or cannot be read."""


class Section(NamedTuple):
    """The events between the first cut after `low` and the first after `high`, in bytes of the unpacked text."""

    low: int
    high: int | None  # None: the end of the file
    opening: bytes  # what makes a trace of them
    closing: bytes

    def blocks(self, path: Path) -> Iterator[bytes]:
        """Its text. Raises NoCut, and what `source.blocks` raises."""
        stream, at, text = source.blocks(path, self.low), self.low, b""
        if self.low:
            text, cut = _search(b"", stream)
            yield self.opening
            text, at = text[cut.end() :], at + cut.end()
        for block in chain([text] if text else [], stream):
            if self.high is None or at + len(block) <= self.high:
                yield block
                at += len(block)
                continue
            inside = self.high - at
            text, cut = _search(block[inside:], stream)
            yield block[:inside] + text[: cut.start() + 1] + self.closing
            return
        if self.high is not None:
            raise NoCut


def _search(text: bytes, stream: Iterator[bytes]) -> tuple[bytes, re.Match[bytes]]:
    """The first cut in the text, to which more is added until there is one."""
    while (cut := _CUT.search(text)) is None:
        block = next(stream, b"")
        if not block or len(text) > _FARTHEST_BYTES:
            raise NoCut
        text += block
    return text, cut


def sections(path: Path, most: int) -> list[Section]:
    """How to share a file out to at most so many processes; nothing where that is not worth it or not possible."""
    if most < 2 or not path.is_file() or not hasattr(os, "fork"):
        return []
    try:
        count = min(most, MOST, source.unpacked_bytes(path) // SMALLEST_BYTES)
        if count < 2:
            return []
        beginning = _BEGINNING.match(next(source.blocks(path)))
    except (OSError, BadInput, source.Damaged, StopIteration):
        return []
    if beginning is None:
        return []
    opening, closing = _WRAPPING[beginning[1]]
    share = source.unpacked_bytes(path) // count
    bounds = [*range(0, share * count, share), None]
    return [Section(low or 0, high, opening, closing) for low, high in pairwise(bounds)]


@contextlib.contextmanager
def in_process(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Begins `work` in a process of its own; gives a function that waits for the result.

    The function raises NoCut where there is none: whatever went wrong there goes wrong again where it is told.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as sending:
                pickle.dump(work(), sending, pickle.HIGHEST_PROTOCOL)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)

    def result() -> T:
        try:
            found: T = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError):
            raise NoCut from None
        return found

    with os.fdopen(reading, "rb") as pipe:
        try:
            yield result
        finally:
            pipe.close()  # a process that still writes is ended by it
            os.waitpid(child, 0)
