"""What `bucketlab tune` knows of a job from its profile before it launches anything."""

from __future__ import annotations

from pathlib import Path

from bucketlab.launch.command import Job
from bucketlab.link.sweep import Search
from bucketlab.runs import write_run
from bucketlab.tuning import what_profiles_tell
from bucketlab.worker.config import Launch
from tests.report import profiles

TRAIN = Job(("train.py", "--width", "8"))


def test_a_job_whose_gradients_form_few_buckets_is_said_to_have_little_to_tune(tmp_path: Path) -> None:
    profile = profiles.exposed(run="small", command=list(TRAIN.target))
    small = [one for one in profile.gradients if one.bytes < 2**18][:3]
    profile.gradients, profile.prediction = small, None
    profile.modules[0].bucket_bytes = [sum(one.bytes for one in small)]
    write_run(tmp_path / "small", profile, Launch())
    assert what_profiles_tell(TRAIN, tmp_path, Search()) == (
        "run small of this script: no other way to form buckets of its gradients, so there is little to tune."
    )


def test_a_job_with_much_to_choose_from_and_one_that_was_never_profiled_are_launched_without_a_word(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "large", profiles.exposed(command=list(TRAIN.target)), Launch())
    assert what_profiles_tell(TRAIN, tmp_path, Search()) is None
    assert what_profiles_tell(Job(("other.py",)), tmp_path, Search()) is None
    assert what_profiles_tell(TRAIN, tmp_path / "nothing", Search()) is None
