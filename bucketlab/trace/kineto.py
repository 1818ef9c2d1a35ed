"""Kineto's JSON -> columns: exact, fast, in bounded memory. Says nothing of what the events mean.

The file is cut into pieces between two events, and each piece is decoded by msgspec straight into the few fields that
matter. A cut is known to be right because the piece decodes: a piece of a JSON array that ends in "}" is a whole array
once "]" is put behind it just when that brace ended an element of the array itself. Times never become floats: their
decimal text is turned into integer nanoseconds, all of a piece at once.

Measured while choosing (Python 3.11, 50 MB, 200,000 events, median of 5, decoding alone): `python -m bench.traces`
prints the comparison with json, orjson and pysimdjson, and of isal with zlib.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bucketlab.errors import BadInput
from bucketlab.trace.columns import Category, CollectiveArgs, Events, Int64s, Trace, Track
from bucketlab.trace.source import Source

# What kineto, the autograd profiler before it and other backends write as "cat".
_CATEGORIES: dict[str, int] = {
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "cpu_op": Category.OPERATOR,
    "Operator": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
}
_DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.GPU_ANNOTATION)

_PIECE_BYTES = 8 * 2**20
_LARGEST_EVENT_BYTES = 64 * 2**20
_LARGEST_HEADER_BYTES = 256 * 2**20
_TRIES = 20  # cuts tried before a piece is taken for damaged

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}(\s*),\s*\{")
_END = re.compile(rb"\}\s*(\])\s*[,}]|\}\s*(\])\s*$|^\s*(\])")
_SPACE = b" \t\r\n"
_INT64 = np.iinfo(np.int64)
_POWERS = np.array([1, 10, 100, 1000], dtype=np.int64)
_ABSENT = msgspec.Raw(b"")


class _Args(msgspec.Struct, gc=False, kw_only=True, frozen=True):
    correlation: int = -1
    external: int = msgspec.field(name="External id", default=-1)
    external_of_old: int = msgspec.field(name="external id", default=-1)
    device: int = -1
    stream: int = -1
    name: msgspec.Raw = _ABSENT
    op: str | None = msgspec.field(name="Collective name", default=None)
    in_elements: int | None = msgspec.field(name="In msg nelems", default=None)
    out_elements: int | None = msgspec.field(name="Out msg nelems", default=None)
    dtype: str | None = None
    group: msgspec.Raw = msgspec.field(name="Process Group Name", default=_ABSENT)
    group_size: int | None = msgspec.field(name="Group size", default=None)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=_ABSENT)
    sequence: int | None = msgspec.field(name="Seq", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_ABSENT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_ABSENT)


_NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False, kw_only=True):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = _ABSENT
    dur: msgspec.Raw = _ABSENT
    args: _Args = _NO_ARGS


class _Header(msgspec.Struct, kw_only=True):
    distributed: dict[str, Any] = msgspec.field(name="distributedInfo", default_factory=dict)
    host: str | None = msgspec.field(name="host_name", default=None)


_decode_piece = msgspec.json.Decoder(list[_Event]).decode
# Numbers as text and text as numbers, which some writers leave behind; slower, and used only where it is needed.
_decode_lenient = msgspec.json.Decoder(_Event, strict=False).decode
_decode_header = msgspec.json.Decoder(_Header).decode


def read_trace(path: str | Path) -> Trace:
    """Reads one rank's trace, plain or gzip, an object with `traceEvents` or a bare array.

    Damage is survived: all complete events are kept, and `Trace.warnings` says what was lost.

    Raises:
        BadInput: the file cannot be read, or holds no trace at all.
    """
    return _Reader(Path(path)).read()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = Source(path)
        self.columns = _Columns()
        self.warnings: list[str] = []
        self.lost = 0
        self.read_bytes = 0
        self.ended = False
        self.header = _Header()

    def read(self) -> Trace:
        pieces = iter(self.source)
        with _no_garbage_collection():
            rest = self._events(self._begin(pieces), pieces)
        self._footer(rest, pieces)
        self._warn()
        if not self.columns.complete and (self.warnings or not self.columns.seen):
            reason = self.warnings[0] if self.warnings else "it has no events"
            raise BadInput(f"{self.path}: no event of a torch.profiler trace could be read: {reason}")
        return self._trace()

    def _begin(self, pieces: Iterator[bytes]) -> bytes:
        """Bytes behind the opening bracket of the events."""
        buffer = b""
        for piece in pieces:
            self.read_bytes += len(piece)
            buffer += piece
            text = buffer.lstrip(b"\xef\xbb\xbf" + _SPACE)
            if text.startswith(b"["):
                return text[1:]
            if text and not text.startswith(b"{"):
                raise BadInput(f"{self.path}: this is no JSON trace: it begins with {text[:20]!r}")
            for found in _START.finditer(text):
                if self._is_header(text[: found.start()]):
                    return text[found.end() :]
            if len(text) > _LARGEST_HEADER_BYTES:
                break
        if not buffer.strip():
            damage = f" ({self.source.damage})" if self.source.damage else ""
            raise BadInput(f"{self.path}: the file is empty{damage}")
        damage = f"; {self.source.damage}" if self.source.damage else ""
        raise BadInput(f"{self.path}: this is no trace of torch.profiler: it has no traceEvents{damage}")

    def _is_header(self, text: bytes) -> bool:
        """Whether a text in front of "traceEvents" ends at the top level of the document."""
        try:
            self._take_header(text.rstrip(_SPACE).rstrip(b",") + b"}")
        except msgspec.DecodeError:
            return False
        return True

    def _take_header(self, document: bytes) -> None:
        try:
            found = _decode_header(document)
        except msgspec.ValidationError:
            msgspec.json.decode(document)  # raises where it is no JSON at all
            return
        self.header = _Header(
            distributed=found.distributed or self.header.distributed, host=found.host or self.header.host
        )

    # ---- events -----------------------------------------------------------------------------------------------

    def _events(self, rest: bytes, pieces: Iterator[bytes]) -> bytes:
        """Takes in all events; returns what follows the array."""
        parts = [rest]
        size = len(rest)
        for piece in pieces:
            self.read_bytes += len(piece)
            parts.append(piece)
            size += len(piece)
            if size < _PIECE_BYTES:
                continue
            rest = self._take(b"".join(parts), last=False)
            if self.ended:
                return rest
            parts, size = [rest], len(rest)
        return self._take(b"".join(parts), last=True)

    def _take(self, data: bytes, last: bool) -> bytes:
        """Takes as many whole events from the front as there are; returns the bytes behind them."""
        if last:
            return self._take_last(data)
        for cut, following in _cuts(data):
            if self._decode(data[:cut]):
                return data[following:]
        rest = self._take_to_end(data)
        if rest is not None:
            return rest
        if len(data) < _LARGEST_EVENT_BYTES:
            return data  # an event larger than a piece
        return self._salvage(data)

    def _take_last(self, data: bytes) -> bytes:
        rest = self._take_to_end(data)
        if rest is not None:
            return rest
        self.warnings.append(f"cut off: the file ends inside its events, after byte {self.read_bytes}")
        whole = data.rstrip(_SPACE).rstrip(b",")
        if not whole or (whole.endswith(b"}") and self._decode(whole)):
            return b""
        for cut, _ in _cuts(data):
            if self._decode(data[:cut]):
                return b""
        if self.columns.seen or b"}" in data:
            self._salvage(data, incomplete=True)
        return b""

    def _take_to_end(self, data: bytes) -> bytes | None:
        """Events up to the array's closing bracket and what follows it; None where it does not close here."""
        for number, found in enumerate(_END.finditer(data)):
            if number >= _TRIES:
                return None
            end = found.start(found.lastindex or 1)
            if self._decode(data[:end]):
                self.ended = True
                return data[end + 1 :]
        return None

    def _decode(self, text: bytes) -> bool:
        try:
            events = _decode_piece(b"[" + text + b"]")
        except msgspec.ValidationError:
            return self._decode_one_by_one(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        self.lost += self.columns.add(events)
        return True

    def _decode_one_by_one(self, text: bytes) -> bool:
        """A piece that is JSON, but with a field of another type than usual somewhere."""
        try:
            raws = msgspec.json.decode(b"[" + text + b"]", type=list[msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        events = [one for raw in raws if (one := _lenient(bytes(raw))) is not None]
        self.lost += len(raws) - len(events) + self.columns.add(events)
        return True

    def _salvage(self, data: bytes, incomplete: bool = False) -> bytes:
        """Event by event through a damaged stretch, guessing where each begins; returns the unfinished last one."""
        texts = _split(data)
        remainder = b"" if incomplete else texts.pop()
        whole = [one for text in texts if (one := _lenient(text)) is not None]
        self.lost += len(texts) - len(whole) + self.columns.add(whole)
        return remainder if len(remainder) < _LARGEST_EVENT_BYTES else b""

    # ---- the end ----------------------------------------------------------------------------------------------

    def _footer(self, rest: bytes, pieces: Iterator[bytes]) -> None:
        parts, size = [rest], len(rest)
        for piece in pieces:
            self.read_bytes += len(piece)
            if size < _LARGEST_HEADER_BYTES:
                parts.append(piece)
                size += len(piece)
        text = b"".join(parts).strip(_SPACE).lstrip(b",").strip(_SPACE)
        if not text.endswith(b"}") or text == b"}":
            return
        try:
            self._take_header(b"{" + text)
        except msgspec.DecodeError:
            self.warnings.append("what follows its events is no JSON and was left out")

    def _warn(self) -> None:
        if self.source.damage:
            self.warnings.append(f"damaged: {self.source.damage}; everything up to there was read")
        if self.lost:
            self.warnings.append(f"{self.lost} events could not be used: damaged, or with impossible times")

    def _trace(self) -> Trace:
        info = self.header.distributed
        backend = info.get("backend")
        return Trace(
            source=str(self.path),
            events=self.columns.events(),
            names=list(self.columns.names),
            tracks=self.columns.named_tracks(),
            collective_args=self.columns.collective_args,
            rank=_whole(info.get("rank"), _rank_in(self.path.name)),
            world_size=_whole(info.get("world_size"), None),
            backend=backend.lower() if isinstance(backend, str) and backend else None,
            host=self.header.host,
            events_in_file=self.columns.complete,
            warnings=[f"{self.path}: {line}" for line in self.warnings],
        )


class _Columns:
    """Grows by pieces; what matters of each event, and nothing else, is kept."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.tracks: dict[tuple[int | str, int | str], int] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.collective_args: dict[int, CollectiveArgs] = {}
        self.complete = 0
        self.seen = 0
        self._rows = 0
        self._pieces: list[Events] = []

    def add(self, events: Sequence[_Event]) -> int:
        """Takes events in; returns how many had impossible times."""
        self.seen += len(events)
        for event in events:
            if event.ph == "M" and event.name == "thread_name":
                self.thread_names[str(event.pid), str(event.tid)] = _text(event.args.name) or ""
        self.complete += sum(event.ph == "X" for event in events)
        kept = [event for event in events if event.ph == "X" and event.cat in _CATEGORIES]
        if not kept:
            return 0
        start, known_start = _nanoseconds([event.ts for event in kept])
        duration, known_duration = _nanoseconds([event.dur or b"0" for event in kept])
        good = known_start & known_duration & (duration >= 0) & (start <= _INT64.max - duration)
        if not good.all():
            kept = [event for event, use in zip(kept, good.tolist(), strict=True) if use]
            start, duration = start[good], duration[good]
        self._note_collectives(kept)
        self._pieces.append(self._as_columns(kept, start, duration))
        self._rows += len(kept)
        return int((~good).sum())

    def _as_columns(self, kept: Sequence[_Event], start: Int64s, duration: Int64s) -> Events:
        names, tracks = self.names, self.tracks
        args = [event.args for event in kept]
        category = np.array([_CATEGORIES[event.cat] for event in kept], dtype=np.int8)
        name = [names.setdefault(event.name, len(names)) for event in kept]
        track = [tracks.setdefault((event.pid, event.tid), len(tracks)) for event in kept]
        steps = [i for i, event in enumerate(kept) if event.name.startswith("ProfilerStep")]
        for i in steps:  # an operator in the traces of torch 1.x
            if category[i] == Category.OPERATOR:
                category[i] = Category.ANNOTATION
        on_device = np.isin(category, _DEVICE_CATEGORIES)
        device = _integers([one.device for one in args])
        stream = _integers([one.stream for one in args])
        for i in np.flatnonzero(on_device & ((device < 0) | (stream < 0))).tolist():
            device[i] = device[i] if device[i] >= 0 else _digits(kept[i].pid)
            stream[i] = stream[i] if stream[i] >= 0 else _digits(kept[i].tid)
        return Events(
            start_ns=start,
            end_ns=start + duration,
            name=np.array(name, dtype=np.int32),
            category=category,
            track=np.array(track, dtype=np.int32),
            device=np.where(on_device, np.clip(device, -1, 2**31 - 1), -1).astype(np.int32),
            stream=np.where(on_device, stream, -1),
            correlation=_integers([one.correlation for one in args]),
            external=_integers([one.external if one.external >= 0 else one.external_of_old for one in args]),
        )

    def _note_collectives(self, kept: Sequence[_Event]) -> None:
        for i, event in enumerate(kept):
            args = event.args
            if args.op is not None:
                self.collective_args[self._rows + i] = CollectiveArgs(
                    op=args.op,
                    in_elements=args.in_elements,
                    out_elements=args.out_elements,
                    dtype=args.dtype,
                    group=_text(args.group),
                    group_size=args.group_size,
                    group_ranks=_text(args.group_ranks),
                    sequence=args.sequence,
                )
            elif args.dims and event.name.startswith(("c10d::", "record_param_comms", "gloo:", "nccl:")):
                found = _from_shapes(args)
                if found is not None:
                    self.collective_args[self._rows + i] = found

    def events(self) -> Events:
        """All pieces as one; each column is joined and its pieces let go before the next, to keep the peak low."""
        columns: dict[str, Any] = {}
        for name, dtype in _DTYPES.items():
            parts = [getattr(piece, name) for piece in self._pieces]
            columns[name] = np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
            for piece in self._pieces:
                setattr(piece, name, None)
        return Events(**columns)

    def named_tracks(self) -> list[Track]:
        keys = [(str(pid), str(tid)) for pid, tid in self.tracks]
        return [Track(pid, tid, self.thread_names.get((pid, tid), "")) for pid, tid in keys]


_DTYPES = {
    "start_ns": np.int64,
    "end_ns": np.int64,
    "name": np.int32,
    "category": np.int8,
    "track": np.int32,
    "device": np.int32,
    "stream": np.int64,
    "correlation": np.int64,
    "external": np.int64,
}


# ---- cutting ------------------------------------------------------------------------------------------------------


def _cuts(data: bytes) -> Iterator[tuple[int, int]]:
    """Likely ends of an event near the end of the data, the last first: where it ends, where the next one begins."""
    stop = len(data)
    for _ in range(_TRIES):
        window = max(0, stop - 2**16)
        found = None
        while found is None:
            matches = list(_BETWEEN.finditer(data, window, stop))
            found = matches[-1] if matches else None
            if window == 0:
                break
            window = max(0, window - 2**20)
        if found is None:
            return
        yield found.start() + 1, found.end() - 1
        stop = found.start() + 1


def _split(data: bytes) -> list[bytes]:
    texts = []
    begin = 0
    for found in _BETWEEN.finditer(data):
        texts.append(data[begin : found.start() + 1])
        begin = found.end() - 1
    return [*texts, data[begin:]]


# ---- numbers and texts --------------------------------------------------------------------------------------------


def _nanoseconds(texts: Sequence[msgspec.Raw | bytes]) -> tuple[Int64s, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Decimal microseconds as integer nanoseconds, without floats, and which of them are any."""
    values = _plain_nanoseconds(texts)
    if values is not None:
        return values, np.ones(len(texts), dtype=np.bool_)
    each = [_nanosecond(bytes(text)) for text in texts]
    known = np.array([value is not None for value in each], dtype=np.bool_)
    return np.array([value or 0 for value in each], dtype=np.int64), known


def _plain_nanoseconds(texts: Sequence[msgspec.Raw | bytes]) -> Int64s | None:
    """All at once, where every text is digits with at most three decimals, as kineto writes them; else None.

    A text without its point is a whole number of the unit that its last decimal has.
    """
    joined = b",".join(texts) + b","
    data = np.frombuffer(joined, dtype=np.uint8)
    commas = np.flatnonzero(data == ord(","))
    points = np.flatnonzero(data == ord("."))
    owner = np.searchsorted(commas, points)
    digits = int(((data >= ord("0")) & (data <= ord("9"))).sum())
    if len(commas) != len(texts) or digits + len(points) + len(commas) != len(data) or (np.diff(owner) == 0).any():
        return None
    decimals = np.zeros(len(texts), dtype=np.int64)
    decimals[owner] = commas[owner] - points - 1
    lengths = np.diff(commas, prepend=-1) - 1
    lengths[owner] -= 1
    if not len(texts) or decimals.max() > 3 or lengths.min() < 1 or (lengths + 3 - decimals).max() > 18:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of text that it could not read to its end
        whole = np.fromstring(joined.replace(b".", b"")[:-1], dtype=np.int64, sep=",")
    return whole * _POWERS[3 - decimals]


def _nanosecond(text: bytes) -> int | None:
    text = text.strip(b'" ')
    if len(text) > 40:  # no time; an exponent of a million digits would take as many
        return None
    try:
        value = Decimal(text.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError, ValueError):
        return None
    if not value.is_finite() or value.adjusted() > 18:
        return None
    nanoseconds = int((value * 1000).to_integral_value())
    return nanoseconds if _INT64.min <= nanoseconds <= _INT64.max else None


def _integers(values: list[int]) -> Int64s:
    """As a column; -1 for what does not fit into 64 bits."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([one if _INT64.min <= one <= _INT64.max else -1 for one in values], dtype=np.int64)


def _digits(value: int | str) -> int:
    """7 of "stream 7"; -1 where there is no number."""
    found = re.search(r"\d{1,18}", str(value))
    return int(found.group()) if found else -1


def _text(raw: msgspec.Raw) -> str | None:
    if not raw:
        return None
    value = msgspec.json.decode(raw)
    return value if isinstance(value, str) else str(value)


def _whole(value: object, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def _rank_in(name: str) -> int | None:
    found = re.search(r"rank[_-]?(\d{1,7})", name)
    return int(found.group(1)) if found else None


def _lenient(text: bytes) -> _Event | None:
    for attempt in (text, text.decode("utf-8", "replace").encode()):
        try:
            return _decode_lenient(attempt)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return _without_args(text)


def _without_args(text: bytes) -> _Event | None:
    """An event whose args have a field of an impossible type is still an event."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        fields.pop("args", None)
        return _decode_lenient(msgspec.json.encode(fields))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _from_shapes(args: _Args) -> CollectiveArgs | None:
    """Elements and dtype of a collective operator, from the shapes of its first argument: a tensor or a list of them."""
    try:
        dims = msgspec.json.decode(args.dims)
        types = msgspec.json.decode(args.types) if args.types else []
    except msgspec.DecodeError:
        return None
    elements = _elements(dims[0]) if isinstance(dims, list) and dims else None
    if not elements:
        return None
    dtype = types[0] if isinstance(types, list) and types and isinstance(types[0], str) else None
    return CollectiveArgs(in_elements=elements, dtype=dtype)


def _elements(shape: object) -> int | None:
    if not isinstance(shape, list) or not shape:
        return None
    if isinstance(shape[0], list):
        return sum(_elements(one) or 0 for one in shape)
    product = 1
    for size in shape:
        if not isinstance(size, int):
            return None
        product *= size
    return product if 0 <= product <= _INT64.max else None


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of young objects that are no garbage would be searched again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
