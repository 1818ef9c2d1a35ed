"""A real TensorBoard with PyTorch Profiler's plugin shows a profiled run."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bucketlab.analysis.files import analyze_paths
from tests.commands import ROOT, SCRIPTS, profiled
from tests.tensorboard.serving import tensorboard

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
        process.wait(timeout=60)


def _address(log: Path) -> str:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        for word in log.read_text().split():
            if word.startswith(("http://127.0.0.1:", "http://localhost:")):
                return word.rstrip("/")
        time.sleep(0.2)
    raise AssertionError(f"TensorBoard gave no address:\n{log.read_text()}")


def _ask(address: str, path: str) -> object:
    """Waits for the plugin, which reads the folder in the background."""
    deadline = time.monotonic() + 150
    while True:
        try:
            with urllib.request.urlopen(f"{address}/{_PLUGIN}/{path}", timeout=60) as answer:
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


def test_overview_operator_and_trace_views_have_content_for_each_worker(address: str) -> None:
    runs = _ask(address, "runs")
    assert isinstance(runs, dict)
    (run,) = runs["runs"]
    for worker in ("rank0", "rank1"):
        asked = f"run={run}&worker={worker}&span=1"
        overview = _ask(address, f"overview?{asked}&view=Overview")
        assert isinstance(overview, dict)
        parts = {one["name"]: one["value"] for one in overview["performance"][0]["children"]}
        assert parts["CPU Exec"] > 0
        assert parts["Communication"] > 0
        assert len(overview["steps"]["rows"]) == 8
        table = _ask(address, f"operation/table?{asked}&view=Operator&group_by=Operation")
        assert isinstance(table, dict)
        assert {"aten::embedding", "aten::addmm"} <= {one["name"] for one in table["data"]}
        with urllib.request.urlopen(f"{address}/{_PLUGIN}/trace?{asked}&view=Trace", timeout=60) as answer:
            assert len(json.loads(gzip.decompress(answer.read()))["traceEvents"]) > 1000


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


def test_its_overlap_of_nccl_runs_is_the_wrong_one_that_the_readme_states(tmp_path: Path) -> None:
    """It counts NCCL kernels as computation, so that nearly all communication overlaps: with itself."""
    name = "resnet50_ddp_nccl_2ranks.rank0.pt.trace.json.gz"
    shared = Path(os.environ.get("BUCKETLAB_SHARED_TRACES") or ROOT.parent / "shared" / "data" / "traces") / name
    if not shared.exists():
        pytest.skip(f"the public trace {name} is not there")
    (tmp_path / "traces" / "nccl").mkdir(parents=True)
    shutil.copy(shared, tmp_path / "traces" / "nccl" / "rank0.1700000000000.pt.trace.json.gz")
    with tensorboard(tmp_path / "traces") as address:
        views = _ask(address, "views?run=nccl")
        assert isinstance(views, list)
        assert {"Overview", "Operator", "Kernel", "Trace", "Distributed"} <= set(views)
        theirs = _ask(address, "distributed/overlap?run=nccl&worker=All&span=1&view=Distributed")
        overview = _ask(address, "overview?run=nccl&worker=rank0&span=1&view=Overview")
    assert isinstance(theirs, dict)
    assert isinstance(overview, dict)
    _, overlapping, rest, _ = theirs["data"]["all"]["rank0"]
    assert overlapping / (overlapping + rest) == pytest.approx(0.978, abs=0.001)
    parts = {one["name"]: one["value"] for one in overview["performance"][0]["children"]}
    assert parts["Communication"] == 347  # us of a step, beside 15.6 ms that the kernels took

    steps = analyze_paths([tmp_path / "traces" / "nccl"]).ranks[0].steps
    communication_ns = sum(step.communication_ns for step in steps)
    assert sum(step.overlap_ns for step in steps) / communication_ns == pytest.approx(0.156, abs=0.001)
    assert communication_ns / len(steps) == pytest.approx(15.6e6, rel=0.01)
