"""Sweep files: the environment that pins a link, a model of the link, and the space to search on it.

Loads and checks them; sets no environment and searches nothing. All mistakes of a file are told in one go, each with
its line. A unit stands in the name of its key.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

from bucketlab.errors import BadInput
from bucketlab.link.algorithms import RING, Fabric, Wire
from bucketlab.link.curve import LinkCurve
from bucketlab.link.detect import HostLinks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kind = Literal["nvlink", "pcie", "shared-memory", "infiniband", "roce", "ethernet", "gloo"]
_INSIDE_A_HOST: tuple[Kind, ...] = ("nvlink", "pcie", "shared-memory")

# No link of today comes near these; a figure beyond them is in another unit.
_FASTEST_GB_S = 1e5
_SLOWEST_US = 1e6
_LONGEST = 2**14
_MOST_TOLD = 20
# A sweep is data, and so is a result; either may be someone else's.
_LOADS_CODE = re.compile(r"LD_\w+|DYLD_\w+|PYTHON\w*|PATH|ENV|BASH_ENV|BUCKETLAB_\w+|NCCL_(NET|TUNER|PROFILER)_PLUGIN")

LatencyUs = Annotated[float, msgspec.Meta(ge=0, le=_SLOWEST_US)]
BandwidthGbS = Annotated[float, msgspec.Meta(gt=0, le=_FASTEST_GB_S)]
Count = Annotated[int, msgspec.Meta(ge=1)]
CapacityMb = Annotated[float, msgspec.Meta(gt=0, le=2**20)]
Variables = dict[str, str]


class Figures(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a link does, as NCCL's tuning model has it (src/graph/tuning.cc)."""

    latency_us: LatencyUs  # of one hop from a rank to the next
    bandwidth_gb_s: BandwidthGbS  # one adapter, or one rank's links together, in one direction; 1e9 bytes per second
    source: str = ""
    overhead_us: LatencyUs = 0.0  # once per collective
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=2)] = 1  # collectives that move at a time


class LinkModel(Figures, kw_only=True):
    """A link between ranks, for prediction and emulation where it is absent."""

    kind: Kind
    ranks: Annotated[int, msgspec.Meta(ge=2)]
    ranks_per_node: Count = 1
    adapters: Count = 1  # of a host, that carry one collective together
    preset: str = ""
    within_latency_us: LatencyUs | None = None  # of a hop inside a host; None: as between hosts
    within_bandwidth_gb_s: BandwidthGbS | None = None


class Range(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Bounds, both included; searched on a logarithmic scale."""

    low: CapacityMb
    high: CapacityMb


class Search(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The space that `bucketlab tune` searches. What can change the training's results is opted in to."""

    bucket_cap_mb: Range = msgspec.field(default_factory=lambda: Range(low=0.5, high=512.0))  # MiB, as DDP's
    first_bucket_mb: Range | None = None  # None: that of all buckets
    planned_list: bool = True  # also try the planner's bucket_cap_mb_list
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    compression: list[Literal["fp16", "bf16", "powersgd"]] = []
    nccl: dict[str, list[str]] = {}  # variable of NCCL's -> values to try, where --nccl asks for it
    environment: dict[str, list[str]] = {}  # any other variable of the job's -> values to try, in launches


class Sweep(msgspec.Struct, kw_only=True):
    """One sweep file. `presets` are other figures for the same link, by name."""

    name: str
    description: str
    environment: Variables
    link: LinkModel
    presets: dict[str, Figures]
    search: Search


def shipped_sweeps() -> dict[str, Path]:
    """The sweeps that come with bucketlab, by name; from the checkout or, in a wheel, from inside the package."""
    package = Path(__file__).parents[1]
    folder = next((one for one in (package / "sweeps", package.parent / "sweeps") if one.is_dir()), package / "sweeps")
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def load_sweep(name_or_path: str, folder: Path = Path("sweeps")) -> Sweep:
    """A sweep by its file, or by the name of one in `folder` or of a shipped one; "infiniband:hdr" takes a preset.

    Args:
        name_or_path: "infiniband", "infiniband:hdr", "mine.toml".
        folder: of the user's own sweeps, looked into before the shipped ones.

    Raises:
        BadInput: no such file, no such preset, or mistakes in the file: all of them, a line each.
    """
    file = Path(name_or_path)
    if file.is_file():
        return read_sweep(file)
    name, _, preset = name_or_path.partition(":")
    known = shipped_sweeps()
    for candidate in (Path(name), folder / f"{name}.toml", known.get(name)):
        if candidate is not None and candidate.is_file():
            return read_sweep(candidate, preset or None)
    if file.suffix == ".toml" or file.parent != Path():
        raise BadInput(f"{name_or_path}: no such file. Shipped sweeps are {', '.join(known)}.")
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise BadInput(f"no sweep is called {name!r}: {meant}Shipped sweeps are {', '.join(known)}.")


def read_sweep(file: Path, preset: str | None = None) -> Sweep:
    """The sweep in a file, with the figures of `preset` where one is named.

    Raises:
        BadInput: the file cannot be read, or has mistakes: all of them, a line each.
    """
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInput(f"{file}: {reason}") from error
    if len(text) > _LONGEST:
        raise BadInput(f"{file}: is longer than any sweep, which has at most {_LONGEST:,} characters")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise BadInput(f"{file}: is nested too deep") from None
    except tomllib.TOMLDecodeError as error:
        what, line = _syntax_error(str(error), text)
        raise BadInput(f"{file}:{line}: {what}") from error
    return _Reader(file, text).sweep(document, preset)


def fabric_of(link: LinkModel) -> Fabric:
    """The link's hops, for the cost of any algorithm on it. Without figures for inside a host, both kinds are alike."""
    between = Wire(link.latency_us * 1000, link.adapters * link.bandwidth_gb_s)
    inside = between
    if link.within_latency_us is not None and link.within_bandwidth_gb_s is not None:
        inside = Wire(link.within_latency_us * 1000, link.within_bandwidth_gb_s)
    return Fabric(inside=inside, between=between, start_ns=link.overhead_us * 1000)


def curve_of(link: LinkModel) -> LinkCurve:
    """Time of a ring all-reduce between the link's ranks against its size; predicted, not measured."""
    latency_ns, ns_per_byte = RING.line(link.ranks, link.ranks_per_node, fabric_of(link))
    return LinkCurve.straight(round(float(latency_ns)), 1 / float(ns_per_byte), link.concurrency)


def environment_on(sweep: Sweep, host: HostLinks, already: Mapping[str, str]) -> Variables:
    """The sweep's variables for one host: with the names of its InfiniBand or RoCE ports, which no file can know.

    NCCL takes both by one transport, so only the adapters' names tell them apart. What the user set stays.

    Args:
        host: what was detected there.
        already: the environment in force.
    """
    found = dict(sweep.environment)
    layer = {"infiniband": "InfiniBand", "roce": "Ethernet"}.get(sweep.link.kind)
    ports = [f"{one.device}:{one.port}" for one in host.adapters if one.layer == layer and one.active]
    if layer is not None and ports:
        found.setdefault("NCCL_IB_HCA", "=" + ",".join(ports))
    return {name: value for name, value in found.items() if name not in already}


def chooses_code(variable: str) -> bool:
    """Whether a variable of the environment makes programs run other code: nothing that is data may set it."""
    return _LOADS_CODE.fullmatch(variable) is not None


# ---- checking -------------------------------------------------------------------------------------------------

Keys = tuple[str, ...]


class _Reader:
    """Turns one document into a sweep, gathering what is wrong with it."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._lines = _lines_of(text)
        self._wrong: list[tuple[int, str]] = []

    def sweep(self, document: dict[str, Any], preset: str | None) -> Sweep:
        top = ("name", "description", "environment", "link", "search")
        for key in document:
            if key not in top:
                self._tell((key,), f"unknown key {key!r}{_nearest(key, top)}")
        name = self._text(document, "name")
        description = self._text(document, "description")
        environment = self._variables(document.get("environment", {}), ("environment",))
        presets, link = self._link(document, preset)
        search = self._search(document.get("search", {}))
        if self._wrong or link is None or search is None:
            told = [f"{self._file}:{line}: {what}" for line, what in sorted(self._wrong)]
            if len(told) > _MOST_TOLD:
                told[_MOST_TOLD:] = [f"{self._file}: and {len(told) - _MOST_TOLD:,} more mistakes"]
            raise BadInput("\n".join(told))
        return Sweep(
            name=name,
            description=description,
            environment=environment,
            link=link,
            presets=presets,
            search=search,
        )

    def _tell(self, keys: Keys, what: str) -> None:
        """Note a mistake at the line of a key, or of the table around it."""
        while keys and keys not in self._lines:
            keys = keys[:-1]
        self._wrong.append((self._lines.get(keys, 1), what))

    def _text(self, document: dict[str, Any], key: str) -> str:
        value = document.get(key)
        if not isinstance(value, str) or not value.strip():
            self._tell((key,), f"{key} is missing" if value is None else f"{key} must be a text that is not empty")
            return ""
        return value

    def _table(self, value: Any, keys: Keys) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self._tell(keys, f"{'.'.join(keys)} must be a table: [{'.'.join(keys)}]")
        return {}

    def _fields(self, kind: type[msgspec.Struct], table: dict[str, Any], keys: Keys) -> dict[str, Any]:
        """The values of a table that are right; every other one is told."""
        types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        good: dict[str, Any] = {}
        for key, value in table.items():
            if key not in types:
                self._tell((*keys, key), f"unknown key {key!r}{_unit_or_nearest(key, types)}")
                continue
            info = inspect.type_info(types[key])
            inner = _table_in(info)
            if inner is not None and isinstance(value, dict):
                within = self._fields(inner, value, (*keys, key))
                if self._whole(inner, within, value, (*keys, key)):
                    good[key] = inner(**within)
                continue
            try:
                good[key] = msgspec.convert(value, types[key])
            except msgspec.ValidationError:
                self._tell((*keys, key), f"{key} = {_shown(value)}: {_must_be(info, value)}")
        return good

    def _whole(self, kind: type[msgspec.Struct], good: dict[str, Any], table: dict[str, Any], keys: Keys) -> bool:
        """Whether all that must be there is, and is right."""
        missing = [field.encode_name for field in msgspec.structs.fields(kind) if field.required]
        stems = {_split_unit(key)[0] for key in table}
        for key in missing:
            if key not in good and _split_unit(key)[0] not in stems:  # what is there in another unit is told already
                self._tell(keys, f"{'.'.join(keys)} needs {key}")
        return all(key in good for key in missing) and all(key in good for key in table)

    def _variables(self, value: Any, keys: Keys) -> Variables:
        good: Variables = {}
        for name, setting in self._table(value, keys).items():
            if not self._variable_name(name, keys):
                continue
            if isinstance(setting, str) or (isinstance(setting, int) and not isinstance(setting, bool)):
                good[name] = str(setting)
            else:
                self._tell((*keys, name), f'{name} = {_shown(setting)}: must be a text such as "1"')
        return good

    def _variable_name(self, name: str, keys: Keys) -> bool:
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            self._tell((*keys, name), f"{name!r} is no name of an environment variable")
            return False
        if chooses_code(name):
            self._tell((*keys, name), f"{name} chooses code that is run, which no sweep may")
            return False
        close = difflib.get_close_matches(name, PINNING, n=1, cutoff=0.88)
        if close and close[0] != name:
            self._tell((*keys, name), f"NCCL would pass over {name}: did you mean {close[0]}?")
            return False
        return True

    def _link(self, document: dict[str, Any], wanted: str | None) -> tuple[dict[str, Figures], LinkModel | None]:
        if "link" not in document:
            self._tell((), "[link] is missing")
            return {}, None
        table = dict(self._table(document["link"], ("link",)))
        presets = self._presets(table.pop("presets", {}))
        own = self._fields(LinkModel, table, ("link",))
        name = wanted or own.get("preset", "")
        if name and name not in presets:
            self._tell(("link", "preset"), f"no preset is called {name!r}{_nearest(name, presets)}")
            return presets, None
        figures = msgspec.structs.asdict(presets[name]) if name else {}
        if wanted:  # the figures that stand beside it are those of another one
            own = {key: value for key, value in own.items() if key not in figures}
        good = {**figures, **own, "preset": name}
        self._check(good)
        if not self._whole(LinkModel, good, table if not wanted else {}, ("link",)):
            return presets, None
        return presets, LinkModel(**good)

    def _presets(self, value: Any) -> dict[str, Figures]:
        found: dict[str, Figures] = {}
        for name, table in self._table(value, ("link", "presets")).items():
            keys = ("link", "presets", name)
            table = self._table(table, keys)
            good = self._fields(Figures, table, keys)
            if not table.get("source"):
                self._tell(keys, f"preset {name} needs a source: where its figures are from")
            elif self._whole(Figures, good, table, keys):
                found[name] = Figures(**good)
        return found

    def _check(self, link: dict[str, Any]) -> None:
        """What no single key can show."""
        at = ("link", "ranks_per_node")
        kind, ranks, per_node = link.get("kind"), link.get("ranks"), link.get("ranks_per_node", 1)
        if ranks is not None and per_node > ranks:
            self._tell(at, f"ranks_per_node = {per_node} is more than ranks = {ranks}")
        elif ranks is not None and kind in _INSIDE_A_HOST and per_node != ranks:
            self._tell(at, f"{kind} joins ranks of one host: ranks_per_node must be {ranks}, as ranks is")
        elif ranks is not None and ranks % per_node:
            self._tell(at, f"ranks = {ranks} is not a multiple of ranks_per_node = {per_node}")
        if ("within_latency_us" in link) != ("within_bandwidth_gb_s" in link):
            self._tell(("link",), "within_latency_us and within_bandwidth_gb_s go together")

    def _search(self, value: Any) -> Search | None:
        table = self._table(value, ("search",))
        good = self._fields(Search, table, ("search",))
        for key in ("bucket_cap_mb", "first_bucket_mb"):
            bounds = good.get(key)
            if isinstance(bounds, Range) and bounds.low > bounds.high:
                self._tell(("search", key), f"{key}: low = {bounds.low:g} is above high = {bounds.high:g}")
        for key in ("nccl", "environment"):
            for name, values in good.get(key, {}).items():
                if self._variable_name(name, ("search", key)) and not values:
                    self._tell(("search", key, name), f"{name} has no values to try")
        return Search(**good) if self._whole(Search, good, table, ("search",)) else None


# Variables that choose a path or shape what runs on it: docs.nvidia.com, NCCL user guide, "Environment Variables";
# gloo's is in torch.distributed's documentation. A name that is nearly one of these is taken for a slip.
PINNING = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_GDR_READ",
    "NCCL_NET_MERGE_LEVEL",
    "NCCL_NET_DISABLE_INTRA",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_SL",
    "NCCL_IB_TC",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_IB_MERGE_NICS",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_CROSS_NIC",
    "NCCL_PXN_DISABLE",
    "NCCL_NVB_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_CUMEM_HOST_ENABLE",
    "NCCL_DMABUF_ENABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_TOPO_FILE",
    "NCCL_TUNER_PLUGIN",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "GLOO_SOCKET_IFNAME",
)

_UNITS = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "gb_s": "1e9 bytes per second",
    "gbit_s": "1e9 bits per second",
    "gbps": "1e9 bits per second",
    "mb_s": "1e6 bytes per second",
    "gib_s": "2^30 bytes per second",
    "mb": "MiB, as DDP's own",
    "mib": "MiB",
    "kb": "kB",
    "bytes": "bytes",
}


def _unit_or_nearest(key: str, known: Mapping[str, Any]) -> str:
    """What to say of an unknown key: the same thing in another unit, or the nearest name."""
    stem, unit = _split_unit(key)
    for name in known:
        other, right = _split_unit(name)
        if other == stem and unit != right and right:
            return f": {stem} is given in {_UNITS[right]}, as {name}"
    return _nearest(key, known)


def _split_unit(key: str) -> tuple[str, str]:
    unit = max((unit for unit in _UNITS if key.endswith(f"_{unit}")), key=len, default="")
    return (key[: -len(unit) - 1], unit) if unit else (key, "")


def _nearest(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if close:
        return f": did you mean {close[0]}?"
    return f": there are {', '.join(known)}" if known else ""


def _table_in(info: inspect.Type) -> type[msgspec.Struct] | None:
    """The struct that a table stands for here, if one may stand here."""
    choices = info.types if isinstance(info, inspect.UnionType) else (info,)
    return next((one.cls for one in choices if isinstance(one, inspect.StructType)), None)


def _must_be(info: inspect.Type, value: Any) -> str:
    """What may stand in the place of a value that is wrong there."""
    if isinstance(info, inspect.UnionType):  # None does not exist in TOML
        info = next(one for one in info.types if not isinstance(one, inspect.NoneType))
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return _number_must_be(info, value)
    if isinstance(info, inspect.LiteralType):
        names = [str(one) for one in info.values]
        return f"no such value{_nearest(value, names)}" if isinstance(value, str) else f"must be {' or '.join(names)}"
    if isinstance(info, inspect.ListType) and isinstance(value, list):
        return "; ".join(_must_be(info.item_type, one) for one in value)
    if isinstance(info, inspect.DictType) and isinstance(value, dict):
        return f'each must be a list of texts, as ["1", "4"]: {", ".join(value)}'
    names_of_types = {
        inspect.BoolType: "true or false",
        inspect.StrType: "a text",
        inspect.ListType: 'a list, as ["fp16"]',
        inspect.StructType: "a table, as { low = 1, high = 256 }",
    }
    return f"must be {names_of_types.get(type(info), 'something else')}"


def _number_must_be(info: inspect.IntType | inspect.FloatType, value: Any) -> str:
    kind = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    if isinstance(value, str):
        return f"must be {kind} without quotes; its unit stands in the key"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f"must be {kind}"
    if info.le is not None and value > info.le:
        return f"must be at most {info.le:,.0f}; is it in another unit?"
    return f"must be {kind} above {info.gt:g}" if info.gt is not None else f"must be {kind} from {info.ge:g} on"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else "{...}" if isinstance(value, dict) else str(value)


def _syntax_error(message: str, text: str) -> tuple[str, int]:
    """tomllib's message and line; at the end of the file it tells no number."""
    found = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if found is None:
        return message.removesuffix(" (at end of document)"), text.count("\n") + 1
    return f"{message[: found.start()]}, column {found[2]}", int(found[1])


_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _lines_of(text: str) -> dict[Keys, int]:
    """Line of each table and key of a valid document. Keys of inline tables are on the line of theirs."""
    found: dict[Keys, int] = {}
    table: Keys = ()
    for number, line in _outside_long_texts(text):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table = _parts(header[1])
            found[table] = number
        elif key:
            parts = (*table, *_parts(key[1]))
            for length in range(len(table) + 1, len(parts) + 1):
                found.setdefault(parts[:length], number)
    return found


def _outside_long_texts(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, less those inside texts of several lines."""
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if closing:
            closing = "" if closing in line else closing
            continue
        yield number, line
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2:
                closing = quotes


def _parts(dotted: str) -> Keys:
    return tuple(part.strip().strip("\"'") for part in re.findall(r""""[^"]*"|'[^']*'|[^.\s]+""", dotted))
