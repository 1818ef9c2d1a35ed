"""Sweeps, which are TOML that people write: read, and their link made a curve."""

from __future__ import annotations

from pathlib import Path

from bucketlab.link.sweep import curve_of, fabric_of, read_sweep
from fuzz.driver import ROOT


def read(data: bytes, folder: Path) -> None:
    file = folder / "sweep.toml"
    file.write_bytes(data)
    link = read_sweep(file).link
    fabric_of(link)
    curve_of(link)


def seeds() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "sweeps").glob("*.toml"))]
