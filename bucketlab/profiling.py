"""`bucketlab profile` from its options to a folder with a whole profile: reserve, launch, watch, check."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from bucketlab.errors import BadInput, Interrupted, WorkFailed
from bucketlab.launch.command import HIDDEN, Job, launch_command, without_secrets
from bucketlab.launch.diagnose import why_it_failed
from bucketlab.launch.options import LaunchOptions
from bucketlab.launch.supervise import Outcome, supervise
from bucketlab.link.detect import find_links, what_is_lacking
from bucketlab.link.sweep import Sweep, environment_on
from bucketlab.runs import PROFILE, find_run, load_card, load_profile, reserve_folder
from bucketlab.saying import say
from bucketlab.worker.config import Launch, Setting, WorkerConfig


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(LaunchOptions):
    """What a user may set; None leaves it to the run."""

    out: Path = Path("traces")
    warmup_steps: int = 5
    timed_steps: int | None = None
    traced_steps: int = 8
    compare_topologies: bool = False
    link_seconds: float = 10.0
    only_time: bool = False  # no trace, no ready times, no link
    setting: Setting | None = None  # for DDP's constructor, in place of the script's own


@dataclass(frozen=True)
class Profiled:
    """How a run ended."""

    folder: Path | None  # None where rank 0 runs elsewhere
    remark: str | None  # how the script ended, where that is worth a line


def profile(job: Job, options: ProfileOptions) -> Profiled:
    """Runs the job once and leaves a whole profile in a new folder.

    Raises:
        BadInput: nothing was started: no such script, an option that cannot be, a folder that cannot be written.
        WorkFailed: it was started and gave no profile, and its folder is gone again; or the script failed after all
            was measured, and the folder is whole.
    """
    argv = launch_command(job)
    environment = pinned(options.sweep)
    folder = reserve_folder(options.out, job.name)
    try:
        outcome = supervise(
            argv,
            lambda control: _worker_config(job, options, folder, control),
            options.timeout_seconds,
            options.output_to_stderr,
            environment,
        )
        print_stacks(outcome)
        return _judge(outcome, job, options, argv, folder)
    except BaseException:
        if not (folder / PROFILE).is_file():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def pinned(sweep: Sweep | None) -> dict[str, str]:
    """What makes NCCL take the sweep's link and no other. Raises BadInput where this host has no such link."""
    if sweep is None:
        return {}
    host = find_links()
    lacking = what_is_lacking(sweep.link.kind, host)
    if lacking:
        raise BadInput(f"sweep {sweep.name}: {lacking}. `bucketlab doctor` shows what joins ranks here.")
    return environment_on(sweep, host, os.environ)


def _worker_config(job: Job, options: ProfileOptions, folder: Path, control: Path) -> WorkerConfig:
    return WorkerConfig(
        out=str(folder.parent.resolve()),
        run=folder.name,
        control=str(control),
        launcher_pid=os.getpid(),
        script=job.script,
        command=without_secrets(job.target),
        launch=_launch_of(job),
        wanted_link=options.sweep.link.kind if options.sweep else "",
        emulate=options.emulate.link if options.emulate else None,
        keep_running=options.keep_running,
        only_time=options.only_time,
        setting=options.setting,
        warmup_steps=options.warmup_steps,
        timed_steps=options.timed_steps,
        traced_steps=options.traced_steps,
        compare_topologies=options.compare_topologies,
        link_seconds=options.link_seconds,
    )


def _launch_of(job: Job) -> Launch:
    return Launch(
        folder=str(Path.cwd()),
        own_launcher=job.own_launcher,
        options=dict(job.options),
        flags=list(job.flags),
        words=without_secrets(job.words),
    )


def last_profiled(runs: Path) -> Job:
    """What the newest run launched, to be launched again.

    Raises:
        BadInput: there is no run, or its command cannot be given again here.
    """
    card = load_card(find_run(None, runs))
    how = card.launch
    if any(HIDDEN in word for word in card.command):
        raise BadInput(
            f"the command of run {card.run} had a secret, which is not stored. Name the script and its options."
        )
    if how.folder and how.folder != str(Path.cwd()):
        raise BadInput(f"run {card.run} was launched in {how.folder}. Go there, or name the script.")
    return Job(tuple(card.command), how.own_launcher, tuple(how.options.items()), tuple(how.flags))


def _judge(outcome: Outcome, job: Job, options: ProfileOptions, argv: list[str], folder: Path) -> Profiled:
    ended_well = outcome.exit_code == 0 and not outcome.interrupted and not outcome.stalled
    if ended_well and outcome.rank_0_is_elsewhere() and not (folder / PROFILE).is_file():
        with contextlib.suppress(OSError):
            folder.rmdir()
        return Profiled(None, remark="rank 0 runs on another node or under another command: the report is there.")
    if outcome.interrupted:
        kept = f" What was measured before that is in {folder}." if (folder / PROFILE).is_file() else ""
        raise Interrupted(f"{why_it_failed(outcome, job, argv, options.timeout_seconds)}{kept}")
    if not (folder / PROFILE).is_file():
        raise WorkFailed(why_it_failed(outcome, job, argv, options.timeout_seconds))
    if not options.only_time:
        _write_page(folder)
    if ended_well:
        return Profiled(folder=folder, remark=None)
    if outcome.stopped:
        return Profiled(folder=folder, remark="all was measured; processes that train nothing were then stopped.")
    if outcome.stalled or not _all_came_to_their_end(outcome):
        why = why_it_failed(outcome, job, argv, options.timeout_seconds)
        raise WorkFailed(f"{why} What was measured before that is in {folder}.")
    # For example gloo's threads, which now and then abort a process that has nothing left to do.
    remark = f"all was measured; afterwards {job.script} ended with exit code {outcome.exit_code}."
    return Profiled(folder=folder, remark=remark)


def _write_page(folder: Path) -> None:
    """The page only shows what the profile holds: where it cannot be written, nothing is lost."""
    from bucketlab.report.html import write_report  # rich, numpy and the predictions: not before the script has ended
    from bucketlab.reporting import newest_study, results_near
    from bucketlab.tensorboard.scalars import write_scalars

    try:
        profile = load_profile(folder)
        write_report(profile, folder, *newest_study(profile, results_near(folder.parent)))
        write_scalars(profile, folder)
    except OSError as error:
        what = f"report.html or TensorBoard's scalars were not written to {folder}: {error.strerror}"
        say(f"{what}. The profile is whole; `bucketlab report` makes the page.")


def _all_came_to_their_end(outcome: Outcome) -> bool:
    """Whether each training rank of this host got to the end of its script, so that only its exit went wrong.

    Another process may well fail when the ranks that train have been ended: it talks with them.
    """
    ended = {one.pid for one in outcome.endings if one.error is None and one.failure is None}
    ranks = {one.pid for one in outcome.progress if one.rank >= 0}
    stopped_ns = min((one.time_ns for one in outcome.endings if one.stopped_by_us), default=None)
    failed = [one for one in outcome.endings if one.failure or (one.error and one.ddp_modules)]
    failed += [one for one in outcome.endings if one.error and (stopped_ns is None or one.time_ns < stopped_ns)]
    return ranks <= ended and not failed


def print_stacks(outcome: Outcome) -> None:
    for rank, stack in sorted(outcome.stacks.items()):
        print(f"--- rank {rank} ---\n{stack}", file=sys.stderr)
