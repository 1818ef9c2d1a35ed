"""The event model against worked examples, a slow simulation in small time steps, and laws any step obeys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.link.curve import LinkCurve
from bucketlab.predict.replay import NO_SLOWDOWN, ModuleGradients, Slowdown, Timeline, replay
from tests.predict.models import curves, slowdowns, timelines

TEN_EACH = ModuleGradients([100] * 4, [10.0, 20.0, 30.0, 40.0], ["float32"] * 4)
STEP = Timeline([TEN_EACH], 40.0, 5.0)


def link(latency_ns: int = 0, bandwidth_gb_s: float = 10.0, concurrency: int = 1) -> LinkCurve:
    return LinkCurve.straight(latency_ns, bandwidth_gb_s, concurrency)


def test_a_link_as_fast_as_gradients_come_leaves_the_last_one_exposed():
    run = replay(STEP, [[[0], [1], [2], [3]]], link())
    assert run.start_ns.tolist() == [10, 20, 30, 40]
    assert run.end_ns.tolist() == [20, 30, 40, 50]
    assert run.exposed_ns.tolist() == [0, 0, 0, 10]
    assert run.step_ns == 55
    assert (run.communication_ns, run.overlap_ns) == (40, 30)


def test_buckets_queue_behind_one_another_on_a_slow_link():
    run = replay(STEP, [[[0], [1], [2, 3]]], link(latency_ns=5))
    assert run.ready_ns.tolist() == [10, 20, 40]
    assert run.start_ns.tolist() == [10, 25, 40]
    assert run.end_ns.tolist() == [25, 40, 65]


def test_a_bucket_waits_for_earlier_ones_that_are_ready_later():
    late_first = Timeline([ModuleGradients([100, 100], [30.0, 10.0], ["float32"] * 2)], 40.0, 0.0)
    run = replay(late_first, [[[0], [1]]], link())
    assert run.start_ns.tolist() == [30, 40]


def test_two_at_a_time_share_the_bytes_but_not_the_latency():
    both_ready = Timeline([ModuleGradients([100, 100], [10.0, 10.0], ["float32"] * 2)], 10.0, 0.0)
    run = replay(both_ready, [[[0], [1]]], link(latency_ns=8, concurrency=2))
    assert run.start_ns.tolist() == [10, 10]
    assert run.end_ns.tolist() == [38, 38]
    assert replay(both_ready, [[[0], [1]]], link(latency_ns=8)).step_ns == 46


def test_while_both_run_each_slows_the_other():
    one = Timeline([ModuleGradients([100, 100], [10.0, 30.0], ["float32"] * 2)], 30.0, 0.0)
    run = replay(one, [[[0], [1]]], link(), Slowdown(compute=1.0, communication=0.5))
    # 10 ns of communication take 15; in them compute gets 7.5 done instead of 15
    assert run.end_ns[0] == 25
    assert run.compute_end_ns == 37.5
    assert run.step_ns == 47.5


def test_two_modules_share_the_link_in_the_order_of_launch():
    other = ModuleGradients([100], [15.0], ["float32"])
    run = replay(Timeline([TEN_EACH, other], 40.0, 0.0), [[[0], [1, 2, 3]], [[0]]], link())
    assert run.module == [0, 1, 0]
    assert run.start_ns.tolist() == [10, 20, 40]


def simulated(timeline: Timeline, layouts, curve: LinkCurve, slowdown: Slowdown, tick: float) -> float:
    """The same model told as rates, advanced by small ticks of time."""
    waiting = []
    for module, buckets in zip(timeline.modules, layouts, strict=True):
        launch = 0.0
        for bucket in buckets:
            launch = max(launch, *(module.ready_ns[one] for one in bucket))
            waiting.append((launch, sum(module.bytes[one] for one in bucket)))
    waiting.sort(key=lambda one: one[0])
    moving: list[list[float]] = []
    now = done = 0.0
    while waiting or moving or done < timeline.compute_end_ns:
        while waiting and len(moving) < curve.concurrency and waiting[0][0] <= done + 1e-9:
            work = float(curve.time_ns(waiting.pop(0)[1]))
            first = min(work, float(curve.latency_ns))
            moving.append([first, work - first])
        both = bool(moving) and done < timeline.compute_end_ns
        sharing = sum(one[0] <= 0 for one in moving)
        for one in moving:
            rate = 1 / (1 + slowdown.communication) if both else 1.0
            if one[0] > 0:
                one[0] -= tick * rate
            else:
                one[1] -= tick * rate * (curve.pair_gain if sharing > 1 else 1) / sharing
        moving = [one for one in moving if one[0] > 0 or one[1] > 0]
        done += tick / (1 + slowdown.compute) if both else tick
        now += tick
    return now + timeline.optimizer_ns


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_it_agrees_with_a_simulation_in_small_steps(data):
    timeline = data.draw(timelines(most=4, modules=2))
    curve, slowdown = data.draw(curves()), data.draw(slowdowns)
    caps = data.draw(st.lists(st.integers(1, 800), min_size=1, max_size=3))
    layouts = [module.buckets(caps) for module in timeline.modules]
    tick = 0.5
    events = 3 * sum(len(buckets) for buckets in layouts) + 2
    slow = simulated(timeline, layouts, curve, slowdown, tick)
    assert replay(timeline, layouts, curve, slowdown).step_ns == pytest.approx(slow, abs=4 * tick * events)


@given(timelines(modules=2), curves(), slowdowns, st.lists(st.integers(1, 2000), min_size=1, max_size=4))
def test_no_bucket_starts_before_it_is_ready_and_none_overtakes(timeline, curve, slowdown, caps):
    run = replay(timeline, [module.buckets(caps) for module in timeline.modules], curve, slowdown)
    assert np.all(run.start_ns >= run.ready_ns - 1e-6)
    assert np.all(np.diff(run.start_ns) >= 0)
    assert np.all(run.end_ns > run.start_ns)
    assert run.compute_end_ns >= timeline.compute_end_ns - 1e-6
    assert run.step_ns >= run.end_ns.max() + timeline.optimizer_ns - 1e-6
    assert 0 <= run.overlap_ns <= run.communication_ns + 1e-6
    assert run.overlap_ns <= run.compute_end_ns


@given(timelines(), curves(concurrency=1), slowdowns, st.lists(st.integers(1, 2000), min_size=1, max_size=4))
def test_the_closed_form_for_one_at_a_time_is_the_event_model_with_one_slot(timeline, curve, slowdown, caps):
    layouts = [module.buckets(caps) for module in timeline.modules]
    from bucketlab.predict import replay as module

    launches = [max(timeline.modules[0].ready_ns[: bucket[-1] + 1]) for bucket in layouts[0]]
    works = curve.time_ns([sum(timeline.modules[0].bytes[one] for one in bucket) for bucket in layouts[0]]).tolist()
    events = module._several_at_a_time(launches, works, timeline.compute_end_ns, curve, slowdown)
    closed = module._in_turn(launches, works, timeline.compute_end_ns, slowdown)
    assert closed.end_ns == pytest.approx(events.end_ns, abs=1e-3)
    assert closed.compute_end_ns == pytest.approx(events.compute_end_ns, abs=1e-3)


@given(timelines(), curves(), st.lists(st.integers(1, 2000), min_size=1, max_size=4))
def test_slowing_each_other_never_makes_a_step_shorter(timeline, curve, caps):
    layouts = [module.buckets(caps) for module in timeline.modules]
    slow = replay(timeline, layouts, curve, Slowdown(0.3, 0.4)).step_ns
    assert slow >= replay(timeline, layouts, curve, NO_SLOWDOWN).step_ns - 1e-6
