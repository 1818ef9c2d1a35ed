"""From a profile to its prediction: which layouts it names, what it says of them, and what it declines to say."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.link.curve import LinkCurve
from bucketlab.predict import predict, unsayable
from bucketlab.predict.assignment import MIB, assign
from bucketlab.predict.forecast import (
    Forecast,
    Observation,
    current_layouts,
    curve_in_training,
    fit_slowdown,
    observations,
    timeline_of,
)
from bucketlab.predict.replay import ModuleGradients, Slowdown, Timeline, replay
from bucketlab.schema.profile import Gradient, HeldBack, Prediction, Profile, Rehearsal
from tests.predict.models import timelines
from tests.report import profiles

MADE = [profiles.overlapped, profiles.exposed, profiles.hidden, profiles.straggler, profiles.thousand_buckets]


def predicted(profile: Profile) -> Prediction:
    prediction = predict(profile)
    assert prediction is not None
    return prediction


@pytest.mark.parametrize("make", MADE)
def test_nothing_predicted_beats_the_floor_and_no_capacity_the_plan(make):
    prediction = predicted(make())
    steps = [point.step_ns for point in prediction.points]
    assert prediction.floor_ns <= min(steps)
    if prediction.plan is not None:
        assert prediction.floor_ns <= prediction.plan.step_ns < min(steps)
    assert prediction.best.step_ns <= min(steps) * 1.001
    assert prediction.best.step_ns <= prediction.current_step_ns


@pytest.mark.parametrize("make", MADE)
def test_each_point_is_a_layout_of_its_own_made_by_the_capacity_it_names(make):
    profile = make()
    sizes = [gradient.bytes for gradient in profile.gradients]
    layouts = set()
    for point in predicted(profile).points:
        first_mb = point.bucket_cap_mb if point.first_bucket_mb is None else point.first_bucket_mb
        buckets = assign(sizes, [int(first_mb * MIB), int(point.bucket_cap_mb * MIB)])
        assert len(buckets) == point.buckets
        layouts.add(tuple(len(bucket) for bucket in buckets))
    assert len(layouts) == len(predicted(profile).points)


def test_the_points_reach_from_one_gradient_a_bucket_to_one_bucket():
    points = predicted(profiles.thousand_buckets()).points
    assert points[0].buckets == 1000
    assert points[-1].buckets == 1


def test_a_plan_that_wins_nothing_over_the_best_capacity_is_not_offered():
    for make in (profiles.overlapped, profiles.exposed, profiles.hidden):
        assert predicted(make()).plan is None


def test_the_plan_s_capacities_make_the_planned_buckets():
    profile = profiles.thousand_buckets()
    plan = predicted(profile).plan
    assert plan is not None
    sizes = [gradient.bytes for gradient in profile.gradients]
    made = assign(sizes, [int(cap * MIB) for cap in plan.bucket_cap_mb_list])
    assert [sum(sizes[one] for one in bucket) for bucket in made] == plan.bucket_bytes


def test_where_communication_is_hidden_the_current_setting_is_the_best():
    prediction = predicted(profiles.hidden())
    assert prediction.best == prediction.current


def test_releases_that_take_no_list_are_given_none_and_an_explicit_capacity_holds_for_the_first_bucket_there_too():
    profile = profiles.thousand_buckets()
    profile.versions["torch"] = "2.12.1+cu128"
    prediction = predicted(profile)
    assert prediction.plan is not None and prediction.plan.bucket_cap_mb_list == []
    sizes = [gradient.bytes for gradient in profile.gradients]
    for point in prediction.points:
        caps_mb = [one for one in (point.first_bucket_mb, point.bucket_cap_mb) if one is not None]
        assert len(assign(sizes, [int(cap_mb * MIB) for cap_mb in caps_mb])) == point.buckets


def half_width(prediction: Prediction) -> float:
    best = prediction.best
    assert best.low_ns is not None and best.high_ns is not None
    assert best.low_ns <= best.step_ns <= best.high_ns
    return (best.high_ns - best.low_ns) / 2 / best.step_ns


def test_a_link_that_was_hard_to_measure_widens_the_band():
    profile = profiles.exposed()
    sure = half_width(predicted(profile))
    assert profile.link is not None
    for point in profile.link.points:
        point.p90_ns = round(point.ns * 1.3)
    assert half_width(predicted(profile)) > 1.2 * sure


def test_steps_that_vary_widen_the_band():
    profile = profiles.hidden()
    sure = half_width(predicted(profile))
    assert profile.step is not None
    profile.step.p90_ns = 2 * profile.step.median_ns
    assert half_width(predicted(profile)) > 2 * sure


def test_the_band_is_no_narrower_than_what_the_prediction_misses_the_measured_step_by():
    profile = profiles.hidden()
    assert profile.step is not None
    profile.step.median_ns = round(profile.step.median_ns / 1.1)
    prediction = predicted(profile)
    assert prediction.error is not None and prediction.error > 0.05
    assert half_width(prediction) >= 0.99 * prediction.error


def test_a_rank_that_is_always_late_delays_the_whole_step():
    late, even = profiles.straggler(late=2, lag_ms=40), profiles.straggler(late=2, lag_ms=40)
    even.stragglers = None
    shift_ns = timeline_of(late).compute_end_ns - timeline_of(even).compute_end_ns
    assert shift_ns == 38 * profiles.MS  # what it is late by even in its best steps


def test_steps_whose_communication_was_held_back_set_compute_link_and_rest():
    profile = profiles.exposed()
    timeline, curve = timeline_of(profile), curve_in_training(profile)
    now = current_layouts(profile, timeline)
    together = Timeline(
        [replace(one, ready_ns=[timeline.compute_end_ns] * len(one.bytes)) for one in timeline.modules],
        timeline.compute_end_ns,
        timeline.optimizer_ns,
    )
    sent_ns = replay(together, now, curve).step_ns - timeline.compute_end_ns - timeline.optimizer_ns
    profile.held_back = HeldBack(
        steps=10,
        step_ns=round(1.1 * timeline.compute_end_ns + 1.2 * sent_ns + 7_000_000),
        compute_ns=round(1.1 * timeline.compute_end_ns),
        compute_p10_ns=0,
        compute_p90_ns=0,
        communication_ns=round(1.2 * sent_ns),
        optimizer_ns=5_000_000,
    )
    assert profile.step is not None
    profile.step.median_ns = profile.held_back.step_ns  # slow enough that compute is believed
    told = timeline_of(profile)
    assert told.compute_end_ns == pytest.approx(1.1 * timeline.compute_end_ns)
    assert max(told.modules[0].ready_ns) == pytest.approx(1.1 * max(timeline.modules[0].ready_ns))
    assert told.optimizer_ns == pytest.approx(7_000_000, rel=1e-3)  # the rest, waiting included
    sizes = [10_000, 10_000_000]
    assert curve_in_training(profile).time_ns(sizes) == pytest.approx(1.2 * curve.time_ns(sizes), rel=1e-3)


@given(compute_ns=st.integers(10_000_000, 900_000_000))
def test_the_last_gradient_is_ready_just_when_compute_ends_whatever_rounding_does(compute_ns: int):
    """A replay in which the last bucket is launched after the end of compute has no end."""
    profile = profiles.exposed()
    profile.held_back = HeldBack(
        steps=10,
        step_ns=compute_ns + 30_000_000,
        compute_ns=compute_ns,
        compute_p10_ns=0,
        compute_p90_ns=0,
        communication_ns=20_000_000,
        optimizer_ns=5_000_000,
    )
    timeline = timeline_of(profile)
    assert max(max(one.ready_ns) for one in timeline.modules) == timeline.compute_end_ns


def test_compute_that_alone_outlasts_the_timed_steps_was_slowed_by_something_else():
    profile = profiles.exposed()
    assert profile.step is not None
    usual = predicted(profile)
    timeline = timeline_of(profile)
    profile.held_back = HeldBack(
        steps=10,
        step_ns=3 * profile.step.median_ns,
        compute_ns=round(2 * timeline.compute_end_ns),
        compute_p10_ns=0,
        compute_p90_ns=0,
        communication_ns=round(0.1 * profile.step.median_ns),
        optimizer_ns=5_000_000,
    )
    slowed = predicted(profile)
    assert slowed.current_step_ns == pytest.approx(profile.step.median_ns, rel=0.01)
    assert "something else used the machine" in " ".join(slowed.notes)
    assert half_width(slowed) > 2 * half_width(usual)


def test_a_profile_without_link_or_ready_times_says_what_cannot_be_said():
    assert unsayable(profiles.exposed()) == []
    no_link = profiles.exposed(link=None)
    assert predict(no_link) is None
    assert "link was not measured" in " ".join(unsayable(no_link))
    no_ready = profiles.exposed()
    for gradient in no_ready.gradients:
        gradient.ready_ns = None
    assert predict(no_ready) is None
    assert "ready times were not measured" in " ".join(unsayable(no_ready))
    assert predict(profiles.nothing()) is None
    assert predict(profiles.one_rank()) is None


def test_parameters_without_gradient_are_ready_when_the_backward_pass_starts():
    profile = profiles.exposed()
    profile.modules[0].static_graph = True
    profile.gradients[-1].ready_ns = None
    timeline = timeline_of(profile)
    assert timeline.modules[0].ready_ns[0] == profile.forward_ns
    assert timeline.modules[0].bytes[0] == profile.gradients[-1].bytes


def test_modules_that_search_for_unused_parameters_keep_the_order_of_declaration():
    profile = profiles.exposed()
    profile.modules[0].find_unused_parameters = True
    for declared, gradient in enumerate(reversed(profile.gradients)):
        gradient.declared = declared
    module = timeline_of(profile).modules[0]
    assert module.bytes == [gradient.bytes for gradient in reversed(profile.gradients)]
    caps = [MIB, 25 * MIB]
    assert module.buckets(caps)[0][-1] == len(module.bytes) - 1  # the last declared is in the first bucket


@settings(max_examples=25, deadline=None)
@given(timelines(most=30, in_order=True), st.integers(0, 60), st.floats(1, 10), st.integers(1, 2), st.data())
def test_no_layout_beats_the_floor_of_a_prediction_and_an_offered_plan_beats_every_capacity(
    timeline, latency_ns, bandwidth, concurrency, data
):
    module = timeline.modules[0]
    profile = profiles.exposed()
    assert profile.link is not None and profile.step is not None
    profile.gradients = [
        Gradient(module=0, name=str(at), bytes=1000 * size, dtype="float32", ready_ns=round(1000 * ready))
        for at, (size, ready) in enumerate(zip(module.bytes, module.ready_ns, strict=True))
    ]
    profile.forward_ns, profile.optimizer_ns = 0, 1000
    profile.step.median_ns = data.draw(st.integers(500_000, 3_000_000))
    profile.link.points, profile.link.concurrency = [], concurrency
    profile.link.latency_ns, profile.link.bandwidth_gb_s = 1000 * latency_ns, bandwidth
    made = predicted(profile)
    steps = [point.step_ns for point in made.points]
    assert made.floor_ns <= min(steps)
    if made.plan is not None:
        assert made.floor_ns <= made.plan.step_ns < min(steps)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_fitted_rates_explain_both_measured_layouts(data):
    timeline = data.draw(timelines(most=12, in_order=True))
    truth = Slowdown(data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1)))
    curve = LinkCurve.straight(20, data.draw(st.floats(1, 10)), data.draw(st.integers(1, 2)))
    layouts = [[module.buckets([cap]) for module in timeline.modules] for cap in (1, 10**9)]
    steps = [replay(timeline, one, curve, truth).step_ns for one in layouts]
    fitted = fit_slowdown(timeline, curve, [Observation(one, step) for one, step in zip(layouts, steps, strict=True)])
    for one, step in zip(layouts, steps, strict=True):
        assert replay(timeline, one, curve, fitted).step_ns == pytest.approx(step, rel=0.02)


def test_a_step_that_took_longer_than_its_parts_is_explained_by_slowdown():
    module = ModuleGradients([100] * 10, [10.0 * at for at in range(1, 11)], ["float32"] * 10)
    timeline, curve = Timeline([module], 100.0, 0.0), LinkCurve.straight(0, 10.0)
    buckets = [[[one] for one in range(10)]]
    assert replay(timeline, buckets, curve).step_ns == 110
    fitted = fit_slowdown(timeline, curve, [Observation(buckets, 150)])
    assert replay(timeline, buckets, curve, fitted).step_ns == pytest.approx(150, rel=0.01)


def test_a_prediction_survives_being_written_and_read():
    prediction = predicted(profiles.exposed())
    assert msgspec.json.decode(msgspec.json.encode(prediction), type=Prediction) == prediction


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0, 3.0), st.floats(0.0, 2.0))
def test_rehearsed_layouts_tell_slower_compute_from_slower_transfers(compute, communication):
    profile = profiles.exposed()
    timeline, curve = timeline_of(profile), curve_in_training(profile)
    truth = Slowdown(compute, communication)
    now = current_layouts(profile, timeline)
    assert profile.step is not None
    profile.step.median_ns = round(replay(timeline, now, curve, truth).step_ns)
    for cap_bytes in (sum(timeline.modules[0].bytes) // part for part in (16, 4)):
        layouts = [module.buckets([cap_bytes]) for module in timeline.modules]
        run = replay(timeline, layouts, curve, truth)
        profile.rehearsals.append(
            Rehearsal(
                cap_bytes=cap_bytes,
                bucket_bytes=run.bytes,
                steps=5,
                compute_ns=round(run.compute_end_ns),
                end_ns=round(run.end_ns.max()),
            )
        )
    profile.buckets = []
    fitted = fit_slowdown(timeline, curve, observations(profile, now))
    for cap_mb in (1, 3, 10, 30):
        layouts = [module.buckets([cap_mb * MIB]) for module in timeline.modules]
        expected = replay(timeline, layouts, curve, truth)
        assert replay(timeline, layouts, curve, fitted).step_ns == pytest.approx(expected.step_ns, rel=0.01)
        assert replay(timeline, layouts, curve, fitted).compute_end_ns == pytest.approx(
            expected.compute_end_ns, rel=0.03
        )


def test_a_traced_step_tells_slower_compute_from_slower_transfers():
    profile = profiles.exposed()
    timeline, curve = timeline_of(profile), curve_in_training(profile)
    now = current_layouts(profile, timeline)
    assert profile.step is not None and profile.breakdown is not None
    for truth in (Slowdown(2.0, 0.0), Slowdown(0.0, 0.8)):
        run = replay(timeline, now, curve, truth)
        profile.step.median_ns = profile.breakdown.wall_ns = round(run.step_ns)
        for bucket, ready_ns, end_ns in zip(profile.buckets, run.ready_ns, run.end_ns, strict=True):
            bucket.ready_ns, bucket.last_ready_ns, bucket.end_ns = 0, round(ready_ns), round(end_ns)
        fitted = fit_slowdown(timeline, curve, observations(profile, now))
        assert fitted.compute == pytest.approx(truth.compute, rel=0.1, abs=0.1)
        assert fitted.communication == pytest.approx(truth.communication, abs=0.1)


def test_where_the_last_bucket_overtakes_the_one_before_the_band_counts_from_the_end_of_all():
    profile = profiles.exposed()
    assert profile.link is not None
    profile.link.points, profile.link.concurrency = [], 2
    large, small = 30 * MIB, MIB
    profile.gradients = [
        Gradient(module=0, name=name, bytes=size, dtype="float32", ready_ns=ready_ns)
        for name, size, ready_ns in (("large", large, 50_000_000), ("small", small, 51_000_000))
    ]
    timeline = timeline_of(profile)
    forecast = Forecast(profile, timeline, curve_in_training(profile), Slowdown(), current_layouts(profile, timeline))
    forecast.link_spread, forecast.error = 0.1, 0.0
    point = forecast.at(1.0)
    assert point.buckets == 2 and point.low_ns is not None and point.high_ns is not None
    assert point.step_ns - point.low_ns == pytest.approx(point.high_ns - point.step_ns, rel=0.5)
