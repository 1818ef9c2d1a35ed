"""`bucketlab tune --relaunch`: the same study where buckets cannot be changed in place; each block is a launch.

The setting goes into DDP's constructor, the study runs in this process. Slow, since every block pays a start of the
job, and less exact, since the blocks that are compared lie further apart in time. Where a job has several commands,
they agree on each launch, as where environment variables are searched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import msgspec

from bucketlab.documents import write_json
from bucketlab.errors import Interrupted, WorkFailed
from bucketlab.launch import nodes
from bucketlab.launch.command import Job, without_secrets
from bucketlab.launch.scratch import scratch_folder
from bucketlab.predict.assignment import takes_lists
from bucketlab.profiling import ProfileOptions, profile
from bucketlab.runs import PROFILE, load_profile
from bucketlab.saying import say
from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import CURRENT, Candidate, Tuning
from bucketlab.tune import Block, JobFacts, Progress, Tuner
from bucketlab.tune.files import RESULT
from bucketlab.tune.records import shown_url
from bucketlab.tune.tuner import MOST_ROUNDS
from bucketlab.tune.words import progress_line
from bucketlab.worker.config import Setting, TuneTask

# A launch costs so much more than its steps that a few more of them are cheap.
_FEWEST_STEPS = 20


@dataclass
class _Launches:
    """Runs the job once for each block."""

    job: Job
    options: ProfileOptions
    study: str
    seconds: list[float] = field(default_factory=list)  # that each block took

    def profiled(self) -> Profile | None:
        """The job as it is, measured in all that prediction needs; None where rank 0 runs elsewhere."""
        folder = profile(self.job, self.options).folder
        return None if folder is None else load_profile(folder)

    def trained(self, block: Block) -> tuple[list[int], list[int], str | None]:
        """Step times, bucket sizes and failure of one block."""
        began = time.monotonic()
        try:
            folder = self.launched(block.candidate, block.steps)
        except Interrupted:
            raise
        except WorkFailed as error:
            return [], [], str(error)
        finally:
            self.seconds.append(time.monotonic() - began)
        if folder is None:
            raise WorkFailed(nodes.RANK_0_MOVED)
        found = load_profile(folder)
        step_ns = found.step.samples if found.step else []
        return step_ns, [size for module in found.modules for size in module.bucket_bytes], None

    def launched(self, candidate: Candidate, steps: int) -> Path | None:
        """The folder of a launch's profile; None where rank 0 runs elsewhere."""
        setting = None if candidate == CURRENT else Setting(candidate=candidate, study=self.study)
        options = replace(self.options, setting=setting, only_time=True, timed_steps=max(_FEWEST_STEPS, steps))
        return profile(self.job, options).folder

    def follow(self, meeting: nodes.Nodes) -> None:
        """The launches of the command that has rank 0, in another of the job's commands."""
        for word in meeting.heard():
            block = msgspec.json.decode(word["block"], type=_Word)
            try:
                self.launched(block.candidate, block.steps)
            except Interrupted:
                raise
            except WorkFailed as error:
                say(f"that launch failed: {error}")


class _Word(msgspec.Struct, kw_only=True):
    """What a job's commands need to know of a launch."""

    candidate: Candidate
    steps: int


def tune_by_launches(job: Job, task: TuneTask, options: ProfileOptions) -> Tuning | None:
    """One study, its steps measured in launches of the job; None where rank 0 runs elsewhere.

    Args:
        job: what to launch.
        task: the study.
        options: of every launch.

    Raises:
        BadInput: nothing was started, or the storage is of another job.
        WorkFailed: the job does not run as it is.
    """
    nodes.check(job)
    with scratch_folder() as scratch:
        launches = _Launches(job, replace(options, out=scratch), task.study)
        first = launches.profiled()
        if nodes.count_of(job) == 1:
            return None if first is None else _led(launches, task, first, lambda block: None)
        with nodes.meeting(job, options.timeout_seconds) as meeting:
            if first is None:
                launches.follow(meeting)
                return None
            try:
                return _led(launches, task, first, lambda block: meeting.tell({"block": _word(block)}))
            finally:
                meeting.tell_end()


def _word(block: Block) -> str:
    return msgspec.json.encode(_Word(candidate=block.candidate, steps=block.steps)).decode()


def _led(launches: _Launches, task: TuneTask, first: Profile, tell: Callable[[Block], None]) -> Tuning:
    """In the command that has rank 0.

    Args:
        launches: of the job.
        task: the study.
        first: the job as it is.
        tell: the job's other commands, of each launch before it.
    """
    write_json(Path(task.folder) / PROFILE, first)
    tuner = Tuner(
        JobFacts.of(first, takes_lists(first.versions.get("torch", "")), first.kind),
        task.search,
        task.storage,
        task.study,
        task.trials,
        task.steps,
        most_rounds=task.rounds or MOST_ROUNDS,  # a launch each: their steps' own time is the least of it
        settle_steps=0,
    )
    try:
        while (block := tuner.next_block()) is not None:
            say(progress_line(_with_launches(tuner.progress(), block, launches.seconds)))
            tell(block)
            tuner.tell(block, *launches.trained(block))
    finally:
        result = _written(tuner.result(), launches.job, task)
        tuner.close()
    return result


def _with_launches(progress: Progress, block: Block, seconds: Sequence[float]) -> Progress:
    """What the steps to come take is their launches."""
    if progress.steps_left is None or not seconds:
        return replace(progress, seconds_left=None)
    return replace(progress, seconds_left=progress.steps_left / block.steps * median(seconds))


def _written(result: Tuning, job: Job, task: TuneTask) -> Tuning:
    result = msgspec.structs.replace(
        result,
        script=job.script,
        command=without_secrets(job.target),
        storage=shown_url(task.storage),
        notes=[*result.notes, "each block was a launch of its own: its setting was given to DDP's constructor"],
    )
    write_json(Path(task.folder) / RESULT, result)
    return result
