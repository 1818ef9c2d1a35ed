from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.tune.pairs import center_of, interval_of, level_of, noise_of, speedup_of

gains = st.lists(st.floats(-1, 1), min_size=1, max_size=30)


def test_twice_as_fast_is_a_speedup_of_one() -> None:
    assert speedup_of(level_of([200, 210, 190]) - level_of([100, 90, 110])) == pytest.approx(1.0)


@given(gains, st.floats(0.5, 0.99))
def test_the_interval_lies_within_the_data_and_around_their_center(rounds: list[float], confidence: float) -> None:
    low, high = interval_of(rounds, confidence)
    assert min(rounds) - 1e-12 <= low <= center_of(rounds) <= high <= max(rounds) + 1e-12


def test_rounds_that_other_work_disturbed_hardly_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    calm, disturbed, as_mean = [], [], []
    for _ in range(50):
        gains = 0.03 + 0.02 * rng.standard_normal(30)
        low, high = interval_of(gains.tolist(), 0.95)
        calm.append(high - low)
        bursts = np.where(rng.random(30) < 0.2, 0.35 * rng.choice([-1, 1], 30), 0)
        low, high = interval_of((gains + bursts).tolist(), 0.95)
        disturbed.append(high - low)
        as_mean.append(2 * 1.96 * float(np.std(gains + bursts)) / math.sqrt(30))
    assert np.median(disturbed) < 1.6 * np.median(calm)
    assert np.median(disturbed) < 0.3 * np.median(as_mean)


@given(gains, st.floats(-1, 1))
def test_the_interval_moves_with_the_data(rounds: list[float], shift: float) -> None:
    moved = interval_of([one + shift for one in rounds], 0.95)
    assert moved == pytest.approx(tuple(one + shift for one in interval_of(rounds, 0.95)), abs=1e-9)


def test_a_95_percent_interval_of_20_rounds_misses_the_truth_in_about_one_of_twenty_cases() -> None:
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(400):
        low, high = interval_of((0.02 + 0.05 * rng.standard_t(4, 20)).tolist(), 0.95)
        missed += not low <= 0.02 <= high
    assert missed / 400 <= 0.075


def test_noise_is_that_of_a_block_and_a_burst_in_a_few_blocks_does_not_change_it() -> None:
    rng = np.random.default_rng(2)
    levels = math.log(100e6) + 0.01 * rng.standard_normal(200)
    assert noise_of(levels.tolist()) == pytest.approx(0.01, rel=0.2)
    levels[::20] += 0.5
    assert noise_of(levels.tolist()) == pytest.approx(0.01, rel=0.3)
