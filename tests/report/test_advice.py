"""What the user is told to do: it follows from the figures, and nothing contradicts anything else."""

import itertools
import re

import msgspec
import pytest

from bucketlab.predict import predict
from bucketlab.predict.advice import (
    NOISE_SHARE,
    WORTH_SAVING_BYTES,
    advise,
    is_hidden,
    is_input_bound,
    late_rank,
)
from bucketlab.schema.analysis import RankStragglers, Stragglers
from bucketlab.schema.profile import PredictedPoint, Prediction
from tests.report import profiles

MS = profiles.MS
replace = msgspec.structs.replace


def _predicting(profile, best_mb, gain, error=0.0):
    """The profile with a prediction that promises `gain` and misses the step in force by `error`."""
    current_ns = round(profile.step.median_ns * (1 + error))
    best = PredictedPoint(bucket_cap_mb=best_mb, step_ns=round(current_ns * (1 - gain)))
    profile.prediction = Prediction(points=[best], best=best, current_step_ns=current_ns, floor_ns=best.step_ns)
    return profile


def _module(profile, **changes):
    profile.modules = [replace(module, **changes) for module in profile.modules]
    return profile


def _recommends_a_size(lines):
    return any("Try bucket_cap_mb=" in line for line in lines)


def test_a_better_size_is_named_with_what_is_predicted_and_how_to_measure_it():
    first = advise(_predicting(profiles.exposed(), 48, 0.061))[0]
    assert first == (
        "Try bucket_cap_mb=48: predicted 6.1 % faster (predicted, not measured); "
        "`bucketlab tune` measures it against others."
    )


def test_a_gain_within_the_noise_is_not_recommended():
    lines = advise(_predicting(profiles.exposed(), 48, NOISE_SHARE * 0.9))
    assert lines[0].startswith("Leave the buckets as they are")
    assert not _recommends_a_size(lines)


def test_steps_that_vary_raise_the_bar_for_a_recommendation():
    profile = _predicting(profiles.exposed(), 48, 0.061)
    step = profile.step
    profile.step = replace(step, p10_ns=step.median_ns // 2, p90_ns=step.median_ns * 3 // 2, samples=step.samples[:10])
    assert not _recommends_a_size(advise(profile))


def test_a_prediction_that_misses_the_measured_step_by_more_than_it_promises_is_not_trusted():
    first = advise(_predicting(profiles.exposed(), 48, 0.061, error=-0.12))[0]
    assert "misses the step in force by 12 %" in first
    assert "change nothing before `bucketlab tune`" in first


def test_a_prediction_far_off_is_no_ground_to_leave_the_buckets():
    first = advise(_predicting(profiles.exposed(), 25, 0.0, error=0.5))[0]
    assert "misses the step in force by 50 %" in first
    assert "only `bucketlab tune`" in first
    assert "Leave" not in first


def test_without_a_trace_the_prediction_still_tells_what_to_try():
    profile = _predicting(profiles.exposed(breakdown=None), 48, 0.2)
    assert _recommends_a_size(advise(profile))
    assert "was not measured" in advise(profiles.exposed(breakdown=None, prediction=None))[0]


def test_exposed_communication_without_a_prediction_is_sent_to_another_profile():
    lines = advise(profiles.exposed(prediction=None))
    assert "23 % of the step is exposed communication" in lines[0]
    assert "bucketlab tune" in lines[0]


def test_a_gain_within_the_bands_of_the_prediction_is_named_with_its_doubt():
    profile = _predicting(profiles.exposed(), 48, 0.061)
    prediction = profile.prediction
    sure = advise(profile)[0]
    prediction.current = replace(prediction.best, low_ns=prediction.current_step_ns * 9 // 10)
    prediction.best = replace(prediction.best, high_ns=prediction.current_step_ns)
    assert "could hide as much" in advise(profile)[0]
    assert "could hide as much" not in sure


def test_hidden_communication_leaves_the_buckets_alone():
    profile = _predicting(profiles.hidden(), 48, 0.2)
    assert is_hidden(profile)
    assert advise(profile)[0].startswith("Leave the buckets alone: communication is hidden")


def test_a_job_bound_by_input_is_told_so_and_no_size():
    profile = _predicting(profiles.input_bound(), 48, 0.2)
    lines = advise(profile)
    assert lines[0].startswith("The job is bound by input: 51 % of the step waits for data")
    assert "num_workers" in lines[0]
    assert not any("bucket_cap_mb" in line for line in lines)


def test_a_gpu_that_works_while_the_host_waits_for_data_is_not_bound_by_input():
    profile = profiles.input_bound()
    profile.breakdown = replace(profile.breakdown, idle_ns=MS, compute_ns=profile.breakdown.compute_ns + 179 * MS)
    assert not is_input_bound(profile)


def test_on_cpu_loading_in_the_training_process_counts_though_it_is_compute():
    profile = profiles.input_bound(device="cpu")
    profile.breakdown = replace(profile.breakdown, idle_ns=0)
    assert is_input_bound(profile)


def test_one_rank_has_nothing_to_overlap():
    lines = advise(profiles.one_rank())
    assert lines[0].startswith("One rank")
    assert not any("bucket_cap_mb" in line for line in lines)


def test_a_rank_that_the_others_wait_for_is_named_instead_of_a_size():
    profile = _predicting(profiles.straggler(late=2), 48, 0.2)
    lines = advise(profile)
    assert lines[0].startswith("Look at rank 2 (node-0, cuda:2): the others wait 39.9 ms")
    assert not _recommends_a_size(lines)


def test_ranks_that_take_turns_are_not_blamed_by_name():
    profile = profiles.straggler()
    profile.stragglers = Stragglers(
        by_rank=[
            RankStragglers(rank=r, arrival_lag_ns=20 * MS, wait_ns=25 * MS, lag_p10_ns=0, lag_p90_ns=45 * MS)
            for r in range(4)
        ],
        verdict="",
    )
    first = advise(profile)[0]
    assert "take turns" in first
    assert "rank 2" not in first


def test_a_short_wait_is_not_what_exposes_communication():
    assert late_rank(profiles.exposed()) is None


def test_gradients_beside_their_buckets_are_worth_the_bytes_they_take():
    lines = advise(_module(profiles.exposed(), gradient_as_bucket_view=False))
    assert any("gradient_as_bucket_view=True" in line and "622 MiB" in line for line in lines)
    assert not any("gradient_as_bucket_view" in line for line in advise(profiles.exposed()))


def test_a_view_that_saves_next_to_nothing_is_not_mentioned():
    profile = _module(profiles.exposed(), gradient_as_bucket_view=False)
    profile.memory = replace(profile.memory, saved_by_view_bytes=WORTH_SAVING_BYTES - 1)
    assert not any("gradient_as_bucket_view" in line for line in advise(profile))


def test_searching_for_unused_parameters_is_said_to_cost_the_rebuild_unless_the_graph_is_static():
    plain = advise(_module(profiles.exposed(), find_unused_parameters=True))[-1]
    assert "walk over the autograd graph" in plain
    assert "never rebuilds" in plain
    static = advise(_module(profiles.exposed(), find_unused_parameters=True, static_graph=True))[-1]
    assert "never rebuilds" not in static


def test_a_hook_of_the_scripts_own_is_named_and_no_size_is_predicted_over_it():
    profile = _predicting(_module(profiles.exposed(), communication_hook="powerSGD_hook"), 48, 0.2)
    lines = advise(profile)
    assert "powerSGD_hook" in lines[0]
    assert not _recommends_a_size(lines)


def test_accumulation_that_sends_every_backward_is_told_of_no_sync():
    profile = profiles.exposed(accumulation=4)
    assert "`no_sync()`" not in advise(profile)[0]
    profile.breakdown = replace(profile.breakdown, collectives=4 * len(profile.buckets))
    assert advise(profile)[0].startswith("Each of the 4 backwards")


def test_reductions_of_the_loss_are_not_taken_for_gradients_sent_twice():
    profile = profiles.exposed(cap_mb=1000, accumulation=2)
    profile.breakdown = replace(profile.breakdown, collectives=len(profile.buckets) + 2)
    assert not any("backwards of a step sends" in line for line in advise(profile))


def test_gloo_between_gpus_is_pointed_out_and_gloo_on_cpu_is_not():
    assert any("nccl" in line for line in advise(profiles.exposed(backend="gloo")))
    assert not any("nccl" in line for line in advise(profiles.exposed(backend="gloo", device="cpu")))


def test_more_traffic_than_the_backward_pass_can_hide_asks_for_less_traffic():
    assert any("whatever the buckets" in line for line in advise(profiles.exposed()))
    assert not any("whatever the buckets" in line for line in advise(profiles.overlapped()))


def test_what_less_traffic_would_win_is_predicted_in_figures():
    profile = profiles.exposed()
    profile.prediction = predict(profile)
    [line] = [line for line in advise(profile) if line.startswith("Bound by the link")]
    assert "Predicted, not measured: other buckets can win" in line
    halved, twice = (int(one) for one in re.findall(r"(\d+) %(?:, accumulation| of the time)", line))
    assert 5 < halved < 50 and 5 < twice < 50


def test_buckets_slower_than_the_link_alone_say_what_slows_them():
    profile = profiles.exposed()
    profile.link = replace(profile.link, bandwidth_gb_s=50.0)
    assert any("slow each other" in line for line in advise(profile))
    assert not any("slow each other" in line for line in advise(profiles.exposed()))


def test_a_full_device_is_told_where_sharding_begins():
    profile = profiles.exposed()
    profile.memory = replace(profile.memory, peak_bytes=profile.memory.capacity_bytes * 95 // 100)
    assert any("95 % full" in line and "7.90 B parameters" in line for line in advise(profile))


def test_nothing_measured_gives_no_advice():
    assert advise(profiles.nothing()) == []


@pytest.mark.parametrize("make", profiles.EVERY)
@pytest.mark.parametrize("gain", [0.0, 0.5])
@pytest.mark.parametrize("hook", [None, "my_hook"])
def test_no_advice_says_both_to_leave_the_buckets_and_to_change_them(make, gain, hook):
    profile = _module(make(), communication_hook=hook)
    if profile.step is not None and profile.world_size > 1:
        _predicting(profile, 48, gain)
    keep = ("Leave the buckets", "no bucket size", "nothing to overlap")
    change = ("Try bucket_cap_mb", "measure bucket sizes", "other bucket sizes")
    lines = advise(profile)
    assert not (_any(keep, lines) and _any(change, lines))


def _any(phrases, lines):
    return any(phrase in line for phrase, line in itertools.product(phrases, lines))
