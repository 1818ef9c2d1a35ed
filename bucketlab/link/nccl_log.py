"""What NCCL really used, read from its own log of a run (`NCCL_DEBUG=INFO`). Runs nothing; knows text, not torch.

Written against the format strings in libnccl of the releases 2.17.1 to 2.28.9, and lenient: a line that is not
known is passed over. A release may log a connection when it is first needed (2.22 and later), so a log is whole
only once the job has reduced something. Where each format was seen (which release's source or wheel, which issue of
NVIDIA/nccl) stands in tests/link/test_nccl_log.py, beside a log of each minor release that has a format of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from bucketlab import units

# GRAPH tells NVLink from PCIe; TUNING and COLL would log every collective and so change what is measured.
_SUBSYSTEMS = "INIT,ENV,NET,GRAPH"
_LONGEST = 2**26  # characters of a log; one of a process on 1,000 ranks has a few million

# "p2p" is NVLink or PCIe and "rdma" InfiniBand or RoCE where the log does not tell which.
PathName = Literal[
    "nvlink", "pcie", "p2p", "shared-memory", "infiniband", "roce", "rdma", "sockets", "in-network", "other network"
]

_SHOWN: dict[PathName, str] = {
    "nvlink": "NVLink",
    "pcie": "PCIe peer-to-peer",
    "p2p": "peer-to-peer (NVLink or PCIe)",
    "shared-memory": "shared memory of the host",
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "rdma": "InfiniBand or RoCE",
    "sockets": "sockets",
    "in-network": "reduction in the network's switches",
    "other network": "a network plugin",
}

# What does not contradict a wish. What the log cannot tell apart does not contradict it either.
_AGREES: dict[str, tuple[PathName, ...]] = {
    "nvlink": ("nvlink", "p2p"),
    "pcie": ("pcie", "p2p"),
    "shared-memory": ("shared-memory",),
    "infiniband": ("infiniband", "rdma", "in-network"),
    "roce": ("roce", "rdma", "in-network"),
    "ethernet": ("sockets",),
    "gloo": (),
}


Name = TypeVar("Name", bound=str)


class Line(msgspec.Struct, frozen=True):
    """A line of a log. `number` counts from 1; `text` is what follows NCCL's prefix of host and process."""

    source: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.source}:{self.number}: {self.text}"


class Communicator(msgspec.Struct, kw_only=True):
    """One rank's end of a communicator."""

    rank: int
    ranks: int
    cuda_device: int
    bus_id: str
    nodes: int | None = None  # told from 2.20 on
    complete: bool = False


class Device(msgspec.Struct, kw_only=True, frozen=True):
    """An adapter or interface that NCCL found usable; `layer` is "IB", "RoCE" or "" for sockets."""

    network: str
    name: str
    layer: str


class Connection(msgspec.Struct, kw_only=True):
    """One end of one channel from one rank to another, as this process set it up."""

    channel: int
    source_rank: int
    target_rank: int
    via: str  # in NCCL's words: "P2P/CUMEM/read", "SHM/direct/direct", "NET/IB/0/GDRDMA"
    direction: str  # "send" or "receive" over a network, else ""
    line: Line
    path: PathName = "p2p"
    network: str = ""  # "IB", "Socket" or a plugin's name
    device: int | None = None  # index into the network's devices
    gpu_direct: bool = False  # the adapter reads and writes the GPU's memory itself


class Tree(msgspec.Struct, kw_only=True):
    """This rank's place in the tree of one channel."""

    up: int | None
    down: list[int]


class NcclLog(msgspec.Struct, kw_only=True):
    """What one process logged."""

    source: str
    host: str = ""
    pid: int = 0
    version: str = ""
    communicators: list[Communicator] = []
    networks: list[str] = []  # of "Using network ..."
    devices: list[Device] = []
    connections: list[Connection] = []
    rings: dict[int, list[int]] = {}  # channel -> ranks in order; rank 0 logs them, of many ranks only the first
    neighbours: dict[int, tuple[int, int, int]] = {}  # channel -> ring's previous rank, this rank, next rank
    trees: dict[int, Tree] = {}
    channels: int = 0
    nvls_channels: int = 0
    nvls_line: Line | None = None
    nvls_supported: bool | None = None
    graph_types: list[str] = []  # worst kind of hop in the rings inside the host: "NVL", "PIX", "PHB", "SYS", ...
    choices: dict[str, int] = {}  # "Ring/Simple" -> collectives; only with NCCL_DEBUG_SUBSYS=TUNING
    environment: dict[str, str] = {}
    reasons: list[Line] = []  # lines that tell why a faster path was not taken
    warnings: list[Line] = []


class UsedPath(msgspec.Struct, kw_only=True):
    """One path, over all logs that were given."""

    path: PathName
    connections: int
    via: list[str]  # without device numbers: "P2P/CUMEM", "NET/IB"
    devices: list[str]
    gpu_direct: int  # connections of these with GPU Direct RDMA
    first: Line


class Used(msgspec.Struct, kw_only=True):
    """What a job used. Paths by falling number of connections."""

    versions: list[str]
    hosts: list[str]
    ranks: int  # of the largest communicator
    paths: list[UsedPath]
    channels: int
    nvls_channels: int
    rings: dict[int, list[int]]  # channel -> ranks in order
    trees: int  # channels that have one
    warnings: list[Line]
    reasons: list[Line]


class Contradiction(msgspec.Struct, kw_only=True):
    """Another path than the one that was asked for, on one process."""

    path: PathName
    connections: int
    line: Line  # the first that shows it
    reasons: list[Line]

    def __str__(self) -> str:
        how_many = f"on {self.connections} connections" if self.connections else "for reductions by NVLS"
        return f"{_SHOWN[self.path]} {how_many}: {self.line}"


def debug_environment(folder: Path, already: Mapping[str, str]) -> dict[str, str]:
    """What makes NCCL write its log into a folder, a file for each process; nothing where the user logs already.

    Args:
        folder: must exist, or NCCL writes to stdout.
        already: the environment in force; to be set before the first communicator is made.
    """
    if any(name.startswith("NCCL_DEBUG") for name in already):
        return {}
    path = str(folder).replace("%", "%%")
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": _SUBSYSTEMS, "NCCL_DEBUG_FILE": f"{path}/nccl.%h.%p"}


def logs_of_process(folder: Path, pid: int) -> list[NcclLog]:
    """What a process of this host has written into the folder of `debug_environment`; empty where it used no NCCL."""
    return read_logs(sorted(folder.glob(f"nccl.*.{pid}")))


def read_logs(files: Iterable[Path]) -> list[NcclLog]:
    """The logs in these files, by host and process. A file may hold one process or a whole job's output.

    What NCCL says of its connections stands at the beginning: of a file that is longer than any log, the rest is left.

    Raises:
        OSError: a file cannot be read.
    """
    found = []
    for file in files:
        with file.open(errors="replace") as opened:
            found += parse(opened.read(_LONGEST), file.name)
    return found


def parse(text: str, source: str) -> list[NcclLog]:
    """The logs in a text, one per process, in the order in which they begin.

    Args:
        text: of a log file, or of a job's output in which NCCL's lines stand among others, with any prefix a
            launcher puts in front of each line.
        source: its name, which lines carry.
    """
    readers: dict[tuple[str, int], _Reader] = {}
    version = ""
    for number, raw in enumerate(text.split("\n"), 1):
        if "NCCL" not in raw:
            continue
        found = _VERSION.search(raw)
        if found:
            version = found["version"]
        head = _HEAD.search(raw)
        if head is None:
            continue
        host, pid = head["host"] or "", int(head["pid"] or 0)
        reader = readers.setdefault((host, pid), _Reader(NcclLog(source=source, host=host, pid=pid)))
        if found:
            reader.log.version = version
        reader.read(head["level"], Line(source, number, head["text"].rstrip()))
    logs = [reader.finished() for reader in readers.values()]
    for log in logs:
        log.version = log.version or version  # in a job's output one rank tells it for all
    return logs


def what_was_used(logs: Sequence[NcclLog]) -> Used:
    """The paths, channels and warnings of a job's logs. Without logs, or with none of NCCL's, there are no paths."""
    return joined([_used_by(log) for log in logs])


def joined(parts: Sequence[Used]) -> Used:
    """What several processes used, as one: each rank tells its own, and the logs stay where they are."""
    by_path: dict[PathName, list[UsedPath]] = {}
    for one in (path for part in parts for path in part.paths):
        by_path.setdefault(one.path, []).append(one)
    return Used(
        versions=_distinct(version for part in parts for version in part.versions),
        hosts=_distinct(host for part in parts for host in part.hosts),
        ranks=max((part.ranks for part in parts), default=0),
        paths=sorted((_joined_path(many) for many in by_path.values()), key=lambda one: -one.connections),
        channels=max((part.channels for part in parts), default=0),
        nvls_channels=max((part.nvls_channels for part in parts), default=0),
        rings=next((part.rings for part in parts if part.rings), {}),
        trees=max((part.trees for part in parts), default=0),
        warnings=[line for part in parts for line in part.warnings],
        reasons=[line for part in parts for line in part.reasons],
    )


def check_link(wanted: str, logs: Sequence[NcclLog]) -> list[Contradiction]:
    """What in the logs shows that another path than the wanted one was used; empty where nothing does.

    Nothing also stands in logs that are empty or cut short: `what_was_used` tells whether there was anything.

    Args:
        wanted: a sweep's kind of link: "nvlink", "pcie", "shared-memory", "infiniband", "roce", "ethernet", "gloo".

    Raises:
        ValueError: no such kind.
    """
    if wanted not in _AGREES:
        raise ValueError(f"no kind of link is called {wanted!r}; there are {', '.join(_AGREES)}")
    found: list[Contradiction] = []
    for log in logs:
        others: dict[PathName, list[Line]] = {}
        for one in log.connections:
            if one.path not in _AGREES[wanted]:
                others.setdefault(one.path, []).append(one.line)
        found += [
            Contradiction(path=path, connections=len(lines), line=lines[0], reasons=log.reasons)
            for path, lines in others.items()
        ]
        if log.nvls_line is not None and wanted != "nvlink":
            found.append(Contradiction(path="nvlink", connections=0, line=log.nvls_line, reasons=log.reasons))
    return found


def explain(wanted: str, found: Sequence[Contradiction]) -> str:
    """Why a wish was not met, in a few lines: each other path with the first line that shows it, and NCCL's reasons."""
    lines = [f"the sweep asks for {wanted}, and NCCL used another path:"]
    for path in _distinct(one.path for one in found):
        same = [one for one in found if one.path == path]
        ranks = f" in {len(same)} processes" if len(same) > 1 else ""
        lines.append(f"  {_SHOWN[path]}{ranks}: {same[0].line}")
    reasons: dict[str, Line] = {}
    for line in (line for one in found for line in one.reasons):
        reasons.setdefault(re.sub(r"\d+", "#", line.text), line)  # the same is told of each pair of devices
    lines += [f"  NCCL tells why: {line}" for line in reasons.values()]
    return "\n".join(lines)


def in_words(used: Used) -> str:
    """One line: release, ranks, and each path with what NCCL calls it."""
    if not used.paths:
        return "NCCL's log shows no connection between ranks"
    paths = ", ".join(f"{_SHOWN[one.path]} ({_details(one)})" for one in used.paths)
    shapes = [(len(used.rings), "ring"), (used.trees, "tree"), (used.nvls_channels, "NVLS channel")]
    counts = [units.counted(number, what) for number, what in [(used.channels, "channel"), *shapes] if number]
    version = f"NCCL {'/'.join(used.versions)}, " if used.versions else ""
    hosts = f" on {len(used.hosts)} hosts" if len(used.hosts) > 1 else ""
    return f"{version}{used.ranks} ranks{hosts}: {paths}; {', '.join(counts) or 'no channels told'}"


def _details(one: UsedPath) -> str:
    parts = [*one.via, *one.devices]
    if one.path in ("infiniband", "roce", "rdma", "other network"):
        direct = {0: "no GPU Direct", one.connections: "GPU Direct"}
        parts.append(direct.get(one.gpu_direct, f"GPU Direct on {one.gpu_direct} of {one.connections} connections"))
    return ", ".join(parts)


def _used_by(log: NcclLog) -> Used:
    by_path: dict[PathName, list[Connection]] = {}
    for one in log.connections:
        by_path.setdefault(one.path, []).append(one)
    return Used(
        versions=[log.version] if log.version else [],
        hosts=[log.host] if log.host else [],
        ranks=max((one.ranks for one in log.communicators), default=0),
        paths=[_used_path(path, many, log) for path, many in by_path.items()],
        channels=log.channels,
        nvls_channels=log.nvls_channels,
        rings=log.rings,
        trees=len(log.trees),
        warnings=log.warnings,
        reasons=log.reasons,
    )


def _used_path(path: PathName, many: Sequence[Connection], log: NcclLog) -> UsedPath:
    devices = (_device(one, log) for one in many)
    return UsedPath(
        path=path,
        connections=len(many),
        via=_distinct("/".join(one.via.split("/")[:2]) for one in many),
        devices=_distinct(device.name for device in devices if device is not None),
        gpu_direct=sum(one.gpu_direct for one in many),
        first=many[0].line,
    )


def _joined_path(many: Sequence[UsedPath]) -> UsedPath:
    return UsedPath(
        path=many[0].path,
        connections=sum(one.connections for one in many),
        via=_distinct(via for one in many for via in one.via),
        devices=_distinct(device for one in many for device in one.devices),
        gpu_direct=sum(one.gpu_direct for one in many),
        first=many[0].first,
    )


def _device(one: Connection, log: NcclLog) -> Device | None:
    """A plugin such as IBext lists its adapters as NCCL's own IB does."""
    if one.device is None:
        return None
    listed = [device for device in log.devices if one.network.startswith(device.network)]
    return listed[one.device] if one.device < len(listed) else None


def _distinct(names: Iterable[Name]) -> list[Name]:
    return list(dict.fromkeys(names))


# ---- lines ----------------------------------------------------------------------------------------------------

# Releases from 2.26 on put a time in front of warnings, 2.28 the function behind file and line.
_HEAD = re.compile(
    r"(?:(?P<host>[^\s:>|]+):(?P<pid>\d+):\d+ )?(?:\[-?\d+\] )?(?:\S+:\d+ (?:\(\w+\) )?)?"
    r"NCCL (?P<level>INFO|WARN) (?P<text>.*)"
)
_VERSION = re.compile(r"\bR?NCCL version (?P<version>\d+\.\d+(?:\.\d+)*)")
_CHANNEL = re.compile(
    r"Channel (?P<channel>\d+)(?:/\d+)? : (?P<source>\d+)\[[0-9a-f]+\] -> (?P<target>\d+)\[[0-9a-f]+\] "
    r"(?:\[(?P<direction>send|receive)\] )?via (?P<via>(?:P2P|SHM|NET)/.+)"
)
_COLLNET = re.compile(
    r"CollNet (?P<channel>\d+)/\d+ : (?P<rank>\d+) \[(?P<direction>send|receive)\] via (?P<via>COLLNET/.+)"
)
# Device, and where a send goes through another rank's adapter (PXN) that rank in parentheses.
_NETWORK = re.compile(r"(?:NET|COLLNET)/(?P<network>.+?)/(?P<device>\d+)(?:\(\d+\))?(?P<flags>/.*)?$")
_COMMUNICATOR = re.compile(
    r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<ranks>\d+) cudaDev (?P<device>\d+) .*?"
    r"busId (?P<bus>[0-9a-f]+).*- Init (?P<state>START|COMPLETE)"
)
_NODES = re.compile(r"comm (?P<comm>0x[0-9a-f]+) rank \d+ nRanks \d+ nNodes (?P<nodes>\d+) ")
_COUNTS = re.compile(
    r"(?P<coll>\d+) coll channels, (?:\d+ collnet channels, )?(?:(?P<nvls>\d+) nvls channels, )?\d+ p2p channels"
)
_RING = re.compile(r"Channel (?P<channel>\d+)/\d+ :(?P<ranks>(?:\s+\d+)+)\s*$")
_NEIGHBOURS = re.compile(r"Ring (?P<channel>\d+) : (?P<before>\d+) -> (?P<rank>\d+) -> (?P<after>\d+)$")
_TREE = re.compile(r"\[(\d+)\] (-?\d+(?:/-?\d+)*)->(-?\d+)->(-?\d+)")
_USING = re.compile(r"NET/(?P<network>IB|Socket) : Using (?P<devices>.*)")
# Adapters that 2.19 to 2.22 merged into one stand in braces: "[0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB}".
_LISTED = re.compile(r"\[\d+\](?:=\{(?P<merged>[^}]*)\}|(?P<name>[^\s\[\]{}]+))")
_LAYER = re.compile(r"(?P<name>[^\s:,]+):\d+/(?P<layer>IB|RoCE)")
_GRAPH = re.compile(r"Pattern (?P<pattern>\d+), crossNic .* type (?P<inside>\w+)/\w+, sameChannels")
_RING_PATTERN = "4"  # NCCL_TOPO_PATTERN_RING in src/include/graph.h
_SET = re.compile(r"(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*?)\.?$")
_NVLS = re.compile(r"NVLS multicast support is (?P<no>not )?available")
_CHOICE = re.compile(r"\d+ Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)")
# Numbers until 2.23, names since; src/include/nccl_common.h and device.h.
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")

_NVLINK_HOPS = ("NVL", "NVB")

# NCCL_P2P_DISABLE=1 is logged as NCCL_P2P_LEVEL set to LOC.
_TELL_WHY = re.compile(
    r"NET/IB : No (?:device|IP interface) found|Failed to open libibverbs|NET/IB : Unable to open device"
    r"|Could not enable P2P between|P2P is disabled between"
    r"|Error: network \S+ not found|Failed to initialize (?:any )?NET plugin|Proceeding without NVLS support"
    r"|NCCL_(?:P2P_LEVEL|SHM_DISABLE|IB_DISABLE|IB_HCA|NET|NVLS_ENABLE) set "
)


class _Reader:
    """Gathers one process's lines."""

    def __init__(self, log: NcclLog) -> None:
        self.log = log
        self._communicators: dict[str, Communicator] = {}
        self._topology = False
        self._nvlink = False

    def read(self, level: str, line: Line) -> None:
        if level == "WARN":
            self.log.warnings.append(line)
        if _TELL_WHY.search(line.text) and line.text not in [told.text for told in self.log.reasons]:
            self.log.reasons.append(line)
        for handle in (self._connection, self._communicator, self._shape, self._network, self._topology_line):
            if handle(line):
                return
        self._setting(line)

    def finished(self) -> NcclLog:
        log = self.log
        log.communicators = list(self._communicators.values())
        for one in log.connections:
            one.path = self._path(one)
        return log

    def _connection(self, line: Line) -> bool:
        found = _CHANNEL.match(line.text)
        collnet = None if found else _COLLNET.match(line.text)
        if not found and not collnet:
            return False
        one = found or collnet
        assert one is not None
        rank = one["source"] if found else one["rank"]
        network = _NETWORK.match(one["via"])
        self.log.connections.append(
            Connection(
                channel=int(one["channel"]),
                source_rank=int(rank),
                target_rank=int(one["target"] if found else rank),
                via=one["via"],
                direction=one["direction"] or "",
                line=line,
                network=network["network"] if network else "",
                device=int(network["device"]) if network else None,
                gpu_direct=bool(network and "/GDRDMA" in (network["flags"] or "")),
            )
        )
        return True

    def _communicator(self, line: Line) -> bool:
        found = _COMMUNICATOR.search(line.text)
        if found:
            one = Communicator(
                rank=int(found["rank"]),
                ranks=int(found["ranks"]),
                cuda_device=int(found["device"]),
                bus_id=found["bus"],
            )
            one = self._communicators.setdefault(found["comm"], one)
            one.complete = found["state"] == "COMPLETE"
            return True
        nodes = _NODES.search(line.text)
        if nodes and nodes["comm"] in self._communicators:
            self._communicators[nodes["comm"]].nodes = int(nodes["nodes"])
        return nodes is not None

    def _shape(self, line: Line) -> bool:
        """Rings, trees and how many channels there are: of several communicators, those of the largest."""
        log, text = self.log, line.text
        counts, ring, beside = _COUNTS.match(text), _RING.match(text), _NEIGHBOURS.match(text)
        if counts:
            log.channels = max(log.channels, int(counts["coll"]))
            if int(counts["nvls"] or 0) > log.nvls_channels:
                log.nvls_channels, log.nvls_line = int(counts["nvls"]), line
        elif ring:
            ranks = [int(rank) for rank in ring["ranks"].split()]
            if len(ranks) >= len(log.rings.get(int(ring["channel"]), [])):
                log.rings[int(ring["channel"])] = ranks
        elif beside:
            log.neighbours[int(beside["channel"])] = (int(beside["before"]), int(beside["rank"]), int(beside["after"]))
        elif text.startswith("Trees "):
            for channel, down, _, up in _TREE.findall(text):
                below = [int(rank) for rank in down.split("/") if int(rank) >= 0]
                log.trees[int(channel)] = Tree(up=int(up) if int(up) >= 0 else None, down=below)
        else:
            return False
        return True

    def _network(self, line: Line) -> bool:
        using = _USING.match(line.text)
        if using:
            found = [
                _listed(using["network"], one["merged"] or one["name"]) for one in _LISTED.finditer(using["devices"])
            ]
            others = [device for device in self.log.devices if device.network != using["network"]]
            self.log.devices = others + found
            return True
        if line.text.startswith("Using network "):
            name = line.text.removeprefix("Using network ").strip()
            self.log.networks = _distinct([*self.log.networks, name])
            return True
        return False

    def _topology_line(self, line: Line) -> bool:
        log, text = self.log, line.text
        graph = _GRAPH.match(text)
        if graph:
            if graph["pattern"] == _RING_PATTERN:
                log.graph_types = _distinct([*log.graph_types, graph["inside"]])
            return True
        if text.startswith("=== System"):
            self._topology = True
            return True
        if text.lstrip().startswith("+ NVL["):
            self._nvlink = True
            return True
        return False

    def _setting(self, line: Line) -> None:
        log, text = self.log, line.text
        setting, nvls, choice = _SET.match(text), _NVLS.match(text), _CHOICE.search(text)
        if setting:
            log.environment[setting["name"]] = setting["value"]
        elif nvls:
            log.nvls_supported = nvls["no"] is None
        elif choice:
            name = f"{_named(choice['algorithm'], _ALGORITHMS)}/{_named(choice['protocol'], _PROTOCOLS)}"
            log.choices = dict(Counter(log.choices) + Counter({name: 1}))

    def _path(self, one: Connection) -> PathName:
        transport = one.via.partition("/")[0]
        if transport == "SHM":
            return "shared-memory"
        if transport == "COLLNET":
            return "in-network"
        if transport == "P2P":
            return self._peer_path(one)
        if one.network == "Socket":
            return "sockets"
        return self._adapter_path(one) if one.network.startswith("IB") else "other network"

    def _peer_path(self, one: Connection) -> PathName:
        """NVLink or PCIe. NCCL names the worst hop of its rings, and what there is in the host at all."""
        if one.via.startswith("P2P/MNNVL"):
            return "nvlink"
        if self.log.graph_types and all(hop in _NVLINK_HOPS for hop in self.log.graph_types):
            return "nvlink"
        return "pcie" if self._topology and not self._nvlink else "p2p"

    def _adapter_path(self, one: Connection) -> PathName:
        device = _device(one, self.log)
        layers = {device.layer} if device else {device.layer for device in self.log.devices if device.network == "IB"}
        if layers == {"IB"}:
            return "infiniband"
        return "roce" if layers == {"RoCE"} else "rdma"


def _listed(network: str, text: str) -> Device:
    """ "mlx5_0:1/IB", several of them, or "eth0:10.0.0.1<0>"."""
    adapters = list(_LAYER.finditer(text))
    if network == "Socket" or not adapters:
        return Device(network=network, name=text.partition(":")[0], layer="")
    layers = {one["layer"] for one in adapters}
    return Device(
        network=network,
        name="+".join(one["name"] for one in adapters),
        layer=layers.pop() if len(layers) == 1 else "",
    )


def _named(word: str, names: Sequence[str]) -> str:
    if word.isdigit():
        return names[int(word)] if int(word) < len(names) else word
    return next((name for name in names if name.replace("_", "").lower() == word.replace("_", "").lower()), word)
