from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.tune.pairs import (
    Times,
    center_of,
    interval_of,
    is_touched,
    levels_of,
    log_gain,
    noise_of,
    share_of,
    speedup_of,
)

gains = st.lists(st.floats(-1, 1), min_size=1, max_size=30)


def test_twice_as_fast_is_a_speedup_of_one() -> None:
    assert speedup_of(log_gain([Times([200, 210, 190])], Times([100, 90, 110]))) == pytest.approx(1.0)


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
    assert noise_of([levels.tolist()]) == pytest.approx(0.01, rel=0.2)
    levels[::20] += 0.5
    assert noise_of([levels.tolist()]) == pytest.approx(0.01, rel=0.3)


def test_between_two_processes_there_is_no_noise_but_a_difference_of_their_machines() -> None:
    rng = np.random.default_rng(2)
    levels = 0.01 * rng.standard_normal((2, 10)) + [[0], [1]]
    assert noise_of(levels.tolist()) == pytest.approx(0.01, rel=0.4)
    assert noise_of([[1.0], [2.0], []]) == 0


# ---- work that buckets do not touch -----------------------------------------------------------------------------


def blocks_of(rng: np.random.Generator, count: int, log_step: float = 0.0, goes_with: float = 0.7) -> list[Times]:
    """Blocks of four steps on a machine that is now fast, now slow, each step of it; some of that shows in both."""
    machine = 0.1 * rng.standard_normal((count, 4))
    step_ns = 1e8 * np.exp(log_step + goes_with * machine + 0.01 * rng.standard_normal((count, 4)))
    untouched_ns = 3e7 * np.exp(machine)
    return [Times(*one) for one in zip(step_ns.astype(int).tolist(), untouched_ns.astype(int).tolist(), strict=True)]


def test_the_share_is_that_which_steps_have_in_common_with_untouched_work() -> None:
    rng = np.random.default_rng(4)
    assert share_of([blocks_of(rng, 60)]) == pytest.approx(0.7, abs=0.1)
    assert share_of([blocks_of(rng, 60, goes_with=0.0)]) == pytest.approx(0.0, abs=0.1)
    assert share_of([blocks_of(rng, 8)]) == 0  # too few neighbours to learn from
    assert share_of([[Times(one.step_ns) for one in blocks_of(rng, 60)]]) == 0  # not known


def test_speedups_vary_less_with_a_share_and_are_right_with_any() -> None:
    rng = np.random.default_rng(5)
    gains: dict[float, list[float]] = {share: [] for share in (0.0, 0.4, 0.7)}
    for _ in range(200):
        [current], [other] = blocks_of(rng, 1), blocks_of(rng, 1, log_step=-0.05)
        for share, of_share in gains.items():
            of_share.append(log_gain([current], other, share))
    spread = {share: float(np.std(one)) for share, one in gains.items()}
    assert spread[0.7] < spread[0.4] < spread[0.0]
    assert spread[0.7] < spread[0.0] / 3
    for share, one in gains.items():
        assert np.mean(one) == pytest.approx(0.05, abs=3 * spread[share] / math.sqrt(200))


def test_whole_steps_are_compared_where_untouched_work_is_known_of_one_side_only() -> None:
    [current], [other] = blocks_of(np.random.default_rng(6), 1), [Times([50_000_000])]
    assert log_gain([current], other, 0.7) == log_gain([Times(current.step_ns)], other)
    assert levels_of([current, other], 0.7) == levels_of([Times(current.step_ns), other])


def test_untouched_work_that_settings_change_is_noticed() -> None:
    rng = np.random.default_rng(7)
    current = blocks_of(rng, 12)
    slower = [Times(one.step_ns, [round(1.2 * ns) for ns in one.untouched_ns]) for one in blocks_of(rng, 12)]
    assert is_touched(in_rounds(current, slower), 2)
    assert not is_touched(in_rounds(current, slower)[:5], 2)
    assert not is_touched(in_rounds([Times(one.step_ns) for one in current], slower), 2)
    by_chance = [is_touched(in_rounds(blocks_of(rng, 12), blocks_of(rng, 12)), 2) for _ in range(400)]
    assert 0.02 < np.mean(by_chance) < 0.12


def in_rounds(current: list[Times], other: list[Times]) -> list[tuple[list[Times], Times]]:
    return [([one], two) for one, two in zip(current, other, strict=True)]
