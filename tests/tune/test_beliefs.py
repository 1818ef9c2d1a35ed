"""What many noisy figures of layouts say together, on made-up speed-ups that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from bucketlab.tune.beliefs import Beliefs, features_of

Float64s = NDArray[np.float64]
NOISE = 0.03
FEATURES = np.array([features_of([2**20] * count) for count in range(1, 41)])
UNKNOWN = np.zeros(len(FEATURES))


def truth(rng: np.random.Generator) -> Float64s:
    """Speed-ups that change smoothly with the number of buckets, but for half a percent of each layout's own."""
    best_at, own = rng.uniform(0, math.log(40)), 0.005 * rng.standard_normal(len(FEATURES))
    values: Float64s = -0.03 * (FEATURES[:, 0] - best_at) ** 2 + own
    return values


def measured(values: Float64s, rng: np.random.Generator) -> list[list[float]]:
    return [[float(value + NOISE * rng.standard_normal())] for value in values]


def test_together_they_are_nearer_to_the_truth_than_each_by_itself() -> None:
    rng = np.random.default_rng(1)
    alone, together, lucky, believed = [], [], [], []
    for _ in range(40):
        values = truth(rng)
        gains = measured(values, rng)
        mean = Beliefs.of(FEATURES, UNKNOWN, gains, NOISE).mean
        each = np.array(gains)[:, 0]
        alone.append(np.abs(each - values).mean())
        together.append(np.abs(mean - values).mean())
        lucky.append(values.max() - values[each.argmax()])
        believed.append(values.max() - values[mean.argmax()])
    assert np.mean(together) < 0.6 * np.mean(alone)
    assert np.mean(believed) < 0.6 * np.mean(lucky)


def test_what_a_choice_costs_is_what_it_is_believed_to_cost() -> None:
    rng = np.random.default_rng(2)
    cost, said = [], []
    for _ in range(100):
        values = truth(rng)
        beliefs = Beliefs.of(FEATURES, UNKNOWN, measured(values, rng), NOISE)
        cost.append(values.max() - values[beliefs.mean.argmax()])
        said.append(beliefs.regret)
    assert np.mean(said) == pytest.approx(np.mean(cost), rel=0.35)


def test_chances_are_met_as_often_as_they_say() -> None:
    rng = np.random.default_rng(3)
    chances, best = [], []
    for _ in range(100):
        values = truth(rng)
        beliefs = Beliefs.of(FEATURES, UNKNOWN, measured(values, rng), NOISE)
        chances.append(beliefs.chances.max())
        best.append(values.argmax() == beliefs.chances.argmax())
    assert np.mean(chances) == pytest.approx(np.mean(best), abs=0.12)


def test_one_disturbed_block_amid_others_hardly_moves_what_is_believed() -> None:
    rng = np.random.default_rng(4)
    values = truth(rng)
    gains = measured(values, rng)
    gains[20] = [values[20] + 0.25]  # the current setting's neighbours ran amid a burst of load
    assert Beliefs.of(FEATURES, UNKNOWN, gains, NOISE).mean[20] == pytest.approx(values[20], abs=0.05)
    gains[20] += [float(values[20]), float(values[20] + 0.01)]
    assert Beliefs.of(FEATURES, UNKNOWN, gains, NOISE).mean[20] == pytest.approx(values[20], abs=0.02)


def test_a_layout_that_nobody_measured_is_where_the_prediction_and_its_likes_put_it() -> None:
    expected = np.linspace(0.0, 0.1, len(FEATURES))
    gains = [[float(one) - 0.04] * 50 for one in expected]
    gains[20] = []
    beliefs = Beliefs.of(FEATURES, expected, gains, NOISE)
    assert beliefs.mean[20] == pytest.approx(expected[20] - 0.04, abs=0.01)


def test_more_pairs_are_believed_more() -> None:
    gains = [[0.0] for _ in FEATURES]
    once = Beliefs.of(FEATURES, UNKNOWN, [*gains[:10], [0.06], *gains[11:]], NOISE).mean[10]
    often = Beliefs.of(FEATURES, UNKNOWN, [*gains[:10], [0.06] * 30, *gains[11:]], NOISE).mean[10]
    assert once < 0.02
    assert often > 0.03
