"""A study of the same job as a profile, for tests of pages that draw its trials."""

from __future__ import annotations

from typing import Any

import msgspec

from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import TunedSetting, TunedTrial, Tuning
from bucketlab.tune.space import identity_of

MS = 1_000_000
SAMPLES_MS = (180, 190, 185, 181, 183, 188, 184, 182, 186)


def study_of(profile: Profile, **changes: Any) -> Tuning:
    """Trials of three sizes, one of which failed; the script's own took 200 ms in the race."""
    made = Tuning(
        kind=profile.kind,
        study="train",
        job=identity_of([(one.module, one.bytes, one.dtype) for one in profile.gradients], profile.world_size),
        interconnect="nccl over NVLink",
        best=TunedSetting(bucket_cap_mb=64.0, bucket_bytes=[1], step_ns=160 * MS),
        baseline=TunedSetting(bucket_cap_mb=25.0, step_ns=200 * MS),
        current_is_default=True,
        speedup=0.25,
        ci95=(0.2, 0.3),
        significant=True,
        rounds=20,
        finished=True,
        reason="the final race is run",
        how_to_apply="DistributedDataParallel(..., bucket_cap_mb=64)",
        trials=[
            TunedTrial(
                number=7,
                params={"bucket_cap_mb": 64.0},
                state="complete",
                bucket_bytes=[1],
                step_ns=[ms * MS for ms in SAMPLES_MS],
                speedup=0.25,
                finalist=True,
            ),
            TunedTrial(
                number=9,
                params={},
                state="complete",
                bucket_bytes=[1, 2],
                step_ns=[(ms + 30) * MS for ms in SAMPLES_MS],
                speedup=0.0,
                is_current=True,
            ),
            TunedTrial(
                number=8,
                params={"bucket_cap_mb": 2.0},
                state="failed",
                bucket_bytes=[1],
                step_ns=[],
                failure="[bold]out of memory</script>",
            ),
        ],
        steps=1200,
    )
    return msgspec.structs.replace(made, **changes)
