"""Scalars and HParams for TensorBoard's own tabs, written by TensorBoard's own writer. Imports no torch.

A run gets its figures and the course of its step time; a study gets a TensorBoard run for each trial, with its setting
as hyperparameters and its step time as the metric. All of it is measured, or emulated, and the names say which.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import TunedTrial, Tuning

SCALARS = "scalars"  # folder below a run's or a study's own

_NS_PER_MS = 1_000_000


def write_scalars(profile: Profile, folder: Path) -> Path:
    """Writes a run's scalars below its folder: step time over steps, and its figures. Returns where they are.

    What an earlier call wrote there is replaced.

    Raises:
        OSError: it cannot be written.
    """
    kind = profile.kind
    summaries = [
        (scalar_pb(f"{kind}/step ms", ns / _NS_PER_MS), step)
        for step, ns in enumerate(profile.step.samples if profile.step else [])
    ]
    breakdown = profile.breakdown
    if breakdown is not None:
        figures = {
            "exposed ms": breakdown.exposed_ns / _NS_PER_MS,
            "communication ms": breakdown.communication_ns / _NS_PER_MS,
            "compute ms": breakdown.compute_ns / _NS_PER_MS,
        }
        if breakdown.overlap_ratio is not None:
            figures["overlap ratio"] = breakdown.overlap_ratio
        summaries += [(scalar_pb(f"{kind}/{name}", value), 0) for name, value in figures.items()]
    return _written(folder / SCALARS, summaries)


def write_trials(tuning: Tuning, folder: Path) -> Path:
    """Writes a study's trials below its folder, one TensorBoard run for each that was measured. Returns where.

    What an earlier call wrote there is replaced, so it may be called again as the study goes on.

    Raises:
        OSError: it cannot be written.
    """
    top = folder / SCALARS
    shutil.rmtree(top, ignore_errors=True)
    for trial in tuning.trials:
        if trial.state == "complete" and trial.step_ns:
            _written(top / f"trial-{trial.number:03d}", list(_of_trial(trial, tuning)))
    return top


def _of_trial(trial: TunedTrial, tuning: Tuning) -> Iterator[tuple[Summary, int]]:
    setting: dict[str, Any] = {name: _plain(value) for name, value in trial.params.items()}
    setting |= {"buckets": len(trial.bucket_bytes), "setting in force": trial.is_current}
    yield hparams.hparams_pb(setting, trial_id=f"{tuning.study}-{trial.number}"), 0
    for step, ns in enumerate(trial.step_ns):
        yield scalar_pb(f"{tuning.kind}/step ms", ns / _NS_PER_MS), step
    yield scalar_pb(f"{tuning.kind}/median step ms", statistics.median(trial.step_ns) / _NS_PER_MS), 0
    if trial.speedup is not None:
        yield scalar_pb(f"{tuning.kind}/speedup", trial.speedup), 0


def _plain(value: Any) -> bool | float | str:
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _written(folder: Path, summaries: Sequence[tuple[Summary, int]]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    writer = EventFileWriter(str(folder))
    now = time.time()
    for summary, step in summaries:
        writer.add_event(Event(wall_time=now, step=step, summary=summary))
    writer.close()
    return folder
