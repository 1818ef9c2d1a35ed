"""What is printed and exported of an analysis."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest
from rich.console import Console

from bucketlab.analysis import analyze_trace, merge
from bucketlab.report.analysis import CSV_COLUMNS, print_analysis, write_csv
from tests.analysis.building import ACCUMULATE, NCCL_ALL_REDUCE, TraceBuilder, all_reduce_args
from tests.analysis.jobs import job

MS = 1_000_000


def traced(rank=0, group="0"):
    trace = TraceBuilder(rank=rank)
    trace.step(7, 0, 100 * MS)
    trace.operator(ACCUMULATE, 9 * MS, 12 * MS, thread="autograd")
    trace.kernel("gemm", 10 * MS, 18 * MS, at=9 * MS, thread="autograd")
    trace.kernel("gemm", 18 * MS, 30 * MS, at=11 * MS, thread="autograd")
    args = all_reduce_args(2**20, group=group)
    trace.kernel(NCCL_ALL_REDUCE, 20 * MS, 60 * MS, at=10 * MS, thread="autograd", stream=20, args=args)
    return analyze_trace(trace.build(f"/data/rank{rank}.json"))


def printed(analysis, width=200):
    console = Console(file=io.StringIO(), width=width)
    print_analysis(analysis, console)
    return console.file.getvalue()


def rows(analysis):
    file = io.StringIO(newline="")
    write_csv(analysis, file)
    return list(csv.DictReader(io.StringIO(file.getvalue(), newline="")))


def line_with(text, word):
    (line,) = [line for line in text.splitlines() if word in line]
    return line.split()


def test_a_step_is_one_line_of_milliseconds():
    step = line_with(printed(merge([traced()])), "ProfilerStep#7  ")
    # wall, compute, communication, overlap, exposed, memory, idle, input, overlap of communication, collectives
    assert step[2:] == ["100.0", "20.0", "40.0", "10.0", "30.0", "0", "50.0", "0", "25", "%", "1"]


def test_a_collective_is_one_line_with_its_bucket_size_and_bandwidth():
    bucket = line_with(printed(merge([traced()])), "allreduce float32")
    # bucket, group, ranks, MiB, calls, time, exposed, queued, wait (a single rank cannot tell), GB/s, share of exposed
    assert bucket[2:] == ["0", "0", "2", "4.0", "1", "40.0", "30.0", "0", "-", "0.10", "100", "%"]


def test_no_digit_is_lost_on_a_narrow_terminal():
    analysis = merge(job([[0, 0], [3 * MS, 1 * MS]]))
    wide, narrow = printed(analysis), printed(analysis, width=40)
    assert "…" not in narrow
    assert line_with(narrow, "1     ProfilerStep#1") == line_with(wide, "1     ProfilerStep#1")


def test_every_table_says_its_unit():
    text = printed(merge([traced(0), traced(1)]))
    for heading in ("Steps, times in ms", "steps and ranks, times in ms", "over steps, times in ms", "MiB", "bus GB/s"):
        assert heading in text


def test_many_steps_become_a_line_of_medians_for_each_rank():
    analysis = merge(job([[0] * 20, [3 * MS] * 20]))
    text = printed(analysis)
    assert "ProfilerStep#3 " not in text
    assert "medians over their steps, times in ms" in text


def test_a_thousand_ranks_print_a_screen_or_two():
    text = printed(merge(job([[0]] * 1000)))
    assert len(text.splitlines()) < 100
    assert "16 with the most exposed communication" in text


@pytest.mark.parametrize("group", ["[red]0[/red]", "\x1b[31mred", "a\nb"])
def test_names_from_traces_are_printed_as_data(group):
    text = printed(merge([traced(group=group)]))
    assert "\x1b" not in text
    assert group.partition("\n")[0].replace("\x1b", "\\x1b") in text


def test_warnings_and_the_verdict_are_printed():
    analysis = msgspec.structs.replace(merge([traced()]), warnings=["rank0.json: cut off [here]"])
    text = printed(analysis)
    assert "warning: rank0.json: cut off [here]" in text
    assert analysis.stragglers.verdict in text


def test_csv_has_a_line_for_each_trace_step_and_collective():
    lines = rows(merge([traced(0), traced(1)]))
    assert [(line["row"], line["rank"]) for line in lines] == [
        (row, rank) for rank in "01" for row in ("trace", "step", "collective")
    ]
    trace, step, collective = lines[:3]
    assert (trace["source"], trace["communication_ns"], trace["op"]) == ("rank0.json", str(40 * MS), "")
    assert (step["step"], step["wall_ns"], step["idle_ns"]) == ("ProfilerStep#7", str(100 * MS), str(50 * MS))
    assert (collective["op"], collective["bucket"], collective["bytes"]) == ("allreduce", "0", str(2**22))
    assert (collective["start_ns"], collective["exposed_ns"], collective["wait_ns"]) == (
        str(20 * MS),
        str(30 * MS),
        "0",
    )


def test_csv_has_all_that_the_json_says_of_a_collective():
    event = msgspec.to_builtins(traced().steps[0].events[0])
    assert event.keys() <= set(CSV_COLUMNS)
    (line,) = [line for line in rows(merge([traced()])) if line["row"] == "collective"]
    for name, value in event.items():
        assert line[name] == ("" if value is None else str(value))


def test_no_cell_of_the_csv_is_a_formula():
    (line,) = [line for line in rows(merge([traced(group="=1+2")])) if line["row"] == "collective"]
    assert line["group"] == "'=1+2"
