"""What a launch tells the training processes: plain data in one environment variable."""

from __future__ import annotations

import msgspec

from bucketlab.link.sweep import LinkModel

VARIABLE = "BUCKETLAB_WORKER"


class WorkerConfig(msgspec.Struct, kw_only=True):
    out: str  # folder of runs, absolute
    run: str  # this launch's name for the run; rank 0's wins
    control: str  # folder in which processes of this host leave progress and how they ended
    launcher_pid: int  # of the bucketlab command, on its own host
    script: str
    command: list[str]
    wanted_link: str = ""  # kind of the sweep's link, which NCCL must have used
    emulate: LinkModel | None = None  # link to run the job on, in place of the real one
    keep_running: bool = False
    warmup_steps: int = 5
    timed_steps: int | None = None  # None: as many as fit in a few seconds
    traced_steps: int = 5
    ready_steps: int = 5
    link_seconds: float = 3.0
