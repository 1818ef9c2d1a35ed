"""Which steps are like a job's others: by what the script did in them, never by how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bucketlab.worker.clock import HostClock
from bucketlab.worker.observe import Step
from bucketlab.worker.usual import Usual, too_long

MS = 1_000_000


def step(wall_ms: int = 100, pauses_ms: Sequence[int] = (5,), batches: Sequence[int | None] = (8,)) -> Step:
    made = Step(start=0, end=wall_ms * MS, backwards=1, batches=list(batches))
    made.pauses = [(0, pause * MS) for pause in pauses_ms]
    return made


def are_counted(*steps: Step, before: Sequence[Step] = ()) -> list[bool]:
    usual = Usual()
    for one in before or [step()] * 20:
        usual.saw(one)
    for one in steps:
        usual.saw(one)
    return usual.are_like_others(steps, HostClock())


def test_a_step_that_is_slow_in_its_passes_counts_like_any_other() -> None:
    assert are_counted(step(), step(wall_ms=10_000), step()) == [True, True, True]


def test_a_step_that_paused_for_more_than_half_a_step_does_not_count_nor_one_it_delays_elsewhere() -> None:
    paused = step(wall_ms=160, pauses_ms=[5, 60])
    delays_others = step(pauses_ms=[60, 5])  # the first one is the last of the step before
    assert are_counted(step(), paused, delays_others) == [True, False, False]
    assert are_counted(step(), step(wall_ms=150, pauses_ms=[5, 50])) == [True, True]


def test_what_was_called_in_a_step_must_be_as_usual() -> None:
    odd = [
        replace(step(), skipped=True),
        replace(step(), backwards=2),
        replace(step(), evaluations=1),
        step(batches=[8, 8]),
        step(batches=[3]),
    ]
    assert are_counted(*odd) == [False] * len(odd)


def test_a_step_that_always_runs_the_model_without_gradients_too_is_usual() -> None:
    distilled = replace(step(), evaluations=1)
    assert are_counted(distilled, step(), before=[distilled] * 20) == [True, False]


def test_only_the_micro_batch_that_is_usually_as_large_must_be() -> None:
    before = [step(batches=[8, 8, 3 + number]) for number in range(20)]
    assert are_counted(step(batches=[8, 8, 99]), step(batches=[8, 3, 5]), before=before) == [True, False]


def test_where_batches_vary_from_step_to_step_their_sizes_say_nothing() -> None:
    before = [step(batches=[1 + number % 7]) for number in range(20)]
    assert are_counted(step(batches=[99]), before=before) == [True]


PAUSES = st.lists(st.integers(0, 10**12), min_size=1, max_size=64)
NS = st.integers(1, 10**12)


@given(PAUSES, NS, NS)
def test_of_any_block_the_step_with_the_shortest_pauses_counts(pauses: list[int], usual: int, whole: int) -> None:
    assert not too_long(pauses, usual, whole)[pauses.index(min(pauses))]


@given(PAUSES, NS, NS, st.integers(0, 10**12))
def test_a_job_all_of_whose_pauses_grow_loses_no_more_steps(
    pauses: list[int], usual: int, whole: int, longer: int
) -> None:
    """As one that waits for its data the more, the faster its buckets are."""
    grown = too_long([one + longer for one in pauses], usual, whole)
    assert all(was for was, now in zip(too_long(pauses, min(pauses), whole), grown, strict=True) if now)


@given(PAUSES, NS, NS)
def test_a_step_that_counts_paused_at_most_half_a_step_more_than_usual_or_than_the_shortest(
    pauses: list[int], usual: int, whole: int
) -> None:
    counted = [one for one, long in zip(pauses, too_long(pauses, usual, whole), strict=True) if not long]
    assert max(counted) <= max(usual, min(pauses)) + whole / 2
