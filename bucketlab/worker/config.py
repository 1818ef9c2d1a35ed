"""What a launch tells the training processes: plain data in one environment variable."""

from __future__ import annotations

from typing import Literal

import msgspec

from bucketlab.link.sweep import LinkModel, Search
from bucketlab.schema.tuning import Candidate, JobIdentity

VARIABLE = "BUCKETLAB_WORKER"


class Launch(msgspec.Struct, kw_only=True):
    """How the user had the command launched, so that it can be launched again."""

    folder: str = ""  # in which the command ran
    own_launcher: bool = False
    options: dict[str, str] = {}  # of torchrun, without the dashes
    flags: list[str] = []
    words: list[str] = []  # all that stood between the command's name and its target, as typed


class TuneTask(msgspec.Struct, kw_only=True):
    """A study, which rank 0 runs."""

    study: str
    storage: str  # any URL that Optuna takes
    folder: str  # absolute, of result.json
    trials: int
    rounds: int | None = None  # of the final race, at most; None: see `Tuner`
    steps: int | None  # of this launch, at most; None: as many as it takes
    search: Search
    predict: bool = True  # begin with what prediction thinks best
    starts: list[Candidate] = []  # tried before all others
    watched: list[str] = []  # variables of the environment whose values in force the result tells


class Setting(msgspec.Struct, kw_only=True):
    """A bucket setting to give to DDP's constructor, and the job that it was found for."""

    candidate: Candidate
    study: str
    job: JobIdentity | None = None
    interconnect: str = ""
    bucket_bytes: list[int] = []  # that DDP built of it then
    variables: dict[str, str] = {}  # of the environment, that belong to it


class WorkerConfig(msgspec.Struct, kw_only=True):
    """All that a launch tells its processes."""

    out: str  # folder of runs, absolute
    run: str  # this launch's name for the run; rank 0's wins
    control: str  # folder in which processes of this host leave progress and how they ended
    launcher_pid: int  # of the bucketlab command, on its own host
    script: str
    command: list[str]
    launch: Launch = msgspec.field(default_factory=lambda: Launch())
    task: Literal["profile", "tune", "apply"] = "profile"
    tune: TuneTask | None = None
    setting: Setting | None = None
    only_time: bool = False  # steps are timed, and nothing else is measured
    wanted_link: str = ""  # kind of the sweep's link, which NCCL must have used
    emulate: LinkModel | None = None  # link to run the job on, in place of the real one
    keep_running: bool = False
    warmup_steps: int = 5
    timed_steps: int | None = None  # None: as many as fit in a few seconds
    traced_steps: int = 8
    ready_steps: int = 5
    compare_topologies: bool = False
    link_seconds: float = 10.0
