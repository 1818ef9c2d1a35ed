"""What may be asked of any launch whose steps are measured: plain data, which profiles and studies add to."""

from __future__ import annotations

from dataclasses import dataclass

from bucketlab.link.sweep import Sweep


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The part that the options of profiles and of studies share."""

    sweep: Sweep | None = None  # whose link is pinned
    emulate: Sweep | None = None  # whose link stands in for the real one
    timeout_seconds: float = 1800.0  # without a step, until the job is stopped
    keep_running: bool = False  # once all is measured
    output_to_stderr: bool = False  # of the job, so that stdout stays clean for a document
