"""Runs the benchmarks and writes one table: medians, ratios, machine and versions.

    python -m bench [--only NAME ...] [--quick] [--out FILE.json] [--quote README.md] [--against FILE.json]

Each benchmark is a module beside this one that can be run alone, too; `--help` lists them. What cannot run here is
skipped with a reason. With `--out`, the benchmarks that were run replace their own section of the file and no other,
and the same table is written beside it as Markdown; `--quote` renews the rows that another text has of it. With
`--against`, ratios that are worse than those of the file by more than 20 % are told on stderr; that is no failure.
`--quick` takes the few that need less than two minutes together.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import msgspec

from bench.figures import Figure, Results, Section, Skipped, Wanted, as_markdown, here, load, requoted, slower

# What each tells, in the order in which it is run; the quick ones first.
BENCHMARKS = {
    "commands": "start-up, and a whole profile of the shipped example",
    "traces": "reading a trace, against HTA and torch-tb-profiler",
    "predicting": "what a prediction costs",
    "instrumentation": "what being watched costs a step",
    "samplers": "what a study finds and costs, on simulated jobs",
    "ranks": "what a thousand ranks cost rank 0",
    "emulation": "how exact an emulated link is, and what it costs",
    "link": "measured bandwidth against the configured rate",
    "topologies": "ring and parameter server, measured over predicted",
    "prediction": "predicted against measured step times",
    "tuning": "what a study finds and costs, on a real link",
    "null": "how often tuning recommends a change where none can matter",
    "gpu": "NCCL, emulated links and traces on a GPU",
}
QUICK = ("commands", "traces", "predicting", "instrumentation")
# Modules that measure into a folder, of which another makes figures.
_FIGURES_IN = {"prediction": "bench.cases:prediction_figures", "tuning": "bench.cases:tuning_figures"}


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--only", multiple=True, type=click.Choice(list(BENCHMARKS)), help="This benchmark; repeatable.")
@click.option("--quick", is_flag=True, help=f"Few repetitions of {', '.join(QUICK)}: under two minutes.")
@click.option("--all-cases", is_flag=True, help="Every model on every link for prediction and tuning: over an hour.")
@click.option("--peers-python", help="Interpreter that has other tools installed; see bench/traces.py.")
@click.option(
    "--measured",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with prediction/ and tuning/ that bench.prediction and bench.tuning measured: taken as they are.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Table to write, .json; and .md beside it."
)
@click.option("--against", type=click.Path(path_type=Path, dir_okay=False), help="Table to compare ratios with.")
@click.option("--quote", type=click.Path(path_type=Path, exists=True), help="Text whose rows of the table to renew.")
def main(
    only: tuple[str, ...],
    quick: bool,
    all_cases: bool,
    peers_python: str | None,
    measured: Path | None,
    out: Path | None,
    against: Path | None,
    quote: Path | None,
) -> None:
    wanted = Wanted(quick=quick, all_cases=all_cases, peers_python=peers_python, measured=measured)
    before = load(against) if against else None
    stored = load(out).sections if out and out.exists() else {}
    names = only or (QUICK if quick else tuple(BENCHMARKS))
    sections = {}
    for name in names:
        print(f"bench: {name}: {BENCHMARKS[name]} ...", file=sys.stderr, flush=True)
        sections[name] = _run(name, wanted)
        if out:
            _write(out, stored | sections)
    now = Results(sections=sections)
    if quote:
        text = quote.read_text(encoding="utf-8")
        quote.write_text(requoted(text, Results(sections=stored | sections)), encoding="utf-8")
    print(as_markdown(now))
    for line in slower(now, before) if before else []:
        print(f"bench: warning: slower than in {against}: {line}", file=sys.stderr)
    if failed := [name for name, section in sections.items() if section.failed]:
        raise SystemExit(f"bench: failed: {', '.join(failed)}")


def _run(name: str, wanted: Wanted) -> Section:
    """One that fails takes no other with it: its section says so."""
    load_before, began = os.getloadavg()[0], time.perf_counter()
    figures, skipped, failed = [], None, False
    try:
        figures = figures_of(name)(wanted)
    except Skipped as reason:
        skipped = str(reason)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        skipped, failed = f"{type(error).__name__}: {error}".partition("\n")[0], True
    return here(time.perf_counter() - began, load_before, figures, skipped, failed)


def figures_of(name: str) -> Callable[[Wanted], list[Figure]]:
    """A benchmark's `figures`, which raises Skipped where it cannot run."""
    module, _, function = _FIGURES_IN.get(name, f"bench.{name}:figures").partition(":")
    found: Callable[[Wanted], list[Figure]] = getattr(import_module(module), function)
    return found


def _write(out: Path, sections: dict[str, Section]) -> None:
    ordered = Results(sections={name: sections[name] for name in BENCHMARKS if name in sections})
    out.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    out.with_suffix(".md").write_text(as_markdown(ordered), encoding="utf-8")


if __name__ == "__main__":
    main()
