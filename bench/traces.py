"""Reading traces: `bucketlab analyze` against other tools and against the size of the trace; decoders and unpackers.

    python -m bench.traces [--large] [--peers-python PYTHON]

Every figure is of a whole process, start of Python and imports included. Tools take turns on the same trace, so that
what else the machine does meets them all; CPU time depends least on that. Other tools are measured where that
interpreter has them:

    python -m venv peers
    peers/bin/pip install HolisticTraceAnalysis==0.5.0 torch-tb-profiler==0.4.3 orjson pysimdjson msgspec

TraceLens (github.com/AMD-AGI/TraceLens) is measured too where it is installed; PyPI's tracelens is something else.
bench/README.md has the figures of one machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import click

from bench.figures import Figure, Wanted
from bench.large import Large, write_large
from bench.launching import Run, run

_ROOT = Path(__file__).parents[1]
_MIB = 2**20

_PEERS = {
    # module -> what it is called, and how it is asked for the overlap of the trace argv[1]
    "hta": (
        "HolisticTraceAnalysis",
        "from hta.trace_analysis import TraceAnalysis\n"
        "TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='/').get_comm_comp_overlap(visualize=False)",
    ),
    "TraceLens": (
        "TraceLens",
        "from TraceLens import TreePerfAnalyzer\nTreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()",
    ),
    "torch_tb_profiler": (
        "torch-tb-profiler",
        "from torch_tb_profiler.profiler.data import RunProfileData\n"
        "RunProfileData.parse('worker', 'span', sys.argv[1], None)",
    ),
}

_DECODERS = {
    "json": "import json; json.loads(text)",
    "orjson": "import orjson; orjson.loads(text)",
    "simdjson": "import simdjson; simdjson.Parser().parse(text).as_dict()",
    "msgspec, untyped": "import msgspec; msgspec.json.decode(text)",
    "msgspec, typed": "import msgspec\n"
    "class Args(msgspec.Struct, gc=False): correlation: int = -1; device: int = -1; stream: int = -1\n"
    "class Event(msgspec.Struct, gc=False):\n"
    "    ph: str = ''; cat: str = ''; name: str = ''; pid: int | str = 0; tid: int | str = 0\n"
    "    ts: msgspec.Raw = msgspec.Raw(); dur: msgspec.Raw = msgspec.Raw(); args: Args | None = None\n"
    "class Trace(msgspec.Struct): traceEvents: list[Event]\n"
    "msgspec.json.decode(text, type=Trace)",
    "bucketlab's reader": "from bucketlab.trace.kineto import read_trace; read_trace(sys.argv[1])",
}

_UNPACKERS = {
    "zlib": "import zlib; unpacker = zlib.decompressobj(31)\n"
    "while block := file.read(65536): unpacker.decompress(block)",
    "isal_zlib": "from isal import isal_zlib; unpacker = isal_zlib.decompressobj(31)\n"
    "while block := file.read(65536): unpacker.decompress(block)",
    "igzip_lib": "from isal import igzip_lib; unpacker = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)\n"
    "while block := file.read(65536): unpacker.decompress(block)",
}


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--large", is_flag=True, help="Also 1 GB, plain and gz: 1.1 GB of disk.")
@click.option("--repeats", default=5, show_default=True, help="Processes of each kind.")
@click.option("--peers-python", help="Interpreter that has other tools and decoders installed.")
def main(large: bool, repeats: int, peers_python: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # compiled modules are kept, as those of an installed package are, and not in the repository
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(folder) / "compiled")}
        trace = Path(folder) / "50.json"
        packed = trace.with_suffix(".json.gz")
        made = write_large(trace, 50)
        write_large(packed, 50)
        _verify(trace, made)
        print(f"{made.unpacked_bytes / 1e6:.0f} MB, {made.events:,} events, median of {repeats} processes\n")
        _compare("start-up", _start_ups(), repeats, reference="Python alone")
        analysts = {"bucketlab analyze": _analyze(trace), "bucketlab analyze, gz": _analyze(packed)}
        if peers_python:
            analysts |= _peers(peers_python, trace)
        _compare("the overlap of 50 MB", analysts, repeats, reference="bucketlab analyze")
        python = peers_python or sys.executable
        _compare("decoding 50 MB", _decoders(python, trace), repeats, reference="bucketlab's reader")
        unpackers = {name: _script(sys.executable, f"file = open(sys.argv[1], 'rb')\n{code}", packed)
                     for name, code in _UNPACKERS.items()}  # fmt: skip
        _compare("unpacking 50 MB", unpackers, repeats, reference="igzip_lib")
        _growth(Path(folder), (10, 50, 200, 1000) if large else (10, 50), repeats)


def figures(wanted: Wanted) -> list[Figure]:
    """`bucketlab analyze` over Python's own decoder on the same trace, and other tools over `bucketlab analyze`."""
    repeats = 3 if wanted.quick else 5
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "50.json"
        _verify(trace, write_large(trace, 50))
        commands = {"bucketlab analyze": _analyze(trace), "json.loads": _script(sys.executable, _LOADS, trace)}
        if wanted.peers_python:
            commands |= _peers(wanted.peers_python, trace)
        runs = _interleaved(commands, repeats)
    ours, loads = runs.pop("bucketlab analyze"), runs.pop("json.loads")
    found = _of_run("bucketlab analyze", ours, loads, "json.loads", repeats, better="less")
    for name, one in runs.items():
        found += _of_run(name, one, ours, "bucketlab analyze", repeats, better="more")
    return found


_LOADS = "import json; json.loads(open(sys.argv[1], 'rb').read())"


def _of_run(name: str, one: Run, base: Run, over: str, samples: int, better: Literal["less", "more"]) -> list[Figure]:
    told = {
        # Of two processes against one: it tells more of how idle the other core was.
        "wall": (one.wall_s, "s", one.wall_s / base.wall_s if better == "more" else None),
        "CPU": (one.cpu_s, "s", one.cpu_s / base.cpu_s),
        "peak memory": (one.peak_bytes / _MIB, "MiB", one.peak_bytes / base.peak_bytes),
    }
    return [
        Figure(
            name=f"{name}, 50 MB, {what}",
            value=value,
            unit=unit,
            ratio=ratio,
            over=over,
            better=better,
            samples=samples,
        )
        for what, (value, unit, ratio) in told.items()
    ]


def _verify(trace: Path, made: Large) -> None:
    """What is measured must be right too: the trace's figures are known by construction."""
    command, environment = _analyze(trace)
    done = subprocess.run(command, env={**os.environ, **environment}, cwd=_ROOT, capture_output=True, check=True)
    total = json.loads(done.stdout)["ranks"][0]["total"]
    if total != dict(made.total):
        raise SystemExit(f"bucketlab says {total} of a trace that was built with {dict(made.total)}")


Command = tuple[list[str], Mapping[str, str]]  # and what it needs in its environment


def _analyze(trace: Path) -> Command:
    return [sys.executable, "-m", "bucketlab", "analyze", str(trace), "--json"], {}


def _script(python: str, code: str, *arguments: Path) -> Command:
    return [python, "-c", f"import sys\n{code}", *map(str, arguments)], {"PYTHONPATH": str(_ROOT)}


def _start_ups() -> dict[str, Command]:
    return {
        "Python alone": _script(sys.executable, ""),
        "and numpy": _script(sys.executable, "import numpy"),
        "and what analyze imports": _script(
            sys.executable, "import bucketlab.cli, bucketlab.commands.analyze, bucketlab.analysis.files"
        ),
    }


def _peers(python: str, trace: Path) -> dict[str, Command]:
    return {
        name: _script(python, code, trace)
        for module, (name, code) in _PEERS.items()
        if _has(python, module)
    }  # fmt: skip


def _decoders(python: str, trace: Path) -> dict[str, Command]:
    commands = {
        name: _script(python, f"text = open(sys.argv[1], 'rb').read()\n{code}", trace)
        for name, code in _DECODERS.items()
        if "bucketlab" not in name and _has(python, name.partition(",")[0])
    }
    return {**commands, "bucketlab's reader": _script(sys.executable, _DECODERS["bucketlab's reader"], trace)}


def _has(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def _compare(title: str, commands: Mapping[str, Command], repeats: int, reference: str) -> None:
    runs = _interleaved(commands, repeats)
    base = runs[reference]
    print(f"{title:28} {'wall':>8} {'cpu':>8} {'peak':>8}   times that of {reference}")
    for name, one in runs.items():
        ratios = (
            f"{one.wall_s / base.wall_s:6.1f} {one.cpu_s / base.cpu_s:8.1f} {one.peak_bytes / base.peak_bytes:8.1f}"
        )
        figures = f"{one.wall_s:6.3f} s {one.cpu_s:6.3f} s {one.peak_bytes / _MIB:4.0f} MiB"
        print(f"  {name:26} {figures}   {ratios if name != reference else ''}".rstrip())
    print()


def _growth(folder: Path, sizes: Sequence[int], repeats: int) -> None:
    """Wall time, speed and memory against size."""
    print(f"{'bucketlab analyze':28} {'wall':>8} {'cpu':>8} {'peak':>8}   unpacked per second of CPU")
    for megabytes in sizes:
        paths = [folder / f"size{megabytes}.json", folder / f"size{megabytes}.json.gz"]
        made = [write_large(path, megabytes) for path in paths]
        count = repeats if megabytes < 500 else min(repeats, 3)
        runs = _interleaved({path.name: _analyze(path) for path in paths}, count)
        for path, large, one in zip(paths, made, runs.values(), strict=True):
            what = f"{large.unpacked_bytes / 1e6:.0f} MB{' gz' if path.suffix == '.gz' else ''}"
            figures = f"{one.wall_s:6.3f} s {one.cpu_s:6.3f} s {one.peak_bytes / _MIB:4.0f} MiB"
            print(f"  {what:26} {figures}   {large.unpacked_bytes / one.cpu_s / 1e6:4.0f} MB, {large.events:,} events")
            path.unlink()


def _interleaved(commands: Mapping[str, Command], repeats: int) -> dict[str, Run]:
    """Medians; the commands take turns, after a first round that only warms up the disk's cache."""
    taken: dict[str, list[Run]] = {name: [] for name in commands}
    for round_number in range(repeats + 1):
        for name, command in commands.items():
            one = run(*command)
            if round_number:
                taken[name].append(one)
    return {name: Run.median(runs) for name, runs in taken.items()}


if __name__ == "__main__":
    main()
