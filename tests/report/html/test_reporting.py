"""`bucketlab report`: which run, which study, which files."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import msgspec
import pytest

from bucketlab.analysis.files import analyze_paths
from bucketlab.predict import predict
from bucketlab.runs import write_json
from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import JobIdentity, TunedSetting, TunedTrial, Tuning
from tests.browser import Browser
from tests.commands import ROOT, bucketlab, last_line
from tests.report import profiles

MS = 1_000_000
_GLOO = ROOT / "traces" / "gloo-2ranks"
_SHARED = Path(os.environ.get("BUCKETLAB_SHARED_TRACES") or ROOT.parent / "shared" / "data" / "traces")


def _saved(folder: Path, profile: Profile) -> Profile:
    folder.mkdir(parents=True)
    profile = msgspec.structs.replace(profile, run=folder.name, prediction=predict(profile))
    write_json(folder / "profile.json", profile)
    return profile


def _study(profile: Profile, **changes: object) -> Tuning:
    step_ms = [180, 190, 185, 181, 183, 188, 184, 182, 186]
    made = Tuning(
        kind=profile.kind,
        study="train",
        job=JobIdentity(
            gradients="x", gradient_bytes=sum(one.bytes for one in profile.gradients), world_size=profile.world_size
        ),
        interconnect="",
        best=TunedSetting(bucket_cap_mb=64.0),
        baseline=TunedSetting(bucket_cap_mb=25.0),
        current_is_default=True,
        speedup=None,
        ci95=None,
        significant=False,
        rounds=0,
        finished=True,
        reason="",
        how_to_apply="",
        trials=[
            TunedTrial(
                number=7,
                params={"bucket_cap_mb": 64.0},
                state="complete",
                bucket_bytes=[1],
                step_ns=[ms * MS for ms in step_ms],
            ),
            TunedTrial(number=8, params={"bucket_cap_mb": 2.0}, state="failed", bucket_bytes=[1], step_ns=[]),
        ],
        steps=1,
    )
    return msgspec.structs.replace(made, **changes)


def _data(page: Path) -> dict[str, object]:
    text = page.read_text(encoding="utf-8")
    found: dict[str, object] = json.loads(text.split('id="data">')[1].split("</script>")[0])
    return found


def test_the_newest_run_gets_its_page(tmp_path: Path) -> None:
    _saved(tmp_path / "traces" / "one", profiles.exposed())
    done = bucketlab("report", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "traces/one/report.html\n")
    assert _data(tmp_path / "traces" / "one" / "report.html")["profile"]["run"] == "one"  # type: ignore[index]
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
    write_json(tmp_path / "sweeps" / "train" / "result.json", _study(profile))
    assert bucketlab("report", cwd=tmp_path).returncode == 0
    page = tmp_path / "traces" / "one" / "report.html"
    (trial,) = _data(page)["trials"]  # type: ignore[misc]
    assert (trial["capacity_mb"], trial["step_ns"]) == (64.0, 184 * MS)
    assert trial["low_ns"] < 184 * MS < trial["high_ns"]
    chromium.open(page.as_uri())
    assert chromium.wait_for("document.querySelectorAll('#curve circle.trial').length") == 1
    assert "184 ms, measured" in chromium.evaluate("document.querySelector('#curve circle.trial').textContent")


def test_a_study_of_another_job_is_refused_when_asked_for_and_left_out_otherwise(tmp_path: Path) -> None:
    profile = _saved(tmp_path / "traces" / "one", profiles.exposed())
    (tmp_path / "sweeps" / "other").mkdir(parents=True)
    job = JobIdentity(gradients="x", gradient_bytes=5, world_size=2)
    write_json(tmp_path / "sweeps" / "other" / "result.json", _study(profile, job=job))
    assert bucketlab("report", cwd=tmp_path).returncode == 0
    assert _data(tmp_path / "traces" / "one" / "report.html")["trials"] == []
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
        events = json.load(file)["traceEvents"]
    with gzip.open(next(iter(sorted(_GLOO.glob("*.json.gz"))))) as file:
        original = json.load(file)["traceEvents"]
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
    assert [(round(one["ts"] * 1000), round(one["dur"] * 1000), one["args"]["bytes"]) for one in travels] == buckets
    again = bucketlab("analyze", "--json", folder, cwd=tmp_path)
    assert len(json.loads(again.stdout)["ranks"]) == 2, "analyze takes no file of ours for a trace"


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
    most = max(len(step.events) for step in rank.steps)
    assert chromium.evaluate("document.querySelectorAll('#step tbody tr').length") >= min(most, 300)
