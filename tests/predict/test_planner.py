"""The planner against brute force over all partitions, and the floor against everything anyone could try."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.link.curve import LinkCurve
from bucketlab.predict.assignment import MIB, assign
from bucketlab.predict.planner import as_buckets, best_partition, caps_mb, floor_ns, merged_as_mg_wfbp
from bucketlab.predict.replay import ModuleGradients, Timeline, replay
from tests.predict.models import curves, partitions, slowdowns, timelines


@settings(max_examples=150, deadline=None)
@given(timelines(most=8, in_order=True), curves(concurrency=1))
def test_the_best_partition_is_the_best_of_all(timeline, curve):
    module = timeline.modules[0]
    best = replay(timeline, [as_buckets(best_partition(module.bytes, module.ready_ns, curve))], curve)
    every = [replay(timeline, [as_buckets(one)], curve) for one in partitions(len(module.bytes))]
    assert best.end_ns[-1] == pytest.approx(min(run.end_ns[-1] for run in every))
    assert best.step_ns == pytest.approx(min(run.step_ns for run in every))


@given(timelines(most=30), curves(concurrency=1))
def test_it_is_never_worse_than_mg_wfbp_or_any_capacity(timeline, curve):
    module = timeline.modules[0]
    best = replay(timeline, [as_buckets(best_partition(module.bytes, module.ready_ns, curve))], curve).step_ns
    merged = as_buckets(merged_as_mg_wfbp(module.bytes, module.ready_ns, curve))
    others = [merged, *(module.buckets([cap]) for cap in (1, 50, 200, 1000, 10**6))]
    assert best <= min(replay(timeline, [other], curve).step_ns for other in others) + 1e-6


def test_mg_wfbp_sends_what_comes_before_the_link_is_free_with_what_waits_there():
    curve = LinkCurve.straight(latency_ns=10, bandwidth_gb_s=1.0)
    # Each takes 10 + 20. The 2nd comes 5 after the 1st: merged. The 3rd at 60, past start 5 + 10: not. The 4th and 5th
    # come while it waits for the link or moves.
    assert merged_as_mg_wfbp([20] * 5, [0.0, 5.0, 60.0, 61.0, 100.0], curve) == [(0, 2), (2, 4), (4, 5)]


def test_mg_wfbp_is_beaten_where_the_link_is_no_straight_line():
    curve = LinkCurve(
        bytes=np.array([100.0, 200.0]),
        ns=np.array([100.0, 110.0]),
        slope_ns=0.1,
        latency_ns=10,
        bandwidth_gb_s=1.0,
        residual=0.3,
    )
    module = ModuleGradients([100, 100], [0.0, 20.0], ["float32"] * 2)
    timeline = Timeline([module], 20.0, 0.0)
    merged = as_buckets(merged_as_mg_wfbp(module.bytes, module.ready_ns, curve))
    best = as_buckets(best_partition(module.bytes, module.ready_ns, curve))
    assert (merged, best) == ([[0], [1]], [[0, 1]])
    assert replay(timeline, [best], curve).step_ns == 130 < replay(timeline, [merged], curve).step_ns == 200


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bucketing_beats_the_floor_not_even_of_gradients_that_are_not_consecutive(data):
    timeline = data.draw(timelines(most=10))
    curve, slowdown = data.draw(curves()), data.draw(slowdowns)
    module = timeline.modules[0]
    numbers = data.draw(st.lists(st.integers(0, 5), min_size=len(module.bytes), max_size=len(module.bytes)))
    buckets = [[i for i, one in enumerate(numbers) if one == number] for number in sorted(set(numbers))]
    floor = floor_ns(module.bytes, module.ready_ns, timeline.compute_end_ns, curve, slowdown)
    assert replay(timeline, [buckets], curve, slowdown).step_ns >= (floor + timeline.optimizer_ns) * (1 - 1e-9)


@given(timelines(most=10, in_order=True), st.integers(0, 100), st.floats(0.5, 10))
def test_where_one_bucket_is_sent_at_the_end_the_floor_is_reached(timeline, latency_ns, bandwidth_gb_s):
    module = timeline.modules[0]
    together = Timeline([ModuleGradients(module.bytes, [500.0] * len(module.bytes), module.kinds)], 500.0, 0.0)
    curve = LinkCurve.straight(latency_ns, bandwidth_gb_s)
    whole = replay(together, [[list(range(len(module.bytes)))]], curve).step_ns
    assert floor_ns(module.bytes, together.modules[0].ready_ns, 500.0, curve) == pytest.approx(whole)


@given(st.data())
def test_capacities_for_a_plan_make_just_its_buckets(data):
    sizes = data.draw(st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=10))
    partition = data.draw(st.sampled_from(partitions(len(sizes))))
    caps = caps_mb(sizes, partition)
    assert caps is not None
    assert assign(sizes, [int(cap * MIB) for cap in caps]) == as_buckets(partition)


def test_capacities_for_a_plan_are_short_numbers():
    sizes = [3 * MIB + 17, 5 * MIB + 1, 20 * MIB + 3, 20 * MIB + 3, 20 * MIB + 3]
    assert caps_mb(sizes, [(0, 2), (2, 4), (4, 5)]) == [8.0, 40.0]
