"""`bucketlab link` from its options to a measured link: a launch of its own, with nothing but all-reduces in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

import bucketlab.worker
from bucketlab.errors import WorkFailed
from bucketlab.launch.command import Job, described, launch_command
from bucketlab.launch.scratch import scratch_folder
from bucketlab.launch.supervise import run_plainly
from bucketlab.schema.profile import Link

_SCRIPT = Path(bucketlab.worker.__file__).parent / "link_alone.py"


class LinkTask(msgspec.Struct, kw_only=True):
    """What the ranks are told, in one environment variable."""

    result: str  # file that rank 0 writes
    largest_bytes: int
    dtype: Literal["float32", "bfloat16", "float16"]
    seconds: float


def measure_link(job: Job, task_for: LinkTask, timeout_seconds: float, output_to_stderr: bool) -> Link | None:
    """Measures the link between the ranks of a launch; None where rank 0 runs elsewhere.

    Args:
        job: its launch options, or a launcher's command line; its script is ours.
        task_for: what to measure; `result` is chosen here.
        timeout_seconds: after so long without an end the launch is stopped.
        output_to_stderr: keeps stdout for a document.

    Raises:
        WorkFailed: the launch ended without a result.
    """
    target = (*job.target, str(_SCRIPT)) if job.own_launcher else (str(_SCRIPT),)
    argv = launch_command(Job(target, job.own_launcher, job.options, job.flags))
    with scratch_folder() as folder:
        result = folder / "link.json"
        task = msgspec.structs.replace(task_for, result=str(result))
        environment = {**os.environ, "BUCKETLAB_LINK": msgspec.json.encode(task).decode()}
        exit_code = run_plainly(argv, environment, timeout_seconds, output_to_stderr)
        if result.is_file():
            return msgspec.json.decode(result.read_bytes(), type=Link)
    if exit_code is None:
        raise WorkFailed(f"{described(argv)} had no result after {timeout_seconds:g} s and was stopped.")
    if exit_code:
        raise WorkFailed(f"{described(argv)} ended with exit code {exit_code}; what it printed is above.")
    return None
