"""`bucketlab tune` from its options to a result: launch, watch, launch again while the study is not over.

The study itself runs in rank 0 of the launched job (`worker/tune_session.py`) and is kept in its storage, so a launch
that ends early costs the trial that it was in, and the next one goes on.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bucketlab.documents import remove_unfinished
from bucketlab.errors import BadInput, Interrupted, WorkFailed
from bucketlab.launch.command import Job, launch_command, without_secrets
from bucketlab.launch.diagnose import (
    launcher_was_killed,
    lost_a_peer,
    own_failure,
    script_error,
    silent_exits,
    why_it_failed,
)
from bucketlab.launch.nodes import count_of
from bucketlab.launch.options import LaunchOptions
from bucketlab.launch.supervise import Outcome, supervise
from bucketlab.link.sweep import Search
from bucketlab.predict.assignment import takes_lists
from bucketlab.profiling import ProfileOptions, pinned, print_stacks
from bucketlab.relaunching import tune_by_launches
from bucketlab.runs import PROFILE, load_card, load_profile, newest_runs
from bucketlab.saying import say
from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import Tuning
from bucketlab.tensorboard.scalars import write_trials
from bucketlab.tune.files import DATABASE, RESULT, LiveStudy, load_result, read_live, study_name
from bucketlab.tune.groups import Choices
from bucketlab.tune.records import blame, check_storage, shown_url
from bucketlab.tune.space import JobFacts, Space
from bucketlab.worker.config import TuneTask, WorkerConfig
from bucketlab.worker.progress import PHASES

# Launches in a row that ended before they measured a single block.
_MOST_IN_VAIN = 2
_MOST_CRASHES = 8
_WARMUP_STEPS = 5
_LATER_AFTER_A_CRASH = 7
_FEW = 3  # layouts, from which on there is something to choose
_ELSEWHERE = "rank 0 runs on another node or under another command: the result is there."


@dataclass(frozen=True, kw_only=True)
class TuneOptions(LaunchOptions):
    """What a user may set; None leaves it to the study."""

    out: Path = Path("sweeps")
    study: str | None = None
    storage: str | None = None
    trials: int = 40
    rounds: int | None = None  # of the final race, at most; None: see `Tuner`
    steps: int | None = None
    predict: bool = True
    choices: Choices = field(default_factory=dict)  # environment variables to search too: see `environments`
    relaunch: bool = False  # each block in a launch of its own, its setting given to DDP's constructor


@dataclass(frozen=True)
class Tuned:
    """How a study ended."""

    folder: Path | None  # None where rank 0 runs elsewhere
    result: Tuning | None
    remarks: list[str]  # worth a line each on stderr


def tune(job: Job, options: TuneOptions) -> Tuned:
    """Runs one study to its end, in one launch of the job where the job lasts that long.

    Raises:
        BadInput: nothing was started: no such script or storage, a sweep's link that is not here.
        WorkFailed: the study could not be finished; what it has measured is kept, and the same command goes on.
    """
    launch_command(job)  # to fail before anything is written
    environment = pinned(options.sweep)
    folder, study, storage = _place(job, options)
    try:
        if job.may_hold_rank_0:  # hundreds of nodes need not all open one file on a shared disk
            check_storage(storage, study)
    except BadInput:
        _remove_if_empty(folder)
        raise
    task = _task(options, folder, study, storage)
    if options.choices and _is_finished(folder) and count_of(job) == 1:
        return Tuned(folder, load_result(folder), [])
    if options.relaunch:
        done = _tune_by_launches(job, task, options, folder)
    else:
        done = run_study(job, Study(task, options, environment))
    if done.result is not None:
        _write_scalars(done.result, folder)
    if done.folder is None:
        _remove_if_empty(folder)  # on a shared disk it is that of rank 0
    return done


def _tune_by_launches(job: Job, task: TuneTask, options: TuneOptions, folder: Path) -> Tuned:
    launch = ProfileOptions(
        sweep=options.sweep,
        emulate=options.emulate,
        timeout_seconds=options.timeout_seconds,
        output_to_stderr=options.output_to_stderr,
    )
    try:
        result = tune_by_launches(job, task, launch)
    except WorkFailed:
        _remove_if_empty(folder)  # where rank 0 runs elsewhere
        raise
    return Tuned(None, None, [_ELSEWHERE]) if result is None else Tuned(folder, result, [])


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _write_scalars(result: Tuning, folder: Path) -> None:
    """They only show what the result holds: where they cannot be written, nothing is lost."""
    try:
        write_trials(result, folder)
    except OSError as error:
        say(f"TensorBoard's scalars of the trials were not written to {folder}: {error.strerror}. The result is whole.")


def what_profiles_tell(job: Job, runs: Path, search: Search) -> str | None:
    """Of a study that has little to choose from, before it is launched; None where no profile says so."""
    profile = _profiled_before(job, runs)
    if profile is None:
        return None
    count = Space(JobFacts.of(profile, takes_lists(profile.versions.get("torch", ""))), search).count_others()
    if count >= _FEW:
        return None
    ways = "no other way" if not count else f"{count} other way{'s' if count > 1 else ''}"
    return f"run {profile.run} of this script: {ways} to form buckets of its gradients, so there is little to tune."


def _profiled_before(job: Job, runs: Path) -> Profile | None:
    """The newest of the same command."""
    words = without_secrets(job.target)
    for folder in newest_runs(runs):
        with contextlib.suppress(BadInput):
            if load_card(folder).command == words:
                return load_profile(folder)
    return None


@dataclass(frozen=True)
class Study:
    """What is measured in a job's launches, and how often one that fails is launched again."""

    task: TuneTask
    options: LaunchOptions
    environment: Mapping[str, str]  # of the job, beside this process's
    most_crashes: int = _MOST_CRASHES

    @property
    def folder(self) -> Path:
        return Path(self.task.folder)


def run_study(job: Job, study: Study) -> Tuned:
    """Runs one study to its end, in one launch of the job where the job lasts that long.

    Raises:
        BadInput: nothing was started: no such script.
        WorkFailed: the study could not be finished; what it has measured is kept, and the same call goes on.
    """
    argv = launch_command(job)
    places: set[tuple[int, str] | None] = set()
    in_vain = crashes = 0
    while True:
        lives: list[LiveStudy] = []
        outcome = supervise(
            argv,
            lambda control: _worker_config(job, study, control, crashes),  # noqa: B023
            study.options.timeout_seconds,
            study.options.output_to_stderr,
            study.environment,
            on_end=lambda control: _note_live(control, lives),  # noqa: B023  # called before the loop goes round
        )
        print_stacks(outcome)
        for name in (RESULT, PROFILE):
            remove_unfinished(study.folder / name, [one.pid for one in outcome.progress])
        if _is_over(outcome):
            return _judge(outcome, job, argv, study)
        why = _why_not_over(outcome, job, argv, study)
        if outcome.interrupted:
            raise Interrupted(f"{why}{_goes_on(study.task)}")
        if study.options.keep_running and _ended_well(outcome):
            return _only_trained(study, why)
        trained = any(one.ddp_modules for one in outcome.endings) or any(one.steps for one in outcome.progress)
        if (not outcome.exit_code and not trained) or own_failure(outcome):
            raise WorkFailed(why)  # another launch would meet it again
        live = lives[0] if lives else None
        lost_a_rank = any(one.failure for one in outcome.endings)  # which may end well all the same: we end it
        crashed = bool(outcome.exit_code) or outcome.stalled or lost_a_rank
        place = _place_of_crash(outcome)
        if crashed and place is not None and place in places:
            raise WorkFailed(
                f"{why} It did so in two launches at the same step, whatever the buckets: the script is to blame."
            )
        places.add(place)
        if crashed and _in_a_block(outcome) and live is not None and live.in_force is not None:
            _blame(study.task, live.in_force, why)
        if study.options.keep_running:  # nobody but the user begins a training anew
            raise WorkFailed(f"{why}{_goes_on(study.task)}")
        crashes += crashed
        measured_something = any(PHASES[one.phase] == "tuning" and one.done for one in outcome.progress)
        in_vain = 0 if measured_something or (live and live.in_force is not None) else in_vain + 1
        hopeless = crashed and not measured_something and live is None
        if in_vain >= _MOST_IN_VAIN or crashes > study.most_crashes or hopeless:
            raise WorkFailed(f"{why}{_goes_on(study.task) if live else ''}")
        say(f"launched again: {why if crashed else 'the script ended before the study did.'}")


def _place(job: Job, options: TuneOptions) -> tuple[Path, str, str]:
    """Folder, name and storage of the study. One that is finished is left alone: another number is taken."""
    link = options.emulate or options.sweep
    name = options.study or study_name(job.name, job.identity, link.name if link else "")
    if name in (".", "..") or re.search(r"[/\\\0]", name):  # one that a sweep's name is part of may come from anywhere
        raise BadInput(f"--study {name}: must be a name. The folder of studies is chosen with --out.")
    folder = options.out / name
    if options.study is None:
        number = 2
        while _is_finished(folder, options.choices):
            say(f"study {folder.name} is finished, its result is in {folder}; this one is {name}-{number}.")
            folder = options.out / f"{name}-{number}"
            number += 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write to {folder}: {error.strerror}. Choose another folder with --out.") from error
    return folder, folder.name, storage_of(options, folder)


def storage_of(options: TuneOptions, folder: Path) -> str:
    return options.storage or f"sqlite:///{(folder / DATABASE).resolve()}"


def _is_finished(folder: Path, choices: Choices | None = None) -> bool:
    """Whether buckets are tuned, and where variables of the environment are searched too, these as well."""
    try:
        result = load_result(folder)
    except BadInput:
        return False
    return result.finished and (not choices or (result.environment is not None and result.environment.finished))


def _worker_config(job: Job, study: Study, control: Path, crashes: int) -> WorkerConfig:
    options = study.options
    return WorkerConfig(
        out=str(study.folder.parent),
        run=study.folder.name,
        control=str(control),
        launcher_pid=os.getpid(),
        script=job.script,
        command=without_secrets(job.target),
        task="tune",
        tune=study.task,
        wanted_link=options.sweep.link.kind if options.sweep else "",
        emulate=options.emulate.link if options.emulate else None,
        keep_running=options.keep_running,
        # What a setting does then happens at another step than before, and what the script does at the same.
        warmup_steps=_WARMUP_STEPS + _LATER_AFTER_A_CRASH * crashes,
    )


def search_of(options: TuneOptions) -> Search:
    link = options.emulate or options.sweep
    return link.search if link else Search()


def _task(options: TuneOptions, folder: Path, study: str, storage: str) -> TuneTask:
    return TuneTask(
        study=study,
        storage=storage,
        folder=str(folder.resolve()),
        trials=options.trials,
        rounds=options.rounds,
        steps=options.steps,
        search=search_of(options),
        predict=options.predict,
    )


def _is_over(outcome: Outcome) -> bool:
    """Whether the study came to its end; where rank 0 is here, the others' word is not enough: it writes the result."""
    over = [one.rank for one in outcome.endings if one.study_over and not lost_a_peer(one)]
    return bool(over) and (0 in over or outcome.rank_0_is_elsewhere())


def _in_a_block(outcome: Outcome) -> bool:
    """Whether the setting in force may have brought the end: it was in force, and it was a rank that ended."""
    tuning = any(PHASES[one.phase] == "tuning" for one in outcome.progress)
    return tuning and not any(one.study_over for one in outcome.endings) and not launcher_was_killed(outcome)


def _blame(task: TuneTask, number: int, why: str) -> None:
    try:
        blame(task.storage, task.study, number, why)
    except BadInput as error:  # the next launch could not go on with this study
        raise WorkFailed(f"{why} It could not be noted with its trial: {error}") from None


def _place_of_crash(outcome: Outcome) -> tuple[int, str] | None:
    """Step and kind of what went wrong first: a study tries something else at each step of each launch."""
    if launcher_was_killed(outcome):
        return None
    first = script_error(outcome)
    if first is not None and first.error is not None:
        return first.steps, first.error.split(":")[0]
    steps = min((one.steps for one in outcome.progress if one.rank >= 0), default=0)
    if outcome.stalled:
        return steps, "no step"
    codes = [one.exit_code for one in silent_exits(outcome)]
    if codes:
        return steps, f"exit code {codes[0]}"
    lost_a_rank = any(one.error or one.failure for one in outcome.endings)
    return (steps, "a rank was gone") if lost_a_rank else None


def _note_live(control: Path, lives: list[LiveStudy]) -> None:
    live = read_live(control)
    if live is not None:
        lives.append(live)


def _why_not_over(outcome: Outcome, job: Job, argv: list[str], study: Study) -> str:
    if not outcome.exit_code and not outcome.interrupted and not outcome.stalled:
        failure = next((one.failure for one in outcome.endings if one.failure), None)
        most = max([one.steps for one in outcome.endings] + [one.steps for one in outcome.progress], default=0)
        if failure is None and most:
            return f"{job.script} ended after {most} steps, before the study was over."
    return why_it_failed(outcome, job, argv, study.options.timeout_seconds)


def _judge(outcome: Outcome, job: Job, argv: list[str], study: Study) -> Tuned:
    failure = next((one.failure for one in outcome.endings if one.failure), None)
    if failure and study.options.keep_running and _ended_well(outcome):
        return _only_trained(study, failure)
    if failure:
        raise WorkFailed(failure)
    if outcome.rank_0_is_elsewhere():
        return Tuned(None, None, [_ELSEWHERE])
    if outcome.exit_code and study.options.keep_running:
        why = why_it_failed(outcome, job, argv, study.options.timeout_seconds)
        raise WorkFailed(f"{why} The study is in {study.folder}.")
    return Tuned(study.folder, load_result(study.folder), [])


def _ended_well(outcome: Outcome) -> bool:
    """Whether the script did: one that was started to train has not failed, whatever became of the study."""
    return not outcome.exit_code and not outcome.interrupted and not outcome.stalled


def _only_trained(study: Study, why: str) -> Tuned:
    """A training to its own end, with what of the study there is."""
    remarks = [f"{why} The script ran to its own end."]
    if not (study.folder / RESULT).is_file():
        return Tuned(None, None, remarks)
    return Tuned(study.folder, load_result(study.folder), remarks)


def _goes_on(task: TuneTask) -> str:
    return f" What study {task.study} has measured is kept in {shown_url(task.storage)}; the same command goes on."
