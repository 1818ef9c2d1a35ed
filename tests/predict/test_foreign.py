"""Ranges from traces that bucketlab did not make: they hold the truth of every job that could have made the trace."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.analysis.files import analyze_paths
from bucketlab.errors import BadInput
from bucketlab.link.curve import LinkCurve
from bucketlab.predict.foreign import Traced, bounds_ns, predict_trace
from bucketlab.predict.replay import ModuleGradients, Timeline, replay
from bucketlab.schema.analysis import Analysis, CollectiveEvent, RankAnalysis, StepAnalysis, Stragglers, Totals
from tests.commands import bucketlab
from tests.predict.models import timelines

SHARED = Path(os.environ.get("BUCKETLAB_SHARED_TRACES") or Path(__file__).parents[2] / "../shared/data/traces")
MIB = 2**20
NOTHING = dict.fromkeys(Totals.__struct_fields__, 0)


@given(timelines(most=30, in_order=True), st.integers(0, 100), st.floats(0.5, 20), st.data())
def test_the_range_holds_the_truth_whatever_gradients_the_traced_buckets_had(timeline, latency_ns, bandwidth, data):
    curve = LinkCurve.straight(latency_ns, bandwidth)
    module = timeline.modules[0]
    timeline = Timeline([module], module.ready_ns[-1], timeline.optimizer_ns)
    caps = st.integers(1, 4000)
    traced_run = replay(timeline, [module.buckets([data.draw(caps)])], curve)
    traced = Traced(
        bytes=np.array(traced_run.bytes, dtype=np.float64),
        ready_ns=traced_run.ready_ns,
        over_ns=float(traced_run.end_ns[-1]),
        step_ns=traced_run.step_ns,
    )
    cap = data.draw(caps)
    truth = replay(timeline, [module.buckets([cap])], curve).step_ns
    low, high = bounds_ns(traced, cap, curve, curve)
    assert low <= truth * (1 + 1e-9)
    assert truth <= high * (1 + 1e-9)


def nccl_job(cap_bytes: int) -> tuple[Analysis, Timeline, LinkCurve]:
    """What analysing a trace of one step gives, of a job whose gradients and link are known."""
    module = ModuleGradients([MIB] * 100, [50e6 + 1e6 * at for at in range(100)], ["float32"] * 100)
    timeline, curve = Timeline([module], 149e6, 5e6), LinkCurve.straight(40_000, 1.5)
    run = replay(timeline, [module.buckets([cap_bytes])], curve)
    events = [
        CollectiveEvent(
            op="allreduce",
            elements=size // 4,
            bytes=size,
            dtype="float32",
            group="0",
            group_size=2,
            sequence=number,
            bucket=number,
            ready_ns=round(ready),
            start_ns=round(start),
            end_ns=round(end),
            overlap_ns=0,
            exposed_ns=0,
            bus_gb_s=None,
        )
        for number, (size, ready, start, end) in enumerate(
            zip(run.bytes, run.ready_ns, run.start_ns, run.end_ns, strict=True)
        )
    ]
    step = StepAnalysis(
        name="ProfilerStep#1",
        start_ns=0,
        wall_ns=round(run.step_ns),
        idle_ns=0,
        input_ns=0,
        events=events,
        **NOTHING,
    )
    rank = RankAnalysis(
        source="rank0.json",
        rank=0,
        world_size=2,
        backend="nccl",
        host=None,
        total=Totals(**NOTHING),
        steps=[step],
        unattributed_kernels=0,
        warnings=[],
    )
    return Analysis(ranks=[rank], stragglers=Stragglers(by_rank=[], verdict=""), warnings=[]), timeline, curve


@pytest.mark.parametrize("cap_mb", [1, 7, 24])
def test_a_trace_of_a_known_job_gives_its_link_and_ranges_that_hold_its_steps(cap_mb):
    analysis, timeline, curve = nccl_job(cap_mb * MIB)
    made = predict_trace(analysis)
    assert made.kind == "predicted"
    if cap_mb > 1:  # with buckets of one size latency cannot be told
        assert made.latency_ns == pytest.approx(40_000, rel=0.02)
        assert made.bandwidth_gb_s == pytest.approx(1.5, rel=0.001)
    for one in made.ranges:
        layout = timeline.modules[0].buckets([int(one.bucket_cap_mb * MIB)])
        truth = replay(timeline, [layout], curve).step_ns
        assert one.low_ns <= truth * 1.001
        assert truth <= one.high_ns * (1.02 if cap_mb == 1 else 1.001)
    assert made.floor_ns <= min(one.low_ns for one in made.ranges)


def test_finer_buckets_in_the_trace_make_narrower_ranges():
    def width(cap_mb: int) -> float:
        ranges = predict_trace(nccl_job(cap_mb * MIB)[0]).ranges
        return sum(one.high_ns - one.low_ns for one in ranges)

    assert width(2) < width(10) < width(50)


def test_a_trace_without_buckets_says_that_nothing_can_be_said():
    analysis, _, _ = nccl_job(MIB)
    for event in analysis.ranks[0].steps[0].events:
        event.bucket = None
    with pytest.raises(BadInput, match="no step has all-reduces of DDP's buckets"):
        predict_trace(analysis)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no traces in {SHARED}")
@pytest.mark.parametrize("name", ["resnet50_ddp_nccl_2ranks.rank0", "resnet_ddp_rccl_8ranks.rank0"])
def test_public_traces_get_ranges_that_hold_the_step_they_measured(name):
    analysis = analyze_paths([SHARED / f"{name}.pt.trace.json.gz"])
    made = predict_trace(analysis)
    assert made.floor_ns <= made.measured_step_ns * 1.001
    assert any(
        one.low_ns <= made.measured_step_ns * 1.01 and made.measured_step_ns <= one.high_ns for one in made.ranges
    )


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no traces in {SHARED}")
def test_predict_takes_a_trace_for_a_run(tmp_path):
    trace = (SHARED / "resnet50_ddp_nccl_2ranks.rank0.pt.trace.json.gz").resolve()
    done = bucketlab("predict", trace, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "predicted" in done.stdout
    assert "no less than" in done.stdout
    refused = bucketlab("predict", trace, "--ranks", "8", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "need a profile" in refused.stderr
