"""Recorded traces from public test suites, against figures that somebody else computed. Kept outside the repository."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from bucketlab.analysis import analyze_trace
from bucketlab.trace.kineto import read_trace

FOLDER = Path(os.environ.get("BUCKETLAB_SHARED_TRACES") or Path(__file__).parents[3] / "shared" / "data" / "traces")
FIGURES = FOLDER / "expected.json"
EXPECTED = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}

pytestmark = pytest.mark.skipif(not EXPECTED, reason=f"no {FIGURES}: set BUCKETLAB_SHARED_TRACES to the folder")


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_figures_are_met_to_the_nanosecond(name):
    expected = EXPECTED[name]
    analysis = analyze_trace(read_trace(FOLDER / name))
    keys = expected["total"].keys()
    assert msgspec.to_builtins(analysis.total) == expected["total"]
    assert {step.name: {key: getattr(step, key) for key in keys} for step in analysis.steps} == expected["steps"]
    assert analysis.unattributed_kernels == expected["unattributed_kernels"]
    assert {
        step.name: [event.elements for event in step.events if event.op == "allreduce"] for step in analysis.steps
    } == expected["allreduce_elements_by_step"]
    assert (analysis.rank, analysis.world_size, analysis.backend) == (
        expected["rank"],
        expected["world_size"],
        expected["backend"],
    )
