"""What is installed and detected on this machine, and what of bucketlab would not work here, and why.

Looks, and changes nothing: the one thing it tries out (a pair of network interfaces) vanishes with the namespace
it is made in. What a launch on another machine finds there, it cannot know.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec

from bucketlab import __version__
from bucketlab.cgroups import cpu_quota, memory_limit_bytes
from bucketlab.link.detect import find_links, in_words
from bucketlab.units import counted, size

# Packages bucketlab imports, with the least version that it works with; a test holds them to pyproject.toml.
NEEDED = {
    "torch": "2.9",
    "torch-tb-profiler": "0.4.3",
    "tensorboard": "2.16",
    "optuna": "4",
    "rich": "13",
    "numpy": "1.26",
    "msgspec": "0.19",
    "isal": "1.7",
    "click": "8.1",
}
LEAST_PYTHON = (3, 10)
TESTED_TORCH = "2.13"

# A trace takes tens of MB a rank: below the first nothing can be written, below the second a large job fills it up.
NO_DISK_BYTES = 64 * 2**20
LITTLE_DISK_BYTES = 2 * 2**30
# Docker's default of 64 MiB is the usual cause of "bus error" in DataLoader workers and of NCCL failing to start.
LITTLE_SHARED_MEMORY_BYTES = 2**30
# gloo opens a socket to every other rank, DataLoader workers open files for every tensor in flight.
FEW_FILES = 4096

_TRY_A_LINK = (
    "ip link add bucketlab0 type veth peer name bucketlab1"
    " && tc qdisc add dev bucketlab0 root tbf rate 1gbit burst 128k latency 50ms"
)

# Variables that change what is measured. A prefix ends in "*".
_TELLING_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for: nothing can overlap, so no figure means anything; unset it",
    "CUDA_DEVICE_MAX_CONNECTIONS": "with 1, kernels of compute and communication queue behind each other",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL checks every collective on all ranks and makes each of them slower",
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for every collective, which takes overlap away",
    "TORCH_NCCL_DESYNC_DEBUG": "records every collective on the host, which costs time in each",
    "NCCL_*": "overrides what NCCL would choose: right if it is also set where the job will run",
    "GLOO_SOCKET_IFNAME": "pins gloo to this interface: right if it is also set where the job will run",
    "KINETO_*": "configures the profiler that bucketlab uses as well",
}
_HARMLESS_VALUES = {
    "CUDA_LAUNCH_BLOCKING": ("", "0"),
    "NCCL_DEBUG": ("", "VERSION", "WARN", "INFO"),
    "TORCH_DISTRIBUTED_DEBUG": ("", "OFF", "INFO"),
}


class Check(msgspec.Struct, kw_only=True):
    """One thing that was looked at."""

    topic: str
    what: str
    found: str
    status: Literal["ok", "warn", "fail"]
    why: str = ""  # what would not work because of it, and what to do; empty where there is nothing to say


def examine(traces: Path = Path("traces"), environment: Mapping[str, str] = os.environ) -> list[Check]:
    """Look at everything, in the order in which it is shown. Imports torch, which takes seconds.

    Args:
        traces: the folder that runs would be written to; need not exist.
        environment: variables in force, as a launch from here would inherit them.
    """
    torch, problem = _import_torch()
    return [
        *_versions(torch, problem),
        *_devices(torch),
        *_backends(torch),
        *_launching(torch, environment),
        *_limits(traces),
        *_links(),
        *_two_hosts(),
        *_variables(environment),
    ]


def _import_torch() -> tuple[ModuleType | None, str]:
    """torch, or why it cannot be imported: a broken installation is what a doctor is asked about."""
    try:
        import torch
        import torch.distributed
    except Exception as error:  # libraries that do not load raise OSError, bad builds anything
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    return torch, ""


# ---- versions -------------------------------------------------------------------------------------------------


def _versions(torch: ModuleType | None, problem: str) -> Iterator[Check]:
    topic = "versions"
    old = sys.version_info < LEAST_PYTHON
    yield Check(
        topic=topic,
        what="python",
        found=f"{platform.python_version()} ({sys.executable})",
        status="fail" if old else "ok",
        why=f"{'.'.join(map(str, LEAST_PYTHON))} or later is needed" if old else "",
    )
    yield Check(topic=topic, what="bucketlab", found=__version__, status="ok")
    for name, least in NEEDED.items():
        yield _package(name, least)
    if torch is None:
        yield Check(topic=topic, what="import torch", found="fails", status="fail", why=problem)
        return
    yield Check(topic=topic, what="torch built for", found=_built_for(torch), status="ok")
    if _has_nccl(torch):
        version = ".".join(map(str, torch.cuda.nccl.version()))
        name = "RCCL" if torch.version.hip else "NCCL"
        yield Check(topic=topic, what=name, found=version, status="ok")
    yield _private_names()
    yield _tensorboard_plugin()


def _package(name: str, least: str) -> Check:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(
            topic="versions",
            what=name,
            found="not installed",
            status="fail",
            why=f'pip install "{name}>={least}"',
        )
    old = _numbers(found) < _numbers(least)
    why = f'too old: pip install "{name}>={least}"' if old else ""
    return Check(topic="versions", what=name, found=found, status="fail" if old else "ok", why=why)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) for "2.13.0+cpu"."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version).group().split(".") if part)  # type: ignore[union-attr]


def _built_for(torch: ModuleType) -> str:
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "CPU only"


def _private_names() -> Check:
    """Of torch, which move between releases."""
    what = "private names of DDP"
    try:
        from bucketlab.worker.ddp import missing_names
    except ImportError as error:
        why = "bucketlab is not whole, install it again"
        return Check(topic="versions", what=what, found=f"not checked: {error}", status="warn", why=why)
    missing = missing_names()
    if not missing:
        return Check(topic="versions", what=what, found="all there", status="ok")
    return Check(
        topic="versions",
        what=what,
        found=f"missing: {', '.join(missing)}",
        status="warn",
        why=f"this torch differs from {TESTED_TORCH}, which bucketlab was tested on: no ready times and no change of "
        "buckets in place; the rest works",
    )


def _tensorboard_plugin() -> Check:
    what = "PyTorch Profiler's tab"
    points = importlib.metadata.entry_points(group="tensorboard_plugins", name="torch_profiler")
    try:
        for point in points:
            point.load()
    except Exception as error:  # a plugin may fail in any way; TensorBoard would leave it out without a word
        why = f"TensorBoard would start without it: {type(error).__name__}: {error}".splitlines()[0]
        return Check(topic="versions", what=what, found="does not load", status="warn", why=why)
    if not points:
        why = "TensorBoard would show no traces: pip install torch-tb-profiler"
        return Check(topic="versions", what=what, found="not registered", status="warn", why=why)
    return Check(topic="versions", what=what, found="loads in TensorBoard", status="ok")


# ---- devices and backends -------------------------------------------------------------------------------------


def _devices(torch: ModuleType | None) -> Iterator[Check]:
    yield _cores()
    yield _memory()
    if torch is None:
        return
    if not torch.cuda.is_available():
        yield _no_gpu(torch)
        return
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    for index, device in enumerate(found):
        yield Check(
            topic="devices", what=f"GPU {index}", found=f"{device.name}, {size(device.total_memory)}", status="ok"
        )
    if len({device.name for device in found}) > 1:
        why = "the faster ones wait for the slowest in every step; choose equal ones with CUDA_VISIBLE_DEVICES"
        yield Check(topic="devices", what="GPUs", found="of different kinds", status="warn", why=why)
    if len(found) == 1:
        why = "one rank has nothing to overlap; --nproc-per-node 2 with gloo on CPU still shows how it works"
        yield Check(topic="devices", what="GPUs", found="one", status="warn", why=why)


def _no_gpu(torch: ModuleType) -> Check:
    driver = Path("/proc/driver/nvidia/version").exists() or Path("/dev/kfd").exists()
    if not driver:
        why = "jobs run on CPU with gloo, two ranks unless told otherwise"
        return Check(topic="devices", what="GPUs", found="none", status="ok", why=why)
    built = _built_for(torch)
    why = (
        "this torch is built for CPU only: install the build for your GPU"
        if built == "CPU only"
        else f"torch, built for {built}, does not get at them: look at the driver's version and CUDA_VISIBLE_DEVICES"
    )
    return Check(topic="devices", what="GPUs", found="a driver, but no GPU in torch", status="fail", why=why)


def _cores() -> Check:
    """Cores this process may use, by affinity, and the share of them its control group gets."""
    usable, quota = len(os.sched_getaffinity(0)), cpu_quota()
    found = f"{counted(usable, 'core')} of {os.cpu_count()}, {_processor()}"
    if quota is not None and quota < usable:
        why = "ranks are stopped for parts of each period once they use more, so step times jump: use no more threads"
        return Check(
            topic="devices",
            what="CPU",
            found=f"{found}; its control group allows {quota:g} cores' time",
            status="warn",
            why=why,
        )
    if usable < 2:
        why = "two ranks on one core take turns: compute and communication cannot overlap"
        return Check(topic="devices", what="CPU", found=found, status="warn", why=why)
    return Check(topic="devices", what="CPU", found=found, status="ok")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit_bytes()
    found = size(total)
    if limit is not None and limit < total:
        why = "beyond that, ranks are killed without a word of Python's"
        return Check(
            topic="devices",
            what="memory",
            found=f"{found}; its control group allows {size(limit)}",
            status="ok",
            why=why,
        )
    return Check(topic="devices", what="memory", found=found, status="ok")


def _has_nccl(torch: ModuleType) -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_nccl_available())


def _backends(torch: ModuleType | None) -> Iterator[Check]:
    if torch is None:
        return
    distributed = torch.distributed
    if not distributed.is_available():
        why = "this torch is built without torch.distributed, so DistributedDataParallel cannot run"
        yield Check(topic="backends", what="torch.distributed", found="missing", status="fail", why=why)
        return
    gpu = torch.cuda.is_available()
    for name, there, needed, why in (
        ("gloo", distributed.is_gloo_available(), True, "jobs on CPU, and bucketlab's own messages, go through it"),
        ("nccl", distributed.is_nccl_available(), gpu, "GPUs would send their gradients through the host's memory"),
        ("mpi", distributed.is_mpi_available(), False, ""),
        ("ucc", distributed.is_ucc_available(), False, ""),
    ):
        missing = "not in this torch" + ("" if needed or name != "nccl" else ", and no GPU that needs it")
        yield Check(
            topic="backends",
            what=name,
            found="available" if there else missing,
            status="ok" if there or not needed else "fail",
            why=why if needed and not there else "",
        )


# ---- launching ------------------------------------------------------------------------------------------------


def _launching(torch: ModuleType | None, environment: Mapping[str, str]) -> Iterator[Check]:
    topic = "launching"
    yield _torchrun(torch)
    if sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_site:
        why = "a Python started with -I, -E or -S reads no PYTHONPATH: bucketlab does not get into it"
        yield Check(topic=topic, what="Python's flags", found="-I, -E or -S", status="warn", why=why)
    theirs = _own_sitecustomize()
    if theirs is not None:
        why = "kept: it runs first, in every rank"
        yield Check(topic=topic, what="sitecustomize", found=theirs, status="ok", why=why)
    path = environment.get("PYTHONPATH")
    if path:
        why = "kept: bucketlab puts one folder in front of it"
        yield Check(topic=topic, what="PYTHONPATH", found=path, status="ok", why=why)
    if environment.get("PYTHONNOUSERSITE"):
        why = "packages under ~/.local are not seen, bucketlab neither if it is installed there"
        yield Check(topic=topic, what="PYTHONNOUSERSITE", found="set", status="ok", why=why)
    threads = environment.get("OMP_NUM_THREADS")
    if threads is None:
        why = "torchrun then gives each rank one thread; set it for jobs on CPU"
        yield Check(topic=topic, what="OMP_NUM_THREADS", found="not set", status="ok", why=why)
    else:
        yield Check(topic=topic, what="OMP_NUM_THREADS", found=threads, status="ok")


def _torchrun(torch: ModuleType | None) -> Check:
    if torch is None or importlib.util.find_spec("torch.distributed.run") is None:
        why = "it comes with torch; another launcher can be named: bucketlab profile -- srun python train.py"
        return Check(topic="launching", what="torchrun", found="missing", status="fail", why=why)
    command = shutil.which("torchrun")
    return Check(
        topic="launching", what="torchrun", found=command or f"{sys.executable} -m torch.distributed.run", status="ok"
    )


def _own_sitecustomize() -> str | None:
    """The user's or the system's own module of that name, which bucketlab's stands in front of."""
    try:
        spec = importlib.util.find_spec("sitecustomize")
    except ValueError:  # already imported from somewhere that kept no spec
        return "already loaded"
    return spec.origin if spec is not None else None


# ---- limits ---------------------------------------------------------------------------------------------------


def _limits(traces: Path) -> Iterator[Check]:
    yield _disk(traces)
    yield _files()
    yield _shared_memory(Path("/dev/shm"))


def _disk(traces: Path) -> Check:
    """Whether runs can be written where they go by default."""
    what = f"./{traces}" if not traces.is_absolute() else str(traces)
    existing = next(folder for folder in (traces, *traces.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        why = f"no run can be written there: {existing.absolute()} takes no files of yours; use --out"
        return Check(topic="limits", what=what, found="not writable", status="fail", why=why)
    free = shutil.disk_usage(existing).free
    found = f"writable, {size(free)} free"
    if free < NO_DISK_BYTES:
        return Check(topic="limits", what=what, found=found, status="fail", why="too little for a trace; use --out")
    if free < LITTLE_DISK_BYTES:
        why = "a trace takes tens of MiB a rank, of a large model more; --out moves runs elsewhere"
        return Check(topic="limits", what=what, found=found, status="warn", why=why)
    return Check(topic="limits", what=what, found=found, status="ok")


def _files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} a process"
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        most = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard}"
        why = f"enough for a few dozen ranks, not for many or for many DataLoader workers: ulimit -n {most}"
        return Check(topic="limits", what="open files", found=found, status="warn", why=why)
    return Check(topic="limits", what="open files", found=found, status="ok")


def _shared_memory(mount: Path) -> Check:
    if not mount.is_dir():
        why = "NCCL and DataLoader workers pass tensors through it"
        return Check(topic="limits", what=str(mount), found="missing", status="warn", why=why)
    usage = shutil.disk_usage(mount)
    found = f"{size(usage.total)}, {size(usage.free)} free"
    if usage.free < LITTLE_SHARED_MEMORY_BYTES:
        why = (
            "NCCL and DataLoader workers pass tensors through it and crash when it is full: "
            "docker run --shm-size=8g, or --ipc=host"
        )
        return Check(topic="limits", what=str(mount), found=found, status="warn", why=why)
    return Check(topic="limits", what=str(mount), found=found, status="ok")


# ---- links and variables --------------------------------------------------------------------------------------


def _links() -> Iterator[Check]:
    """What could join ranks here. What a job really takes of it, NCCL's own log of the job tells."""
    links = find_links()
    for what, found in in_words(links):
        yield Check(topic="links", what=what, found=found, status="ok")
    for unknown in links.unknown:
        what, _, why = unknown.partition(": ")
        yield Check(topic="links", what=what, found="not looked at", status="warn", why=why)


def _two_hosts() -> Iterator[Check]:
    """Whether two hosts with a link of a chosen rate between them can be set up here, by trying."""
    what = "two hosts in one machine"
    without = "needed for nothing but emulated links, and tests on two nodes are skipped"
    tools = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if tools:
        why = f"{without}; they come with iproute2 and util-linux"
        yield Check(topic="links", what=what, found=f"no {', '.join(tools)}", status="warn", why=why)
        return
    try:
        tried = subprocess.run(
            ["unshare", "--net", "sh", "-c", _TRY_A_LINK], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check(topic="links", what=what, found=f"not possible: {error}", status="warn", why=without)
        return
    if tried.returncode == 0:
        found = "network namespaces, veth and tc tbf work"
        yield Check(topic="links", what=what, found=found, status="ok")
        return
    said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[0]
    why = f"{without}; it takes root or CAP_SYS_ADMIN and CAP_NET_ADMIN"
    yield Check(topic="links", what=what, found=f"not possible: {said}", status="warn", why=why)


def _variables(environment: Mapping[str, str]) -> Iterator[Check]:
    """Those in force that change what is measured."""
    seen = False
    for name in sorted(environment):
        why = next((why for pattern, why in _TELLING_VARIABLES.items() if _fits(name, pattern)), None)
        if why is None or environment[name].upper() in _HARMLESS_VALUES.get(name, ()):
            continue
        seen = True
        yield Check(topic="variables", what=name, found=environment[name], status="warn", why=why)
    if not seen:
        yield Check(topic="variables", what="NCCL, gloo, CUDA, torch", found="none that changes a figure", status="ok")


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
