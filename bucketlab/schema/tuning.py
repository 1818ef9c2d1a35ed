"""`result.json` of a study (`bucketlab.tuning/1`), and DDP's bucket settings as plain data. Measures nothing.

Step times are nanoseconds, capacities are in DDP's own "mb", which is MiB. A speed-up is the part by which more steps
are done in the same time: step time of the script's own setting over that of the other, less one.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA = "bucketlab.tuning/1"

Compression = Literal["fp16", "bf16", "powersgd"]


class Capacities(msgspec.Struct, frozen=True, kw_only=True):
    """What DDP is told about its buckets. With nothing told: what the script itself has told it."""

    bucket_cap_mb: float | None = None
    first_bucket_mb: float | None = None  # None: no other than the rest of them
    bucket_cap_mb_list: tuple[float, ...] = ()  # where it is given, the other two are not

    def mb(self) -> list[float]:
        """The capacities bucket by bucket, the last one for all that follow; empty for the script's own."""
        if self.bucket_cap_mb_list:
            return list(self.bucket_cap_mb_list)
        if self.bucket_cap_mb is None:
            return []
        return [self.bucket_cap_mb if self.first_bucket_mb is None else self.first_bucket_mb, self.bucket_cap_mb]


THE_SCRIPTS_OWN = Capacities()
DDPS_DEFAULT = Capacities(bucket_cap_mb=25.0, first_bucket_mb=1.0)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One setting to measure. An option that is None stays as the script has it."""

    capacities: Capacities = THE_SCRIPTS_OWN
    gradient_as_bucket_view: bool | None = None
    static_graph: bool | None = None
    compression: Compression | None = None  # changes what is computed


CURRENT = Candidate()


class TunedSetting(msgspec.Struct, kw_only=True):
    """One setting, what DDP built of it, and its step time."""

    bucket_cap_mb: float | None
    first_bucket_mb: float | None = None
    bucket_cap_mb_list: list[float] = []
    gradient_as_bucket_view: bool | None = None
    static_graph: bool | None = None
    compression: Compression | None = None
    bucket_bytes: list[int] = []
    step_ns: int | None = None

    @classmethod
    def of(cls, candidate: Candidate, bucket_bytes: tuple[int, ...], step_ns: float | None) -> TunedSetting:
        capacities = candidate.capacities
        return cls(
            bucket_cap_mb=capacities.bucket_cap_mb,
            first_bucket_mb=capacities.first_bucket_mb,
            bucket_cap_mb_list=list(capacities.bucket_cap_mb_list),
            gradient_as_bucket_view=candidate.gradient_as_bucket_view,
            static_graph=candidate.static_graph,
            compression=candidate.compression,
            bucket_bytes=list(bucket_bytes),
            step_ns=None if step_ns is None else round(step_ns),
        )

    def candidate(self) -> Candidate:
        """The setting as it can be applied; used by a later run of the same job."""
        return Candidate(
            capacities=Capacities(
                bucket_cap_mb=self.bucket_cap_mb,
                first_bucket_mb=self.first_bucket_mb,
                bucket_cap_mb_list=tuple(self.bucket_cap_mb_list),
            ),
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            static_graph=self.static_graph,
            compression=self.compression,
        )


class TunedTrial(msgspec.Struct, kw_only=True):
    """One layout of buckets that was tried."""

    number: int
    params: dict[str, Any]
    setting: TunedSetting | None = None  # without what was built and measured, which stands here
    state: Literal["complete", "failed", "running"]
    bucket_bytes: list[int]  # read back from DDP; where it failed before, those of DDP's rule
    step_ns: list[int]  # samples: of each measured step, the slowest rank's
    speedup: float | None = None  # over the current setting: a finalist's from the race, others' from pairs of blocks
    pairs: int = 0  # how many of them
    finalist: bool = False
    is_current: bool = False  # the script's own setting
    failure: str | None = None
    built_otherwise: bool = False  # DDP's rule, as far as known, gives other buckets than DDP built
    after_steps: int | None = None  # steps that this launch had spent when it was first measured


class Launched(msgspec.Struct, kw_only=True):
    """One launch of a job with one group of environment variables."""

    stage: Literal["search", "race"]
    rung: int = 0  # of the search: groups that are left are launched again; of the race: the round
    variables: dict[str, str]  # beside those in force; empty: the environment as it is
    setting: TunedSetting | None = None  # buckets that were best there, with their step time
    is_tuned: bool = False  # they are others than the script's own
    own_step_ns: int | None = None  # with the script's own
    in_force: dict[str, str] = {}  # of all variables that are searched, those that rank 0 had
    seconds: float = 0.0  # of wall time
    failure: str | None = None


class TunedEnvironment(msgspec.Struct, kw_only=True):
    """Environment variables, searched in launches; compared with the environment as it is, the best buckets in each."""

    variables: dict[str, str]  # of the group that came into the race; empty: none did
    setting: TunedSetting | None = None  # the best buckets with them; step_ns: median over the race's launches
    baseline: TunedSetting | None = None  # the best buckets in the environment as it is, likewise
    speedup: float | None = None  # median over the race's rounds, a launch of each
    ci95: tuple[float, float] | None = None  # from order statistics of the rounds
    significant: bool = False  # the interval lies above zero, and so does that over the job as it is
    rounds: int = 0
    finished: bool
    reason: str
    searched: dict[str, list[str]]
    launches: list[Launched]
    notes: list[str] = []


class JobIdentity(msgspec.Struct, kw_only=True):
    """What a stored result holds for."""

    gradients: str  # digest of the gradients' sizes and dtypes
    gradient_bytes: int
    world_size: int


class Tuning(msgspec.Struct, kw_only=True):
    """A finished or interrupted study."""

    schema: str = SCHEMA
    kind: Literal["measured", "emulated"]
    study: str
    script: str = ""
    command: list[str] = []
    storage: str = ""  # without its password
    job: JobIdentity
    interconnect: str
    best: TunedSetting  # of all that is not the current setting, the best in the final race; step_ns: see `speedup`
    baseline: TunedSetting  # the script's own setting; step_ns: median over the final race
    current_is_default: bool
    current_by_module: str = ""  # the script's own capacities in words, where its modules have different ones
    speedup: float | None  # median over the race's rounds; best.step_ns is baseline.step_ns / (1 + speedup)
    ci95: tuple[float, float] | None  # bootstrap over rounds; holds for all finalists at once
    significant: bool  # the interval lies above zero. If not, the answer is: keep your setting
    rounds: int  # of the final race
    # Of the time of forward pass and optimizer, which buckets do not touch: taken off each step before settings are
    # compared. Speed-ups are estimates for whole steps all the same.
    untouched_share: float = 0.0
    finished: bool  # False: the script ended before the race did
    reason: str  # why it ended, in one sentence
    how_to_apply: str
    trials: list[TunedTrial]
    steps: int  # spent by this launch, settling included
    own_share: float | None = None  # of the time of tuning: what the study itself took between steps
    # Variables of the environment that were searched too. If `significant` there, `best` and what belongs to it hold
    # with them set, and `rounds` are launches; `trials` are always those of the environment as it is.
    environment: TunedEnvironment | None = None
    variables: dict[str, str] = {}  # of the searched ones those that the ranks had
    notes: list[str] = []
