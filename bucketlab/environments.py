"""`bucketlab tune` where environment variables are searched too: launches of the job, each with one group of them.

What the next launch has, and what groups gain, is chosen in `tune/groups.py`; here the launches are made. In each the
buckets are tuned in place, as in a study without variables: the first time in an environment with a few trials, later
only the best of them against the script's own.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import msgspec

from bucketlab import units
from bucketlab.documents import write_json
from bucketlab.errors import BadInput, Interrupted, WorkFailed
from bucketlab.launch import nodes
from bucketlab.launch.command import Job
from bucketlab.launch.scratch import scratch_folder
from bucketlab.link.detect import find_links
from bucketlab.link.sweep import Sweep
from bucketlab.predict.assignment import takes_lists
from bucketlab.profiling import pinned
from bucketlab.runs import load_profile
from bucketlab.saying import say
from bucketlab.schema.tuning import CURRENT, Candidate, Launched, TunedEnvironment, TunedSetting, Tuning
from bucketlab.tune.files import DATABASE, RESULT
from bucketlab.tune.groups import NCCL_SETTINGS, Choices, Group, GroupSearch, Planned, gain_of, least_launches
from bucketlab.tune.launched import LaunchRecords
from bucketlab.tune.pairs import speedup_of
from bucketlab.tune.space import JobFacts, how_to_apply, in_shell
from bucketlab.tune.tuner import MOST_ROUNDS
from bucketlab.tuning import Study, Tuned, TuneOptions, run_study, search_of, storage_of
from bucketlab.worker.config import TuneTask

_TRIALS = 8  # of buckets, where an environment is launched for the first time
# A launch with other variables that takes this many times as long as one without, before its next step, hangs.
_PATIENCE = 5
_LEAST_PATIENCE_SECONDS = 120.0
# What torchrun gives to variables that nobody has set (torch/distributed/run.py, elastic/agent/server).
_TORCHRUNS_OWN = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}


def choices_of(sweep: Sweep | None, with_nccl: bool, job: Job, most_launches: int) -> Choices:
    """The variables to search with their values; says what is asked for and left alone.

    Raises:
        BadInput: NCCL's settings are asked for and have no meaning here, there are too few launches, or ranks start
            from several commands.
    """
    choices: dict[str, list[str]] = {}
    if with_nccl:
        _check_that_nccl_is_used()
        choices.update({name: list(values) for name, values in NCCL_SETTINGS.items()})
        choices.update(sweep.search.nccl if sweep else {})
    choices.update(sweep.search.environment if sweep else {})
    if sweep is not None and sweep.search.nccl and not with_nccl:
        names = ", ".join(sweep.search.nccl)
        say(f"{names} of sweep {sweep.name} take launches to try, and are left as they are: see --nccl.")
    for name in [one for one in choices if one in os.environ]:
        say(f"{name} is set here, to {os.environ[name]}: it stays, and no other value is tried.")
        del choices[name]
    if choices and most_launches < least_launches():
        raise BadInput(f"--launches {most_launches}: a search needs {least_launches()} of them, or more.")
    if choices:
        nodes.check(job)
    return choices


def _check_that_nccl_is_used() -> None:
    host = find_links()
    if not host.gpus and not host.unknown:
        raise BadInput(
            "--nccl: this host has no GPU, and ranks on CPUs communicate by gloo, which has none of NCCL's settings. "
            "Variables that your job does read go into search.environment of a sweep file."
        )


def search_environment(job: Job, options: TuneOptions, most_launches: int, found: Tuned) -> Tuned:
    """Searches variables of the environment after the buckets, and writes the result of both.

    Args:
        job: what to launch.
        options: as they were given to `tune`; `choices` are searched.
        most_launches: in all.
        found: what `tune` returned: the buckets that are best in the environment as it is.

    Raises:
        WorkFailed: a launch in the environment as it is failed; all before is kept, and the same command goes on.
    """
    if nodes.count_of(job) == 1:
        return _search(job, options, most_launches, found, lambda launch: None)
    with nodes.meeting(job, options.timeout_seconds) as meeting:
        if found.folder is None:
            _follow(job, options, meeting)
            return found
        try:
            return _search(job, options, most_launches, found, meeting.tell)
        finally:
            meeting.tell_end()


def _search(job: Job, options: TuneOptions, most_launches: int, found: Tuned, tell: Callable[[Group], None]) -> Tuned:
    if found.folder is None or found.result is None or found.result.environment is not None:
        return found
    records = LaunchRecords(storage_of(options, found.folder), found.result.study)
    try:
        result = _Search(job, options, found.folder, found.result, records, tell).run(most_launches)
    finally:
        records.close()
    write_json(found.folder / RESULT, result)
    return Tuned(found.folder, result, found.remarks)


def _follow(job: Job, options: TuneOptions, meeting: nodes.Nodes) -> None:
    """The launches of the command that has rank 0, in another of the job's commands."""
    environment = pinned(options.sweep)
    for variables in meeting.heard():
        say(f"launch on rank 0's word: {in_shell(variables) or 'the environment as it is'}")
        with scratch_folder() as scratch:
            task = _task(options, "followed", scratch)
            try:
                run_study(job, _study(options, task, {**environment, **variables}, options.timeout_seconds))
            except Interrupted:
                raise
            except WorkFailed as error:
                if not variables:
                    raise
                say(f"that launch failed: {error}")


def _task(options: TuneOptions, study: str, scratch: Path) -> TuneTask:
    return TuneTask(
        study=study,
        storage=f"sqlite:///{scratch}/{DATABASE}",  # for a script that ends before all is measured
        folder=str(scratch),
        trials=0,
        rounds=options.rounds or MOST_ROUNDS,  # there are dozens of launches, and they are compared with each other
        steps=options.steps,
        search=search_of(options),
        predict=False,
        watched=list(options.choices),
    )


def _study(options: TuneOptions, task: TuneTask, environment: Group, timeout_seconds: float) -> Study:
    return Study(task, replace(options, timeout_seconds=timeout_seconds), environment, most_crashes=1)


@dataclass
class _Search:
    """One search over the variables of one job."""

    job: Job
    options: TuneOptions
    folder: Path
    before: Tuning  # buckets in the environment as it is
    records: LaunchRecords
    tell: Callable[[Group], None]  # to the job's other commands
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.profile = load_profile(self.folder)
        self.pinned = pinned(self.options.sweep)

    def run(self, most_launches: int) -> Tuning:
        launched = self.records.launched()
        choices = self._without_what_cannot_be_set(self._that_this_job_reads(self.options.choices), launched)
        groups = GroupSearch(choices, most_launches, launched=launched)
        while groups.choices and (planned := groups.next()) is not None:
            self._say_what_comes(groups, planned)
            self.tell(planned.variables)
            groups.tell(self._launched(planned, groups))
            left = self._without_what_cannot_be_set(groups.choices, groups.launched)
            if left != groups.choices:
                groups = GroupSearch(left, most_launches, launched=groups.launched)
            self.records.note(groups)
        if not groups.choices:
            groups.reason = "no variable is left to search"
        return self._result(groups)

    # ---- variables -------------------------------------------------------------------------------------------

    def _that_this_job_reads(self, choices: Choices) -> Choices:
        backend = self.profile.backend
        names = [name for name in choices if name.startswith("NCCL_")]
        if backend == "nccl" or not names:
            return choices
        sweep = self.options.sweep
        own = sweep.search.environment if sweep else {}
        self._remark(f"this job communicates by {backend}, which has none of NCCL's settings: {', '.join(names)}.")
        return {name: values for name, values in choices.items() if name not in names or name in own}

    def _without_what_cannot_be_set(self, choices: Choices, launched: list[Launched]) -> Choices:
        """The script's own variables stay."""
        left = dict(choices)
        for one in launched:
            for name, value in one.in_force.items():
                if one.variables or name not in left or value in (self.pinned.get(name), _TORCHRUNS_OWN.get(name)):
                    continue
                who = "or its launcher" if self.job.own_launcher else "itself"
                self._remark(f"{self.job.script} {who} sets {name}={value}: it stays, and no other value is tried.")
                del left[name]
        return left

    def _remark(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)
            say(line)

    # ---- launches --------------------------------------------------------------------------------------------

    def _say_what_comes(self, groups: GroupSearch, planned: Planned) -> None:
        what = in_shell(planned.variables) or "the environment as it is"
        count, left = len(groups.launched) + 1, groups.launches_left()
        seconds = [one.seconds for one in groups.launched if one.failure is None]
        time_left = f", about {units.duration(median(seconds) * left * 1e9)} left" if seconds else ""
        say(f"launch {count} of {count + left - 1} at most, {planned.stage}: {what}{time_left}")

    def _launched(self, planned: Planned, groups: GroupSearch) -> Launched:
        began = time.monotonic()
        one = Launched(stage=planned.stage, rung=planned.rung, variables=planned.variables)
        buckets = self._buckets_of(planned.variables, groups.launched)
        try:
            with scratch_folder() as scratch:
                result = run_study(self.job, self._study(planned.variables, buckets, scratch, groups)).result
        except Interrupted:
            raise
        except WorkFailed as error:
            if not planned.variables:
                raise
            return msgspec.structs.replace(one, failure=str(error), seconds=time.monotonic() - began)
        if result is None:
            raise WorkFailed(nodes.RANK_0_MOVED)
        tuned = result.significant if buckets is None else buckets != CURRENT
        setting = result.best if tuned else result.baseline
        failure = _why_not_in_force(planned.variables, result.variables)
        if setting.step_ns is None:
            failure = failure or f"no steps could be timed: {result.reason}"
        if failure is not None and not planned.variables:
            raise WorkFailed(f"a launch in the environment as it is: {failure}.")
        return msgspec.structs.replace(
            one,
            setting=setting,
            is_tuned=tuned,
            own_step_ns=result.baseline.step_ns,
            in_force=result.variables,
            seconds=time.monotonic() - began,
            failure=failure,
        )

    def _buckets_of(self, variables: Group, launched: list[Launched]) -> Candidate | None:
        """What was found best in this environment; None where nothing has been tried in it."""
        if not variables:
            return self.before.best.candidate() if self.before.significant else CURRENT
        one = next((one for one in launched if one.variables == variables and one.failure is None), None)
        if one is None or one.setting is None:
            return None
        return one.setting.candidate() if one.is_tuned else CURRENT

    def _study(self, variables: Group, buckets: Candidate | None, scratch: Path, groups: GroupSearch) -> Study:
        options = self.options
        task = _task(options, self.before.study, scratch)
        if buckets is None:
            folder = self.folder / "environments" / _digest(variables)
            folder.mkdir(parents=True, exist_ok=True)
            task = msgspec.structs.replace(
                task,
                study=f"{self.before.study}-{_digest(variables)}",
                storage=storage_of(options, self.folder),
                folder=str(folder.resolve()),
                trials=min(_TRIALS, options.trials),
                starts=[self.before.best.candidate()] if self.before.significant else [],
            )
        elif buckets != CURRENT:
            task = msgspec.structs.replace(task, trials=1, starts=[buckets])
        patience = self._patience_seconds(groups) if variables else options.timeout_seconds
        return _study(options, task, {**self.pinned, **variables}, patience)

    def _patience_seconds(self, groups: GroupSearch) -> float:
        usual = max((one.seconds for one in groups.launched if not one.variables), default=math.inf)
        return min(self.options.timeout_seconds, max(_LEAST_PATIENCE_SECONDS, _PATIENCE * usual))

    # ---- the answer ------------------------------------------------------------------------------------------

    def _result(self, groups: GroupSearch) -> Tuning:
        leader = groups.leader()
        gains, over_today = groups.race_gains(_tuned_ns), groups.race_gains(_own_ns)
        gain, interval = gain_of(gains) if gains else (None, None)
        today, interval_of_today = gain_of(over_today) if over_today else (0.0, None)
        significant = bool(interval and interval_of_today and min(interval[0], interval_of_today[0]) > 0)
        setting = _over_the_race(groups, with_variables=True)
        environment = TunedEnvironment(
            variables=leader,
            setting=setting,
            baseline=_over_the_race(groups, with_variables=False),
            speedup=None if gain is None else speedup_of(gain),
            ci95=_speedups(interval),
            significant=significant,
            rounds=len(gains),
            finished=True,
            reason=groups.reason,
            searched={name: list(values) for name, values in self.options.choices.items()},
            launches=groups.launched,
            notes=self.notes,
        )
        if not significant or setting is None:
            return msgspec.structs.replace(self.before, environment=environment)
        as_it_is = [one for one in groups.launched if one.stage == "race" and not one.variables]
        base_ns = median(one.own_step_ns for one in as_it_is if one.own_step_ns)
        is_tuned = any(one.is_tuned for one in groups.launched if one.variables == leader)
        lines = [in_shell(leader)]
        if is_tuned:
            lines.append(how_to_apply(setting.candidate(), self._facts()))
        return msgspec.structs.replace(
            self.before,
            best=msgspec.structs.replace(setting, step_ns=round(base_ns / math.exp(today))),
            baseline=msgspec.structs.replace(self.before.baseline, step_ns=round(base_ns)),
            speedup=speedup_of(today),
            ci95=_speedups(interval_of_today),
            significant=True,
            rounds=len(over_today),
            reason=groups.reason,
            how_to_apply="\n".join(lines),
            environment=environment,
        )

    def _facts(self) -> JobFacts:
        return JobFacts.of(self.profile, takes_lists(self.profile.versions.get("torch", "")), self.before.kind)


def _tuned_ns(launched: Launched) -> int | None:
    return launched.setting.step_ns if launched.setting else None


def _own_ns(launched: Launched) -> int | None:
    return launched.own_step_ns


def _over_the_race(groups: GroupSearch, *, with_variables: bool) -> TunedSetting | None:
    """The buckets of one side of the race, with the median of its launches."""
    settings = [
        one.setting
        for one in groups.launched
        if one.stage == "race" and bool(one.variables) == with_variables and one.setting is not None
    ]
    steps = [one.step_ns for one in settings if one.step_ns is not None]
    if not steps:
        return None
    return msgspec.structs.replace(settings[0], step_ns=round(median(steps)))


def _speedups(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (speedup_of(interval[0]), speedup_of(interval[1]))


def _why_not_in_force(wanted: Mapping[str, str], seen: Mapping[str, str]) -> str | None:
    for name, value in wanted.items():
        if name not in seen:
            return f"{name} did not reach the ranks: the launcher, or the script, keeps it from them"
        if seen[name] != value:
            return f"the script itself sets {name}={seen[name]}"
    return None


def _digest(variables: Group) -> str:
    return hashlib.sha256(repr(sorted(variables.items())).encode()).hexdigest()[:8]
