"""What joins the ranks of this host: NVLink and PCIe between GPUs, InfiniBand and RoCE, Ethernet, shared memory.

Looks at NVML (`pip install bucketlab[gpu]`) and sysfs, imports no torch and changes nothing. What a job really uses
of this, NCCL's log tells: `bucketlab.link.nccl_log`.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from bucketlab.units import counted, size

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # of PCI: VGA and 3D controllers
_ETHERNET, _LOOPBACK, _IP_OVER_INFINIBAND = 1, 772, 32  # linux/if_arp.h

# NVML's enumeration of NVLink versions, nvml.h; NVML itself counts them.
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
# nvmlGpuTopologyLevel_t: what two GPUs have in common, nearest first.
_COMMON = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "different NUMA nodes",
}
# GT/s of a PCIe lane, as sysfs and the PCIe base specifications have it.
_PCIE_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU of this host."""

    index: int
    name: str
    bus_id: str  # "0000:17:00.0"
    nvlinks: int | None  # active ones; None: not known
    nvlink_version: str = ""
    nvlink_gb_s: float | None = None  # of all active links together, one direction
    nvlink_to: str = ""  # "switch", "gpu"
    pcie_generation: int | None = None  # that card and slot allow; at rest the link runs slower
    pcie_lanes: int | None = None


class GpuPair(msgspec.Struct, kw_only=True):
    """Two GPUs of this host, by their indices."""

    first: int
    second: int
    nvlinks: int | None  # straight between the two; through a switch, all that both have
    common: str  # nearest thing on the PCIe tree that they share
    peer_access: bool | None  # whether one may read the other's memory


class Adapter(msgspec.Struct, kw_only=True):
    """One port of an InfiniBand or RoCE adapter."""

    device: str  # "mlx5_0"
    port: int
    layer: str  # "InfiniBand" or, for RoCE, "Ethernet"
    state: str  # "ACTIVE", "DOWN", "INIT", ...
    rate: str  # in the driver's words: "200 Gb/sec (4X HDR)"
    interfaces: list[str] = []  # network interfaces of the same function

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"


class Interface(msgspec.Struct, kw_only=True):
    """One network interface."""

    name: str
    kind: str  # "ethernet", "ip over infiniband", "loopback", "wireless", "other"
    physical: bool  # has a device of its own, which bridges, veth pairs and bonds have not
    up: bool
    speed_gbit_s: float | None  # None where the driver does not tell, as virtual machines' often do not
    driver: str = ""
    members: list[str] = []  # of a bond


class HostLinks(msgspec.Struct, kw_only=True):
    """What was found on one host. `unknown` tells what could not be looked at, and why."""

    gpus: list[Gpu]
    pairs: list[GpuPair]
    adapters: list[Adapter]
    interfaces: list[Interface]
    shared_memory_bytes: int | None  # size of /dev/shm
    shared_memory_free_bytes: int | None
    unknown: list[str]


def find_links(sys: Path = Path("/sys"), shared_memory: Path = Path("/dev/shm")) -> HostLinks:
    """Look at this host.

    Args:
        sys: where sysfs is.
        shared_memory: the mount through which processes of a host share memory.
    """
    unknown: list[str] = []
    gpus, pairs = _gpus_and_pairs(sys, unknown)
    usage = shutil.disk_usage(shared_memory) if shared_memory.is_dir() else None
    return HostLinks(
        gpus=gpus,
        pairs=pairs,
        adapters=list(_adapters(sys / "class/infiniband")),
        interfaces=list(_interfaces(sys / "class/net")),
        shared_memory_bytes=usage.total if usage else None,
        shared_memory_free_bytes=usage.free if usage else None,
        unknown=unknown,
    )


def what_is_lacking(kind: str, host: HostLinks) -> str | None:
    """Why this host has no link of a sweep's kind ("nvlink", "infiniband", ...), None where it may have one.

    What could not be looked at counts as present: NCCL's log tells afterwards.
    """
    if kind in ("gloo", "ethernet"):
        return None
    if kind in ("infiniband", "roce"):
        layer = "InfiniBand" if kind == "infiniband" else "Ethernet"
        there = any(one.layer == layer and one.active for one in host.adapters)
        return None if there else f"this host has no active adapter of that kind under /sys/class/infiniband ({kind})"
    if len(host.gpus) < 2 and not host.unknown:
        return f"{kind} joins GPUs of one host, and this host has {len(host.gpus)}"
    return None


def in_words(links: HostLinks) -> list[tuple[str, str]]:
    """What joins ranks here, fastest first: a name, and what was found."""
    told = [("GPUs", _gpus_in_words(links))] if links.gpus else []
    told += [(f"{one.device}:{one.port}", _adapter_in_words(one)) for one in links.adapters]
    told += [(one.name, _interface_in_words(one)) for one in links.interfaces if _worth_telling(one)]
    if links.shared_memory_bytes is not None:
        told.append(
            ("shared memory", f"{size(links.shared_memory_bytes)}, {size(links.shared_memory_free_bytes)} free")
        )
    return told


def _gpus_in_words(links: HostLinks) -> str:
    kinds = Counter(_gpu_in_words(gpu) for gpu in links.gpus)
    told = "; ".join(f"{count} x {kind}" if len(links.gpus) > 1 else kind for kind, count in kinds.items())
    return f"{told}{_pairs_in_words(links.pairs)}"


def _gpu_in_words(gpu: Gpu) -> str:
    parts = [gpu.name]
    if gpu.nvlinks:
        rate = f", {gpu.nvlink_gb_s:g} GB/s each way" if gpu.nvlink_gb_s else ""
        to = f" to a {gpu.nvlink_to}" if gpu.nvlink_to == "switch" else ""
        parts.append(f"NVLink {gpu.nvlink_version} x {gpu.nvlinks}{to}{rate}")
    elif gpu.nvlinks == 0:
        parts.append("no NVLink")
    if gpu.pcie_generation and gpu.pcie_lanes:
        parts.append(f"PCIe {gpu.pcie_generation}.0 x{gpu.pcie_lanes}")
    return ", ".join(parts)


def _pairs_in_words(pairs: list[GpuPair]) -> str:
    without = [pair for pair in pairs if pair.nvlinks == 0]
    if not without:
        return ""
    apart = Counter(pair.common for pair in without)
    told = ", ".join(f"{count} over {common}" for common, count in apart.items())
    refused = sum(pair.peer_access is False for pair in without)
    denied = f"; {counted(refused, 'pair')} without peer access, which go through shared memory" if refused else ""
    return f"; pairs without NVLink: {told}{denied}"


def _adapter_in_words(one: Adapter) -> str:
    kind = "RoCE" if one.layer == "Ethernet" else one.layer
    beside = f", beside {', '.join(one.interfaces)}" if one.interfaces else ""
    return f"{kind}, {one.rate or 'rate not known'}, {one.state.lower()}{beside}"


def _interface_in_words(one: Interface) -> str:
    speed = f"{one.speed_gbit_s:g} Gbit/s" if one.speed_gbit_s else "speed not told by the driver"
    driver = f", {one.driver}" if one.driver else ""
    bond = f", bond of {', '.join(one.members)}" if one.members else ""
    return f"{one.kind}, {speed}, {'up' if one.up else 'down'}{driver}{bond}"


def _worth_telling(one: Interface) -> bool:
    return one.kind != "loopback" and (one.physical or bool(one.members))


# ---- GPUs -----------------------------------------------------------------------------------------------------


def _gpus_and_pairs(sys: Path, unknown: list[str]) -> tuple[list[Gpu], list[GpuPair]]:
    """By NVML; without it, from sysfs, which knows PCIe only."""
    on_the_bus = list(_gpus_of_sysfs(sys / "bus/pci/devices"))
    try:
        import pynvml
    except ImportError:
        if on_the_bus:
            unknown.append('NVLink: NVML is not installed, pip install "bucketlab[gpu]"')
        return on_the_bus, []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if on_the_bus:
            unknown.append(f"NVLink: NVML does not answer ({error})")
        return on_the_bus, []
    try:
        return gpus_of_nvml(pynvml)
    except pynvml.NVMLError as error:
        unknown.append(f"GPUs: NVML does not answer ({error})")
        return on_the_bus, []
    finally:
        pynvml.nvmlShutdown()


def _gpus_of_sysfs(devices: Path) -> Iterator[Gpu]:
    found = (folder for folder in _folders(devices) if _text(folder / "vendor") == _NVIDIA)
    cards = [folder for folder in found if (_text(folder / "class") or "").startswith(_DISPLAY_CLASS)]
    for index, folder in enumerate(cards):
        yield Gpu(
            index=index,
            name="NVIDIA GPU",
            bus_id=folder.name,
            nvlinks=None,
            pcie_generation=_generation(_text(folder / "max_link_speed")),
            pcie_lanes=_number(_text(folder / "max_link_width")),
        )


def _generation(speed: str | None) -> int | None:
    """ "16.0 GT/s PCIe" and, until Linux 5.6, "16 GT/s"."""
    rate = re.match(r"[\d.]+", speed or "")
    return _PCIE_GENERATIONS.get(f"{float(rate.group()):g}") if rate else None


def gpus_of_nvml(nvml: ModuleType) -> tuple[list[Gpu], list[GpuPair]]:
    """Every GPU that NVML shows, and every two of them.

    Args:
        nvml: the module pynvml, initialised.

    Raises:
        nvml.NVMLError: it does not even tell which GPUs there are. What a GPU cannot tell of itself stays unknown.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    links = [_active_links(nvml, handle) for handle in handles]
    gpus = [_gpu(nvml, index, handle, links[index]) for index, handle in enumerate(handles)]
    pairs = [
        _pair(nvml, gpus[first], gpus[second], handles[first], handles[second], links[first])
        for first in range(len(gpus))
        for second in range(first + 1, len(gpus))
    ]
    return gpus, pairs


class _NvLink(msgspec.Struct):
    number: int
    to_switch: bool
    bus_id: str  # of the other end


def _active_links(nvml: ModuleType, handle: Any) -> list[_NvLink] | None:
    """None: this GPU does not tell."""
    found: list[_NvLink] = []
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, number) != nvml.NVML_FEATURE_ENABLED:
                continue
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue  # there is no link of this number
        except nvml.NVMLError:
            return None
        kind = _asked(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        remote = _asked(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        found.append(_NvLink(number, kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, _bus_id(remote)))
    return found


def _gpu(nvml: ModuleType, index: int, handle: Any, links: list[_NvLink] | None) -> Gpu:
    first = links[0] if links else None
    version = _asked(nvml, nvml.nvmlDeviceGetNvLinkVersion, handle, first.number) if first else None
    return Gpu(
        index=index,
        name=_decoded(_asked(nvml, nvml.nvmlDeviceGetName, handle)) or "GPU",
        bus_id=_bus_id(_asked(nvml, nvml.nvmlDeviceGetPciInfo, handle)),
        nvlinks=None if links is None else len(links),
        nvlink_version=_NVLINK_VERSIONS.get(version, "") if version is not None else "",
        nvlink_gb_s=_nvlink_gb_s(nvml, handle, len(links)) if links else None,
        nvlink_to="" if first is None else "switch" if first.to_switch else "gpu",
        pcie_generation=_asked(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_lanes=_asked(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _nvlink_gb_s(nvml: ModuleType, handle: Any, links: int) -> float | None:
    """NVML gives one link's speed in MB/s, one direction."""
    field = nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
    values = _asked(nvml, nvml.nvmlDeviceGetFieldValues, handle, [field])
    if not values or values[0].nvmlReturn != nvml.NVML_SUCCESS or not values[0].value.uiVal:
        return None
    return float(round(links * values[0].value.uiVal / 1000, 1))


def _pair(
    nvml: ModuleType, one: Gpu, other: Gpu, handle: Any, other_handle: Any, links: list[_NvLink] | None
) -> GpuPair:
    straight = None if links is None else sum(link.bus_id == other.bus_id for link in links)
    if one.nvlink_to == other.nvlink_to == "switch" and one.nvlinks and other.nvlinks:
        straight = min(one.nvlinks, other.nvlinks)
    level = _asked(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, handle, other_handle)
    read = 0  # NVML_P2P_CAPS_INDEX_READ, which nvidia-ml-py 13 has as a tuple by mistake
    access = _asked(nvml, nvml.nvmlDeviceGetP2PStatus, handle, other_handle, read)
    return GpuPair(
        first=one.index,
        second=other.index,
        nvlinks=straight,
        common=_COMMON.get(level, "an unknown path") if level is not None else "an unknown path",
        peer_access=None if access is None else access == nvml.NVML_P2P_STATUS_OK,
    )


def _asked(nvml: ModuleType, question: Callable[..., Any], *about: Any) -> Any:
    """NVML's answer, or None from a GPU or a driver that does not have it."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None


def _bus_id(information: Any) -> str:
    """In sysfs's form; NVML writes the domain with eight digits and letters in upper case."""
    if information is None:
        return ""
    text = str(_decoded(information.busId)).lower()
    return text[4:] if re.match(r"0000[0-9a-f]{4}:", text) else text


def _decoded(text: Any) -> Any:
    """Early releases of nvidia-ml-py return bytes."""
    return text.decode() if isinstance(text, bytes) else text


# ---- networks -------------------------------------------------------------------------------------------------


def _adapters(folder: Path) -> Iterator[Adapter]:
    for device in _folders(folder):
        for port in _folders(device / "ports"):
            yield Adapter(
                device=device.name,
                port=int(port.name),
                layer=_text(port / "link_layer") or "InfiniBand",
                state=(_text(port / "state") or "unknown").rpartition(": ")[2],
                rate=_text(port / "rate") or "",
                interfaces=[one.name for one in _folders(device / "device/net")],
            )


def _interfaces(folder: Path) -> Iterator[Interface]:
    for one in _folders(folder):
        speed = _number(_text(one / "speed"))  # Mbit/s, -1 or an error where it is not known
        driver = one / "device/driver"
        yield Interface(
            name=one.name,
            kind=_interface_kind(one),
            physical=(one / "device").exists(),
            up=_text(one / "operstate") == "up",
            speed_gbit_s=speed / 1000 if speed is not None and speed > 0 else None,
            driver=driver.resolve().name if driver.exists() else "",
            members=(_text(one / "bonding/slaves") or "").split(),
        )


def _interface_kind(one: Path) -> str:
    if (one / "wireless").exists():
        return "wireless"
    kinds = {_ETHERNET: "ethernet", _LOOPBACK: "loopback", _IP_OVER_INFINIBAND: "ip over infiniband"}
    return kinds.get(_number(_text(one / "type")) or 0, "other")


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(
            folder.iterdir(), key=lambda one: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", one.name)]
        )
    except OSError:
        return []


def _text(file: Path) -> str | None:
    """sysfs answers some questions with an error: the speed of an interface that is down."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
