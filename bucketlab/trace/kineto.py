"""A trace that torch.profiler (Kineto) wrote -> columns. Reads and repairs; judges nothing of what the events mean.

The text is cut into pieces of half a MiB between two events, each piece decoded into the few fields that are needed,
and turned into columns at once. So memory is that of the columns, and time grows with the size.

CPU time and peak memory of decoding 51.6 MB, 243,438 events (Python 3.11, medians of 5 processes each, interleaved on
a shared machine): json 641 ms, 289 MB; orjson 562 ms, 397 MB; pysimdjson 830 ms to objects, 797 ms to eight fields;
msgspec 533 ms untyped, 126 ms and 208 MB typed and in one piece; `read_trace`, which makes columns too, 238 ms, 49 MB.
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import itertools
import json
import math
import operator
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from bucketlab.errors import BadInput
from bucketlab.trace import source
from bucketlab.trace.classify import NO_DTYPES
from bucketlab.trace.columns import Category, CollectiveArgs, Events, Int8s, Int64s, Trace, Track
from bucketlab.trace.decimals import LATEST_NS, nanoseconds
from bucketlab.trace.elements import Document, NoJson
from bucketlab.trace.sections import NoCut, Section, in_process, sections

S = TypeVar("S", bound=msgspec.Struct)
Bools = npt.NDArray[np.bool_]

ABSENT = -1

_CATEGORIES = {
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "cpu_op": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "memcpy": Category.MEMCPY,
    "memset": Category.MEMSET,
    "runtime": Category.RUNTIME,
    "operator": Category.OPERATOR,
}
_OTHER_RUNTIME = re.compile(r"\w+_(runtime|driver)")  # hip_runtime, xpu_runtime, privateuse1_driver, ...
_ON_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.GPU_ANNOTATION)
_COLLECTIVE_ARGS, _STEP_OF_OLD = 1, 2  # what a name may promise; steps were operators up to torch 1.11
_COLLECTIVE = re.compile(r"^(c10d|_c10d_functional|nccl|rccl|gloo|ucc|mpi|xccl)::?|^record_param_comms$")
_OUTPUT_FIRST = re.compile(r"^c10d::.*(gather|scatter|alltoall)")  # c10d's operators that take (outputs, inputs, ...)
_RANK_IN_NAME = re.compile(r"(?<![a-z])rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_NO_NUMBER = re.compile(r":\s*-?(?:nan|inf)\b")
_OTHER_PHASES = frozenset("BEM")  # begin, end, metadata
_NOTHING = msgspec.Raw(b"")
_MOST_OPEN = 100_000  # threads that nest so deep are none; the memory for them is bounded
_LONGEST_NAME = 80  # in a warning
_SAYS_NOTHING = CollectiveArgs()
_ONLY_END = "only end"
_RECENT_S = 10  # a profiler that writes does not pause so long


class _Args(msgspec.Struct, frozen=True, gc=False):
    device: int = ABSENT
    stream: int = ABSENT
    correlation: int = ABSENT
    external: int = msgspec.field(default=ABSENT, name="External id")
    external_of_old: int = msgspec.field(default=ABSENT, name="external id")  # of kernels, up to torch 1.11
    op: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    group: str | int | None = msgspec.field(default=None, name="Process Group Name")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    group_ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    dims: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input type")
    name: msgspec.Raw = _NOTHING  # of metadata


class _Event(msgspec.Struct, gc=False):
    """Of a phase ("ph") that says nothing here, or of none."""

    ph: ClassVar[str] = ""

    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    args: _Args = _Args()


class _Complete(_Event, tag_field="ph", tag="X"):
    ph: ClassVar[str] = "X"


class _Begin(_Event, tag_field="ph", tag="B"):
    ph: ClassVar[str] = "B"


class _End(_Event, tag_field="ph", tag="E"):
    ph: ClassVar[str] = "E"


class _Metadata(_Event, tag_field="ph", tag="M"):
    ph: ClassVar[str] = "M"


_PHASES: dict[str, type[_Event]] = {kind.ph: kind for kind in (_Complete, _Begin, _End, _Metadata)}
# The format's other phases, flow arrows above all: a third of a trace. Not to take their fields is a tenth faster.
_FIELDLESS = [
    msgspec.defstruct("_Fieldless", [], tag_field="ph", tag=phase, namespace={"ph": phase}, gc=False)
    for phase in "sftiICbenSTpFNODPvVRc"
]
_ANY_PHASE: Any = functools.reduce(operator.or_, [*_PHASES.values(), *_FIELDLESS])

_decode_events = msgspec.json.Decoder(list[_ANY_PHASE], strict=False).decode
_decode_event = msgspec.json.Decoder(_ANY_PHASE, strict=False).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_fields = functools.cache(msgspec.structs.fields)
_decode_any = msgspec.json.Decoder(float_hook=str).decode


class _Read(NamedTuple):
    """What one pass over a trace, or over a section of it, has found."""

    document: Document[_Event]
    columns: _Columns


class _State(NamedTuple):
    """Of a file."""

    size_bytes: int
    changed_ns: int


def _size_and_time(path: Path) -> _State | None:
    """None for what is no file, and so has none."""
    with contextlib.suppress(OSError):
        if path.is_file():
            state = path.stat()
            return _State(state.st_size, state.st_mtime_ns)
    return None


def _still_written(before: _State | None, after: _State | None) -> str | None:
    """Why a trace that ends too early may be whole in a while."""
    if before is None or after is None:
        return None
    if before != after:
        return "it was written to while it was read: analyze it again when it is finished"
    age_s = (time.time_ns() - after.changed_ns) / 1e9
    if 0 <= age_s < _RECENT_S:
        return f"it was written to {age_s:.0f} s ago and may not be finished: if so, analyze it again later"
    return None


class _Joinable(NamedTuple):
    """What a section that was read without any damage adds to the others."""

    columns: _Columns
    members: dict[str, bytes]


def read_trace(path: str | Path, processes: int = 1) -> Trace:
    """Reads one rank's trace, gz or not.

    What can be survived becomes a line in `Trace.warnings`: a file that is cut off or damaged gives all events that
    are complete.

    Args:
        path: the file.
        processes: how many may read it at once, of a large file a section each. They are forked, so that more than
            one is for a program without threads.

    Raises:
        BadInput: the file cannot be read, is no trace, or holds no event that could be used.
    """
    path = Path(path)
    before = _size_and_time(path)
    document, columns = _read_in_sections(path, processes) or _read(path, source.blocks(path))
    if document.damage and (why := _still_written(before, _size_and_time(path))):
        document.damage[-1] += f"; {why}"
    if not columns.rows:
        raise BadInput(f"{path}: {'; '.join([_why_empty(document, columns), *_warnings(document, columns)])}")
    events, tracks = columns.finish()
    header = _header(document.members)
    distributed = header.distributed
    return Trace(
        source=str(path),
        events=events,
        names=list(columns.names),
        tracks=tracks,
        collective_args=columns.collective_args,
        rank=_rank_in_name(path) if distributed.rank is None else distributed.rank,
        world_size=distributed.world_size,
        backend=distributed.backend.lower() if distributed.backend else None,
        host=header.host,
        warnings=[f"{path}: {warning}" for warning in _warnings(document, columns)],
    )


def _read(path: Path, blocks: Iterator[bytes]) -> _Read:
    columns = _Columns()
    document = Document(blocks, _decode, _repair)
    try:
        for piece in document.pieces():
            columns.add(piece)
            piece.clear()  # so that the next piece is decoded into memory that the cache still holds
    except NoJson:
        raise BadInput(f"{path}: no JSON: want a trace as torch.profiler exports it") from None
    return _Read(document, columns)


def _read_in_sections(path: Path, processes: int) -> _Read | None:
    """None for what is small, is damaged, or cannot be cut: only who reads from the front can say what is wrong."""
    parts = sections(path, processes)
    if not parts:
        return None
    try:
        with contextlib.ExitStack() as started:
            results = [
                started.enter_context(in_process(functools.partial(_joinable, path, part))) for part in parts[1:]
            ]
            document, columns = _read_section(path, parts[0])
            for result in results:
                more = result()
                columns.join(more.columns)
                document.members |= {name: msgspec.Raw(text) for name, text in more.members.items()}
    except (NoCut, BadInput):
        return None
    return _Read(document, columns)


def _joinable(path: Path, section: Section) -> _Joinable:
    document, columns = _read_section(path, section)
    return _Joinable(columns, {name: bytes(text) for name, text in document.members.items()})


def _read_section(path: Path, section: Section) -> _Read:
    """Raises NoCut unless the section is a whole and undamaged trace."""
    document, columns = _read(path, section.blocks(path))
    complete = document.ends_with_events or (section.high is None and document.has_events)
    if not complete or document.damage or document.malformed or columns.has_halves:
        raise NoCut
    return _Read(document, columns)


def _why_empty(document: Document[_Event], columns: _Columns) -> str:
    if not document.has_events:
        return "JSON without traceEvents: no trace of torch.profiler"
    if not columns.complete:
        return "a trace without events: nothing ran while the profiler recorded"
    return f"none of its {columns.complete} events is one that torch.profiler writes and that can be used"


def _warnings(document: Document[_Event], columns: _Columns) -> list[str]:
    warnings = list(document.damage)
    if document.malformed:
        warnings.append(
            f"{document.malformed} malformed events were left out, the first at byte {document.first_malformed}"
        )
    for what, (count, name) in columns.oddities.items():
        warnings.append(f"{count} events {what}, the first named {name[:_LONGEST_NAME]!r}")
    return warnings


def _rank_in_name(path: Path) -> int | None:
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


# ---- the header -------------------------------------------------------------------------------------------------


_Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Distributed(msgspec.Struct):
    rank: _Rank | None = None
    world_size: _Rank | None = None
    backend: str | None = None


class _Header(msgspec.Struct):
    distributed: _Distributed = msgspec.field(default_factory=_Distributed, name="distributedInfo")
    host: str | None = msgspec.field(default=None, name="host_name")


def _header(members: dict[str, msgspec.Raw]) -> _Header:
    values = {}
    for field in msgspec.structs.fields(_Header):
        with contextlib.suppress(KeyError, msgspec.DecodeError):  # absent; bytes that are no UTF-8
            values[field.encode_name] = _decode_any(members[field.encode_name])
    return _lenient(values, _Header)


# ---- one event --------------------------------------------------------------------------------------------------


def _decode(array: bytes) -> list[_Event]:
    """Events of a JSON array. Raises msgspec.DecodeError where it is malformed or an element is no object."""
    try:
        return _decode_events(array)
    except msgspec.ValidationError:
        return [_typed(element) for element in _decode_raw(array)]


def _typed(element: msgspec.Raw) -> _Event:
    try:
        event: _Event = _decode_event(element)
        return event
    except msgspec.ValidationError:
        members = _decode_any(element)
    if not isinstance(members, dict):
        raise msgspec.DecodeError("no object")
    return _lenient(members, _kind(members))


def _kind(members: dict[str, Any]) -> type[_Event]:
    phase = members.get("ph")
    return _PHASES.get(phase, _Event) if isinstance(phase, str) else _Event


def _lenient(members: dict[str, Any], kind: type[S]) -> S:
    """Takes what can be taken for the type that is wanted, and leaves the rest at its default."""
    given: dict[str, Any] = {}
    for field in _fields(kind):
        value = members.get(field.encode_name)
        if isinstance(value, str):
            value = value.encode(errors="replace").decode()  # half of a surrogate pair
        if value is None:
            continue
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            if isinstance(value, dict):
                given[field.name] = _lenient(value, field.type)
        elif field.type is msgspec.Raw:
            given[field.name] = msgspec.Raw(json.dumps(value).encode())
        else:
            with contextlib.suppress(msgspec.ValidationError):
                given[field.name] = msgspec.convert(value, field.type, strict=False)
    return kind(**given)


def _repair(element: bytes) -> _Event | None:
    """Reads what is not quite JSON: bytes that are no UTF-8, control characters, lone backslashes, nan and inf."""
    text = _ESCAPE.sub(lambda found: found[0] if found[1] else "\\\\", element.decode(errors="replace"))
    text = _NO_NUMBER.sub(":null", text)
    try:
        members = json.loads(text, strict=False, parse_float=str, parse_int=_int_or_text, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return _lenient(members, _kind(members)) if isinstance(members, dict) and members.get("ph") else None


def _int_or_text(digits: str) -> int | str:
    return int(digits) if len(digits) < 100 else digits  # Python refuses integers of thousands of digits


# ---- columns ----------------------------------------------------------------------------------------------------


class _Numbered(dict[Any, int]):
    """Numbers keys in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Names(_Numbered):
    """Names of events, and what each promises: that is asked once for a name, not for every event."""

    def __init__(self) -> None:
        super().__init__()
        self.promises = bytearray()  # by number: _COLLECTIVE_ARGS, _STEP_OF_OLD or 0

    def __missing__(self, name: str) -> int:
        collective = _COLLECTIVE_ARGS if _COLLECTIVE.search(name) else 0
        self.promises.append(_STEP_OF_OLD if name.startswith("ProfilerStep#") else collective)
        return super().__missing__(name)


class _Codes(dict[str, int]):
    """Kineto's `cat` -> Category, ABSENT for those that are left out."""

    def __missing__(self, cat: str) -> int:
        spelling = cat.lower()  # "Kernel", "Memcpy", "Runtime", "Operator" up to torch 1.11
        other = Category.RUNTIME if _OTHER_RUNTIME.fullmatch(spelling) else ABSENT
        self[cat] = code = int(_CATEGORIES.get(spelling, other))
        return code


class _Columns:
    """Takes events piece by piece, and keeps of them only columns."""

    def __init__(self) -> None:
        self.rows = 0
        self.complete = 0  # events, those that became no row included
        self.names = _Names()
        self.collective_args: dict[int, CollectiveArgs] = {}
        self.oddities: dict[str, tuple[int, str]] = {}  # what is odd -> how often, and the name of the first
        self._codes = _Codes()
        self._tracks = _Numbered()
        self._thread_names: dict[tuple[str, str], str] = {}
        self._begun: dict[tuple[int | str, int | str], list[_Event]] = {}
        self._open = 0  # how many those are
        self._words: dict[str, str] = {}  # those that come again and again, once each
        self._parts: list[Events] = []

    def add(self, events: list[_Event]) -> None:
        complete = [event for event in events if event.ph == "X"]
        if len(complete) < len(events):
            complete += self._from_other_phases([event for event in events if event.ph in _OTHER_PHASES])
        self.complete += len(complete)
        codes = map(self._codes.__getitem__, [event.cat for event in complete])
        category = np.fromiter(codes, np.int8, len(complete))
        rows, category = _kept(category != ABSENT, complete, category)
        start, started = nanoseconds([event.ts for event in rows])
        length, ended = nanoseconds([event.dur for event in rows])
        usable = started & ended & (length >= 0) & (start < LATEST_NS - length)
        if not usable.all():
            for i in np.flatnonzero(~usable):
                usable[i] = self._is_instant(rows[i], bool(started[i]), bool(ended[i]))
            rows, category, start, length = _kept(usable, rows, category, start, length)
        if rows:
            self._parts.append(self._columns(rows, category, start, start + length))
            self.rows += len(rows)

    @property
    def has_halves(self) -> bool:
        """Whether an event's begin or end was seen without the other, which may stand in another section."""
        return self._open > 0 or _ONLY_END in self.oddities

    def join(self, later: _Columns) -> None:
        """Adds what was read from a later section, which is taken apart."""
        name = np.fromiter(map(self.names.__getitem__, later.names), np.int32, len(later.names))
        track = np.fromiter(map(self._tracks.__getitem__, later._tracks), np.int32, len(later._tracks))
        for part in later._parts:
            part.name, part.track = name[part.name], track[part.track]
        self._parts += later._parts
        self.collective_args |= {self.rows + row: said for row, said in later.collective_args.items()}
        self.rows += later.rows
        self.complete += later.complete
        self._thread_names |= later._thread_names
        for what, (count, named) in later.oddities.items():
            so_far, first = self.oddities.get(what, (0, named))
            self.oddities[what] = (so_far + count, first)

    def finish(self) -> tuple[Events, list[Track]]:
        """Everything that was added. Can be called once: it takes the parts apart to need no memory twice."""
        for begun in self._begun.values():
            for event in begun:
                self._note("only begin", event)
        columns = {}
        for column in Events.__slots__:
            columns[column] = np.concatenate([getattr(part, column) for part in self._parts])
            for part in self._parts:
                delattr(part, column)
        threads = [(str(pid), str(tid)) for pid, tid in self._tracks]
        return Events(**columns), [Track(*thread, self._thread_names.get(thread, "")) for thread in threads]

    def _note(self, what: str, event: _Event) -> None:
        count, first = self.oddities.get(what, (0, event.name))
        self.oddities[what] = (count + 1, first)

    def _is_instant(self, event: _Event, started: bool, ended: bool) -> bool:
        """Notes why an event's times cannot be used as they stand; whether it can be used as one of no length."""
        missing = not bytes(event.dur)
        if started and missing:
            self._note("have no duration, and count as instants", event)
        elif started and ended:
            self._note("have a negative duration or end too late, and were left out", event)
        else:
            self._note("have a time that is none, and were left out", event)
        return started and missing

    def _from_other_phases(self, events: Iterable[_Event]) -> Iterator[_Event]:
        """Notes the names of threads; joins events that are written as a begin and an end."""
        for event in events:
            if isinstance(event, _Metadata) and event.name == "thread_name":
                with contextlib.suppress(msgspec.DecodeError):
                    name = msgspec.json.decode(event.args.name, type=str)
                    self._thread_names[str(event.pid), str(event.tid)] = name
            elif isinstance(event, _Begin) and self._open == _MOST_OPEN:
                self._note("begin while too many others are open, and were left out", event)
            elif isinstance(event, _Begin):
                self._open += 1
                # without what would keep the whole piece in memory
                args = msgspec.structs.replace(event.args, dims=_NOTHING, types=_NOTHING, name=_NOTHING)
                begun = msgspec.structs.replace(event, ts=event.ts.copy(), args=args)
                self._begun.setdefault((event.pid, event.tid), []).append(begun)
            elif isinstance(event, _End):
                begun_here = self._begun.get((event.pid, event.tid))
                if begun_here:
                    self._open -= 1
                    yield _joined(begun_here.pop(), event)
                else:
                    self._note(_ONLY_END, event)

    def _columns(self, rows: list[_Event], category: Int8s, start_ns: Int64s, end_ns: Int64s) -> Events:
        count = len(rows)
        args = [event.args for event in rows]
        name = np.fromiter(map(self.names.__getitem__, [event.name for event in rows]), np.int32, count)
        threads = zip([event.pid for event in rows], [event.tid for event in rows], strict=True)
        promise = np.frombuffer(self.names.promises, np.int8)[name]
        category[(promise == _STEP_OF_OLD) & (category == Category.OPERATOR)] = Category.ANNOTATION
        device, stream = np.full((2, count), ABSENT, np.int64)
        on_device = np.flatnonzero(np.isin(category, _ON_DEVICE)).tolist()
        device[on_device] = _int64s([_or_of_row(args[i].device, rows[i].pid) for i in on_device])
        stream[on_device] = _int64s([_or_of_row(args[i].stream, rows[i].tid) for i in on_device])
        telling = np.flatnonzero(promise == _COLLECTIVE_ARGS).tolist()
        for i in itertools.chain(telling, (i for i in on_device if args[i].op is not None)):
            if (args[i].op is not None or args[i].dims) and (said := self._said(rows[i])) != _SAYS_NOTHING:
                self.collective_args[self.rows + i] = said
        external = _int64s([each.external for each in args])
        if external.min() == ABSENT:
            external = np.where(external == ABSENT, _int64s([each.external_of_old for each in args]), external)
        return Events(
            start_ns=start_ns,
            end_ns=end_ns,
            name=name,
            category=category,
            track=np.fromiter(map(self._tracks.__getitem__, threads), np.int32, count),
            device=np.where(np.abs(device) < 2**31, device, ABSENT).astype(np.int32),
            stream=stream,
            correlation=_int64s([each.correlation for each in args]),
            external=external,
        )

    def _said(self, event: _Event) -> CollectiveArgs:
        args = event.args
        given, returned, dtype = _from_shapes(event) if args.dims else (None, None, None)
        if args.in_elements is not None or args.out_elements is not None:
            given, returned = args.in_elements, args.out_elements
        return CollectiveArgs(
            op=self._once(args.op),
            in_elements=given,
            out_elements=returned,
            dtype=self._once(args.dtype or dtype),
            group=self._once(args.group),
            group_size=args.group_size,
            group_ranks=self._once(args.group_ranks),
            sequence=args.sequence,
        )

    def _once(self, word: str | int | list[int] | None) -> str | None:
        return None if word is None else self._words.setdefault(str(word), str(word))


def _kept(which: Bools, rows: list[_Event], *columns: Any) -> tuple[Any, ...]:
    if which.all():
        return (rows, *columns)
    return (list(itertools.compress(rows, which.tolist())), *(column[which] for column in columns))


def _joined(begin: _Event, end: _Event) -> _Event:
    (start, stop), usable = nanoseconds([begin.ts, end.ts])
    length = decimal.Decimal(int(stop - start)).scaleb(-3) if usable.all() else "null"
    duration = msgspec.Raw(str(length).encode())
    return _Complete(begin.cat, begin.name, begin.pid, begin.tid, begin.ts, duration, begin.args)


def _or_of_row(told: int, row: int | str) -> int:
    """What the args tell, else the viewer's row: Kineto shows a device as a process, and a stream as a thread."""
    if told != ABSENT:
        return told
    number = re.search(r"\d{1,18}", str(row))  # "stream 7" up to torch 1.11
    return int(number[0]) if number else ABSENT


def _int64s(values: list[int]) -> Int64s:
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return np.array([value if abs(value) < 2**63 else ABSENT for value in values], np.int64)


def _from_shapes(event: _Event) -> tuple[int | None, int | None, str | None]:
    """Elements given, elements returned, and element type, from the shapes that an operator was called with."""
    dims, types = _list(event.args.dims), _list(event.args.types)
    tensors = [isinstance(kind, str) and kind not in NO_DTYPES for kind in types]
    dtype = next((kind for kind, is_tensor in zip(types[:2], tensors, strict=False) if is_tensor), None)
    pairs = itertools.zip_longest(dims[:2], tensors[:2])
    sizes = [1 if shape == [] and is_tensor else _elements(shape) for shape, is_tensor in pairs] + [None, None]
    if _OUTPUT_FIRST.search(event.name):
        return sizes[1], sizes[0], dtype
    return sizes[0], None, dtype


def _list(text: msgspec.Raw) -> list[Any]:
    try:
        return msgspec.json.decode(text, type=list[Any])
    except (msgspec.DecodeError, RecursionError):
        return []


def _elements(shape: Any) -> int | None:
    """Of one tensor's shape, or of a list of shapes; None where it does not say."""
    if not isinstance(shape, list) or not shape:
        return None
    if all(isinstance(size, int) for size in shape):
        return math.prod(shape)
    sizes = [1 if inner == [] else _elements(inner) for inner in shape]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None
