"""Searching groups of environment variables: what is launched, in which order, and what is concluded from it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.schema.tuning import Launched, TunedSetting
from bucketlab.tune.groups import (
    RACE_ROUNDS,
    Choices,
    Group,
    GroupSearch,
    Planned,
    all_groups,
    gain_of,
    least_launches,
)
from bucketlab.tune.pairs import interval_of_few

CHOICES: Choices = {"ALGO": ["ring", "tree"], "PROTO": ["simple", "ll"], "BUFFER": ["small", "large"]}
StepNs = Callable[[Group], float]


def launched(planned: Planned, step_ns: float, failure: str | None = None) -> Launched:
    return Launched(
        stage=planned.stage,
        rung=planned.rung,
        variables=planned.variables,
        setting=None if failure else TunedSetting(bucket_cap_mb=25.0, step_ns=round(step_ns)),
        own_step_ns=round(step_ns),
        failure=failure,
    )


def searched(
    step_ns: StepNs, seed: int, noise: float = 0.01, drift: float = 0.0, choices: Choices = CHOICES, launches: int = 36
) -> GroupSearch:
    """A whole search; each launch has noise of its own, and all drift."""
    random = np.random.default_rng(seed)
    search, level = GroupSearch(choices, launches, seed), 0.0
    while (planned := search.next()) is not None:
        level += random.normal(0, drift)
        search.tell(launched(planned, step_ns(planned.variables) * math.exp(level + random.normal(0, noise))))
    return search


def is_recommended(search: GroupSearch) -> bool:
    gains = search.race_gains(lambda one: one.own_step_ns)
    if not gains:
        return False
    _, interval = gain_of(gains)
    return interval is not None and interval[0] > 0


def no_difference(group: Group) -> float:
    return 1e8


def tree_is_faster(group: Group) -> float:
    return 1e8 * (0.9 if group.get("ALGO") == "tree" else 1.0) * (1.3 if group.get("PROTO") == "ll" else 1.0)


@pytest.mark.parametrize("drift", [0.0, 0.02], ids=["steady", "drifting"])
def test_where_variables_do_not_matter_at_most_5_percent_of_searches_recommend_some(drift: float) -> None:
    assert sum(is_recommended(searched(no_difference, seed, drift=drift)) for seed in range(100)) <= 5


def test_variables_that_make_a_tenth_are_found_on_a_machine_that_drifts() -> None:
    found = [searched(tree_is_faster, seed, drift=0.01) for seed in range(20)]
    right = [one for one in found if one.leader().get("ALGO") == "tree" and one.leader().get("PROTO") != "ll"]
    assert sum(is_recommended(one) for one in right) >= 18


def test_each_launch_with_variables_stands_between_two_without() -> None:
    launches = searched(tree_is_faster, 3).launched
    search = [one for one in launches if one.stage == "search"]
    assert not search[0].variables
    assert not search[-1].variables
    in_a_row = "".join("g" if one.variables else "." for one in search).split(".")
    assert max(map(len, in_a_row)) <= 3
    race = [one for one in launches if one.stage == "race"]
    assert [sum(one.rung == number and bool(one.variables) for one in race) for number in range(RACE_ROUNDS)] == [
        1
    ] * RACE_ROUNDS


@settings(max_examples=25)
@given(launches=st.integers(least_launches(), 60), seed=st.integers(0, 2**16))
def test_no_more_launches_are_made_than_were_given(launches: int, seed: int) -> None:
    assert len(searched(tree_is_faster, seed, launches=launches).launched) <= launches


@settings(max_examples=25)
@given(seed=st.integers(0, 2**16), bad=st.sampled_from(["ring", "tree"]))
def test_a_group_that_failed_is_not_launched_again(seed: int, bad: str) -> None:
    search = GroupSearch(CHOICES, 36, seed)
    while (planned := search.next()) is not None:
        assert planned.variables not in search.failed()
        failure = "it crashed" if planned.variables.get("ALGO") == bad else None
        search.tell(launched(planned, tree_is_faster(planned.variables), failure))
    assert search.leader().get("ALGO") != bad


@settings(max_examples=25)
@given(seed=st.integers(0, 2**16))
def test_a_search_that_is_taken_up_after_each_launch_ends_as_one_in_a_row(seed: int) -> None:
    told: list[Launched] = []
    while (planned := GroupSearch(CHOICES, 36, seed + len(told), launched=told).next()) is not None:
        told.append(launched(planned, tree_is_faster(planned.variables)))
    whole = searched(tree_is_faster, seed, noise=0.0)
    for one in (told, whole.launched):
        assert len(one) <= 36
        assert sum(each.stage == "race" for each in one) == 2 * RACE_ROUNDS
        assert next(each.variables for each in one if each.stage == "race" and each.variables)["ALGO"] == "tree"


def test_values_are_tried_alone_before_they_are_combined() -> None:
    first = [one.variables for one in searched(no_difference, 5).launched if one.variables][:6]
    assert {len(group) for group in first} == {1}
    assert [sorted(name for group in some for name in group) for some in (first[:3], first[3:])] == [
        sorted(CHOICES)
    ] * 2


def test_where_all_groups_fit_each_is_launched() -> None:
    few: Choices = {"ALGO": ["ring", "tree"]}
    groups = [one.variables for one in searched(no_difference, 1, choices=few).launched if one.stage == "search"]
    assert all(one in groups for one in all_groups(few))


def test_groups_that_are_all_slower_are_not_raced() -> None:
    search = searched(lambda group: 1e8 if not group else 2e8, 1)
    assert not search.leader()
    assert "no group of variables was faster" in search.reason


def test_an_interval_between_order_statistics_needs_six_values_and_holds_as_often_as_it_says() -> None:
    assert interval_of_few([1.0] * 5, 0.95) is None
    assert interval_of_few([3.0, 1.0, 2.0, 6.0, 5.0, 4.0], 0.95) == (1.0, 6.0)
    random = np.random.default_rng(1)
    for count in (6, 9, 20):
        held = 0
        for _ in range(1000):
            low, high = interval_of_few(list(random.exponential(1.0, count)), 0.95) or (0.0, 0.0)
            held += low <= math.log(2) <= high
        assert held >= 940
