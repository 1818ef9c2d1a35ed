"""`bucketlab tune` and `run` from their options to a result: launch, watch, launch again while the study is not over.

The study itself runs in rank 0 of the launched job (`worker/tune_session.py`) and is kept in its storage, so a launch
that ends early costs the trial that it was in, and the next one goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bucketlab.errors import BadInput, WorkFailed
from bucketlab.launch.command import Job, launch_command, without_secrets
from bucketlab.launch.diagnose import why_it_failed
from bucketlab.launch.supervise import Outcome, supervise
from bucketlab.link.sweep import Search, Sweep
from bucketlab.profiling import ProfileOptions, pinned, print_stacks
from bucketlab.relaunching import tune_by_launches
from bucketlab.schema.tuning import CURRENT, Tuning
from bucketlab.tensorboard.scalars import write_trials
from bucketlab.tune.files import DATABASE, RESULT, LiveStudy, find_result, load_result, read_live, study_name
from bucketlab.tune.records import blame, check_storage, shown_url
from bucketlab.worker.config import Setting, TuneTask, WorkerConfig
from bucketlab.worker.progress import PHASES

# Launches in a row that ended before they measured a single block.
_MOST_IN_VAIN = 2
_MOST_CRASHES = 8
_WARMUP_STEPS = 5
_LATER_AFTER_A_CRASH = 7
_FOREVER_SECONDS = 10 * 365 * 24 * 3600.0


@dataclass(frozen=True)
class TuneOptions:
    """What a user may set; None leaves it to the study."""

    out: Path = Path("sweeps")
    study: str | None = None
    storage: str | None = None
    trials: int = 40
    steps: int | None = None
    sweep: Sweep | None = None
    emulate: Sweep | None = None
    predict: bool = True
    timeout_seconds: float = 1800.0
    keep_running: bool = False
    relaunch: bool = False  # each block in a launch of its own, its setting given to DDP's constructor
    output_to_stderr: bool = False


@dataclass(frozen=True)
class Tuned:
    folder: Path | None  # None on a node that rank 0 does not run on
    result: Tuning | None
    remarks: list[str]  # worth a line each on stderr


def tune(job: Job, options: TuneOptions) -> Tuned:
    """Runs one study to its end, in one launch of the job where the job lasts that long.

    Raises:
        BadInput: nothing was started: no such script or storage, a sweep's link that is not here.
        WorkFailed: the study could not be finished; what it has measured is kept, and the same command goes on.
    """
    argv = launch_command(job)
    further_environment = pinned(options.sweep)
    folder, study, storage = _place(job, options)
    try:
        check_storage(storage, study)
    except BadInput:
        with contextlib.suppress(OSError):  # there may be a study in it
            folder.rmdir()
        raise
    if options.relaunch:
        task = _task(options, folder, study, storage)
        result = tune_by_launches(
            job,
            task,
            ProfileOptions(
                sweep=options.sweep,
                emulate=options.emulate,
                timeout_seconds=options.timeout_seconds,
                output_to_stderr=options.output_to_stderr,
            ),
        )
        if result is None:
            return Tuned(None, None, ["rank 0 runs on another node: the result is there."])
        write_trials(result, folder)
        return Tuned(folder, result, [])
    remarks = _not_searched(options.sweep)
    places: set[tuple[int, str] | None] = set()
    in_vain = crashes = 0
    while True:
        lives: list[LiveStudy] = []
        outcome = supervise(
            argv,
            lambda control: _worker_config(job, options, folder, study, storage, control, crashes),  # noqa: B023
            options.timeout_seconds,
            options.output_to_stderr,
            further_environment,
            on_end=lambda control: _note_live(control, lives),  # noqa: B023  # called before the loop goes round
        )
        print_stacks(outcome)
        if any(one.study_over for one in outcome.endings):
            return _judge(outcome, job, argv, options, folder, remarks)
        why = _why_not_over(outcome, job, argv, options)
        if outcome.interrupted:
            raise WorkFailed(f"{why} {_goes_on(study, storage)}")
        nothing_to_tune = not outcome.exit_code and not any(one.ddp_modules for one in outcome.endings)
        if nothing_to_tune or any(one.failure for one in outcome.endings):
            raise WorkFailed(why)  # another launch would meet it again
        live = lives[0] if lives else None
        if options.keep_running and not outcome.exit_code and (folder / RESULT).is_file():
            return Tuned(folder, load_result(folder), [f"{why} It has trained to its own end."])
        crashed = bool(outcome.exit_code) or outcome.stalled
        place = _place_of_crash(outcome)
        if crashed and place is not None and place in places:
            raise WorkFailed(
                f"{why} It did so in two launches at the same step, whatever the buckets: the script is to blame."
            )
        places.add(place)
        if crashed and live is not None and live.in_force is not None:
            blame(storage, study, live.in_force, why)
        if options.keep_running:  # nobody but the user begins a training anew
            raise WorkFailed(f"{why} {_goes_on(study, storage)}")
        crashes += crashed
        measured_something = any(PHASES[one.phase] == "tuning" and one.done for one in outcome.progress)
        in_vain = 0 if measured_something or (live and live.in_force is not None) else in_vain + 1
        if in_vain >= _MOST_IN_VAIN or crashes > _MOST_CRASHES or (crashed and not measured_something and live is None):
            raise WorkFailed(f"{why} {_goes_on(study, storage) if live else ''}".strip())
        _say(f"launched again: {why if crashed else 'the script ended before the study did.'}")


def _place(job: Job, options: TuneOptions) -> tuple[Path, str, str]:
    """Folder, name and storage of the study. One that is finished is left alone: another number is taken."""
    link = options.emulate or options.sweep
    words = [*job.target, *(f"--{name}={value}" for name, value in job.options), *job.flags]
    name = options.study or study_name(job.name, words, link.name if link else "")
    folder = options.out / name
    if options.study is None:
        number = 2
        while _is_finished(folder):
            _say(f"study {folder.name} is finished, its result is in {folder}; this one is {name}-{number}.")
            folder = options.out / f"{name}-{number}"
            number += 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write to {folder}: {error.strerror}. Choose another folder with --out.") from error
    storage = options.storage or f"sqlite:///{(folder / DATABASE).resolve()}"
    return folder, folder.name, storage


def _is_finished(folder: Path) -> bool:
    try:
        return load_result(folder).finished
    except BadInput:
        return False


def _worker_config(
    job: Job, options: TuneOptions, folder: Path, study: str, storage: str, control: Path, crashes: int
) -> WorkerConfig:
    return WorkerConfig(
        out=str(folder.parent.resolve()),
        run=folder.name,
        control=str(control),
        launcher_pid=os.getpid(),
        script=job.script,
        command=without_secrets(job.target),
        task="tune",
        tune=_task(options, folder, study, storage),
        wanted_link=options.sweep.link.kind if options.sweep else "",
        emulate=options.emulate.link if options.emulate else None,
        keep_running=options.keep_running,
        # What a setting does then happens at another step than before, and what the script does at the same.
        warmup_steps=_WARMUP_STEPS + _LATER_AFTER_A_CRASH * crashes,
    )


def _task(options: TuneOptions, folder: Path, study: str, storage: str) -> TuneTask:
    link = options.emulate or options.sweep
    return TuneTask(
        study=study,
        storage=storage,
        folder=str(folder.resolve()),
        trials=options.trials,
        steps=options.steps,
        search=link.search if link else Search(),
        predict=options.predict,
    )


def _place_of_crash(outcome: Outcome) -> tuple[int, str] | None:
    """Step and kind of what went wrong first: a study tries something else at each step of each launch."""
    first = next((one for one in outcome.endings if one.error), None)
    if first is not None and first.error is not None:
        return first.steps, first.error.split(":")[0]
    steps = min((one.steps for one in outcome.progress if one.rank >= 0), default=0)
    if outcome.stalled:
        return steps, "no step"
    codes = [one.exit_code for one in outcome.exits]
    return (steps, f"exit code {codes[0]}") if codes else None


def _say(line: str) -> None:
    print(f"bucketlab: {line}", file=sys.stderr)


def _not_searched(sweep: Sweep | None) -> list[str]:
    if sweep is None or not sweep.search.nccl:
        return []
    names = ", ".join(sweep.search.nccl)
    return [f"{names} of sweep {sweep.name} need a launch for each value, and are not searched: tune once with each."]


def _note_live(control: Path, lives: list[LiveStudy]) -> None:
    live = read_live(control)
    if live is not None:
        lives.append(live)


def _why_not_over(outcome: Outcome, job: Job, argv: list[str], options: TuneOptions) -> str:
    if not outcome.exit_code and not outcome.interrupted and not outcome.stalled:
        failure = next((one.failure for one in outcome.endings if one.failure), None)
        most = max((one.steps for one in outcome.endings), default=0)
        if failure is None and most:
            return f"{job.script} ended after {most} steps, before the study was over."
    return why_it_failed(outcome, job, argv, options.timeout_seconds)


def _judge(
    outcome: Outcome,
    job: Job,
    argv: list[str],
    options: TuneOptions,
    folder: Path,
    remarks: list[str],
) -> Tuned:
    failure = next((one.failure for one in outcome.endings if one.failure), None)
    if failure:
        raise WorkFailed(failure)
    ranks_here = [one.rank for one in outcome.endings if one.ddp_modules and one.steps]
    if 0 not in ranks_here:
        return Tuned(None, None, [*remarks, "rank 0 runs on another node: the result is there."])
    result = load_result(folder)
    write_trials(result, folder)
    if outcome.exit_code and options.keep_running:
        raise WorkFailed(f"{why_it_failed(outcome, job, argv, options.timeout_seconds)} The study is in {folder}.")
    return Tuned(folder, result, remarks)


def _goes_on(study: str, storage: str) -> str:
    return f"What study {study} has measured is kept in {shown_url(storage)}; the same command goes on."


# ---- run --------------------------------------------------------------------------------------------------------


def run_with(job: Job, study: str | None, out: Path, output_to_stderr: bool = False) -> None:
    """Trains a job from its beginning with the setting that a study found.

    Raises:
        BadInput: there is no such study.
        WorkFailed: the job failed.
    """
    argv = launch_command(job)
    folder = find_result(study, out) if study is not None else _result_for(job, out)
    result = load_result(folder)
    setting = Setting(
        candidate=result.best.candidate() if result.significant else CURRENT,
        study=result.study,
        job=result.job,
        interconnect=result.interconnect if result.kind == "measured" else "",
        bucket_bytes=(result.best if result.significant else result.baseline).bucket_bytes,
    )
    outcome = supervise(
        argv,
        lambda control: WorkerConfig(
            out=str(out.resolve()),
            run=folder.name,
            control=str(control),
            launcher_pid=os.getpid(),
            script=job.script,
            command=without_secrets(job.target),
            task="apply",
            setting=setting,
            keep_running=True,
        ),
        _FOREVER_SECONDS,
        output_to_stderr,
        {},
        plain=True,
    )
    if outcome.interrupted or outcome.exit_code:
        raise WorkFailed(why_it_failed(outcome, job, argv, _FOREVER_SECONDS))


def _result_for(job: Job, out: Path) -> Path:
    """The newest result of a study of this script."""
    found = []
    for path in out.glob("*/result.json"):
        try:
            if load_result(path.parent).script == job.script:
                found.append(path)
        except BadInput:
            continue
    if not found:
        raise BadInput(f"no study in {out} has tuned {job.script}. Tune it first: bucketlab tune {job.script}")
    return max(found, key=lambda one: one.stat().st_mtime).parent
