"""`bucketlab report`: which run, which study, which files."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from bucketlab.analysis.files import analyze_paths
from bucketlab.documents import write_json
from bucketlab.predict import predict
from bucketlab.report.perfetto import _Tracks, _travelling
from bucketlab.report.tuning import print_tuning
from bucketlab.reporting import newest_study
from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import JobIdentity
from tests.analysis.jobs import collective, step
from tests.browser import Browser
from tests.commands import ROOT, SCRIPTS, bucketlab, last_line
from tests.report import profiles
from tests.report.html.studies import study_of

MS = 1_000_000
_GLOO = ROOT / "traces" / "gloo-2ranks"
_SHARED = Path(os.environ.get("BUCKETLAB_SHARED_TRACES") or ROOT.parent / "shared" / "data" / "traces")


def _saved(folder: Path, profile: Profile) -> Profile:
    folder.mkdir(parents=True)
    profile = msgspec.structs.replace(profile, run=folder.name, prediction=predict(profile))
    write_json(folder / "profile.json", profile)
    return profile


def _data(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.split('id="data">')[1].split("</script>")[0])
    return found


def test_the_newest_run_gets_its_page(tmp_path: Path) -> None:
    _saved(tmp_path / "traces" / "one", profiles.exposed())
    done = bucketlab("report", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "traces/one/report.html\n")
    assert _data(tmp_path / "traces" / "one" / "report.html")["profile"]["run"] == "one"
    assert [one.name for one in (tmp_path / "traces" / "one").iterdir() if ".tmp" in one.name] == []


def test_no_run_is_bad_input(tmp_path: Path) -> None:
    done = bucketlab("report", cwd=tmp_path)
    assert done.returncode == 2
    assert "bucketlab profile train.py" in last_line(done)
    done = bucketlab("report", "absent", cwd=tmp_path)
    assert done.returncode == 2


def test_measured_trials_of_the_same_job_are_drawn(chromium: Browser, tmp_path: Path) -> None:
    profile = _saved(tmp_path / "traces" / "one", profiles.exposed())
    (tmp_path / "sweeps" / "train").mkdir(parents=True)
    study = study_of(profile)
    write_json(tmp_path / "sweeps" / "train" / "result.json", study)
    assert bucketlab("report", cwd=tmp_path).returncode == 0
    page = tmp_path / "traces" / "one" / "report.html"
    shown = _data(page)["study"]
    first, current = shown["trials"]
    assert (first["capacity_mb"], current["capacity_mb"]) == (64.0, 25.0)
    # At the pace of the race, as `bucketlab tune` prints them, and not as the machine's load left them.
    assert (first["step_ns"], current["step_ns"]) == (160 * MS, 200 * MS)
    assert first["low_ns"] < 160 * MS < first["high_ns"]
    assert shown["failed"] == 1
    chromium.open(page.as_uri())
    assert chromium.wait_for("document.querySelectorAll('#curve circle.trial').length") == 2
    assert "160 ms, measured" in chromium.evaluate("document.querySelector('#curve circle.trial').textContent")
    console = Console(file=io.StringIO(), width=120)
    print_tuning(study, console)
    said = chromium.evaluate("document.querySelector('#study').innerText")
    assert said.splitlines()[0].endswith(
        "bucket_cap_mb=64: +25.0 % steps per second (95 % interval +20.0 % to +30.0 %), "
        "160 ms a step instead of 200 ms."
    )
    assert shown["answer"] in " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_a_study_is_found_beside_the_folder_of_runs_from_wherever_the_command_runs(tmp_path: Path) -> None:
    profile = _saved(tmp_path / "job" / "traces" / "one", profiles.exposed())
    (tmp_path / "job" / "sweeps" / "train").mkdir(parents=True)
    write_json(tmp_path / "job" / "sweeps" / "train" / "result.json", study_of(profile))
    assert bucketlab("report", "--out", "job/traces", cwd=tmp_path).returncode == 0
    assert _data(tmp_path / "job" / "traces" / "one" / "report.html")["study"]["name"] == "train"


def _study_beside(profile: Profile, folder: Path, slower: float = 1.0, **changes: Any) -> None:
    """A study of the job with what its first launch measured, all-reduces included."""
    folder.mkdir(parents=True)
    write_json(folder / "result.json", study_of(profile, **changes))
    assert profile.link is not None
    points = [
        msgspec.structs.replace(
            one, **{name: round(slower * getattr(one, name)) for name in ("ns", "p10_ns", "p90_ns")}
        )
        for one in profile.link.points
    ]
    write_json(
        folder / "profile.json",
        msgspec.structs.replace(profile, link=msgspec.structs.replace(profile.link, points=points)),
    )


def test_a_study_on_another_link_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    profile = _saved(tmp_path / "traces" / "one", profiles.exposed())
    _study_beside(profile, tmp_path / "sweeps" / "train", interconnect="gloo, 2 ranks within one host")
    assert bucketlab("report", cwd=tmp_path).returncode == 0
    data = _data(tmp_path / "traces" / "one" / "report.html")
    assert data["study"] is None
    assert "gloo, 2 ranks within one host and not nccl over NVLink" in data["texts"]["studies"]


@pytest.mark.parametrize(("slower", "drawn"), [(4.0, False), (0.25, False), (2.0, False), (1.4, True), (1.0, True)])
def test_a_study_is_drawn_where_its_link_was_about_as_fast(tmp_path: Path, slower: float, drawn: bool) -> None:
    profile = _saved(tmp_path / "traces" / "one", profiles.exposed())
    _study_beside(profile, tmp_path / "sweeps" / "train", slower)
    study, remark = newest_study(profile, [tmp_path / "sweeps" / "train" / "result.json"])
    assert (study is not None) is drawn
    assert ("Trials of study train are not drawn" in remark) is not drawn


def test_an_older_study_on_the_same_link_is_drawn_and_the_newer_one_said_to_be_left_out(tmp_path: Path) -> None:
    profile = _saved(tmp_path / "traces" / "one", profiles.exposed())
    for name, slower, written in (("older", 1.0, 1000), ("newer", 4.0, 2000)):
        _study_beside(profile, tmp_path / name, slower, study=name)
        os.utime(tmp_path / name / "result.json", (written, written))
    study, remark = newest_study(profile, [tmp_path / name / "result.json" for name in ("older", "newer")])
    assert study is not None and study.study == "older"
    assert "Trials of study newer are not drawn" in remark


def test_a_study_that_is_asked_for_is_drawn_with_a_word_on_its_link(chromium: Browser, tmp_path: Path) -> None:
    profile = _saved(tmp_path / "traces" / "one", profiles.exposed())
    _study_beside(profile, tmp_path / "sweeps" / "train", slower=4.0)
    page = tmp_path / "traces" / "one" / "report.html"
    shown = "document.querySelector('#curve').innerText"
    trials = "document.querySelectorAll('#curve circle.trial').length"
    assert bucketlab("report", cwd=tmp_path).returncode == 0
    chromium.open(page.as_uri())
    assert "Trials of study train are not drawn: it was measured on another link" in chromium.evaluate(shown)
    assert chromium.evaluate(trials) == 0
    assert bucketlab("report", "--study", "train", cwd=tmp_path).returncode == 0
    chromium.open(page.as_uri())
    assert "Study train was measured on another link than this run" in chromium.evaluate(shown)
    assert chromium.wait_for(trials) == 2


def test_the_sliders_command_prints_the_figures_of_the_page(chromium: Browser, tmp_path: Path) -> None:
    _saved(tmp_path / "traces" / "a run's", profiles.exposed())
    assert bucketlab("report", cwd=tmp_path).returncode == 0
    chromium.open((tmp_path / "traces" / "a run's" / "report.html").as_uri())
    assert chromium.evaluate("document.querySelector('.asked').hidden")
    for knob, at in (("ranks", 3), ("bandwidth", -17)):
        chromium.evaluate(
            f"(() => {{ const one = document.getElementById('{knob}'); one.value = {at};"
            "one.dispatchEvent(new Event('input')); })()"
        )
    command = chromium.evaluate("document.querySelector('.asked code').textContent")
    words = shlex.split(command)
    assert words[:2] == ["bucketlab", "predict"]
    assert {"--ranks", "--bandwidth-scale"} <= set(words)
    done = bucketlab(*words[1:], "--json", cwd=tmp_path.parent)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    in_page = chromium.evaluate(
        "bucketlab.replay({ranks: bucketlab.setting().ranks, bandwidth: bucketlab.setting().bandwidth}).step_ns"
    )
    assert round(in_page) == row["current_step_ns"]


def test_commands_on_the_page_work_as_pasted(tmp_path: Path) -> None:
    job, elsewhere = tmp_path / "my job", tmp_path / "elsewhere"
    job.mkdir()
    elsewhere.mkdir()
    shutil.copy(SCRIPTS / "tiny.py", job)
    shutil.copy(SCRIPTS / "plain.py", job / "plain one.py")
    options = ["--nproc-per-node=2", "--steps", "6", "--traced", "2", "--link-seconds", "0.5"]
    script = ["plain one.py", "--name", "it's"]
    done = bucketlab("profile", *options, "--json", *script, cwd=job, environment={"STEPS": "60"})
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = (job / "traces").iterdir()
    commands = dict(_data(run / "report.html")["commands"])

    again = _pasted(commands.pop("Profile again"), elsewhere, 'printf "%s|" "$PWD" "$@"')
    assert again.stdout.split("|")[:-1] == [str(job), "profile", *options, *script]
    commands.pop("All runs of this folder in TensorBoard")  # serves until it is stopped
    shutil.copytree(run, run.parent / "later")
    (run.parent / "later" / "profile.json").touch()
    for command in commands.values():
        pasted = _pasted(command, elsewhere, f'"{sys.executable}" -m bucketlab "$@"')
        assert pasted.returncode == 0, (command, pasted.stderr[-2000:])


def _pasted(command: str, cwd: Path, stands_for: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell in which `bucketlab` is what is given."""
    return subprocess.run(
        ["bash", "-c", f"bucketlab() {{ {stands_for}; }}; {command}"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_study_of_another_job_is_refused_when_asked_for_and_left_out_otherwise(tmp_path: Path) -> None:
    profile = _saved(tmp_path / "traces" / "one", profiles.exposed())
    (tmp_path / "sweeps" / "other").mkdir(parents=True)
    job = JobIdentity(gradients="x", gradient_bytes=5, world_size=2)
    write_json(tmp_path / "sweeps" / "other" / "result.json", study_of(profile, job=job))
    assert bucketlab("report", cwd=tmp_path).returncode == 0
    assert _data(tmp_path / "traces" / "one" / "report.html")["study"] is None
    done = bucketlab("report", "--study", "other", cwd=tmp_path)
    assert done.returncode == 2
    assert "of another job" in last_line(done)


def test_bucket_tracks_stand_beside_the_kernels_at_the_traces_own_times(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for trace in _GLOO.glob("*.json.gz"):
        (folder / trace.name).write_bytes(trace.read_bytes())
    done = bucketlab("report", "--perfetto", "--json", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert len(made["perfetto"]) == 2
    with gzip.open(made["perfetto"][0]) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    with gzip.open(next(iter(sorted(_GLOO.glob("*.json.gz"))))) as file:
        original = json.load(file, parse_float=Decimal)["traceEvents"]
    ours = events[: len(events) - len(original)]
    assert events[len(ours) :] == original
    travels = [one for one in ours if one["ph"] == "X" and one["name"] == "allreduce"]
    analysis = analyze_paths([folder / sorted(one.name for one in _GLOO.glob("*.json.gz"))[0]]).ranks[0]
    buckets = [
        (step.start_ns + one.start_ns, one.end_ns - one.start_ns, one.bytes)
        for step in analysis.steps
        for one in step.events
        if one.bucket is not None
    ]
    assert buckets
    _assert_as_the_trace_event_format_has_it(ours, original)
    assert [(round(one["ts"] * 1000), round(one["dur"] * 1000), one["args"]["bytes"]) for one in travels] == buckets
    again = bucketlab("analyze", "--json", folder, cwd=tmp_path)
    assert len(json.loads(again.stdout)["ranks"]) == 2, "analyze takes no file of ours for a trace"


def _assert_as_the_trace_event_format_has_it(ours: list[dict[str, Any]], original: list[dict[str, Any]]) -> None:
    """Fields of the Trace Event Format, numbers that no other thread has, and ranges that follow one another."""
    threads = {one["tid"] for one in ours if "tid" in one}
    assert not threads & {one.get("tid") for one in original}
    assert not {one["pid"] for one in ours} & {one.get("pid") for one in original}
    assert max(threads) < 2**32
    named = {one["tid"] for one in ours if (one["ph"], one["name"]) == ("M", "thread_name")}
    assert named == threads
    ranges = [one for one in ours if one["ph"] == "X"]
    assert {one["ph"] for one in ours} == {"M", "X"}
    for thread in threads:
        own = sorted((one["ts"], one["ts"] + one["dur"]) for one in ranges if one["tid"] == thread)
        assert own
        assert all(before[1] <= after[0] for before, after in pairwise(own))


def test_a_bucket_that_is_there_twice_at_a_time_gets_a_second_track() -> None:
    tracks = _Tracks()
    first, second, third = (tracks.place("bucket 3", *at) for at in ((0, 10), (5, 15), (10, 20)))
    assert first[0] != second[0]
    assert third[0] == first[0]
    assert [one["args"].get("name") for _, named in (first, second, third) for one in named][::2] == [
        "bucket 3",
        "bucket 3, of the next step",
    ]


def test_buckets_of_several_modules_have_their_own_parameters_whatever_order_they_travel_in() -> None:
    """A trace numbers a step's buckets as they travel; here the second module's go first."""
    profile = profiles.two_modules()
    one = profile.buckets[0]
    known = [(0, 0, 100, "generator"), (1, 0, 300, "critic.1"), (1, 1, 200, "critic.0")]
    profile.buckets = [
        msgspec.structs.replace(one, module=module, index=index, bytes=size, parameters=[name])
        for module, index, size, name in known
    ]
    sent = [
        msgspec.structs.replace(collective(20 * at, 20 * at + 10), bytes=size, bucket=at)
        for at, size in enumerate((300, 200, 100, 300, 200, 7))
    ]
    tracks = [(track, bucket and bucket.parameters) for track, bucket, _ in _travelling(step(0, sent), profile)]
    assert tracks == [
        ("module 1 Head, bucket 0", ["critic.1"]),
        ("module 1 Head, bucket 1", ["critic.0"]),
        ("module 0 GPT, bucket 0", ["generator"]),
        ("module 1 Head, bucket 0", ["critic.1"]),  # a step may go backward through a module twice
        ("module 1 Head, bucket 1", ["critic.0"]),
        ("bucket 5", None),  # nothing that the profile knows
    ]


@pytest.mark.parametrize("name", ["gloo-2ranks", "recsys_nccl_128ranks.rank0.pt.trace.json.gz"])
def test_traces_without_a_profile_have_a_page_too(chromium: Browser, tmp_path: Path, name: str) -> None:
    source = ROOT / "traces" / name if (ROOT / "traces" / name).exists() else _SHARED / name
    if not source.exists():
        pytest.skip(f"{name} is not there")
    folder = tmp_path / "job"
    folder.mkdir()
    for trace in source.glob("*.json.gz") if source.is_dir() else [source]:
        (folder / trace.name).write_bytes(trace.read_bytes())
    done = bucketlab("report", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    chromium.open((folder / "report.html").as_uri())
    assert chromium.complaints == []
    rank = analyze_paths([folder]).ranks[0]
    assert chromium.evaluate("document.getElementById('showing').textContent").startswith("measured")
    advice = chromium.evaluate("document.querySelector('#next').innerText")
    assert "Most exposed is collective" in advice
    of_ddp = any(event.bucket is not None for step in rank.steps for event in step.events)
    assert ("bucketlab predict" in advice) is of_ddp
    most = max(len(step.events) for step in rank.steps)
    assert chromium.evaluate("document.querySelectorAll('#step tbody tr').length") >= min(most, 300)
