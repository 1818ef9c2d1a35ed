"""What tuning must reach, on simulated jobs: three models, three links, steps as noisy as on machines of one's own."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from bucketlab.predict.replay import Slowdown
from tests.tune.simulated import (
    CALM,
    MILD,
    SHARED,
    Noise,
    caps_bytes,
    facts,
    found_after,
    loss,
    noisy,
    prediction_for,
    simulated_jobs,
    tuned,
    tuner_of,
    where_buckets_do_not_matter,
)


@pytest.mark.parametrize("noise", [CALM, MILD], ids=["calm", "mild"])
def test_in_nine_of_ten_runs_the_setting_found_is_within_1_percent_of_the_best_of_the_grid(noise: Noise) -> None:
    losses = []
    for number, quiet in enumerate(simulated_jobs()):
        best_ns = quiet.best_ns()
        for seed in range(3):
            job = noisy(quiet, noise, 100 * number + seed)
            result = tuned(job, seed)
            losses.append(loss(job, result.best if result.significant else result.baseline, best_ns))
    assert sum(one <= 0.01 for one in losses) >= 0.9 * len(losses)


def test_without_a_prediction_300_steps_find_a_setting_within_1_percent() -> None:
    steps = []
    for number, quiet in enumerate(simulated_jobs()):
        job = noisy(quiet, MILD, number)
        steps.append(found_after(job, tuned(job, number), quiet.best_ns()))
    assert sum(one <= 300 for one in steps) >= 0.9 * len(steps)


@pytest.mark.parametrize("link_error", [-0.15, 0.0, 0.15])
def test_with_a_prediction_that_is_somewhat_wrong_150_steps_find_a_setting_within_1_percent(link_error: float) -> None:
    steps = []
    for number, quiet in enumerate(simulated_jobs()):
        prediction = prediction_for(quiet, link_error, Slowdown(0.1, 0.1))
        job = noisy(quiet, MILD, number)
        result = tuned(job, number, job_facts=facts(job, prediction=prediction))
        steps.append(found_after(job, result, quiet.best_ns()))
    assert sum(one <= 150 for one in steps) >= 0.9 * len(steps)


def test_where_buckets_do_not_matter_at_most_5_percent_of_studies_recommend_a_change() -> None:
    noises, runs = (CALM, MILD, SHARED), 60
    wrong = [
        tuned(where_buckets_do_not_matter(noise, seed), seed).significant for noise in noises for seed in range(runs)
    ]
    assert sum(wrong) <= 0.05 * len(wrong)


def test_a_setting_that_cannot_be_beaten_is_kept_and_said_to_be_kept() -> None:
    result = tuned(where_buckets_do_not_matter(MILD, 3), 3)
    assert result.ci95 is not None
    assert result.ci95[0] <= 0 <= result.ci95[1]
    assert not result.significant
    assert result.how_to_apply == "keep your setting"
    assert result.finished


KNOWN = replace(SHARED, untouched=0.4)  # a machine that others use, and what buckets do not touch is known


def test_where_untouched_work_is_known_a_shared_machine_is_as_good_as_one_of_its_own() -> None:
    losses, widths = [], []
    for number, quiet in enumerate(simulated_jobs()):
        best_ns = quiet.best_ns()
        known = tuned(noisy(quiet, KNOWN, number), number)
        whole = tuned(noisy(quiet, SHARED, number), number)
        losses.append(loss(quiet, known.best if known.significant else known.baseline, best_ns))
        assert known.ci95 is not None
        assert whole.ci95 is not None
        assert known.untouched_share > 0.5 > whole.untouched_share
        widths.append((known.ci95[1] - known.ci95[0]) / (whole.ci95[1] - whole.ci95[0]))
    assert sum(one <= 0.01 for one in losses) >= 0.9 * len(losses)
    assert median(widths) < 0.7


def test_where_buckets_do_not_matter_and_untouched_work_is_known_at_most_5_percent_recommend_a_change() -> None:
    wrong = [tuned(where_buckets_do_not_matter(KNOWN, seed), seed).significant for seed in range(60)]
    assert sum(wrong) <= 0.05 * len(wrong)


def test_a_setting_that_slows_untouched_work_too_is_not_taken_for_faster_by_as_much() -> None:
    """Its steps are no shorter; a share of its longer forward pass, taken off, would make it so."""
    found = []
    for seed in range(10):
        job = where_buckets_do_not_matter(KNOWN, seed)
        tuner = tuner_of(job, seed)
        while (block := tuner.next_block()) is not None:
            times = job.times(caps_bytes(block.candidate.capacities) or caps_bytes(tuner.job.current), block.steps)
            slower = 1.0 if block.number is None else 1.15
            untouched = [round(slower * one) for one in times.untouched_ns]
            tuner.tell(block, times.step_ns, [], untouched_ns=untouched)
        found.append(tuner.result())
        tuner.close()
    assert not any(one.significant for one in found)
    assert all(one.untouched_share == 0 and any("compared whole" in note for note in one.notes) for one in found)
