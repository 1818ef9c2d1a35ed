"""A real TensorBoard with PyTorch Profiler's plugin shows a profiled run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import SCRIPTS, profiled

_PLUGIN = "data/plugin/pytorch_profiler"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tensorboard")
    profiled(SCRIPTS / "embedding_larger_than_cap.py", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "bucketlab", "view", "--out", str(folder / "traces"), "--port", "0"]
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield _address(log)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _address(log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for word in log.read_text().split():
            if word.startswith(("http://127.0.0.1:", "http://localhost:")):
                return word.rstrip("/")
        time.sleep(0.2)
    raise AssertionError(f"TensorBoard gave no address:\n{log.read_text()}")


def _ask(address: str, path: str) -> object:
    """Waits for the plugin, which reads the folder in the background."""
    deadline = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(f"{address}/{_PLUGIN}/{path}", timeout=30) as answer:
                document = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            document = f"{error.code}: {error.read()[:200]!r}"
            ready = False
        else:
            ready = not isinstance(document, dict) or document.get("runs") != []
            ready = ready and not (isinstance(document, dict) and document.get("loading"))
        if ready or time.monotonic() > deadline:
            return document
        time.sleep(0.5)


def test_the_run_has_all_four_views_and_both_workers(address: str) -> None:
    runs = _ask(address, "runs")
    assert isinstance(runs, dict)
    (run,) = runs["runs"]
    views = _ask(address, f"views?run={run}")
    assert isinstance(views, list)
    assert {"Overview", "Operator", "Trace", "Distributed"} <= set(views)
    workers = _ask(address, f"workers?run={run}&view=Overview")
    assert workers == ["rank0", "rank1"]


def test_the_distributed_view_has_figures_for_each_rank(address: str) -> None:
    runs = _ask(address, "runs")
    assert isinstance(runs, dict)
    (run,) = runs["runs"]
    overlap = _ask(address, f"distributed/overlap?run={run}&worker=All&span=1&view=Distributed")
    assert isinstance(overlap, dict)
    assert set(overlap["data"]) == {"all", *map(str, range(1, 9))}  # the traced steps
    for step in overlap["data"].values():
        assert {worker.split("_")[0] for worker in step} == {"rank0", "rank1"}, step


def test_a_profile_leaves_its_page_and_its_scalars(folder: Path) -> None:
    (run,) = (folder / "traces").iterdir()
    page = (run / "report.html").read_text(encoding="utf-8")
    assert run.name in page
    assert len(list((run / "scalars").glob("events.out.tfevents.*"))) == 1
    assert [one.name for one in run.rglob("*.tmp")] == []
