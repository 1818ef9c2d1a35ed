"""`bucketlab tune --relaunch`: the same study where buckets cannot be changed in place; each block is a launch.

The setting goes into DDP's constructor, the study runs in this process. Slow, since every block pays a start of the
job, and less exact, since the blocks that are compared lie further apart in time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bucketlab.errors import Interrupted, WorkFailed
from bucketlab.launch.command import Job, without_secrets
from bucketlab.launch.scratch import scratch_folder
from bucketlab.predict.assignment import takes_lists
from bucketlab.profiling import ProfileOptions, profile
from bucketlab.report.tuning import progress_line
from bucketlab.runs import load_profile, write_json
from bucketlab.saying import say
from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import CURRENT, Tuning
from bucketlab.tune import Block, JobFacts, Tuner
from bucketlab.tune.files import RESULT
from bucketlab.tune.records import shown_url
from bucketlab.worker.config import Setting, TuneTask

# A launch costs so much more than its steps that a few more of them are cheap.
_FEWEST_STEPS = 20


@dataclass(frozen=True)
class _Launches:
    """Runs the job once for each block."""

    job: Job
    options: ProfileOptions
    study: str

    def profiled(self) -> Profile | None:
        """The job as it is, measured in all that prediction needs; None on a node that rank 0 does not run on."""
        folder = profile(self.job, self.options).folder
        return None if folder is None else load_profile(folder)

    def trained(self, block: Block) -> tuple[list[int], list[int], str | None]:
        """Step times, bucket sizes and failure of one block."""
        setting = None if block.candidate == CURRENT else Setting(candidate=block.candidate, study=self.study)
        steps = max(_FEWEST_STEPS, block.steps)
        options = replace(self.options, setting=setting, only_time=True, timed_steps=steps)
        try:
            folder = profile(self.job, options).folder
        except Interrupted:
            raise
        except WorkFailed as error:
            return [], [], str(error)
        assert folder is not None
        found = load_profile(folder)
        step_ns = found.step.samples if found.step else []
        return step_ns, [size for module in found.modules for size in module.bucket_bytes], None


def tune_by_launches(job: Job, task: TuneTask, options: ProfileOptions) -> Tuning | None:
    """One study, its steps measured in launches of the job; None on a node that rank 0 does not run on.

    Args:
        job: what to launch.
        task: the study.
        options: of every launch.

    Raises:
        BadInput: nothing was started, or the storage is of another job.
        WorkFailed: the job does not run as it is.
    """
    with scratch_folder() as scratch:
        launches = _Launches(job, replace(options, out=scratch), task.study)
        first = launches.profiled()
        if first is None:
            return None
        tuner = Tuner(
            JobFacts.of(first, takes_lists(first.versions.get("torch", "")), first.kind),
            task.search,
            task.storage,
            task.study,
            task.trials,
            task.steps,
            settle_steps=0,
        )
        try:
            while (block := tuner.next_block()) is not None:
                say(progress_line(tuner.progress()))
                tuner.tell(block, *launches.trained(block))
        finally:
            result = _written(tuner.result(), job, task)
            tuner.close()
    return result


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
