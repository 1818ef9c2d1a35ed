"""What a benchmark hands to the table: figures, each with its ratio to a reference, or why there are none.

Absolute times tell of one machine. A ratio to something else that ran on it at the same time tells more, and only
ratios are compared between runs. Measures nothing itself.
"""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

SCHEMA = "bucketlab.bench/1"
SLOWER = 0.20  # of a ratio, that is told
_VERSIONS = ("bucketlab", "torch", "numpy", "msgspec", "isal", "optuna")


class Wanted(msgspec.Struct, kw_only=True):
    """What is asked of a benchmark's `figures`."""

    quick: bool = False  # few repetitions will do
    all_cases: bool = False  # every model on every link, which takes an hour
    peers_python: str | None = None  # an interpreter that has other tools installed
    measured: Path | None = None  # folder of cases that were measured before: prediction/ and tuning/ in it


class Skipped(Exception):
    """A benchmark cannot run here. Its text is the reason."""


class Figure(msgspec.Struct, kw_only=True):
    """One row of the table."""

    name: str
    value: float  # a median where several were taken
    unit: str  # "" where there is a ratio and nothing else
    kind: Literal["measured", "emulated", "simulated"] = "measured"
    ratio: float | None = None  # of the value to what `over` names, taken in the same run
    over: str = ""
    better: Literal["less", "more"] = "less"  # of the ratio
    samples: int = 1


class Section(msgspec.Struct, kw_only=True):
    """One benchmark's figures, with the machine and the hour: benchmarks of one table need not be of one run."""

    created: str
    machine: str
    versions: dict[str, str]
    load: float  # of the machine before it began, in processes that want a core
    seconds: float
    figures: list[Figure] = []
    skipped: str | None = None  # why there are none
    failed: bool = False


class Results(msgspec.Struct, kw_only=True):
    """What `python -m bench` writes: each benchmark by its name."""

    schema: str = SCHEMA
    sections: dict[str, Section]


def load(path: Path) -> Results:
    """Raises SystemExit, in one line, for a file that is not there or is none of ours."""
    try:
        results = msgspec.json.decode(path.read_bytes(), type=Results)
    except OSError as error:
        raise SystemExit(f"bench: cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise SystemExit(f"bench: {path} is no table of benchmarks: {error}") from None
    if results.schema != SCHEMA:
        raise SystemExit(f"bench: {path} is {results.schema!r}; this reads {SCHEMA}")
    return results


def here(
    seconds: float, load_before: float, figures: list[Figure], skipped: str | None = None, failed: bool = False
) -> Section:
    """A section of this machine and this hour."""
    return Section(
        created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        machine=_machine(),
        versions=_versions(),
        load=round(load_before, 1),
        seconds=round(seconds, 1),
        figures=figures,
        skipped=skipped,
        failed=failed,
    )


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {_processor()}, {platform.system()} {platform.release()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# ---- two tables -------------------------------------------------------------------------------------------------


def slower(now: Results, before: Results) -> list[str]:
    """One line for each ratio that is worse than before by more than `SLOWER`. Figures of one table alone are none."""
    lines = []
    for name, section in now.sections.items():
        known = {one.name: one for one in before.sections[name].figures} if name in before.sections else {}
        for figure in section.figures:
            old = known.get(figure.name)
            if old is None or old.ratio is None or figure.ratio is None or old.over != figure.over:
                continue
            worse = figure.ratio / old.ratio if figure.better == "less" else old.ratio / figure.ratio
            if worse > 1 + SLOWER:
                over = f" times {figure.over}" if figure.over else ""
                lines.append(f"{name}, {figure.name}: {_short(figure.ratio)}{over}, was {_short(old.ratio)}")
    return lines


# ---- as text ----------------------------------------------------------------------------------------------------


def as_markdown(results: Results) -> str:
    """The table that people read."""
    parts = []
    for name, section in results.sections.items():
        parts.append(f"## {name}\n")
        if section.skipped is not None:
            what = "Failed" if section.failed else "Skipped"
            parts.append(f"{what}: {section.skipped} ({section.created}).\n")
            continue
        rows = ["| | | ratio | kind, samples |", "|---|---|---|---|", *map(_row, section.figures)]
        versions = ", ".join(f"{one} {release}" for one, release in section.versions.items())
        told = f"{section.created}, load {section.load} before, {section.seconds:.0f} s; {section.machine}; {versions}."
        parts.append("\n".join(rows) + f"\n\n{told}\n")
    return "\n".join(parts)


def _row(figure: Figure) -> str:
    value = f"{_short(figure.value)} {figure.unit}" if figure.unit else ""
    ratio = "" if figure.ratio is None else f"{_short(figure.ratio)} times {figure.over}"
    return f"| {figure.name} | {value} | {ratio} | {figure.kind}, {figure.samples:,} |"


def _short(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def requoted(text: str, results: Results) -> str:
    """The same text, with every row that it quotes from the table as it is now."""
    rows = {_name(row): row for row in as_markdown(results).splitlines() if row.startswith("| ")}
    return "\n".join(rows.get(_name(line), line) if line.startswith("| ") else line for line in text.split("\n"))


def _name(row: str) -> str:
    return row.split("|")[1].strip() or row
