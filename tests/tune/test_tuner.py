"""The tuner's dealings with the job that trains its blocks."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from bucketlab.errors import BadInput
from bucketlab.link.sweep import Range, Search
from bucketlab.predict.assignment import MIB
from bucketlab.schema.tuning import CURRENT, Candidate, Capacities
from bucketlab.tune import Block, Tuner
from tests.tune.simulated import (
    LINKS,
    MILD,
    QUIET,
    Noise,
    SimulatedJob,
    caps_bytes,
    convolutional,
    facts,
    noisy,
    train,
    tuned,
    tuner_of,
    wide_embedding,
)

LOUD = Noise(step=0.4, drift=0.1, drift_steps=20)


def job(noise: Noise = QUIET, seed: int = 0) -> SimulatedJob:
    return SimulatedJob.of(convolutional(), LINKS["gloo-4gbit"], 1.0, noise, seed)


def all_blocks(tuner: Tuner, of: SimulatedJob) -> list[Block]:
    given = []
    while (block := tuner.next_block()) is not None:
        given.append(block)
        train(tuner, of, block)
    return given


def test_candidates_are_measured_between_two_blocks_of_the_current_setting() -> None:
    tuner = tuner_of(job(), trials=10)
    given = all_blocks(tuner, job())[:21]
    assert [block.number is None for block in given] == [True, False] * 10 + [True]
    assert all(block.candidate == CURRENT for block in given[::2])
    assert all(block.steps == 4 for block in given)


def test_steps_settle_after_each_change_of_buckets_and_only_then() -> None:
    tuner = tuner_of(job(), trials=5, settle_steps=3)
    given = all_blocks(tuner, job())
    in_force = None
    for block in given:
        assert block.settle_steps == (0 if block.candidate == in_force else 3)
        in_force = block.candidate
    assert tuner.steps == sum(block.steps + block.settle_steps for block in given)


def test_short_steps_make_long_blocks() -> None:
    fast = SimulatedJob.of(convolutional(), LINKS["nvlink"])
    given = all_blocks(tuner_of(fast, trials=3), fast)
    assert given[0].steps == 4  # how long a step takes is not known yet
    assert all(block.steps == 64 for block in given[1:])


def test_no_layout_is_measured_in_two_trials() -> None:
    built = [tuple(trial.bucket_bytes) for trial in tuned(job(MILD), trials=60).trials]
    assert len(set(built)) == len(built)


def test_a_job_with_few_layouts_ends_with_all_of_them_measured() -> None:
    few = SimulatedJob.of([8 * MIB] * 4, LINKS["gloo-4gbit"])
    result = tuned(few, trials=40)
    assert result.finished
    assert {len(trial.bucket_bytes) for trial in result.trials} == {1, 2, 4}


def test_a_job_whose_buckets_are_the_same_for_every_capacity_is_not_said_to_have_tried_another() -> None:
    result = tuned(SimulatedJob.of([1024, 8 * MIB], LINKS["gloo-4gbit"]), trials=40)
    assert [trial.is_current for trial in result.trials] == [True]
    assert result.notes == ["every bucket_cap_mb from 0.25 to 256 gives the buckets that the job has"]


def test_a_drift_of_a_tenth_does_not_show_in_speedups() -> None:
    quiet = job()
    drifting = noisy(quiet, Noise(drift=0.1, drift_steps=2000), 5)
    for trial in tuned(drifting, trials=20).trials:
        exact = quiet.exact_ns([MIB, 25 * MIB]) / quiet.exact_of(trial.bucket_bytes) - 1
        assert trial.speedup == pytest.approx(exact, abs=0.02)


def test_what_ddp_really_built_overrules_its_rule() -> None:
    tuner = tuner_of(job(), trials=4)
    one_bucket = (sum(convolutional()),)
    while (block := tuner.next_block()) is not None:
        built = list(one_bucket) if block.number is not None else job().buckets([MIB, 25 * MIB])
        tuner.tell(block, [100_000_000] * block.steps, built)
    result = tuner.result()
    tried = [trial for trial in result.trials if trial.number > 0]
    assert all(trial.bucket_bytes == list(one_bucket) for trial in tried)
    assert sum(trial.built_otherwise for trial in tried) >= 3
    assert sum(trial.finalist for trial in tried) == 1  # four names of one layout


@pytest.mark.parametrize("failure", ["out of memory", None])
def test_a_candidate_that_fails_ends_its_trial_with_the_reason_and_is_never_tried_again(failure: str | None) -> None:
    tuner = tuner_of(job(MILD), trials=40)
    failed: dict[tuple[int, ...], int] = {}
    while (block := tuner.next_block()) is not None:
        caps = caps_bytes(block.candidate.capacities) or [MIB, 25 * MIB]
        built = tuple(job().buckets(caps))
        if max(built) > 50 * MIB:  # too large for this device, or nothing but NaN
            failed[built] = failed.get(built, 0) + 1
            tuner.tell(block, [] if failure else [math.nan] * 4, [], failure)
        else:
            train(tuner, job(), block)
    assert failed
    assert set(failed.values()) == {1}
    result = tuner.result()
    trials = [trial for trial in result.trials if trial.state == "failed"]
    assert len(trials) == len(failed)
    assert all(trial.failure == (failure or "a step's time is not a number") for trial in trials)
    assert max(result.best.bucket_bytes) <= 50 * MIB
    assert result.finished


def test_a_finalist_that_fails_in_the_race_leaves_it_to_the_other() -> None:
    tuner = tuner_of(job(MILD), trials=8)
    broken: set[int] = set()
    while (block := tuner.next_block()) is not None:
        if tuner.phase == "final race" and block.number is not None and not broken:
            broken.add(block.number)
            tuner.tell(block, [], [], "CUDA error")
            continue
        assert block.number not in broken or block.number is None
        train(tuner, job(MILD), block)
    result = tuner.result()
    assert {trial.number for trial in result.trials if trial.state == "failed"} == broken
    assert result.rounds >= 12


def test_a_current_setting_that_fails_ends_the_study_and_says_so() -> None:
    tuner = tuner_of(job())
    blocks = 0
    while (block := tuner.next_block()) is not None:
        blocks += 1
        tuner.tell(block, [], [], "a rank is gone")
    assert blocks == 3
    result = tuner.result()
    assert "a rank is gone" in result.reason
    assert not result.significant


def test_a_block_that_comes_back_without_steps_is_given_out_again() -> None:
    tuner = tuner_of(job())
    first = tuner.next_block()
    assert first is not None
    tuner.tell(first, [], [])
    assert tuner.next_block() == first


def test_a_result_can_be_had_at_any_time_and_recommends_nothing_before_the_race_is_run() -> None:
    tuner = tuner_of(job(), trials=6)
    while (block := tuner.next_block()) is not None:
        result = tuner.result()
        if result.rounds < 12:
            assert not result.significant
            assert result.ci95 is None
        assert not result.finished
        train(tuner, job(), block)
    assert tuner.result().finished


@pytest.mark.parametrize("budget", [100, 300, 600, 1200])
def test_no_more_steps_are_spent_than_were_given(budget: int) -> None:
    result = tuned(job(MILD), step_budget=budget)
    assert result.steps <= budget
    assert result.finished
    if budget >= 300:
        assert result.rounds >= 12


def test_with_other_options_searched_the_best_has_one_where_it_helps() -> None:
    search = Search(bucket_cap_mb=Range(low=0.25, high=256), gradient_as_bucket_view=True)
    tuner = tuner_of(job(), search=search)
    while (block := tuner.next_block()) is not None:
        caps = caps_bytes(block.candidate.capacities) or [MIB, 25 * MIB]
        faster = 0.9 if block.candidate.gradient_as_bucket_view else 1.0
        tuner.tell(block, [faster * one for one in job().run(caps, block.steps)], job().buckets(caps))
    result = tuner.result()
    assert result.best.gradient_as_bucket_view is True
    assert "gradient_as_bucket_view=True" in result.how_to_apply


def test_the_first_bucket_is_searched_where_the_sweep_says_so() -> None:
    search = Search(bucket_cap_mb=Range(low=0.25, high=256), first_bucket_mb=Range(low=0.5, high=16))
    result = tuned(SimulatedJob.of(wide_embedding(), LINKS["gloo-4gbit"]), search=search)
    firsts = {trial.params["first_bucket_mb"] for trial in result.trials if "first_bucket_mb" in trial.params}
    assert firsts <= {0.5, 1.0, 2.0, 4.0, 8.0, 16.0}
    assert len(firsts) > 2


def test_the_same_seed_gives_the_same_study() -> None:
    assert tuned(job(MILD), 7) == tuned(job(MILD), 7)


def test_figures_of_a_result_agree_with_one_another() -> None:
    result = tuned(job(MILD), 1, job_facts=facts(job(), Capacities(bucket_cap_mb=90.0)))
    assert result.significant
    assert result.speedup is not None
    assert result.ci95 is not None
    assert result.best.step_ns is not None
    assert result.baseline.step_ns is not None
    assert result.ci95[0] <= result.speedup <= result.ci95[1]
    assert result.baseline.step_ns / result.best.step_ns - 1 == pytest.approx(result.speedup, abs=1e-6)
    assert sum(trial.finalist for trial in result.trials) == 2


def test_progress_counts_up_to_the_end() -> None:
    tuner = tuner_of(job(), trials=8)
    seen = []
    while (block := tuner.next_block()) is not None:
        seen.append(tuner.progress())
        train(tuner, job(), block)
    assert seen[0].seconds_left is None
    assert [one.trials for one in seen] == sorted(one.trials for one in seen)
    phases = [one.phase for one in seen]
    assert [*dict.fromkeys(phases)] == ["search", "narrowing", "final race"] or [*dict.fromkeys(phases)] == [
        "search",
        "final race",
    ]
    last = tuner.progress()
    assert (last.phase, last.seconds_left, last.trials) == ("done", 0.0, 8)
    assert last.best_speedup is not None


def test_a_study_of_another_job_is_not_gone_on_with(tmp_path: object) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    tuned(job(), trials=2, storage=storage)
    other = SimulatedJob.of(wide_embedding(), LINKS["gloo-4gbit"])
    tuner = tuner_of(other, storage=storage)
    with pytest.raises(BadInput, match="of a job with other gradients"):
        tuner.next_block()
    tuner.close()


def test_the_row_of_the_current_setting_counts_all_of_its_steps() -> None:
    tuner, simulated, spent = tuner_of(job(), trials=6), job(), 0
    while (block := tuner.next_block()) is not None:
        spent += block.steps
        train(tuner, simulated, block)
    assert sum(len(trial.step_ns) for trial in tuner.result().trials) == spent


def test_a_study_taken_up_again_knows_the_steps_of_the_launches_before(tmp_path: object) -> None:
    storage, spent = f"sqlite:///{tmp_path}/study.db", 0
    for launch_steps in (40, 10_000):
        tuner, simulated, in_launch = tuner_of(job(), trials=6, storage=storage), job(), 0
        while in_launch < launch_steps and (block := tuner.next_block()) is not None:
            in_launch += block.steps
            train(tuner, simulated, block)
        result = tuner.result()
        tuner.close()
        spent += in_launch
    # Of a launch that ends in the middle, the last block of the current setting belongs to no trial that is stored.
    assert spent - 8 <= sum(len(trial.step_ns) for trial in result.trials) <= spent


def test_with_no_trials_the_current_setting_alone_is_timed() -> None:
    tuner = tuner_of(job(), trials=0)
    given = all_blocks(tuner, job())
    result = tuner.result()
    assert len(given) == result.rounds >= 12
    assert all(block.candidate == CURRENT for block in given)
    assert result.finished
    assert not result.significant
    assert result.baseline.step_ns is not None


def test_what_was_best_elsewhere_is_tried_first_and_alone_where_there_is_one_trial() -> None:
    start = Candidate(capacities=Capacities(bucket_cap_mb=8.0))
    tuner = tuner_of(job(), trials=1, starts=[start])
    tried = {block.candidate for block in all_blocks(tuner, job())}
    assert tried == {CURRENT, start}
    assert tuner.result().best.candidate() == start


# ---- where steps vary ------------------------------------------------------------------------------------------


def test_a_race_that_cannot_tell_what_is_wanted_says_so_and_what_would_help() -> None:
    result = tuned(job(LOUD, 3), trials=8)
    assert result.rounds == 30
    assert result.ci95 is not None
    half = (result.ci95[1] - result.ci95[0]) / 2
    (note,) = [one for one in result.notes if "steps vary" in one]
    said = re.search(r"to ±([\d.]+) %", note)
    assert said is not None
    assert float(said[1]) == pytest.approx(100 * half, abs=0.06)
    assert "--rounds 120" in note
    assert not any("steps vary" in one for one in tuned(job(MILD), trials=8).notes)


def test_more_rounds_make_the_interval_narrower_where_steps_vary_and_are_not_run_where_they_do_not() -> None:
    few, many = (tuned(job(LOUD, 4), trials=8, most_rounds=rounds) for rounds in (30, 120))
    assert few.rounds == 30
    assert 60 < many.rounds <= 120
    assert few.ci95 is not None
    assert many.ci95 is not None
    assert many.ci95[1] - many.ci95[0] < 0.7 * (few.ci95[1] - few.ci95[0])
    assert tuned(job(QUIET), trials=8, most_rounds=120).rounds == 12


@pytest.mark.parametrize(
    ("step_ms", "rounds", "longest"),
    [(50, None, (4, 10, 10)), (25, None, (8, 20, 20)), (400, None, (4, 4, 8)), (25, 30, (8, 20, 20))],
)
def test_where_steps_are_short_blocks_of_rounds_last_half_a_second_and_the_race_a_minute_and_a_half(
    step_ms: int, rounds: int | None, longest: tuple[int, int, int]
) -> None:
    of = job(LOUD, 4)
    tuner = tuner_of(of, trials=8, most_rounds=rounds)
    pace = step_ms * 1e6 / of.exact_ns(caps_bytes(tuner.job.current))
    steps: dict[str, list[int]] = {}
    while (block := tuner.next_block()) is not None:
        steps.setdefault(tuner.progress().phase, []).append(block.steps)
        caps = caps_bytes(block.candidate.capacities) or caps_bytes(tuner.job.current)
        of.run(caps, block.settle_steps)
        tuner.tell(block, [pace * ns for ns in of.run(caps, block.steps)], of.buckets(caps))
    for phase, usual in zip(("search", "narrowing", "final race"), longest, strict=True):
        # Of a noisy job the current setting is now and then taken for faster or slower.
        assert 0.7 * usual <= np.median(steps[phase]) <= 1.4 * usual
    seconds = 3 * sum(steps["final race"]) / len(steps["final race"]) * tuner.result().rounds * step_ms / 1000
    if step_ms < 100 and rounds is None:
        assert tuner.result().rounds > 30
        assert seconds < 1.3 * 90
    else:
        assert tuner.result().rounds == 30
    tuner.close()


def test_a_race_that_varies_more_than_the_search_did_gets_more_rounds() -> None:
    tuner, of = tuner_of(job(QUIET), trials=8), job(QUIET)
    while (block := tuner.next_block()) is not None:
        of.noise = LOUD if tuner.phase == "final race" else QUIET
        train(tuner, of, block)
    assert tuned(job(QUIET), trials=8).rounds == 12
    assert tuner.result().rounds == 30
