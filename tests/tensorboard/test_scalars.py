"""Scalars and HParams, read back by TensorBoard itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from bucketlab.schema.tuning import JobIdentity, TunedSetting, TunedTrial, Tuning
from bucketlab.tensorboard.scalars import write_scalars, write_trials
from tests.report import profiles
from tests.tensorboard.serving import tensorboard

MS = 1_000_000


def _read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()


def _values(read: EventAccumulator, tag: str) -> list[float]:
    return [event.tensor_proto.float_val[0] for event in read.Tensors(tag)]


def _study(kind: str = "measured") -> Tuning:
    trials = [
        TunedTrial(
            number=0,
            params={"bucket_cap_mb": 25.0},
            state="complete",
            bucket_bytes=[1, 2],
            step_ns=[30 * MS, 32 * MS, 31 * MS],
            is_current=True,
        ),
        TunedTrial(
            number=1,
            params={"bucket_cap_mb": 4.0, "static_graph": True, "view": None},
            state="complete",
            bucket_bytes=[1, 1, 1],
            step_ns=[20 * MS, 22 * MS, 21 * MS],
            speedup=0.5,
        ),
        TunedTrial(number=2, params={"bucket_cap_mb": 1.0}, state="failed", bucket_bytes=[], step_ns=[]),
    ]
    return Tuning(
        kind=kind,  # type: ignore[arg-type]
        study="train",
        job=JobIdentity(gradients="x", gradient_bytes=3, world_size=2),
        interconnect="gloo",
        best=TunedSetting(bucket_cap_mb=4.0),
        baseline=TunedSetting(bucket_cap_mb=25.0),
        current_is_default=True,
        speedup=0.5,
        ci95=(0.4, 0.6),
        significant=True,
        rounds=5,
        finished=True,
        reason="",
        how_to_apply="",
        trials=trials,
        steps=9,
    )


def test_a_run_has_its_steps_and_figures(tmp_path: Path) -> None:
    profile = profiles.exposed()
    assert profile.step is not None
    assert profile.breakdown is not None
    read = _read(write_scalars(profile, tmp_path))
    steps = _values(read, "measured/step ms")
    assert steps == pytest.approx([ns / MS for ns in profile.step.samples])
    assert _values(read, "measured/exposed ms") == pytest.approx([profile.breakdown.exposed_ns / MS])
    ratio = profile.breakdown.overlap_ns / profile.breakdown.communication_ns
    assert _values(read, "measured/overlap ratio") == pytest.approx([ratio])


def test_emulated_figures_are_called_emulated(tmp_path: Path) -> None:
    read = _read(write_scalars(profiles.exposed(kind="emulated"), tmp_path))
    assert {tag.split("/")[0] for tag in read.Tags()["tensors"]} == {"emulated"}


def test_a_run_that_measured_nothing_is_written_all_the_same(tmp_path: Path) -> None:
    assert _read(write_scalars(profiles.nothing(), tmp_path)).Tags()["tensors"] == []


def test_each_measured_trial_has_its_setting_and_its_median(tmp_path: Path) -> None:
    top = write_trials(_study(), tmp_path)
    assert sorted(one.name for one in top.iterdir()) == ["trial-000", "trial-001"]
    read = _read(top / "trial-001")
    assert _values(read, "measured/median step ms") == [21.0]
    assert _values(read, "measured/speedup") == [0.5]
    content = read.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    setting = HParamsPluginData.FromString(content).session_start_info.hparams
    assert setting["bucket_cap_mb"].number_value == 4.0
    assert setting["static_graph"].bool_value
    assert setting["view"].string_value == "None"


def test_writing_again_leaves_nothing_of_what_was_there(tmp_path: Path) -> None:
    write_trials(_study(), tmp_path)
    shorter = _study()
    top = write_trials(msgspec.structs.replace(shorter, trials=shorter.trials[:1]), tmp_path)
    assert [one.name for one in top.iterdir()] == ["trial-000"]
    assert len(list((top / "trial-000").iterdir())) == 1


def test_tensorboard_lists_trials_with_their_settings_and_metrics(tmp_path: Path) -> None:
    logdir = tmp_path / "sweeps"
    write_trials(_study(), logdir / "train")
    with tensorboard(logdir) as address:
        request = urllib.request.Request(
            f"{address}/data/plugin/hparams/experiment", data=b"{}", headers={"Content-Type": "application/json"}
        )
        deadline = time.monotonic() + 150
        # TensorBoard serves before it has read the folder, and reads it file by file.
        while not _lists_settings_and_metrics(experiment := _answer(request)):
            assert time.monotonic() < deadline, experiment
            time.sleep(0.2)


def _lists_settings_and_metrics(experiment: dict[str, Any]) -> bool:
    settings = {one["name"] for one in experiment.get("hparamInfos", [])}
    metrics = {one["name"]["tag"] for one in experiment.get("metricInfos", [])}
    return settings >= {"bucket_cap_mb", "buckets"} and "measured/median step ms" in metrics


def _answer(request: urllib.request.Request) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        return {"error": str(error)}
    return found


def test_writing_scalars_imports_no_torch() -> None:
    code = "import sys, bucketlab.tensorboard.scalars; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
