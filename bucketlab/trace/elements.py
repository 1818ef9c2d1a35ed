"""Cuts JSON text that comes in blocks between the elements of an array, in bounded memory. Decodes nothing itself.

Most cuts are guessed: at the last "}, {" of a block. A guess is right if and only if what lies before it decodes as
an array, since a cut inside a string or inside an element leaves something open. Only where the decoder refuses does
`Scanner` look at every bracket: at the end of the array, in events with lists of objects. Where even that leads
nowhere, since a quote or a bracket is damaged, the next event is looked for by the look of its begin.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

import msgspec
import numpy as np

from bucketlab.trace.source import BLOCK_BYTES, Damaged

T = TypeVar("T")


class NoJson(Exception):
    """The text is neither a JSON array nor an object."""


LONGEST_ELEMENT_BYTES = 1 << 24
_WINDOW_BYTES = 1 << 16  # the scanner's arrays are some tens of times as large
_GUESSES = 64
_WIDEST_GAP = 256  # between two events
_MOST_MALFORMED = 10_000
_MOST_MEMBERS = 1_000  # beside the events
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_NEXT_EVENT = re.compile(rb'\}\s*(?:,\s*)?(?=\{\s*"(?:ph|name|cat|args|ts)"\s*:)')
_TRACE_EVENTS = re.compile(rb'\s*"traceEvents"\s*:\s*\[')

_KIND = np.zeros(256, np.int8)
_KIND[list(b"{[")] = 1
_KIND[list(b"}]")] = -1
_KIND[ord(",")] = 2


class Scanner:
    """Where the elements of an array or object end, from the text after its opening bracket; holds for any JSON."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaping = False  # the text so far ends with a backslash that escapes what follows

    def feed(self, text: bytes) -> tuple[list[int], int | None]:
        """Offsets in `text`, which follows what was fed before: of the commas between elements, and of the closing
        bracket. Commas after the bracket are not given."""
        shift = -1 if self._escaping else 0
        codes = np.frombuffer(b"\\" * -shift + text, np.uint8)
        quotes = np.flatnonzero(codes == ord('"'))
        quotes = quotes[~self._escaped(codes)[quotes]]
        marks = np.flatnonzero(_KIND[codes])
        outside = (np.searchsorted(quotes, marks) + self._in_string) % 2 == 0
        marks = marks[outside]
        kinds = _KIND[codes[marks]]
        depth = self._depth + np.cumsum(np.where(kinds == 2, 0, kinds), dtype=np.int64)
        self._in_string ^= len(quotes) % 2 == 1
        self._depth = int(depth[-1]) if len(depth) else self._depth
        closing = np.flatnonzero(depth < 0)
        end = int(marks[closing[0]]) if len(closing) else None
        commas = marks[(kinds == 2) & (depth == 0)]
        if end is not None:
            commas = commas[commas < end]
            end += shift
        return (commas + shift).tolist(), end

    def _escaped(self, codes: np.ndarray) -> np.ndarray:
        """Of each character, whether a backslash escapes it; notes whether one escapes the next text's first."""
        escaped = np.zeros(len(codes) + 1, bool)
        slashes = np.flatnonzero(codes == ord("\\"))
        if len(slashes):
            begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
            runs = np.diff(begins, append=len(slashes))
            after = slashes[begins] + runs
            escaped[after[runs % 2 == 1]] = True
        self._escaping = bool(escaped[-1])
        return escaped[:-1]


class Document(Generic[T]):
    """`{..., "traceEvents": [...], ...}` or `[...]`: read once, from front to end.

    `decode` makes events of a JSON array, and raises msgspec.DecodeError or RecursionError where it is malformed.
    `repair` is given a malformed element, and returns the event that it was meant to be or None.
    """

    def __init__(
        self, blocks: Iterator[bytes], decode: Callable[[bytes], list[T]], repair: Callable[[bytes], T | None]
    ) -> None:
        self.members: dict[str, msgspec.Raw] = {}  # what stands beside the events, complete once all pieces are read
        self.has_events = False
        self.ends_with_events = False  # nothing stands between them and the end
        self.damage: list[str] = []
        self.malformed = 0  # elements that could not be repaired
        self.first_malformed: int | None = None  # where the first of them stands, in bytes of the unpacked text
        self._blocks = blocks
        self._decode = decode
        self._repair = repair
        self._text = b""
        self._at = 0  # where _text begins in the whole
        self._end = ""  # why there is no more text

    def pieces(self) -> Iterator[list[T]]:
        """The events in order. Raises NoJson before the first."""
        try:
            if self._more() and self._text.startswith(_BOM):
                self._drop(len(_BOM))
            opening = self._next()
            if opening not in (b"[", b"{"):
                raise NoJson
            self._drop(1)
            if opening == b"[":
                yield from self._array()
                self.ends_with_events = True
            else:
                yield from self._object()
            if self._next():
                self.damage.append(f"the trace ends at byte {self._at}, and the file does not")
            elif self._end:
                self.damage.append(self._end)  # a checksum that is wrong, say
        except _CutOff as cut:
            self.damage.append(str(cut))

    def _object(self) -> Iterator[list[T]]:
        closed, count = False, 0
        while not closed:
            while len(self._text) < _WINDOW_BYTES and self._more():
                pass
            if array := _TRACE_EVENTS.match(self._text):
                self._drop(array.end())
                yield from self._array()
                while self._next() not in (b"}", b",", b""):  # the bracket closed something else
                    self._skip()
                    yield from self._array()
                if not self._text:
                    raise self._cut_off()
                closed = self.ends_with_events = self._text.startswith(b"}")
                self._drop(1)
                continue
            try:
                members, closed = self._elements(_WINDOW_BYTES, b"}")
            except _LostCount:
                raise self._cut_off() from None
            for i, member in enumerate(members):
                if _TRACE_EVENTS.match(member):
                    self._put_back(b",".join(members[i:]) + (b"}" if closed else b","))
                    closed = False
                    break
                self._note(member)
            count += len(members)
            if count > _MOST_MEMBERS:
                raise _CutOff(f"given up at byte {self._at}, after {count} members that are no events")

    def _note(self, member: bytes) -> None:
        try:
            self.members |= msgspec.json.decode(b"{%b}" % member, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            self._count_malformed(self._at)

    def _array(self) -> Iterator[list[T]]:
        """The elements up to the closing bracket, which is dropped too."""
        self.has_events = True
        closed = False
        while not closed:
            if len(self._text) < BLOCK_BYTES:
                self._more()
            comma = _last_comma(self._text)
            events = self._decoded(memoryview(self._text)[:comma]) if comma else None
            if events is not None:
                self._drop(comma + 1)
                yield events
                continue
            begins = self._at
            try:
                elements, closed = self._elements(BLOCK_BYTES, b"]")
            except _LostCount:
                yield from self._salvage()
            else:
                closed = yield from self._each(elements, closed, begins)
            if self.malformed >= _MOST_MALFORMED:
                raise _CutOff(f"given up at byte {self._at}, after {self.malformed} elements that are no events")

    def _each(self, elements: list[bytes], closed: bool, at: int) -> Generator[list[T], None, bool]:
        """Elements that the scanner has told apart: together if they are well-formed, else each for itself.

        Says whether the array is closed behind them, as the scanner found, or has to be read on.
        """
        events = self._decoded(b",".join(elements))
        if events is not None:
            yield events
            return closed
        found: list[T] = []
        for i, element in enumerate(elements):
            if (event := self._whole(element)) is not None:
                found.append(event)
            elif len(_begins(element)) == 1:
                self._count_malformed(at)
            else:  # several events: the scanner took quotes that open for quotes that close
                yield found
                self._put_back(b",".join(elements[i:]) + (b"]" if closed else b","))
                yield from self._salvage()
                return False
            at += len(element) + 1
        yield found
        return closed

    def _salvage(self) -> Iterator[list[T]]:
        """What is whole in a damaged stretch, but for its last event, which may go on. Raises _CutOff at the end."""
        begins = _begins(self._text)
        found: list[T] = []
        for begin, end in itertools.pairwise(begins):
            if (event := self._whole(self._text[begin:end].rstrip(_SPACE).removesuffix(b","))) is not None:
                found.append(event)
            else:
                self._count_malformed(self._at + begin)
        yield found
        if len(begins) > 1:
            self._drop(begins[-1])
        elif len(self._text) > LONGEST_ELEMENT_BYTES:
            yield self._decoded(self._text) or []
            raise _CutOff(f"given up at byte {self._at}, where an element of over 16 MiB begins")
        elif not self._double():
            yield self._decoded(self._text) or []
            raise self._cut_off()

    def _whole(self, element: bytes) -> T | None:
        """One event, repaired if need be; None for what is none."""
        events = self._decoded(element)
        if events is None:
            return self._repair(element)
        return events[0] if len(events) == 1 else None

    def _skip(self) -> None:
        """Drops what is left of a damaged event."""
        self._count_malformed(self._at)
        while len(begins := _begins(self._text)) == 1:
            if len(self._text) > LONGEST_ELEMENT_BYTES or not self._double():
                raise self._cut_off()
        self._drop(begins[1])

    def _count_malformed(self, at: int) -> None:
        self.malformed += 1
        if self.first_malformed is None:
            self.first_malformed = at

    def _decoded(self, elements: bytes | memoryview) -> list[T] | None:
        try:
            return self._decode(b"".join((b"[", elements, b"]")))
        except (msgspec.DecodeError, RecursionError):
            return None

    def _elements(self, enough_bytes: int, closing: bytes) -> tuple[list[bytes], bool]:
        """Takes the next elements, at least one, and says whether the closing bracket follows the last of them.

        Raises _LostCount where there is none before another bracket closes, or before the text ends.
        """
        scanner, scanned, bounds, closed = Scanner(), 0, [-1], False
        while not closed and (len(bounds) == 1 or scanned < min(enough_bytes, len(self._text))):
            window = self._text[scanned : scanned + _WINDOW_BYTES]
            if not window:
                if len(self._text) > LONGEST_ELEMENT_BYTES or not self._more():
                    raise _LostCount
                continue
            commas, end = scanner.feed(window)
            bounds += [scanned + comma for comma in commas]
            if end is not None:
                bounds.append(scanned + end)
                closed = True
            scanned += len(window)
        if closed and self._text[bounds[-1] : bounds[-1] + 1] != closing:
            closed = False
            bounds.pop()
            if len(bounds) == 1:
                raise _LostCount
        elements = [self._text[low + 1 : high] for low, high in itertools.pairwise(bounds)]
        self._drop(bounds[-1] + 1)
        return elements, closed

    def _next(self) -> bytes:
        """Drops space and gives the next byte, or nothing at the end."""
        while True:
            self._drop(len(self._text) - len(self._text.lstrip(_SPACE)))
            if self._text or not self._more():
                return self._text[:1]

    def _more(self) -> bool:
        try:
            block = next(self._blocks, b"")
        except Damaged as damage:
            self._end = str(damage)
            block = b""
        self._text += block
        return bool(block)

    def _double(self) -> bool:
        """Adds as much text as there is already, so that searching it again and again takes linear time."""
        size = len(self._text)
        while len(self._text) < 2 * size and self._more():
            pass
        return len(self._text) > size

    def _drop(self, size: int) -> None:
        self._text = self._text[size:]
        self._at += size

    def _put_back(self, text: bytes) -> None:
        self._text = text + self._text
        self._at -= len(text)

    def _cut_off(self) -> _CutOff:
        """What stops the reading at the end of the text so far."""
        return _CutOff(self._end or f"cut off at byte {self._at + len(self._text)}")


class _CutOff(Exception):
    """Nothing that follows can be read."""


class _LostCount(Exception):
    """Quotes and brackets do not lead to the end of an element."""


def _begins(text: bytes) -> list[int]:
    """Where events begin by the look of it: at the first byte, and at each object that starts like one of Kineto's."""
    return [0, *(gap.end() for gap in _NEXT_EVENT.finditer(text))]


def _last_comma(text: bytes) -> int:
    """Offset of what may be the last comma between two objects in a list; 0 where none is seen."""
    brace = len(text)
    for _ in range(_GUESSES):
        brace = text.rfind(b"{", 0, brace)
        if brace < 0:
            break
        low = max(0, brace - _WIDEST_GAP)
        gap = text[low:brace].rstrip(_SPACE)
        if gap.endswith(b",") and gap[:-1].rstrip(_SPACE).endswith(b"}"):
            return low + len(gap) - 1
    return 0
