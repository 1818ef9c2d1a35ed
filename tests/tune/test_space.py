from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bucketlab.link.sweep import Range, Search
from bucketlab.predict.assignment import MIB
from bucketlab.predict.replay import ModuleGradients
from bucketlab.schema.tuning import CURRENT, DDPS_DEFAULT, Candidate, Capacities
from bucketlab.tune.space import JobFacts, Key, Space, how_to_apply
from tests.report import profiles
from tests.tune.simulated import LINKS, SimulatedJob, convolutional, facts, prediction_for, transformer

SEARCH = Search(bucket_cap_mb=Range(low=0.25, high=256))


def job_of(sizes: list[int]) -> JobFacts:
    gradients = ModuleGradients(sizes, [float(at) for at in range(len(sizes))], ["float32"] * len(sizes))
    built = [sum(sizes[one] for one in bucket) for bucket in gradients.buckets([MIB, 25 * MIB])]
    return JobFacts(
        modules=[gradients],
        current=DDPS_DEFAULT,
        current_is_default=True,
        current_bucket_bytes=tuple(built),
        world_size=2,
    )


sizes = st.lists(st.integers(1, 40 * MIB), min_size=1, max_size=40)


@given(sizes, st.floats(0.25, 256))
def test_every_proposal_ends_with_all_layouts_measured_once_and_none_twice(sizes: list[int], wanted: float) -> None:
    space = Space(job_of(sizes), SEARCH)
    taken = {space.key(CURRENT)}
    while True:
        candidate = space.nearest(Candidate(capacities=Capacities(bucket_cap_mb=wanted)), taken)
        if candidate is None:
            break
        key = space.key(candidate)
        assert key not in taken
        taken.add(key)
    assert {Key(layout.bucket_bytes, (False, False, None)) for layout in space.layouts()} <= taken


@given(sizes)
def test_the_shortest_number_names_a_layout_and_makes_it(sizes: list[int]) -> None:
    space = Space(job_of(sizes), SEARCH)
    for layout in space.layouts():
        assert space.bucket_bytes(Capacities(bucket_cap_mb=layout.bucket_cap_mb)) == layout.bucket_bytes
        assert sum(layout.bucket_bytes) == sum(sizes)


def test_capacities_beyond_the_whole_model_are_not_searched() -> None:
    space = Space(job_of([3 * MIB] * 10), SEARCH)
    assert space.high_mb == 30
    assert space.low_mb == 3


def test_the_study_starts_with_the_default_the_predicted_best_and_the_planned_list_each_layout_once() -> None:
    job = SimulatedJob.of(convolutional(), LINKS["gloo-4gbit"])
    prediction = prediction_for(job, 0.0)
    own = Capacities(bucket_cap_mb=100.0)
    space = Space(facts(job, own, prediction), SEARCH)
    starts = space.starts()
    assert starts[0].capacities == DDPS_DEFAULT
    assert starts[1].capacities.bucket_cap_mb == prediction.best.bucket_cap_mb
    keys = [space.key(one) for one in starts]
    assert len(set(keys)) == len(keys)
    assert space.key(CURRENT) not in keys


def test_where_the_script_has_ddps_default_it_is_not_tried_again() -> None:
    space = Space(facts(SimulatedJob.of(transformer(), LINKS["gloo-4gbit"])), SEARCH)
    assert DDPS_DEFAULT not in [one.capacities for one in space.starts()]


def test_each_option_that_was_opted_in_to_is_tried_on_the_current_buckets() -> None:
    search = Search(gradient_as_bucket_view=True, compression=["bf16"])
    starts = Space(job_of([MIB] * 40), search).starts()
    assert Candidate(gradient_as_bucket_view=True, compression="bf16") in starts
    assert all(one.static_graph is None for one in starts)


def test_without_ready_times_gradients_are_taken_to_be_ready_from_the_last_to_the_first() -> None:
    profile = profiles.exposed()
    declared = profile.gradients = [replace(one, ready_ns=None, sparse=False) for one in profile.gradients]
    assert JobFacts.of(profile, lists=True).modules[0].bytes == [one.bytes for one in reversed(declared)]


def test_the_same_model_is_known_again_in_another_ready_order() -> None:
    assert job_of([MIB, 2 * MIB]).identity() == job_of([2 * MIB, MIB]).identity()
    assert job_of([MIB, 2 * MIB]).identity() != job_of([MIB, 3 * MIB]).identity()


@pytest.mark.parametrize(
    ("candidate", "line"),
    [
        (Candidate(capacities=Capacities(bucket_cap_mb=48.0)), "DistributedDataParallel(..., bucket_cap_mb=48)"),
        (
            Candidate(capacities=Capacities(bucket_cap_mb_list=(1.0, 8.5))),
            "DistributedDataParallel(..., bucket_cap_mb_list=[1, 8.5])",
        ),
        (
            Candidate(capacities=Capacities(bucket_cap_mb=48.0, first_bucket_mb=2.0)),
            "DistributedDataParallel(..., bucket_cap_mb_list=[2, 48])",
        ),
        (
            Candidate(capacities=Capacities(bucket_cap_mb=4.0), gradient_as_bucket_view=True),
            "DistributedDataParallel(..., bucket_cap_mb=4, gradient_as_bucket_view=True)",
        ),
    ],
)
def test_how_to_apply_is_the_line_to_write(candidate: Candidate, line: str) -> None:
    assert how_to_apply(candidate, job_of([MIB])) == line


def test_how_to_apply_marks_what_changes_the_numbers() -> None:
    assert "changes numerics" in how_to_apply(Candidate(compression="fp16"), job_of([MIB]))


@given(sizes)
def test_the_other_ways_to_form_buckets_are_counted_before_any_is_tried(sizes: list[int]) -> None:
    space = Space(job_of(sizes), SEARCH)
    others = {layout.bucket_bytes for layout in space.layouts()} - {space.job.current_bucket_bytes}
    assert space.count_others() == len(others)


def test_one_small_gradient_leaves_nothing_to_choose() -> None:
    assert Space(job_of([1000]), SEARCH).count_others() == 0
