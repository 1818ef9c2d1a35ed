"""The part of a step in which no bucket is reduced."""

from __future__ import annotations

from dataclasses import replace

from bucketlab.worker.clock import HostClock
from bucketlab.worker.observe import Step
from bucketlab.worker.untouched import untouched_ns

WHOLE = Step(
    start=0,
    called=10,
    backward_start=40,
    backward_end=80,
    end=100,
    pauses=[(0, 10), (20, 25), (80, 100)],
    loading=[(20, 25)],
    optimizing=[(85, 90), (90, 99)],
)


def test_it_is_the_forward_pass_without_what_waits_for_data_and_every_optimizer() -> None:
    assert untouched_ns(WHOLE, HostClock()) == (40 - 10) - (25 - 20) + (90 - 85) + (99 - 90)


def test_it_is_what_could_be_seen_of_that() -> None:
    compiled = replace(WHOLE, called=None, loading=[])
    assert untouched_ns(compiled, HostClock()) == 14
    assert untouched_ns(replace(WHOLE, optimizing=[]), HostClock()) == 25
    assert untouched_ns(replace(compiled, optimizing=[]), HostClock()) is None
