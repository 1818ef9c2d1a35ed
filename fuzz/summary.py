"""Summaries of ranks, as `analyze --summaries` keeps them: merged and printed."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console

from bucketlab.analysis.files import analyze_paths
from bucketlab.report.analysis import print_analysis, write_csv
from fuzz import trace


def read(data: bytes, folder: Path) -> None:
    file = folder / "rank0.0.summary.json"
    file.write_bytes(data)
    analysis = analyze_paths([file])
    print_analysis(analysis, Console(file=io.StringIO(), width=100))
    write_csv(analysis, io.StringIO())


def seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rank0.1.pt.trace.json"
        file.write_bytes(trace.seeds()[0])
        return [msgspec.json.encode(analyze_paths([file]))]
