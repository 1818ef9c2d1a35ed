"""What several ranks tell together: matching, clocks, waits, stragglers, and what is said of what is missing."""

from __future__ import annotations

import copy
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.analysis import merge
from tests.analysis.jobs import TRANSFER_NS, collective, job, rank, step, without

MS = 1_000_000


def waits(analysis):
    return {
        one.rank: [[event.wait_ns for event in each.events] for each in one.steps if each.events]
        for one in analysis.ranks
    }


def transfers(analysis):
    return {event.transfer_ns for one in analysis.ranks for each in one.steps for event in each.events}


def lags(analysis):
    return {one.rank: one.arrival_lag_ns for one in analysis.stragglers.by_rank}


# ---- waits and lags -------------------------------------------------------------------------------------------


def test_a_collective_is_split_into_the_wait_for_the_last_rank_and_the_transfer():
    analysis = merge(job([[0, 0], [3 * MS, 1 * MS]]))
    assert transfers(analysis) == {TRANSFER_NS}
    assert waits(analysis) == {0: [[3 * MS] * 3, [1 * MS] * 3], 1: [[0] * 3, [0] * 3]}


def test_lags_and_waits_are_medians_over_steps_with_their_spread():
    analysis = merge(job([[0] * 5, [1 * MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS]]))
    first, second = analysis.stragglers.by_rank
    assert (first.arrival_lag_ns, first.wait_ns) == (0, 9 * MS)  # three collectives, 3 ms each
    assert (second.arrival_lag_ns, second.lag_p10_ns, second.lag_p90_ns) == (3 * MS, 1_400_000, 4_600_000)
    assert second.wait_ns == 0


lag_tables = st.integers(2, 5).flatmap(
    lambda ranks: st.integers(1, 4).flatmap(
        lambda steps: st.lists(
            st.lists(st.integers(0, 9 * MS), min_size=steps, max_size=steps), min_size=ranks, max_size=ranks
        )
    )
)


@pytest.mark.fault(
    "hosts",
    "the clocks of hosts are days apart",
    command="analyze",
    outcome="the same figures: ranks are aligned on the ends of collectives",
)
@given(lag_tables, st.randoms())
def test_clocks_of_hosts_that_differ_change_nothing(table, random):
    clocks = [random.randrange(-(10**15), 10**15) for _ in table]
    plain, skewed = merge(job(table)), merge(job(table, clocks_ns=clocks))
    assert waits(plain) == waits(skewed)
    assert lags(plain) == pytest.approx(lags(skewed), abs=1)


@given(lag_tables)
def test_sequence_numbers_match_as_order_does(table):
    by_order, by_number = merge(job(table)), merge(job(table, sequences=True))
    assert waits(by_order) == waits(by_number)
    assert by_order.stragglers == by_number.stragglers


@given(lag_tables, st.randoms())
def test_the_order_in_which_ranks_are_given_does_not_matter(table, random):
    ranks = job(table)
    assert merge(random.sample(ranks, len(ranks))) == merge(ranks)


def test_merging_changes_nothing_it_was_given():
    ranks = job([[0, 0], [3 * MS, 1 * MS]])
    before = copy.deepcopy(ranks)
    merge(ranks)
    assert ranks == before


def test_ranks_of_one_host_share_a_clock_so_a_late_end_is_not_taken_for_its_error():
    # rank 1 leaves 0.4 ms after rank 0, as on a busy CPU; both read the same clock
    ranks = [
        rank(0, [step(s, [collective(10 * MS, 12 * MS)]) for s in range(3)], 2, "node"),
        rank(1, [step(s, [collective(11 * MS, 12_400_000)]) for s in range(3)], 2, "node"),
    ]
    assert lags(merge(ranks)) == {0: 0, 1: 1 * MS}


def test_clocks_reach_ranks_through_the_groups_they_share():
    # groups {0,1} and {1,2}: rank 2's clock is known only by way of rank 1
    def events(*groups):
        return [collective(10 * MS * (g + 1), 10 * MS * (g + 1) + TRANSFER_NS, group=str(g)) for g in groups]

    ranks = [
        rank(0, [step(s, events(0)) for s in range(3)], 3),
        rank(1, [step(s, events(0, 1), clock_ns=5 * MS) for s in range(3)], 3),
        rank(2, [step(s, events(1), clock_ns=-7 * MS) for s in range(3)], 3),
    ]
    assert lags(merge(ranks)) == {0: 0, 1: 0, 2: 0}


def test_the_clock_of_a_group_that_is_joined_by_a_smaller_one_is_aligned_by_that():
    # {0,1} and {2,3} meet often; {1,2}, which joins them, once a step
    def events(*groups):
        return [
            collective(10 * MS * (k + 1), 10 * MS * (k + 1) + TRANSFER_NS, group=group)
            for k, group in enumerate(groups)
        ]

    clocks = [0, 0, 40 * MS, 40 * MS]
    groups = [["a", "a"], ["a", "a", "ab"], ["b", "b", "ab"], ["b", "b"]]
    ranks = [rank(r, [step(s, events(*groups[r]), clock_ns=clocks[r]) for s in range(3)], 4) for r in range(4)]
    assert lags(merge(ranks)) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_gloo_collectives_match_in_the_order_of_their_calls():
    # on rank 1 two workers started the other way round
    def ranks(swapped):
        calls = [collective(10 * MS, 20 * MS, ready_ns=1 * MS), collective(11 * MS, 30 * MS, ready_ns=2 * MS)]
        if swapped:
            calls = [collective(10 * MS, 30 * MS, ready_ns=2 * MS), collective(11 * MS, 20 * MS, ready_ns=1 * MS)]
        return [step(s, calls) for s in range(3)]

    both = [rank(0, ranks(False), 2, kernels=0), rank(1, ranks(True), 2, kernels=0)]
    assert waits(merge(both)) == {0: [[1 * MS, 0]] * 3, 1: [[1 * MS, 0]] * 3}


def test_operations_that_do_not_hold_ranks_together_name_no_stragglers():
    def ranks(op):
        return [rank(r, [step(s, [collective(r * MS, 9 * MS, op=op)]) for s in range(3)], 2) for r in range(2)]

    assert merge(ranks("broadcast")).stragglers.by_rank == []
    assert len(merge(ranks("allgather")).stragglers.by_rank) == 2
    assert transfers(merge(ranks("broadcast"))) == {8 * MS}
    assert transfers(merge(ranks("sendrecv"))) == {None}


def test_a_lag_is_taken_where_ranks_are_furthest_apart():
    # the second collective starts when the first ends, which hides that rank 1 is late
    first, hidden = collective(10 * MS, 20 * MS), collective(20 * MS, 30 * MS, elements=5)
    late = collective(15 * MS, 20 * MS)
    ranks = [
        rank(0, [step(s, [first, hidden]) for s in range(3)], 2),
        rank(1, [step(s, [late, hidden]) for s in range(3)], 2),
    ]
    assert lags(merge(ranks)) == {0: 0, 1: 5 * MS}


# ---- who is to blame ------------------------------------------------------------------------------------------

HOSTS = ["node0"] * 4 + ["node1"] * 4


def lags_of(late, ns, steps=6, seed=1):
    chance = random.Random(seed)
    return [[chance.randrange(200_000) + (ns if number in late else 0) for _ in range(steps)] for number in range(8)]


def verdict(*args, **more):
    return merge(job(*args, hosts=HOSTS, **more)).stragglers.verdict


def test_one_slow_gpu_is_named():
    compute = [50 * MS + (9 * MS if number == 5 else 0) for number in range(8)]
    said = verdict(lags_of({5}, 8 * MS), compute_ns=compute)
    assert said.startswith("A slow device: rank 5 comes 8.0")
    assert "9.00 ms longer" in said


def test_a_slow_input_on_one_node_is_named_by_the_node():
    said = verdict(lags_of({4, 5, 6, 7}, 8 * MS), input_ns=[0] * 4 + [8 * MS] * 4)
    assert said.startswith("Slow input: all 4 ranks of node1")
    assert "DataLoader" in said


def test_a_rank_that_is_late_for_no_known_reason_points_to_its_host():
    assert verdict(lags_of({2}, 8 * MS)).startswith("Slow host: rank 2 comes")


def test_random_noise_names_nobody_to_blame():
    chance = random.Random(3)
    table = [[chance.randrange(10 * MS) for _ in range(12)] for _ in range(8)]
    assert verdict(table).startswith("Random noise")


def test_a_rank_that_was_late_once_is_noise():
    table = lags_of(set(), 0)
    table[3][2] = 30 * MS
    assert not verdict(table).startswith(("Slow", "A slow"))


def test_a_rank_that_is_late_in_most_steps_but_not_all_is_not_said_to_be_late_in_every_one():
    table = [[0] * 6 for _ in range(8)]
    table[3] = [9 * MS, 9 * MS, 0, 9 * MS, 9 * MS, 0]
    table[1] = [0, 0, 1 * MS, 0, 0, 1 * MS]
    said = verdict(table)
    assert said.startswith("Random noise")
    assert "most often rank 3, in 4 of 6 steps" in said


def test_ranks_that_arrive_together_are_no_stragglers():
    assert verdict(lags_of(set(), 0)).startswith("No stragglers")


def test_two_ranks_are_enough_to_name_the_late_one():
    table = [[0] * 8, [8 * MS] * 8]
    said = merge(job(table, input_ns=[0, 8 * MS])).stragglers.verdict
    assert said.startswith("Slow input: rank 1 comes 8.00 ms (8.0 % of a step) late")


@pytest.mark.parametrize(("ranks", "needed"), [(2, 8), (4, 5), (8, 4), (200, 3)])
def test_a_cause_is_told_only_from_as_many_steps_as_rule_out_chance(ranks, needed):
    assert (1 / ranks) ** (needed - 1) <= 0.01

    def said(steps):
        table = [[8 * MS if number == 1 else 0] * steps for number in range(ranks)]
        compute = [50 * MS + (9 * MS if number == 1 else 0) for number in range(ranks)]
        return merge(job(table, compute_ns=compute)).stragglers.verdict

    assert said(needed).startswith("A slow device: rank 1 comes")
    if needed > 3:
        too_few = said(needed - 1)
        assert too_few.startswith("Perhaps a straggler: rank 1 comes 8.00 ms")
        assert f"It takes {needed} such steps" in too_few


def test_two_steps_are_too_few_for_a_name():
    assert "8 steps or more" in merge(job([[0, 0], [8 * MS, 8 * MS]])).stragglers.verdict


def test_compute_that_is_longer_in_some_steps_only_is_not_the_sure_cause():
    ranks = job([[0] * 10, [8 * MS] * 10])
    for number, one in enumerate(ranks[1].steps):
        one.compute_ns += 9 * MS if number % 5 else 0
    said = merge(ranks).stragglers.verdict
    assert said.startswith("Late for a reason that is not sure: rank 1")


def test_one_rank_alone_is_told_that_it_takes_several():
    analysis = merge(job([[0, 0]]))
    assert analysis.stragglers.by_rank == []
    assert analysis.stragglers.verdict.startswith("Only one rank")
    assert analysis.warnings == []


def test_ranks_without_a_common_collective_are_told_so():
    ranks = [rank(r, [step(1, [])], 2) for r in range(2)]
    assert "no collective in common" in merge(ranks).stragglers.verdict


# ---- what is missing ------------------------------------------------------------------------------------------


def test_missing_ranks_are_warned_of():
    ranks = job([[0]] * 8)
    (warning,) = merge([ranks[0], ranks[1], ranks[5]]).warnings
    assert warning.startswith("5 of 8 ranks are missing (2-4, 6-7)")


def test_a_world_size_that_cannot_be_true_costs_nothing():
    ranks = [msgspec.structs.replace(one, world_size=10**15) for one in job([[0], [0]])]
    (warning,) = merge(ranks).warnings
    assert "(2-999999999999999)" in warning


def test_steps_that_not_all_have_are_warned_of_and_the_others_compared():
    first, second = job([[0] * 4, [2 * MS] * 4])
    second = msgspec.structs.replace(second, steps=second.steps[1:])
    analysis = merge([first, second])
    assert any("3 are common to all" in warning for warning in analysis.warnings)
    assert waits(analysis) == {0: [[None] * 3] + [[2 * MS] * 3] * 3, 1: [[0] * 3] * 3}


def test_a_truncated_rank_is_left_out_of_the_steps_it_lacks_events_of():
    ranks = job([[0] * 3, [1 * MS] * 3, [2 * MS] * 3])
    analysis = merge([ranks[0], ranks[1], without(ranks[2], number=1, event=0)])
    assert any("ProfilerStep#1: the collectives of rank 2" in warning for warning in analysis.warnings)
    assert waits(analysis)[0] == [[2 * MS] * 3, [1 * MS] * 3, [2 * MS] * 3]
    assert waits(analysis)[2][1] == [None, None]


def test_with_sequence_numbers_a_truncated_rank_is_compared_where_it_can_be():
    ranks = job([[0] * 3, [2 * MS] * 3], sequences=True)
    analysis = merge([ranks[0], without(ranks[1], number=1, event=0)])
    assert waits(analysis)[0] == [[2 * MS] * 3, [None, 2 * MS, 2 * MS], [2 * MS] * 3]


def test_warnings_of_ranks_are_repeated_for_the_whole():
    ranks = job([[0], [0]])
    ranks[1] = msgspec.structs.replace(ranks[1], warnings=["rank1.json: cut off at byte 17"])
    assert merge(ranks).warnings == ["rank1.json: cut off at byte 17"]


def test_a_trace_that_does_not_know_its_rank_gets_a_free_number():
    ranks = job([[0], [0]])
    ranks[0] = msgspec.structs.replace(ranks[0], rank=None, source="host.json")
    analysis = merge(ranks)
    assert [one.rank for one in analysis.ranks] == [0, 1]
    assert any("does not say which rank it is" in warning for warning in analysis.warnings)


def test_several_traces_of_one_rank_are_taken_together():
    first, second = job([[0] * 4, [2 * MS] * 4])
    halves = [
        msgspec.structs.replace(first, steps=first.steps[:2], source="a"),
        msgspec.structs.replace(first, steps=first.steps[2:], source="b"),
    ]
    analysis = merge([*halves, second])
    assert analysis.warnings == []
    assert lags(analysis) == {0: 0, 1: 2 * MS}


def test_a_step_that_a_rank_has_twice_is_compared_once():
    first, second = job([[0] * 3, [2 * MS] * 3])
    analysis = merge([first, first, second])
    assert any("rank 0 has a step more than once" in warning for warning in analysis.warnings)
    assert lags(analysis) == {0: 0, 1: 2 * MS}


def test_a_step_that_one_trace_has_twice_is_compared_once():
    first, second = job([[0] * 3, [2 * MS] * 3])
    first = msgspec.structs.replace(first, steps=[*first.steps, first.steps[0]])
    analysis = merge([first, second])
    assert waits(analysis)[0] == [[2 * MS] * 3] * 3 + [[None] * 3]


def test_traces_of_different_jobs_are_warned_of_and_not_compared():
    one, other = job([[0], [2 * MS]])
    other = msgspec.structs.replace(other, world_size=4)
    analysis = merge([one, other])
    assert any("different sizes (2, 4 ranks)" in warning for warning in analysis.warnings)
    assert transfers(analysis) == {None}


def test_a_thousand_ranks_are_one_analysis():
    chance = random.Random(4)
    table = [[chance.randrange(100_000) for _ in range(3)] for _ in range(1000)]
    hosts = [f"node{number // 8}" for number in range(1000)]
    clocks = [10**12 * (number // 8) for number in range(1000)]
    table[777] = [20 * MS] * 3
    analysis = merge(job(table, hosts=hosts, clocks_ns=clocks, buckets=10))
    assert len(analysis.stragglers.by_rank) == 1000
    assert "rank 777 comes" in analysis.stragglers.verdict
    assert transfers(analysis) == {TRANSFER_NS}
