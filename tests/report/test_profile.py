"""The report of a profile: what a reader must find on it, whatever is missing, on any terminal."""

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from bucketlab.predict import predict
from bucketlab.predict.advice import advise
from bucketlab.report.profile import MOST_BUCKET_ROWS, print_profile
from bucketlab.report.screen import LEAST_COLUMNS, MOST_COLUMNS
from tests.report import profiles

FOLDER = Path("traces/run-1")
replace = msgspec.structs.replace


def _report(profile, width=100, encoding="utf-8", **console):
    profile.advice = profile.advice or advise(profile)
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_profile(profile, Console(file=file, width=width, **console), FOLDER)
    file.flush()
    return raw.getvalue().decode(encoding)


def _section(report, title):
    """The lines of one section, its heading first; [] where there is none."""
    for block in report.split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].startswith(f"{title}  "):
            return lines
    return []


def _words(text):
    return " ".join(text.split())


def test_the_first_line_is_the_answer():
    assert _report(profiles.exposed()).splitlines()[0] == "Step 195 ms; 44.2 ms of it, 23 %, is exposed communication."


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (profiles.hidden, "Step 151 ms; communication is hidden: 0.3 % of the step is exposed."),
        (profiles.input_bound, "Step 344 ms; 176 ms of it, 51 %, is spent waiting for input."),
        (profiles.straggler, "is exposed communication, most of it waiting for rank 2."),
        (profiles.one_rank, "Step 152 ms on one rank: nobody to exchange gradients with, nothing to overlap."),
        (profiles.nothing, "No step was measured."),
    ],
)
def test_the_answer_fits_what_bounds_the_step(make, answer):
    assert _report(make()).splitlines()[0].endswith(answer)


def test_the_answer_without_a_trace_says_that_communication_was_not_measured():
    report = _report(profiles.exposed(breakdown=None))
    assert report.startswith("Step 195 ms; how much of it is communication was not measured.")


def test_the_spread_of_the_step_time_is_there_with_how_many_steps():
    assert "median 195 ms, p10 193 ms, p90 199 ms; 40 steps, 2 excluded" in _report(profiles.exposed())


def _parts_on(report):
    """Name -> ms and per cent as printed, of the table of a step's parts."""
    lines = _section(report, "Where a step goes")
    rows = [re.match(r"  (\S[^-\d]*?)\s+(-?[\d,.]+)\s+(-?[\d.]+) %", line) for line in lines]
    return {row[1]: (float(row[2].replace(",", "")), float(row[3])) for row in rows if row}


def test_every_part_of_the_step_is_there_in_ms_and_as_a_share():
    assert _parts_on(_report(profiles.exposed())) == {
        "compute alone": (64.8, 32.6),
        "overlap (hidden)": (88.2, 44.3),
        "exposed": (45.1, 22.6),
        "idle": (1.0, 0.5),
        "step": (199.1, 100.0),
    }


def test_what_counts_the_overlap_too_is_told_apart_from_the_parts():
    said = _words("\n".join(_section(_report(profiles.exposed()), "Where a step goes")))
    assert "With the overlap, compute takes 153 ms (77 %) and communication 133 ms (67 %)" in said
    assert "waiting for input, idle or not, 1.00 ms (0.5 %)" in said


@pytest.mark.parametrize("make", profiles.EVERY)
def test_the_parts_of_a_step_add_up_to_it(make):
    parts = _parts_on(_report(make()))
    if not parts:
        assert make().breakdown is None
        return
    whole_ms, whole_per_cent = parts.pop("step")
    assert whole_per_cent == 100.0
    assert round(sum(share for _, share in parts.values()), 1) == 100.0
    assert abs(sum(ms for ms, _ in parts.values()) - whole_ms) <= 0.05 * (len(parts) + 1) + 1e-9


def test_traced_steps_are_compared_with_the_untraced_ones_just_before_them():
    slowed = profiles.exposed()
    before_ns = slowed.breakdown.wall_ns * 100 // 125
    slowed.step = replace(slowed.step, median_ns=before_ns, samples=[before_ns] * 40)
    assert "25 % slower than the untraced ones just before them" in _report(slowed)
    assert "untraced ones just before them" not in _report(profiles.exposed())


def test_a_machine_that_changes_its_pace_is_not_blamed_on_the_profiler():
    changed = profiles.exposed()
    wall_ns = changed.breakdown.wall_ns
    changed.step = replace(changed.step, median_ns=wall_ns // 2, samples=[wall_ns] * 20 + [wall_ns // 2] * 60)
    assert "The machine's pace changed during the run" in _report(changed)
    assert "profiler's cost" not in _report(changed)


def test_the_answers_share_is_of_the_untraced_step():
    slowed = profiles.exposed()
    slowed.step = replace(slowed.step, median_ns=slowed.breakdown.wall_ns // 2)
    assert _report(slowed).startswith("Step 99.5 ms; 22.5 ms of it, 23 %,")


@pytest.mark.parametrize("make", profiles.EVERY)
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(make, width):
    assert max(map(cell_len, _report(make(), width).splitlines())) <= min(width, MOST_COLUMNS)


def test_a_narrow_terminal_gets_every_figure_uncut():
    wide, narrow = _report(profiles.exposed(), LEAST_COLUMNS), _report(profiles.exposed(), 40)
    assert narrow.split() == wide.split()


def test_predicted_points_are_cut_at_no_width():
    profile = profiles.exposed()
    profile.prediction = predict(profile)
    wide, narrow = (_section(_report(profile, width), "Other bucket sizes") for width in (MOST_COLUMNS, LEAST_COLUMNS))
    tables = [[line.split() for line in lines if line.startswith(("  MiB", "  step, ms"))] for lines in (wide, narrow)]
    assert len(tables[0]) == 2
    assert tables[0] == tables[1]


@pytest.mark.parametrize("make", profiles.EVERY)
def test_a_terminal_without_unicode_gets_ascii(make):
    profile = make()
    profile.script = "tréin.py"
    assert _report(profile, encoding="ascii").isascii()


def test_no_color_leaves_no_escape_codes(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[3" not in _report(profiles.exposed(), force_terminal=True)


def test_no_colour_code_reaches_a_dumb_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in _report(profiles.exposed(), force_terminal=True)


def test_lines_end_without_blanks():
    assert not [line for line in _report(profiles.exposed()).splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("name", ["[bold]", "<script>", "[/]", "[link=file:///]x", ":smile:"])
def test_names_out_of_the_job_are_text(name):
    profile = profiles.exposed(cap_mb=1000)
    profile.buckets[0].parameters = [name]
    profile.script = f"{name}.py"
    profile.ranks[0].host = name
    profile.modules[0].communication_hook = name
    profile.notes = [name]
    profile.missing = [name]
    report = _report(profile)
    for section in ("Buckets", "Ranks", "Notes", "Not measured"):
        assert any(name in line for line in _section(report, section)), section
    assert f"{name}.py" in report.splitlines()[1]


def test_escape_codes_in_names_do_not_reach_the_terminal():
    profile = profiles.exposed(cap_mb=1000)
    profile.buckets[0].parameters = ["a\x1b[31mb"]
    profile.script = "a\x1b]0;title\x07.py"
    profile.advice = ["look at \x1b[2J"]
    report = _report(profile)
    assert "\x1b" not in report
    assert "a\\x1b[31mb" in report


def test_the_setting_in_force_is_there_and_whether_it_is_the_default():
    default = _section(_report(profiles.exposed()), "Buckets")[1]
    assert "bucket_cap_mb=25, first 1 MiB: DDP's default; 14 buckets" in default
    own = _section(_report(profiles.exposed(cap_mb=48)), "Buckets")[1]
    assert "bucket_cap_mb=48" in own
    assert "set by the script" in own


def test_a_list_of_capacities_and_a_hook_are_told_with_the_setting():
    profile = profiles.exposed()
    profile.modules = [
        replace(
            profile.modules[0], bucket_cap_mb_list=[1, 25.5, 50], communication_hook="powerSGD_hook", is_default=False
        )
    ]
    text = _words("\n".join(_section(_report(profile), "Buckets")))
    assert "bucket_cap_mb_list=[1, 25.5, 50]: set by the script" in text
    assert "communication hook: powerSGD_hook" in text


def test_each_of_several_modules_has_its_own_setting():
    profile = profiles.exposed()
    profile.modules = [replace(profile.modules[0], name="Generator"), replace(profile.modules[0], name="Critic")]
    text = "\n".join(_section(_report(profile), "Buckets"))
    assert "0 Generator: " in text
    assert "1 Critic: " in text


def test_a_bucket_has_its_times_its_bandwidth_and_its_names():
    lines = _section(_report(profiles.exposed(), 120), "Buckets")
    row = next(line for line in lines if line.split()[:1] == ["13"])
    figures = ["13", "3", "150.4", "145.0", "158.3", "190.1", "4.97", "31.7"]
    assert row.split() == [*figures, "transformer.h.0.ln_1.weight", "to", "transformer.wte.weight"]


def test_columns_without_a_single_figure_are_left_out():
    profile = profiles.exposed(breakdown=None, stragglers=None)
    profile.buckets = [
        replace(b, ready_ns=None, start_ns=None, end_ns=None, overlap_ns=None, exposed_ns=None, bus_gb_s=None)
        for b in profile.buckets
    ]
    profile.ranks = [replace(one, breakdown=None) for one in profile.ranks]
    report = _report(profile)
    buckets, ranks = _section(report, "Buckets"), _section(report, "Ranks")
    assert not any(" - " in line for line in [*buckets, *ranks])
    assert "exposed" not in "\n".join([*buckets, *ranks])
    assert any("lm_head.weight" in line for line in buckets)


def test_a_thousand_buckets_are_folded_in_the_middle_and_none_is_lost():
    profile = profiles.thousand_buckets()
    lines = _section(_report(profile), "Buckets")
    shown = [line for line in lines if line.split()[0].isdigit()]
    assert len(shown) < MOST_BUCKET_ROWS
    assert shown[0].split()[0] == "0"
    assert shown[-1].split()[0] == "999"
    assert any(f"{1000 - len(shown):,} more buckets" in line for line in lines)


def test_a_thousand_ranks_take_few_lines_and_the_latest_is_on_top():
    lines = _section(_report(profiles.thousand_ranks()), "Ranks")
    assert len(lines) < 12
    assert next(line for line in lines if line.split()[0].isdigit()).split()[0] == "637"
    assert any("996 others, medians" in line for line in lines)


def test_the_link_is_told_in_nccl_tests_terms():
    text = "\n".join(_section(_report(profiles.overlapped()), "Link"))
    assert "measured" in text.splitlines()[0]
    assert "200 us + bytes / 9.00 GB/s (fit, rms error 4.2 %)" in text
    assert "algbw, GB/s" in text
    assert "busbw, GB/s" in text


def test_an_emulated_link_is_not_called_measured():
    profile = profiles.overlapped()
    profile.link = replace(profile.link, kind="emulated")
    heading = _section(_report(profile), "Link")[0]
    assert "emulated" in heading
    assert "measured" not in heading


def test_the_prediction_says_that_it_is_one_and_names_the_best_size():
    lines = _section(_report(profiles.thousand_buckets()), "Other bucket sizes")
    assert "predicted" in lines[0]
    assert "not measured" in lines[0]
    text = _words("\n".join(lines))
    assert "Best: bucket_cap_mb=48" in text
    assert "51 % less than the setting in force" in text
    assert "No bucketing, however clever, gets below 151 ms" in text


@pytest.mark.parametrize("make", [profiles.hidden, profiles.input_bound, profiles.straggler])
def test_where_buckets_do_not_matter_no_size_is_called_best(make):
    profile = make()
    best = replace(profile.prediction.best, step_ns=profile.prediction.current_step_ns // 2)
    profile.prediction = replace(profile.prediction, best=best)
    report = _report(profile)
    assert "Buckets are not what bounds this step" in report
    assert "Best:" not in report
    assert "Try bucket_cap_mb" not in report


def test_memory_says_what_the_view_saves_and_where_sharding_begins():
    text = _words("\n".join(_section(_report(profiles.exposed()), "Memory")))
    assert "gradient_as_bucket_view saves 622 MiB" in text
    assert "7.90 B parameters of this shape" in text
    assert "(predicted); beyond that, shard." in text
    beside = profiles.exposed()
    beside.modules = [replace(beside.modules[0], gradient_as_bucket_view=False)]
    assert "would save 622 MiB" in _words(_report(beside))


@pytest.mark.parametrize("make", profiles.EVERY)
def test_every_section_with_figures_says_whether_they_are_measured_or_predicted(make):
    report = _report(make())
    for title in ("Where a step goes", "Overlap", "Ranks", "Link", "Other bucket sizes", "Memory"):
        section = _section(report, title)
        assert not section or "measured" in section[0] or "predicted" in section[0]


OPTIONAL = {
    "step": None,
    "breakdown": None,
    "ranks": [],
    "buckets": [],
    "gradients": [],
    "forward_ns": None,
    "backward_ns": None,
    "optimizer_ns": None,
    "input_ns": None,
    "link": None,
    "stragglers": None,
    "memory": None,
    "prediction": None,
    "modules": [],
    "optimizers": [],
    "versions": {},
}


@pytest.mark.parametrize("part", OPTIONAL)
def test_the_report_does_without_any_part(part):
    report = _report(replace(profiles.exposed(), **{part: OPTIONAL[part]}))
    assert report.startswith("Step ")
    assert "Files" in report


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("step", "step time"),
        ("breakdown", "trace"),
        ("buckets", "bucket times"),
        ("gradients", "ready times"),
        ("link", "link"),
        ("stragglers", "late ranks"),
        ("memory", "memory"),
        ("prediction", "prediction"),
    ],
)
def test_what_is_not_there_is_said(part, name):
    lines = _section(_report(replace(profiles.exposed(), **{part: OPTIONAL[part]})), "Not measured")
    assert lines[1:] == [f"  - not there: {name}"]


def test_a_reason_that_names_the_part_is_all_that_is_said_of_it():
    reason = "link: the script ended before it was measured"
    lines = _section(_report(replace(profiles.exposed(), link=None, missing=[reason])), "Not measured")
    assert lines[1:] == [f"  - {reason}"]


def test_a_full_profile_misses_nothing():
    assert _section(_report(profiles.exposed()), "Not measured") == []


def test_notes_and_advice_are_shown_in_order():
    profile = profiles.exposed(notes=["first note", "second note"], advice=["do this", "then that"])
    report = _report(profile)
    assert _section(report, "Notes")[1:] == ["  - first note", "  - second note"]
    assert report.index("1. do this") < report.index("2. then that")


def test_commands_and_paths_can_be_copied_whole():
    profile = profiles.exposed()
    folder = Path("/data") / ("deep/" * 30) / "my traces" / "run 1"
    raw = io.StringIO()
    print_profile(profile, Console(file=raw, width=80), folder)
    lines = raw.getvalue().splitlines()
    assert f"  {folder}" in lines
    assert f"  tensorboard --logdir '{folder.parent}'" in lines


def test_without_a_trace_no_command_for_tensorboard_is_given():
    assert "tensorboard --logdir traces" in _report(profiles.exposed())
    assert "tensorboard" not in _report(profiles.exposed(breakdown=None))


def test_what_the_prediction_leaves_out_stands_beside_it():
    profile = profiles.two_modules()
    profile.prediction = predict(profile)
    section = _words("\n".join(_section(_report(profile), "Other bucket sizes")))
    assert "Note: predicted as if all modules shared one backward pass." in section
