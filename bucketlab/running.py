"""`bucketlab run` from its options to a trained job: what a study found goes into DDP's constructor. Tunes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from bucketlab.errors import BadInput, WorkFailed
from bucketlab.launch.command import Job, launch_command, without_secrets
from bucketlab.launch.diagnose import why_it_failed
from bucketlab.launch.supervise import supervise
from bucketlab.link.sweep import chooses_code
from bucketlab.saying import say
from bucketlab.schema.tuning import CURRENT, Tuning
from bucketlab.tune.files import RESULT, find_result, load_result
from bucketlab.worker.config import Setting, WorkerConfig

_FOREVER_SECONDS = 10 * 365 * 24 * 3600.0


def run_with(job: Job, study: str | None, out: Path, output_to_stderr: bool) -> Tuning:
    """Trains a job from its beginning with the setting that a study found, and returns what the study found.

    Raises:
        BadInput: there is no such study.
        WorkFailed: the job failed.
    """
    argv = launch_command(job)
    folder = find_result(study, out) if study is not None else _result_for(job, out)
    result = load_result(folder)
    variables = result.environment.variables if result.environment and result.environment.significant else {}
    for name in filter(chooses_code, variables):
        raise BadInput(f"{folder / RESULT} sets {name}, which chooses code that is run: no study does that.")
    for name in [one for one in variables if os.environ.get(one, variables[one]) != variables[one]]:
        say(f"{name} is set here, to {os.environ[name]}: it stays, though study {result.study} had {variables[name]}.")
    setting = Setting(
        candidate=result.best.candidate() if result.significant else CURRENT,
        study=result.study,
        job=result.job,
        interconnect=result.interconnect if result.kind == "measured" else "",
        bucket_bytes=(result.best if result.significant else result.baseline).bucket_bytes,
        variables={name: value for name, value in variables.items() if name not in os.environ},
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
        setting.variables,
        plain=True,
    )
    if outcome.interrupted or outcome.exit_code:
        raise WorkFailed(why_it_failed(outcome, job, argv, _FOREVER_SECONDS))
    return result


def _result_for(job: Job, out: Path) -> Path:
    """The newest result of a study of this script."""
    found = []
    for path in out.glob(f"*/{RESULT}"):
        try:
            if load_result(path.parent).script == job.script:
                found.append(path)
        except BadInput:
            continue
    if not found:
        raise BadInput(f"no study in {out} has tuned {job.script}. Tune it first: bucketlab tune {job.script}")
    return max(found, key=lambda one: one.stat().st_mtime).parent
