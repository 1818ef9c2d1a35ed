"""From paths to an analysis: which files are taken, what becomes of those that cannot be used, summaries."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from bucketlab.analysis import analyze_paths
from bucketlab.analysis.files import find_traces, write_summaries
from bucketlab.errors import BadInput

RECORDED = Path(__file__).parents[2] / "traces" / "gloo-2ranks"


def trace_document(rank=0, start_us=0):
    def event(cat, name, ts, dur, tid, **args):
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    kernel = {"device": 0, "stream": 7, "correlation": 1}
    return {
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": [
            event("user_annotation", "ProfilerStep#1", start_us, 100, 1),
            event("cuda_runtime", "cudaLaunchKernel", start_us + 5, 1, 1, correlation=1),
            event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", start_us + 10 * (rank + 1), 20, 7, **kernel),
        ],
    }


def write_trace(path, **more):
    text = json.dumps(trace_document(**more)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


# ---- which files ----------------------------------------------------------------------------------------------


def test_a_folder_is_searched_through_its_folders(tmp_path):
    write_trace(tmp_path / "a" / "rank0.json", rank=0)
    write_trace(tmp_path / "b" / "rank1.json.gz", rank=1)
    assert [one.rank for one in analyze_paths([tmp_path]).ranks] == [0, 1]


def test_in_a_folder_of_a_run_only_its_traces_are_read(tmp_path):
    trace = write_trace(tmp_path / "rank0.123.pt.trace.json.gz")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "profile.json").write_text("{}")
    assert find_traces([tmp_path]) == [trace]


def test_a_file_given_twice_is_read_once(tmp_path):
    trace = write_trace(tmp_path / "rank0.json")
    assert find_traces([trace, tmp_path, trace]) == [trace]


def test_paths_that_lead_to_nothing_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no such file or folder"):
        analyze_paths([tmp_path / "absent.json"])
    with pytest.raises(BadInput, match="no traces in this folder"):
        analyze_paths([tmp_path])


# ---- bad files ------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_used_beside_one_that_can_is_a_warning(tmp_path):
    write_trace(tmp_path / "rank0.json")
    (tmp_path / "bad.json").write_text("no json at all")
    analysis = analyze_paths([tmp_path])
    assert [one.rank for one in analysis.ranks] == [0]
    assert any("bad.json" in warning for warning in analysis.warnings)


def test_where_no_file_can_be_used_the_first_is_named(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("no json at all")
    with pytest.raises(BadInput, match=r"a\.json.*and 1 file more"):
        analyze_paths([tmp_path])


def test_an_unreadable_path_is_refused_in_one_line(tmp_path):
    file = tmp_path / "half.summary.json"
    file.write_text('{"schema":"bucketlab.analysis/1","ranks":[{"rank"')
    with pytest.raises(BadInput) as refusal:
        analyze_paths([file])
    assert "half.summary.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


# ---- several at once ------------------------------------------------------------------------------------------


def test_several_files_are_counted_as_they_are_done(tmp_path):
    for rank in range(4):
        write_trace(tmp_path / f"rank{rank}.json", rank=rank)
    seen = []
    analyze_paths([tmp_path], on_file=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_files_read_together_say_what_each_says_alone(tmp_path):
    for rank in range(2):
        write_trace(tmp_path / f"rank{rank}.json", rank=rank, start_us=rank * 1000)
    together = analyze_paths([tmp_path])
    for rank, one in enumerate(together.ranks):
        (alone,) = analyze_paths([tmp_path / f"rank{rank}.json"]).ranks
        assert one.total == alone.total
        assert one.source == alone.source


# ---- summaries ------------------------------------------------------------------------------------------------


def test_summaries_merge_to_what_the_traces_do(tmp_path):
    for rank in range(2):
        write_trace(tmp_path / "traces" / f"rank{rank}.json", rank=rank, start_us=rank * 1000)
    from_traces = analyze_paths([tmp_path / "traces"])
    for rank in range(2):
        alone = analyze_paths([tmp_path / "traces" / f"rank{rank}.json"])
        write_summaries(alone, tmp_path / "summaries" / f"host{rank}")
    assert analyze_paths([tmp_path / "summaries"]) == from_traces


def test_a_summary_is_small_beside_its_trace(tmp_path):
    (summary,) = write_summaries(analyze_paths(sorted(RECORDED.glob("rank0*"))), tmp_path)
    assert summary.stat().st_size < 20_000
    assert [path.name for path in tmp_path.iterdir()] == [summary.name]


# ---- the trace in this repository -----------------------------------------------------------------------------


def test_the_recorded_gloo_job_has_its_buckets_on_both_ranks():
    analysis = analyze_paths([RECORDED])
    assert analysis.warnings == []
    assert [(one.rank, one.world_size, one.backend, one.host) for one in analysis.ranks] == [
        (0, 2, "gloo", "host0"),
        (1, 2, "gloo", "host0"),
    ]
    layouts = set()
    for one in analysis.ranks:
        assert [step.name for step in one.steps] == [f"ProfilerStep#{number}" for number in range(4, 8)]
        for step in one.steps:
            assert (step.kernels, step.collectives, step.communication_ns) == (0, 6, step.overlap_ns + step.exposed_ns)
            assert step.input_ns > 0
            buckets = [event for event in step.events if event.bucket is not None]
            buckets.sort(key=lambda event: event.bucket)
            layouts.add(tuple(event.elements for event in buckets))
            assert all(event.dtype == "float32" for event in buckets)
            assert [event.ready_ns for event in buckets] == sorted(event.ready_ns for event in buckets)
            assert all(event.ready_ns <= event.start_ns < event.end_ns for event in step.events)
    # the gradients of 64x256, 256x512, 512x256 and 256x10 layers with a BatchNorm, in three buckets
    (layout,) = layouts
    assert len(layout) == 3
    assert sum(layout) == (64 * 256 + 256) + 2 * 256 + (256 * 512 + 512) + (512 * 256 + 256) + (256 * 10 + 10)


def test_every_collective_of_the_recorded_job_is_matched_and_one_rank_of_each_waits_for_nobody():
    ranks = analyze_paths([RECORDED]).ranks
    waits = [[event.wait_ns for step in one.steps for event in step.events] for one in ranks]
    assert None not in waits[0] + waits[1]
    for one, other in zip(*(sorted_by_call(rank) for rank in ranks), strict=True):
        assert (one.op, one.elements) == (other.op, other.elements)
        assert min(one.wait_ns, other.wait_ns) == 0
        assert one.transfer_ns == other.transfer_ns == min(e.end_ns - e.start_ns for e in (one, other))


def sorted_by_call(rank):
    return [event for step in rank.steps for event in sorted(step.events, key=lambda event: event.ready_ns)]


def test_analyses_are_plain_data():
    analysis = analyze_paths([RECORDED])
    encoded = msgspec.json.encode(analysis)
    assert msgspec.json.decode(encoded, type=type(analysis)) == analysis
    assert json.loads(encoded)["schema"] == "bucketlab.analysis/1"
