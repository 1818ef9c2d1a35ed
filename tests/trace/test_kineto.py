"""What the reader makes of well-formed traces, however they are spelled."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.trace import elements, source
from bucketlab.trace.columns import Category
from tests.analysis.building import TraceBuilder, all_reduce_args
from tests.trace.reading import document, event, read, rows, rows_of, times
from tests.trace.synthetic import Spelling, cpu_jobs, gpu_jobs, microseconds, save, spelled, spellings

RECORDED = sorted((Path(__file__).parents[2] / "traces" / "gloo-2ranks").glob("*.json.gz"))


@pytest.fixture(params=[1, 64, 1000], ids="pieces of {} bytes".format)
def small_pieces(request, monkeypatch):
    """Text arrives in pieces so small that cuts happen everywhere."""
    monkeypatch.setattr(source, "BLOCK_BYTES", request.param)
    monkeypatch.setattr(elements, "BLOCK_BYTES", request.param)


# ---- times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ts", "ns"),
    [
        ("1790857026123456.789", 1_790_857_026_123_456_789),
        ("1790857026123456.78", 1_790_857_026_123_456_780),
        ("1790857026123456.7", 1_790_857_026_123_456_700),
        ("1790857026123456", 1_790_857_026_123_456_000),
        ('"1790857026123456.789"', 1_790_857_026_123_456_789),
        ('"1790857026123456"', 1_790_857_026_123_456_000),
        ("1.790857026123456789e15", 1_790_857_026_123_456_789),
        ("1790857026123456789E-3", 1_790_857_026_123_456_789),
        ("179085702612345678.9e-2", 1_790_857_026_123_456_789),
        ("1790857026123456.789000", 1_790_857_026_123_456_789),
        ("1790857026123456.78949", 1_790_857_026_123_456_789),
        ("1790857026123456.78951", 1_790_857_026_123_456_790),
        ("0.001", 1),
        ("0", 0),
        ("-0.001", -1),
        ("-1790857026123456.789", -1_790_857_026_123_456_789),
        ("-0", 0),
    ],
)
def test_times_are_exact_however_they_are_written(tmp_path, ts, ns):
    among_usual_ones = document(event(ts="5.125"), event(ts=ts, dur="0.5"), event(ts="7.250"))
    assert times(read(tmp_path, among_usual_ones)) == [(5125, 7125), (ns, ns + 500), (7250, 9250)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**60), 2**60), st.integers(0, 2**60)), min_size=1, max_size=8), st.data())
def test_any_time_in_any_spelling_is_read_exactly(tmp_path_factory, spans, data):
    spelling = st.sampled_from(["three decimals", "shortest", "exponent", "text"])
    texts = [
        event(ts=microseconds(start, data.draw(spelling)), dur=microseconds(length, data.draw(spelling)))
        for start, length in spans
    ]
    trace = read(tmp_path_factory.getbasetemp(), document(*texts))
    assert times(trace) == [(start, start + length) for start, length in spans]
    assert not trace.warnings


@pytest.mark.parametrize(
    "ts", ["1e400", "-1e400", "9300000000000000.000", "1" * 5000, '"NaN"', '"soon"', "null", "[]", "{}", "true", '""']
)
def test_an_event_at_an_impossible_time_is_left_out_and_told(tmp_path, ts):
    trace = read(tmp_path, document(event(ts="1"), event(ts=ts), event(ts="3")))
    assert times(trace) == [(1000, 3000), (3000, 5000)]
    assert len(trace.warnings) == 1


@pytest.mark.parametrize("dur", ["-1", "-0.001", "1e400", '"long"', "9300000000000000"])
def test_an_event_of_an_impossible_length_is_left_out_and_told(tmp_path, dur):
    trace = read(tmp_path, document(event(ts="1"), event(ts="2", dur=dur)))
    assert times(trace) == [(1000, 3000)]
    assert len(trace.warnings) == 1


def test_an_event_of_no_length_is_kept(tmp_path):
    assert times(read(tmp_path, document(event(ts="1.5", dur="0")))) == [(1500, 1500)]


# ---- documents --------------------------------------------------------------------------------------------------


def test_a_bare_array_is_a_trace_without_header(tmp_path):
    trace = read(tmp_path, f" [{event()},\n{event(ts='4')}] ")
    assert times(trace) == [(1000, 3000), (4000, 6000)]
    assert (trace.rank, trace.world_size, trace.backend, trace.host) == (None, None, None, None)
    assert not trace.warnings


@pytest.mark.parametrize("where", ["header", "footer"])
def test_the_header_may_stand_before_or_after_the_events(tmp_path, where):
    said = '"host_name": "node7", "distributedInfo": {"backend": "NCCL", "rank": 3, "world_size": 8, "pg_config": [{}]}'
    trace = read(tmp_path, document(event(), **{where: said}))
    assert (trace.rank, trace.world_size, trace.backend, trace.host) == (3, 8, "nccl", "node7")


def test_a_header_in_two_parts_is_read_whole(tmp_path):
    trace = read(tmp_path, document(event(), header='"host_name": "node7"', footer='"distributedInfo": {"rank": 3}'))
    assert (trace.rank, trace.host) == (3, "node7")


@pytest.mark.parametrize(
    "said",
    [
        '"distributedInfo": null',
        '"distributedInfo": []',
        '"distributedInfo": {"rank": "three", "world_size": -1, "backend": 7}',
        '"distributedInfo": {"rank": true, "world_size": 1.5, "backend": null}',
        '"host_name": 5',
    ],
)
def test_a_header_of_other_types_tells_nothing_and_harms_nothing(tmp_path, said):
    trace = read(tmp_path, document(event(), header=said))
    assert len(trace.events) == 1
    assert (trace.rank, trace.backend) == (None, None)


@pytest.mark.parametrize(
    "header",
    [
        '"note": "\\"traceEvents\\": [ {"',
        '"other": {"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 9, "dur": 9}]}',
        '"other": [{"traceEvents": []}], "more": ["traceEvents", ["x"]]',
    ],
)
def test_what_looks_like_the_events_inside_the_header_is_not_taken_for_them(tmp_path, header):
    assert times(read(tmp_path, document(event(), header=header))) == [(1000, 3000)]


def test_a_byte_order_mark_and_space_around_the_document_are_skipped(tmp_path):
    assert len(read(tmp_path, b"\xef\xbb\xbf\r\n\t " + document(event()).encode() + b"\n\n").events) == 1


def test_a_trace_may_consist_of_several_gzip_members(tmp_path):
    text = document(*(event(ts=str(i)) for i in range(50))).encode()
    packed = b"".join(gzip.compress(text[i : i + 700]) for i in range(0, len(text), 700))
    trace = read(tmp_path, packed + b"\0" * 512, "trace.json.gz")
    assert len(trace.events) == 50
    assert not trace.warnings


def test_gzip_is_known_by_its_content_and_not_by_its_name(tmp_path):
    assert len(read(tmp_path, gzip.compress(document(event()).encode()), "trace.json").events) == 1
    assert len(read(tmp_path, document(event()), "trace.json.gz").events) == 1


def test_a_trace_that_is_dumped_with_indentation_is_the_same_trace(tmp_path):
    text = gzip.decompress(RECORDED[0].read_bytes())
    trace = json.loads(text, parse_float=lambda digits: f"${digits}$")
    pretty = json.dumps(trace, indent=4).replace('"$', "").replace('$"', "")
    compact = json.dumps(trace, separators=(",", ":")).replace('"$', "").replace('$"', "")
    expected = rows_of(text)
    assert len(expected) > 3000
    for one in (pretty, compact):
        assert rows(read(tmp_path, one)) == expected


@pytest.mark.parametrize(
    "name",
    ["}, {", '"}, {"', "\\", '\\"', "\\\\", '[{"a": 1}, {"b": [2]}]', "},{" * 400, "]}", "], ", "ключ", "a\tb\n", "🙂"],
)
def test_names_that_look_like_json_do_not_confuse_where_events_end(tmp_path, small_pieces, name):
    trace = read(tmp_path, document(event(name=name), event(ts="2", name=name), event(ts="3")))
    assert [trace.names[i] for i in trace.events.name] == [name, name, "gemm"]


@pytest.mark.parametrize("args", ['{"a": [{"b": 1}, {"c": {"d": []}}, {}]}', '{"x": [[], [[]], {}], "correlation": 5}'])
def test_nested_args_do_not_confuse_where_events_end(tmp_path, small_pieces, args):
    assert len(read(tmp_path, document(*[event(args=args)] * 40)).events) == 40


@settings(deadline=None)
@given(st.one_of(gpu_jobs(), cpu_jobs()), spellings, st.integers(1, 300), st.booleans())
def test_a_trace_is_read_as_the_standard_library_reads_it(tmp_path_factory, job, spelling, piece_bytes, packed):
    text = spelled(job.trace, spelling)
    path = tmp_path_factory.getbasetemp() / ("any.json.gz" if packed else "any.json")
    save(path, text, members=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK_BYTES", piece_bytes)
        patch.setattr(elements, "BLOCK_BYTES", piece_bytes)
        trace = read(path.parent, path.read_bytes(), path.name)
    assert rows(trace) == rows_of(text)
    assert trace.warnings == []
    assert trace.collective_args == job.trace.collective_args


# ---- events -----------------------------------------------------------------------------------------------------


def test_old_and_other_spellings_of_categories_are_known(tmp_path):
    kinds = {
        Category.KERNEL: ["kernel", "Kernel"],
        Category.MEMCPY: ["gpu_memcpy", "Memcpy"],
        Category.MEMSET: ["gpu_memset", "Memset"],
        Category.RUNTIME: ["cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver", "Runtime"],
        Category.OPERATOR: ["cpu_op", "Operator"],
        Category.ANNOTATION: ["user_annotation"],
        Category.GPU_ANNOTATION: ["gpu_user_annotation"],
    }
    written = [(spelling, kind) for kind, spellings_of in kinds.items() for spelling in spellings_of]
    trace = read(tmp_path, document(*(event(cat=spelling) for spelling, _ in written)))
    assert trace.events.category.tolist() == [kind for _, kind in written]


def test_events_that_have_no_part_in_the_analysis_are_left_out(tmp_path):
    others = [event(cat="python_function"), event(cat="Trace"), event(ph="i"), event(ph="s", cat="ac2g"), event(ph="C")]
    trace = read(tmp_path, document(event(), *others))
    assert len(trace.events) == 1


def test_a_step_of_torch_1_is_an_annotation_though_it_is_written_as_an_operator(tmp_path):
    trace = read(
        tmp_path, document(event(cat="Operator", name="ProfilerStep#3"), event(cat="Operator", name="aten::mm"))
    )
    assert trace.events.category.tolist() == [Category.ANNOTATION, Category.OPERATOR]


def test_device_and_stream_come_from_the_args_else_from_the_viewers_row(tmp_path):
    trace = read(
        tmp_path,
        document(
            event(pid=5, tid=6, args='{"device": 1, "stream": 20}'),
            event(pid=5, tid=6, args="{}"),
            event(pid=5, tid="stream 6 (compute)"),
            event(pid=5, tid=6, cat="cpu_op"),
        ),
    )
    assert trace.events.device.tolist() == [1, 5, 5, -1]
    assert trace.events.stream.tolist() == [20, 6, 6, -1]


def test_ids_may_be_text_and_absent_ids_are_minus_one(tmp_path):
    trace = read(
        tmp_path,
        document(
            event(args='{"correlation": "12", "External id": "34", "device": "1", "stream": "7"}'),
            event(args='{"correlation": 12, "external id": 34}'),
            event(args="{}"),
        ),
    )
    assert trace.events.correlation.tolist() == [12, 12, -1]
    assert trace.events.external.tolist() == [34, 34, -1]
    assert (trace.events.device[0], trace.events.stream[0]) == (1, 7)


@pytest.mark.parametrize(
    "args",
    [
        "null",
        "[]",
        '"text"',
        '{"correlation": 1e400}',
        '{"correlation": 99999999999999999999999999}',
        '{"correlation": -99999999999999999999999999, "External id": 18446744073709551615}',
        f'{{"correlation": {"9" * 5000}}}',
        '{"correlation": null, "device": null, "stream": [], "External id": {}}',
        '{"device": 99999999999, "stream": -99999999999999999999}',
        '{"Collective name": 7, "In msg nelems": "many", "Group size": -1e300, "Seq": "x"}',
        '{"Input Dims": {}, "Input type": 5}',
        f'{{"deep": {"[" * 400}{"]" * 400}}}',
    ],
)
def test_absurd_args_cost_the_event_neither_its_time_nor_its_name(tmp_path, args):
    trace = read(tmp_path, document(event(), event(ts="4", args=args, name="c10d::allreduce_"), event(ts="8")))
    assert times(trace) == [(1000, 3000), (4000, 6000), (8000, 10000)]
    assert trace.names[trace.events.name[1]] == "c10d::allreduce_"
    assert trace.events.correlation.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    "odd",
    [
        event(ts="4", args='{"memory bandwidth (GB/s)": NaN}'),
        event(ts="4", args='{"memory bandwidth (GB/s)": Infinity, "x": -Infinity}'),
        event(ts="4", args='{"memory bandwidth (GB/s)": inf}'),
        event(ts="4", args='{"path": "C:\\Users"}'),
        event(ts="4", args='{"path": "a\tb\nc"}'),
        event(ts="4").encode().replace(b"gemm", b"ge\xffm\xfe"),
        event(ts="4").replace("gemm", "half of a pair \\ud83d"),
    ],
)
def test_an_event_that_is_not_quite_json_is_read_as_it_was_meant(tmp_path, odd):
    text = document(event(), "ODD", event(ts="8")).encode()
    trace = read(tmp_path, text.replace(b"ODD", odd if isinstance(odd, bytes) else odd.encode()))
    assert times(trace) == [(1000, 3000), (4000, 6000), (8000, 10000)]


def test_threads_have_the_names_that_the_trace_gives_them(tmp_path):
    named = '{"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "ts": 0, "args": {"name": "thread 2 (python)"}}'
    trace = read(tmp_path, document(event(pid=1, tid=2, cat="cpu_op"), named, event(pid=1, tid=3, cat="cpu_op")))
    assert [(track.pid, track.tid, track.name) for track in trace.tracks] == [
        ("1", "2", "thread 2 (python)"),
        ("1", "3", ""),
    ]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.1795966155127.pt.trace.json", 3),
        ("job_rank_12.json", 12),
        ("node-0-rank-5.json", 5),
        ("trace.json", None),
        ("prank7.json", None),
    ],
)
def test_a_trace_that_does_not_say_its_rank_has_that_of_its_files_name(tmp_path, name, rank):
    assert read(tmp_path, document(event()), name).rank == rank
    said = document(event(), header='"distributedInfo": {"rank": 1}')
    assert read(tmp_path, said, name).rank == 1


# ---- collectives ------------------------------------------------------------------------------------------------


def test_a_kernels_own_args_say_what_it_carries(tmp_path):
    made = TraceBuilder()
    args = all_reduce_args(2_049_000, sequence=4, group="0", group_size=2, ranks="[0, 1]")
    made.kernel("ncclDevKernel_Generic", 0, 10, at=0, args=args)
    assert read(tmp_path, spelled(made.build())).collective_args == {1: args}


@pytest.mark.parametrize(
    ("dims", "types", "elements", "dtype"),
    [
        ("[[131584]]", '["float"]', 131_584, "float"),
        ("[[16, 8], []]", '["c10::BFloat16", "Scalar"]', 128, "c10::BFloat16"),
        ("[[]]", '["float"]', 1, "float"),  # a tensor of no dimensions has one element
        ("[[0]]", '["float"]', 0, "float"),
        ("[[[3, 2], [4], []], []]", '["TensorList", ""]', 11, None),
        ("[[], [], [], []]", '["TensorList", "", "", "Scalar"]', None, None),  # torch 1.x did not say the list's shapes
        ("[]", "[]", None, None),
    ],
)
def test_a_collectives_size_is_that_of_the_tensors_it_was_called_with(tmp_path, dims, types, elements, dtype):
    args = f'{{"Input Dims": {dims}, "Input type": {types}}}'
    trace = read(tmp_path, document(event(cat="user_annotation", name="gloo:all_reduce", args=args)))
    said = trace.collective_args.get(0)
    assert (said and said.in_elements, said and said.dtype) == (elements, dtype)


def test_shapes_of_other_operators_are_not_kept(tmp_path):
    args = '{"Input Dims": [[4]], "Input type": ["float"]}'
    assert read(tmp_path, document(event(cat="cpu_op", name="aten::mm", args=args))).collective_args == {}


def test_a_process_group_may_be_named_by_a_number(tmp_path):
    args = '{"Collective name": "allreduce", "Process Group Name": 3, "Process Group Ranks": [0, 1]}'
    said = read(tmp_path, document(event(cat="cpu_op", name="record_param_comms", args=args))).collective_args[0]
    assert (said.group, said.group_ranks) == ("3", "[0, 1]")


def test_spelling_does_not_change_what_the_recorded_trace_says(tmp_path):
    for file in RECORDED:
        text = gzip.decompress(file.read_bytes())
        assert rows(read(tmp_path, text)) == rows_of(text)


def test_the_spelling_in_tests_covers_what_the_reader_must_know():
    """Guards the generator itself: a spelling that changes nothing would test nothing."""
    made = TraceBuilder()
    made.kernel("gemm", 1_500, 2_000, at=0, args=all_reduce_args(5))
    trace = made.build()
    usual = spelled(trace)
    for change in (
        {"old": True},
        {"times": "text"},
        {"ids_as_text": True},
        {"placed_by": "pid and tid"},
        {"document": "bare array"},
        {"document": "header last"},
        {"indent": "\n    "},
        {"noise": True},
    ):
        other = spelled(trace, Spelling(**change))
        assert other != usual
        json.loads(other)
