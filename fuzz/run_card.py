"""run.json: what `tune` without a script launches again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bucketlab.launch.command import Job, launch_command
from bucketlab.runs import RUN, RunCard, load_card
from bucketlab.worker.config import Launch


def read(data: bytes, folder: Path) -> None:
    (folder / RUN).write_bytes(data)
    card = load_card(folder)
    how = card.launch
    job = Job(tuple(card.command), how.own_launcher, tuple(how.options.items()), tuple(how.flags))
    launch_command(job)
    assert job.name is not None


def seeds() -> list[bytes]:
    launch = Launch(folder="/home/me", options={"nproc-per-node": "2"}, flags=["module"])
    card = RunCard(
        run="train-1",
        created="2026-01-01T00:00:00+00:00",
        script="train.py",
        command=["train", "--lr", "1"],
        launch=launch,
        versions={"torch": "2.13.0"},
        world_size=2,
        nodes=1,
        backend="gloo",
        bucket_cap_mb=[25.0],
    )
    return [msgspec.json.encode(card)]
