"""The table in docs/faults.md, made of the tests that inject the faults: `python -m tests.faults.table` writes it.

A test of a fault is marked so:

    @pytest.mark.fault("ranks", "kill -9 while steps are timed", command="profile", outcome="exit code 1; ...")

Not for tests of bad options: those are not faults.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "faults.md"
AREAS = {
    "ranks": "A rank or a launcher dies or hangs",
    "hosts": "Hosts and the network between them",
    "disk": "Disks",
    "study": "The study's database",
    "scripts": "What training scripts do",
    "files": "Files that are read",
}
HEAD = """# What happens when something breaks

Each row is a test that injects the fault for real: a killed process, a cut cable between two network namespaces, a
full file system. The table is generated from the tests (`python -m tests.faults.table`), and a test holds it to them.

For all of them: the exit code and the output of the training script are never changed for the worse, no process,
namespace or port of ours stays, results written earlier stay whole, and the last line names the cause. Temporary files
go with the command; if the command itself was killed with `kill -9`, the next one removes them.
"""


class _Collector:
    def __init__(self) -> None:
        self.rows: dict[str, dict[tuple[str, str, str], str]] = {area: {} for area in AREAS}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("fault"):
                area, fault = mark.args
                where = f"[{item.path.stem}](../{item.path.relative_to(ROOT)})"
                self.rows[area].setdefault((fault, mark.kwargs["command"], mark.kwargs["outcome"]), where)


def made() -> str:
    """The document, as the tests have it now."""
    collector = _Collector()
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.fault(" in path.read_text()]
    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "fault", f"--rootdir={ROOT}", *map(str, files)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = pytest.main(arguments, plugins=[collector])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests of faults could not be collected:\n{printed.getvalue()}")
    return "\n".join([HEAD, *(_section(title, collector.rows[area]) for area, title in AREAS.items())])


def _section(title: str, rows: dict[tuple[str, str, str], str]) -> str:
    """By command, then in the order of the tests."""
    lines = [f"## {title}", "", "| fault | command | what happens | test |", "|---|---|---|---|"]
    for (fault, command, outcome), where in sorted(rows.items(), key=lambda row: row[0][1]):
        lines.append(f"| {fault} | `{command}` | {outcome} | {where} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(made())
