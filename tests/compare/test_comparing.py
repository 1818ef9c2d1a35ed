"""Two runs side by side: what is said of them, and that chance is not taken for a difference."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bucketlab.analysis.files import analyze_paths
from bucketlab.comparing import Samples, compare_profiles, find_pair, traced_steps
from bucketlab.documents import write_json
from bucketlab.errors import BadInput
from bucketlab.link.curve import LinkCurve
from bucketlab.report.compare import figure_cells, print_comparison
from bucketlab.runs import find_run
from bucketlab.schema.comparison import Comparison, Figure
from bucketlab.schema.profile import Bucket, Profile, StepTime
from tests.commands import ROOT, bucketlab, last_line
from tests.report import profiles

MS = 1_000_000
_replace = msgspec.structs.replace
_TRACES = ROOT / "traces" / "gloo-2ranks"


def _timed(profile: Profile, samples: list[int]) -> Profile:
    low, median, high = (int(np.quantile(samples, at)) for at in (0.1, 0.5, 0.9))
    return _replace(profile, step=StepTime(median_ns=median, p10_ns=low, p90_ns=high, samples=samples, excluded=0))


def _noisy(mean_ms: float, seed: int, count: int = 80, spread: float = 0.03) -> list[int]:
    draws = np.random.default_rng(seed).normal(mean_ms, mean_ms * spread, count)
    return [int(one * MS) for one in draws]


def _with_parts(profile: Profile, **parts_ms: float) -> Profile:
    assert profile.breakdown is not None
    return _replace(
        profile, breakdown=_replace(profile.breakdown, **{f"{name}_ns": int(ms * MS) for name, ms in parts_ms.items()})
    )


def _samples(profile: Profile, spread_ms: float = 0.5) -> Samples:
    assert profile.breakdown is not None
    names = ("wall", "compute", "communication", "overlap", "exposed", "idle", "input", "memory")
    offsets = (-1.2, -0.4, 0.1, 0.5, 1.0)
    return {
        f"{name}_ns": [getattr(profile.breakdown, f"{name}_ns") + at * spread_ms * MS for at in offsets]
        for name in names
    }


def _figure(comparison: Comparison, name: str) -> Figure:
    return next(one for one in comparison.figures if one.name == name)


def test_a_faster_run_is_told_by_how_much_and_by_which_part_of_the_step() -> None:
    a = _with_parts(_timed(profiles.exposed(), _noisy(200, 1)), exposed=40, compute=150, idle=2, wall=200)
    b = _with_parts(_timed(profiles.exposed(), _noisy(180, 2)), exposed=20, compute=150.1, idle=2, wall=180)
    comparison = compare_profiles(a, b, _samples(a), _samples(b))
    assert comparison.significant
    assert comparison.speedup is not None
    assert comparison.ci95 is not None
    assert comparison.ci95[0] < comparison.speedup < comparison.ci95[1]
    assert comparison.ci95[0] < 200 / 180 - 1 < comparison.ci95[1]
    low, high = comparison.ci95
    expected = f"{100 * comparison.speedup:.1f} % faster [{100 * low:.1f}, {100 * high:.1f}]: "
    assert comparison.verdict == expected + "20.0 ms less exposed communication; compute unchanged."


def test_a_slower_run_is_called_slower() -> None:
    a = _timed(profiles.exposed(), _noisy(180, 1))
    b = _timed(profiles.exposed(), _noisy(200, 2))
    verdict = compare_profiles(a, b).verdict
    assert "% slower [" in verdict
    assert "the traced steps do not show where" in verdict


def test_two_runs_of_the_same_job_show_no_difference_beyond_chance() -> None:
    a, b = (_timed(profiles.exposed(), _noisy(200, seed)) for seed in (3, 4))
    comparison = compare_profiles(a, b)
    assert not comparison.significant
    assert comparison.verdict.startswith("No difference beyond chance")


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(120):
        a = _timed(profiles.one_rank(), _noisy(100, 2 * seed, count=40))
        b = _timed(profiles.one_rank(), _noisy(90, 2 * seed + 1, count=40))
        ci95 = compare_profiles(a, b).ci95
        assert ci95 is not None
        held += ci95[0] <= 100 / 90 - 1 <= ci95[1]
    assert held >= 105  # of 120; 114 are expected


def test_every_figure_is_b_less_a() -> None:
    comparison = compare_profiles(profiles.exposed(), profiles.overlapped())
    for figure in comparison.figures:
        if figure.a is not None and figure.b is not None:
            assert figure.difference == figure.b - figure.a
    assert {"step, untraced", "exposed communication", "overlap ratio", "link bandwidth", "peak memory of a rank"} <= {
        one.name for one in comparison.figures
    }


def test_traced_parts_have_an_interval_where_there_are_traces_and_none_elsewhere() -> None:
    a, b = profiles.exposed(), profiles.overlapped()
    part = _figure(compare_profiles(a, b, _samples(a), _samples(b)), "exposed communication")
    assert part.low is not None
    assert part.high is not None
    assert part.difference is not None
    assert part.low < part.difference < part.high
    assert part.samples == (5, 5)
    without = compare_profiles(a, b)
    assert _figure(without, "exposed communication").low is None
    assert any("have no interval" in one for one in without.notes)


def test_the_edges_of_step_time_have_intervals_where_there_are_steps_enough() -> None:
    a, b = (_timed(profiles.exposed(), _noisy(mean, seed, count=60)) for seed, mean in enumerate((200, 180)))
    comparison = compare_profiles(a, b)
    for name in ("step, p10", "step, p90"):
        edge = _figure(comparison, name)
        assert edge.low is not None
        assert edge.high is not None
        assert edge.difference is not None
        assert edge.low <= edge.difference <= edge.high < 0
        assert edge.samples == (60, 60)
    few = _timed(profiles.exposed(), _noisy(200, 1, count=12))
    assert _figure(compare_profiles(a, few), "step, p10").low is None


def test_the_overlap_ratio_has_an_interval_from_traced_steps() -> None:
    a, b = profiles.exposed(), profiles.overlapped()
    ratio = _figure(compare_profiles(a, b, _samples(a), _samples(b)), "overlap ratio")
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < (ratio.difference or 0) < ratio.high
    assert ratio.samples == (5, 5)


def test_the_smallest_and_largest_all_reduce_of_both_links_are_compared_with_their_intervals() -> None:
    def link(scale: int, sizes: list[int]) -> Profile:
        made = profiles.exposed()
        assert made.link is not None
        points = [
            msgspec.structs.replace(one, ns=scale * size, low_ns=scale * size - 3, high_ns=scale * size + 4)
            for one, size in zip(made.link.points, sizes, strict=False)
            for one in [msgspec.structs.replace(one, bytes=size)]
        ]
        return _replace(made, link=_replace(made.link, points=points))

    comparison = compare_profiles(link(100, [1024, 2048, 4096, 1 << 20]), link(50, [2048, 4096, 1 << 20, 1 << 21]))
    found = [one for one in comparison.figures if one.name.startswith("all-reduce of")]
    assert [one.name for one in found] == ["all-reduce of 2.00 KiB", "all-reduce of 1.00 MiB"]
    small = found[0]
    assert (small.a, small.b, small.difference) == (204_800, 102_400, -102_400)
    assert (small.low, small.high) == (-102_400 - 5, -102_400 + 5)  # sides of 3 and 4 make 5


def _measured_link(seed: int, latency_ns: float, gb_s: float) -> Profile:
    """A link whose points are off by chance, each within its own interval in 19 of 20 cases."""
    made, random = profiles.exposed(), np.random.default_rng(seed)
    assert made.link is not None
    points = []
    for one in made.link.points:
        true_ns = latency_ns + one.bytes / gb_s
        deviation = 0.03 * true_ns
        ns = round(random.normal(true_ns, deviation))
        low, high = (round(ns + side * 1.96 * deviation) for side in (-1, 1))
        points.append(msgspec.structs.replace(one, ns=ns, low_ns=low, high_ns=high))
    fit = LinkCurve.fit(points)
    link = _replace(made.link, points=points, latency_ns=fit.latency_ns, bandwidth_gb_s=fit.bandwidth_gb_s)
    return _replace(made, link=link)


def test_intervals_of_a_links_fit_hold_the_truth_about_as_often_as_they_say() -> None:
    held = {"link latency": 0, "link bandwidth": 0}
    for seed in range(15):
        pair = _measured_link(2 * seed, 200_000, 5.0), _measured_link(2 * seed + 1, 150_000, 4.0)
        comparison = compare_profiles(*pair)
        for name, truth in (("link latency", -50_000), ("link bandwidth", -1.0)):
            figure = _figure(comparison, name)
            assert figure.low is not None and figure.high is not None
            held[name] += figure.low <= truth <= figure.high
    assert all(times >= 11 for times in held.values()), held  # of 15; 14 are expected


def test_a_link_without_intervals_of_its_points_has_none_of_its_fit() -> None:
    figure = _figure(compare_profiles(profiles.exposed(), profiles.overlapped()), "link bandwidth")
    assert figure.low is None
    assert figure.no_interval == "no intervals of the link's points"


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize(("a", "b"), list(product((profiles.exposed, profiles.nothing, profiles.one_rank), repeat=2)))
def test_a_figure_has_an_interval_or_says_why_it_has_none(
    a: Callable[[], Profile], b: Callable[[], Profile], traced: bool
) -> None:
    samples = [_samples(one) if traced and one.breakdown else None for one in (a(), b())]
    for figure in compare_profiles(a(), b(), *samples).figures:
        assert (figure.low is None) == bool(figure.no_interval), figure
        assert (figure.difference is None) == figure.no_interval.startswith("only in"), figure


def test_how_late_the_latest_rank_comes_has_an_interval_from_the_traces_of_all_ranks() -> None:
    samples = traced_steps(_TRACES)
    assert samples is not None
    usual = max(one.arrival_lag_ns for one in analyze_paths([_TRACES]).stragglers.by_rank)
    assert np.median(samples["late_ns"]) == pytest.approx(usual, abs=1)
    a, b = profiles.straggler(lag_ms=40), profiles.straggler(lag_ms=30)
    before, after = ([lag * MS + at * MS for at in (-2, -1, 0, 1, 2)] for lag in (40, 30))
    figure = _figure(compare_profiles(a, b, {"late_ns": before}, {"late_ns": after}), "latest rank comes late")
    assert figure.difference == -10 * MS
    assert figure.low is not None and figure.high is not None
    assert figure.low < -10 * MS < figure.high < 0


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (profiles.thousand_buckets, "other gradients"),
        (profiles.straggler, "2 ranks in A, 4 in B"),
        (lambda: profiles.exposed(kind="emulated"), "A is measured, B is emulated"),
        (lambda: profiles.exposed(accumulation=4), "1 backwards a step in A, 4 in B"),
    ],
)
def test_different_jobs_get_no_verdict_on_speed(other: object, said: str) -> None:
    comparison = compare_profiles(profiles.exposed(), other())  # type: ignore[operator]
    assert not comparison.comparable
    assert not comparison.significant
    assert said in comparison.verdict
    assert "no verdict" in comparison.verdict
    assert "faster" not in comparison.verdict


def test_another_torch_or_device_is_said_and_compared_all_the_same() -> None:
    a = profiles.exposed()
    b = profiles.exposed(versions={"bucketlab": "0.1.0", "torch": "2.14.0"}, device="NVIDIA B200")
    comparison = compare_profiles(a, b)
    assert comparison.comparable
    assert "torch: 2.13.0 in A, 2.14.0 in B" in comparison.differences
    assert "device: NVIDIA H200 in A, NVIDIA B200 in B" in comparison.differences


def test_hosts_and_links_that_differ_are_named() -> None:
    a, b = profiles.exposed(), profiles.exposed()
    b.ranks = [msgspec.structs.replace(one, host=f"other-{one.rank}") for one in b.ranks]
    assert b.link is not None
    b.link = msgspec.structs.replace(b.link, what="nccl over InfiniBand")
    differences = compare_profiles(a, b).differences
    assert "hosts: node-0 in A, other-0, other-1 in B" in differences
    assert "link: nccl over NVLink in A, nccl over InfiniBand in B" in differences


def test_runs_without_timed_steps_get_no_verdict() -> None:
    nothing = profiles.nothing()
    assert "No verdict" in compare_profiles(nothing, nothing).verdict


# ---- buckets --------------------------------------------------------------------------------------------------------


def _bucket(index: int, names: list[str], module: int = 0) -> Bucket:
    return Bucket(
        module=module,
        index=index,
        parameters=names,
        bytes=len(names),
        ready_ns=10 * index,
        start_ns=10 * index + 1,
        end_ns=10 * index + 9,
        overlap_ns=0,
        exposed_ns=8,
        bus_gb_s=1.0,
    )


def test_buckets_are_aligned_by_the_parameters_they_hold() -> None:
    a = [_bucket(0, ["e", "d"]), _bucket(1, ["c", "b"]), _bucket(2, ["a"])]
    b = [_bucket(0, ["e"]), _bucket(1, ["d"]), _bucket(2, ["c", "b", "a"])]
    comparison = compare_profiles(profiles.exposed(buckets=a), profiles.exposed(buckets=b))
    first, second = comparison.buckets
    assert (first.a_indices, first.b_indices, first.parameters) == ([0], [0, 1], ["e", "d"])
    assert (second.a_indices, second.b_indices, second.parameters) == ([1, 2], [2], ["c", "b", "a"])
    assert (first.a_exposed_ns, first.b_exposed_ns) == (8, 16)
    assert (second.a_end_ns, second.b_end_ns) == (29, 29)


def test_what_a_bucket_exposes_more_has_an_interval_from_traced_steps() -> None:
    a = [_bucket(0, ["e", "d"]), _bucket(1, ["c"])]
    b = [_bucket(0, ["e"]), _bucket(1, ["d"]), _bucket(2, ["c"])]
    a_traced = {"exposed_ns of bucket 0": [7.0, 8.0, 9.0], "exposed_ns of bucket 1": [8.0, 8.0, 8.0]}
    b_traced = {
        "exposed_ns of bucket 0": [8.0, 7.0, 9.0],
        "exposed_ns of bucket 1": [8.0, 8.0, 8.0],
        "exposed_ns of bucket 2": [8.0, 8.0, 8.0],
    }
    runs = profiles.exposed(buckets=a), profiles.exposed(buckets=b)
    first, second = compare_profiles(*runs, a_traced, b_traced).buckets
    assert first.exposed_difference_ns == 8
    assert first.exposed_low_ns is not None and first.exposed_high_ns is not None
    assert first.exposed_low_ns < 8 < first.exposed_high_ns
    assert second.exposed_difference_ns == 0
    assert second.exposed_low_ns is None  # the same in every step
    assert compare_profiles(*runs).buckets[0].exposed_low_ns is None
    of_two = [_bucket(0, ["e"]), _bucket(0, ["e"], module=1)]
    runs = profiles.two_modules(buckets=of_two), profiles.two_modules(buckets=of_two)
    # Of several modules a trace does not tell whose bucket 0 it is.
    assert [one.exposed_low_ns for one in compare_profiles(*runs, a_traced, a_traced).buckets] == [None, None]


def test_traces_tell_what_each_bucket_of_rank_0_exposed() -> None:
    samples = traced_steps(_TRACES)
    assert samples is not None
    steps = analyze_paths([_TRACES]).ranks[0].steps
    numbers = sorted({event.bucket for step in steps for event in step.events if event.bucket is not None})
    assert numbers
    for number in numbers:
        expected = [event.exposed_ns for step in steps for event in step.events if event.bucket == number]
        assert samples[f"exposed_ns of bucket {number}"] == expected


def test_a_bucket_that_only_one_run_has_stands_alone() -> None:
    a, b = [_bucket(0, ["x"])], [_bucket(0, ["y"]), _bucket(1, ["x"], module=1)]
    rows = compare_profiles(profiles.exposed(buckets=a), profiles.exposed(buckets=b)).buckets
    assert sorted((row.a_indices, row.b_indices) for row in rows) == [([], [0]), ([], [1]), ([0], [])]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_every_parameter_is_in_exactly_one_row(a_sizes: list[int], b_sizes: list[int]) -> None:
    def cut(sizes: list[int]) -> list[Bucket]:
        names, made = [f"p{at}" for at in range(40)], []
        for index, size in enumerate(sizes):
            taken, names = names[:size], names[size:]
            made.append(_bucket(index, taken))
        return made

    a, b = cut(a_sizes), cut(b_sizes)
    rows = compare_profiles(profiles.exposed(buckets=a), profiles.exposed(buckets=b)).buckets
    assert sorted(index for row in rows for index in row.a_indices) == list(range(len(a)))
    assert sorted(index for row in rows for index in row.b_indices) == list(range(len(b)))
    of_a = [{name for index in row.a_indices for name in a[index].parameters} for row in rows]
    of_b = [{name for index in row.b_indices for name in b[index].parameters} for row in rows]
    for at, names in enumerate(of_a):
        assert not any(names & other for number, other in enumerate(of_b) if number != at)


# ---- terminal and command -------------------------------------------------------------------------------------------


def _printed(comparison: Comparison, encoding: str = "utf-8", width: int = 120) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_comparison(comparison, Console(file=file, width=width))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [40, 80, 300])
def test_no_figure_is_cut_short_on_any_terminal(width: int) -> None:
    a, b = profiles.exposed(), profiles.overlapped()
    comparison = compare_profiles(a, b, _samples(a), _samples(b))
    printed = _printed(comparison, "ascii", width)
    for figure in comparison.figures:
        line = next(line for line in printed.splitlines() if line.startswith(f"{figure.name}  "))
        assert " ".join(line.split()) == " ".join(" ".join([figure.name, *figure_cells(figure)]).split())


def test_names_are_printed_as_they_are() -> None:
    hostile = profiles.exposed(run="[bold]x[/bold]\x1b[31m", script="<script>[red]")
    hostile.buckets[0].parameters = ["[link=http://x]a[/link]"]
    printed = _printed(compare_profiles(hostile, profiles.exposed()), "ascii")
    assert "[bold]x[/bold]\\x1b[31m" in printed
    assert "<script>[red]" in printed
    assert "\x1b" not in printed
    assert "[link=http://x]a[/link]" in printed.replace("\n", "").replace(" ", "")


def test_the_command_prints_the_verdict_first_and_the_same_as_json(tmp_path: Path) -> None:
    a, b = _timed(profiles.exposed(), _noisy(200, 1)), _timed(profiles.overlapped(), _noisy(150, 2))
    for name, profile in (("a", a), ("b", b)):
        (tmp_path / "traces" / name).mkdir(parents=True)
        write_json(tmp_path / "traces" / name / "profile.json", profile)
    verdict = compare_profiles(a, b).verdict
    done = bucketlab("compare", "a", "b", cwd=tmp_path, environment={"COLUMNS": "200"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(verdict)
    as_json = bucketlab("compare", "--json", "a", "traces/b", cwd=tmp_path)
    assert msgspec.json.decode(as_json.stdout, type=Comparison).verdict == verdict
    page = bucketlab("compare", "--html", "two.html", "--json", cwd=tmp_path)
    assert (page.returncode, last_line(page)) == (0, "bucketlab: the page with charts is two.html")
    assert {msgspec.json.decode(page.stdout, type=Comparison).a, "2025-11-29T15-04-train"} == {a.run}
    assert (tmp_path / "two.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    missing = bucketlab("compare", "a", "c", cwd=tmp_path)
    assert missing.returncode == 2
    assert "'c'" in last_line(missing)


# ---- which runs -----------------------------------------------------------------------------------------------------


def _runs(folder: Path, *names: str) -> None:
    for age, name in enumerate(reversed(names)):
        (folder / name).mkdir(parents=True)
        write_json(folder / name / "profile.json", profiles.exposed(run=name))
        os.utime(folder / name / "profile.json", (1_700_000_000 - age, 1_700_000_000 - age))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None), ("middle", "newest")),
        (("oldest", None), ("oldest", "newest")),
        (("old", "mid"), ("oldest", "middle")),
        (("latest", "middle"), ("newest", "middle")),
        ((None, "middle"), ("newest", "middle")),
    ],
)
def test_runs_are_found_by_the_beginning_of_a_name_and_as_the_newest(
    tmp_path: Path, given: tuple[str | None, str | None], expected: tuple[str, str]
) -> None:
    _runs(tmp_path, "oldest", "middle", "newest")
    a, b = find_pair(*given, tmp_path)
    assert (a.name, b.name) == expected


def test_a_run_is_found_by_its_path_and_by_that_of_its_file(tmp_path: Path) -> None:
    _runs(tmp_path / "traces", "one", "two")
    for path in (tmp_path / "traces" / "one", tmp_path / "traces" / "one" / "profile.json"):
        assert find_run(str(path), tmp_path / "nowhere") == tmp_path / "traces" / "one"


def test_a_whole_name_is_no_beginning_of_another(tmp_path: Path) -> None:
    _runs(tmp_path, "train", "train-2")
    assert find_run("train", tmp_path).name == "train"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("t", "other"), "'t' begins the names of 2 runs: train-2, train-1. Give more of the name"),
        (
            ("absent", "other"),
            "no profiled run 'absent', neither as a path nor in .*There are: train-2, train-1, other",
        ),
        (("other", "other"), "other is other itself: give two runs"),
        (("train-2", None), "train-2 is the newest run itself: give two runs"),
    ],
)
def test_what_names_no_two_runs_is_said_with_the_names_that_there_are(
    tmp_path: Path, given: tuple[str, str | None], said: str
) -> None:
    _runs(tmp_path, "other", "train-1", "train-2")
    with pytest.raises(BadInput, match=said):
        find_pair(*given, tmp_path)


def test_one_run_alone_and_none_at_all_are_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no profiled run in .*bucketlab profile train\.py"):
        find_pair(None, None, tmp_path)
    _runs(tmp_path, "lonely")
    with pytest.raises(BadInput, match="holds one profiled run, lonely"):
        find_pair(None, None, tmp_path)
    with pytest.raises(BadInput, match="lonely is the newest run itself"):
        find_pair("lonely", None, tmp_path)
