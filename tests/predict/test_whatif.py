"""Predictions for other clusters agree with the one for this cluster, with the cost models, and with common sense."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab.errors import BadInput
from bucketlab.link.algorithms import ALGORITHMS, PARAMETER_SERVER, RING, Fabric, Wire
from bucketlab.link.curve import LinkCurve
from bucketlab.predict.forecast import current_layouts, fit_slowdown, observations, predict, timeline_of
from bucketlab.predict.replay import NO_SLOWDOWN, replay
from bucketlab.predict.whatif import Question, Row, WhatIf, ask, compression_of, ranks_of, what_if
from bucketlab.schema.profile import Profile
from tests.report import profiles

MS = 1_000_000
MIB = 2**20
NODES_OF_8 = Fabric(inside=Wire(3_400, 450), between=Wire(14_000, 50), start_ns=8_400)
SLOW = Fabric.flat(Wire(100_000, 1.25))


def answer_to(profile: Profile, **question: Any) -> WhatIf:
    return what_if(profile, Question(**question))


def only(answer: WhatIf) -> Row:
    (row,) = answer.rows
    return row


def one_rank_with_everything_timed() -> Profile:
    return msgspec.structs.replace(profiles.exposed(), world_size=1, link=None)


def test_what_every_prediction_leaves_out_is_said_of_what_ifs_too() -> None:
    profile = profiles.two_modules()
    profile.modules[1].communication_hook = "powerSGD_hook"
    predicted = predict(profile)
    assert predicted is not None
    for question in ({}, {"fabric": SLOW, "ranks": [64]}, {"algorithms": list(ALGORITHMS)}):
        notes = answer_to(profile, **question).notes
        assert "predicted as if all modules shared one backward pass" in notes
        assert "predicted for plain all-reduces, not for the script's hook powerSGD_hook" in notes
        assert set(notes) & set(predicted.notes) == set(notes) - set(answer_to(profiles.exposed(), **question).notes)


# ---- agreement --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [profiles.exposed, profiles.overlapped, profiles.hidden, profiles.straggler])
def test_nothing_changed_gives_the_profiles_own_prediction(make: Any) -> None:
    profile = make()
    prediction = predict(profile)
    assert prediction is not None and prediction.current is not None
    answer = answer_to(profile)
    row = only(answer)
    assert row.ranks == profile.world_size
    assert row.current_step_ns == prediction.current.step_ns
    assert row.step_ns == pytest.approx(prediction.best.step_ns, rel=0.01)
    assert answer.error == pytest.approx(prediction.error, abs=1e-4)
    assert answer.kind == "predicted"


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))
def test_volume_is_the_algorithms(algorithm: Any) -> None:
    profile = profiles.exposed()
    total = sum(one.bytes for one in profile.gradients)
    row = only(answer_to(profile, ranks=[24], ranks_per_node=8, algorithms=[algorithm.name], fabric=SLOW))
    volume = algorithm.volume(total, 24, 8)
    assert row.sent_bytes == pytest.approx(float(volume.sent), abs=1)
    assert row.root_bytes == pytest.approx(float(volume.root_received), abs=1)
    assert row.nodes == 3


@settings(max_examples=40, deadline=None)
@given(
    latency_ns=st.floats(0, 3e6),
    bandwidth_gb_s=st.floats(0.1, 100),
    concurrency=st.integers(1, 2),
    ranks=st.integers(2, 64),
    slowed=st.booleans(),
)
def test_best_capacity_is_the_best_of_all_layouts_there_are(
    latency_ns: float, bandwidth_gb_s: float, concurrency: int, ranks: int, slowed: bool
) -> None:
    profile = profiles._make([("weight", 4 * MIB)] * 6, bandwidth_gb_s=1.0, cap_mb=4)
    timeline, slowdown = timeline_of(profile), NO_SLOWDOWN
    assert profile.link is not None
    if slowed:
        now = observations(profile, current_layouts(profile, timeline))
        slowdown = fit_slowdown(timeline, LinkCurve.of(profile.link), now)
    else:
        profile.link, profile.world_size = None, 1
    fabric = Fabric.flat(Wire(latency_ns, bandwidth_gb_s))
    row = only(answer_to(profile, ranks=[ranks], ranks_per_node=1, fabric=fabric, concurrency=concurrency))
    latency, slope = RING.line(ranks, 1, fabric)
    curve = LinkCurve.straight(round(float(latency)), 1 / float(slope), concurrency)
    layouts = [timeline.modules[0].buckets([count * 4 * MIB]) for count in range(1, 7)]
    least_ns = min(replay(timeline, [buckets], curve, slowdown).step_ns for buckets in layouts)
    assert least_ns * 0.999 <= row.step_ns <= least_ns * 1.0021
    assert row.step_ns <= row.current_step_ns


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_a_measured_link_without_bends_is_carried_over_as_the_hops_that_make_it(algorithm: str) -> None:
    profile = profiles.exposed()
    assert profile.link is not None
    hops = Fabric.of_ring(profile.link.latency_ns, profile.link.bandwidth_gb_s, profile.world_size)
    elsewhere: dict[str, Any] = {"ranks": [4, 64, 4096], "ranks_per_node": 2, "algorithms": [algorithm]}
    carried = answer_to(profile, **elsewhere).rows
    made = answer_to(profile, **elsewhere, fabric=hops).rows
    for one, other in zip(carried, made, strict=True):
        assert one.current_step_ns == pytest.approx(other.current_step_ns, rel=1e-3)
        assert one.step_ns == pytest.approx(other.step_ns, rel=3e-3)


def test_another_bandwidth_is_that_of_every_hop() -> None:
    faster = Fabric(inside=Wire(3_400, 4.5), between=Wire(14_000, 0.5), start_ns=8_400)
    slower = Fabric(inside=Wire(3_400, 9), between=Wire(14_000, 1), start_ns=8_400)
    question = {"ranks": [2, 24], "ranks_per_node": 8, "algorithms": list(ALGORITHMS)}
    scaled = answer_to(profiles.exposed(), **question, fabric=slower, bandwidth_scale=0.5)
    assert scaled.rows == answer_to(profiles.exposed(), **question, fabric=faster).rows


@pytest.mark.parametrize("factor", [0.25, 8.0])
def test_another_bandwidth_stretches_the_measured_curve_and_leaves_its_latency(factor: float) -> None:
    profile = profiles.exposed()
    timeline, curve = timeline_of(profile), LinkCurve.of(profile.link)
    fitted_ns = curve.latency_ns + curve.bytes / curve.bandwidth_gb_s
    ns = curve.ns * (curve.latency_ns + curve.bytes / (factor * curve.bandwidth_gb_s)) / fitted_ns
    other = dataclasses.replace(curve, ns=ns, slope_ns=curve.slope_ns / factor)
    now = current_layouts(profile, timeline)
    slowdown = fit_slowdown(timeline, curve, observations(profile, now))
    answer = answer_to(profile, bandwidth_scale=factor)
    assert only(answer).current_step_ns == pytest.approx(replay(timeline, now, other, slowdown).step_ns, abs=1)
    assert answer.link == f"nccl over NVLink, bandwidth x {factor:g}"


def test_one_rank_waits_for_nobody() -> None:
    row = only(answer_to(profiles.exposed(), ranks=[1], straggler=0.2, fabric=SLOW))
    assert row.efficiency == 1
    assert (row.exposed_ns, row.sent_bytes, row.buckets, row.bucket_cap_mb) == (0, 0, 0, None)


def test_a_profile_of_one_rank_is_enough_where_a_link_is_given() -> None:
    with pytest.raises(BadInput, match="one rank sends no gradients"):
        answer_to(one_rank_with_everything_timed(), ranks=[8])
    row = only(answer_to(one_rank_with_everything_timed(), ranks=[8], fabric=SLOW))
    assert row.step_ns == only(answer_to(profiles.exposed(), ranks=[8], ranks_per_node=1, fabric=SLOW)).step_ns


# ---- what changes what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
@pytest.mark.parametrize("fabric", [None, NODES_OF_8, SLOW], ids=["measured", "nodes of 8", "slow"])
def test_more_nodes_never_make_a_step_shorter(algorithm: str, fabric: Fabric | None) -> None:
    ranks = [8 * 2**power for power in range(15)]
    rows = answer_to(profiles.exposed(), ranks=ranks, ranks_per_node=8, algorithms=[algorithm], fabric=fabric).rows
    assert [row.ranks for row in rows] == ranks
    for fewer, more in pairwise(rows):
        assert more.step_ns >= fewer.step_ns * 0.998  # layouts that make no difference are not told apart
        assert 0 < more.efficiency <= 1


def test_half_the_bytes_are_as_good_as_twice_the_bandwidth() -> None:
    half = only(answer_to(profiles.exposed(), ranks=[4], fabric=Fabric.flat(Wire(1000, 1)), compression=0.5))
    twice = only(answer_to(profiles.exposed(), ranks=[4], fabric=Fabric.flat(Wire(1000, 2))))
    assert half.step_ns == pytest.approx(twice.step_ns, abs=1)
    assert half.sent_bytes == twice.sent_bytes // 2


def test_half_the_bytes_help_on_the_measured_link_too() -> None:
    assert only(answer_to(profiles.exposed(), compression=0.5)).step_ns < only(answer_to(profiles.exposed())).step_ns


def test_compute_of_half_the_time_halves_all_but_the_wait_for_data() -> None:
    before, after = (answer_to(profiles.input_bound(), compute_scale=scale).compute_ns for scale in (1.0, 0.5))
    assert before == (180 + 48 + 96 + 9) * MS
    assert after == pytest.approx((180 + (48 + 96 + 9) / 2) * MS, abs=1)


def test_accumulation_adds_passes_and_no_communication() -> None:
    once = answer_to(profiles.exposed(), fabric=SLOW)
    four = answer_to(profiles.exposed(), fabric=SLOW, accumulation=4)
    assert four.compute_ns - once.compute_ns == pytest.approx(3 * (1 + 48 + 96) * MS, abs=1)
    assert only(four).step_ns - only(once).step_ns == pytest.approx(3 * (1 + 48 + 96) * MS, abs=2)
    assert only(four).efficiency > only(once).efficiency
    assert only(four).sent_bytes == only(once).sent_bytes


def test_accumulation_that_is_there_already_is_no_change() -> None:
    profile = profiles.exposed(accumulation=3)
    assert answer_to(profile, accumulation=3).rows == answer_to(profile).rows


def test_everybody_waits_for_the_slowest_rank() -> None:
    row = only(answer_to(profiles.hidden(input_ms=0), straggler=0.05))
    assert row.efficiency == pytest.approx(1 / 1.05, rel=0.01)


def test_a_parameter_server_collapses_where_a_ring_holds() -> None:
    answer = answer_to(
        profiles.exposed(),
        ranks=[2, 8, 64],
        ranks_per_node=1,
        algorithms=["ring", "parameter-server"],
        fabric=Fabric.flat(Wire(10_000, 10)),
    )
    rows = {(row.algorithm, row.ranks): row for row in answer.rows}
    assert rows["parameter-server", 64].efficiency < 0.1 < 0.5 < rows["ring", 64].efficiency
    assert rows["parameter-server", 64].root_bytes == 63 * rows["parameter-server", 64].sent_bytes
    assert any("parameter-server: scaling stops being worth it" in line for line in answer.findings)


def test_a_tree_is_said_to_overtake_a_ring_and_latency_to_rule_it() -> None:
    ranks = [8 * 4**power for power in range(8)]
    answer = answer_to(
        profiles.exposed(), ranks=ranks, ranks_per_node=8, algorithms=list(ALGORITHMS), fabric=NODES_OF_8
    )
    assert any(line.startswith("tree is faster than a ring from") for line in answer.findings)
    assert any(line.startswith("ring: from") and "latency" in line for line in answer.findings)


def test_what_was_not_measured_between_nodes_is_said() -> None:
    answer = answer_to(profiles.exposed(), ranks=[64], ranks_per_node=8)
    assert any("between nodes was not measured" in line for line in answer.notes)
    told = answer_to(profiles.exposed(), ranks=[64], ranks_per_node=8, fabric=NODES_OF_8, link_name="infiniband")
    assert not any("between nodes was not measured" in line for line in told.notes)
    assert told.link == "infiniband"


def test_answers_survive_json() -> None:
    answer = answer_to(profiles.exposed(), ranks=[1, 2, 16], algorithms=list(ALGORITHMS), fabric=NODES_OF_8)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=WhatIf) == answer


# ---- bad questions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"algorithms": ["rings"]}, "--algorithm rings: known are ring, tree"),
        ({"ranks": [0]}, "--ranks 0: must be more than 0"),
        ({"ranks_per_node": 0}, "--ranks-per-node 0"),
        ({"compute_scale": float("nan")}, "--compute-scale nan"),
        ({"bandwidth_scale": -2.0}, "--bandwidth-scale -2"),
        ({"compression": 0.0}, "--dtype 0"),
        ({"accumulation": -1}, "--accumulate -1"),
        ({"straggler": -0.1}, "--straggler -0.1"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(question: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        answer_to(profiles.exposed(), **question)


def test_a_profile_without_ready_times_is_refused() -> None:
    with pytest.raises(BadInput, match="no step was timed"):
        answer_to(profiles.nothing(), fabric=SLOW)


def test_dtypes_say_what_travels() -> None:
    profile = profiles.exposed()
    assert compression_of(profile, "bf16") == 0.5
    assert compression_of(profile, "float32") == 1
    assert compression_of(profile, "float64") == 1  # wider than the gradients: they are sent as they are
    for one in profile.gradients[::2]:
        one.dtype = "bfloat16"
    assert 0.5 < compression_of(profile, "fp16") < 1
    with pytest.raises(BadInput, match="no such element type"):
        compression_of(profile, "bf17")


def test_the_parameter_servers_root_is_the_only_one_with_more_volume_than_others() -> None:
    for algorithm in ALGORITHMS.values():
        volume = algorithm.volume(1.0, 64, 8)
        assert (volume.root_received > volume.received) == (algorithm is PARAMETER_SERVER)


# ---- options as they are typed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("64", [64]),
        ("8,12,16", [8, 12, 16]),
        ("8..64", [8, 16, 32, 64]),
        ("8..100", [8, 16, 32, 64, 100]),
        ("3..3", [3]),
        ("1..8", [1, 2, 4, 8]),
    ],
)
def test_numbers_of_ranks_are_read(text: str, ranks: list[int]) -> None:
    assert ranks_of(text) == ranks


@pytest.mark.parametrize("text", ["", "0", "8..4", "0..8", "-4", "8-16", "eight", "8,,16", "99999999999"])
def test_what_is_no_number_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--ranks"):
        ranks_of(text)


def test_a_sweep_gives_the_link_and_its_ranks_per_node(tmp_path: Any) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'name = "mine"\ndescription = "two levels"\n[link]\nkind = "infiniband"\nranks = 16\nranks_per_node = 8\n'
        "latency_us = 14.0\nbandwidth_gb_s = 50.0\nwithin_latency_us = 3.4\nwithin_bandwidth_gb_s = 450.0\n"
    )
    typed = ask(
        profiles.exposed(),
        link=str(mine),
        ranks="8..64",
        algorithms=["all"],
        dtype="bf16",
        accumulate=2,
        straggler="5%",
    )
    fabric = Fabric(inside=Wire(3_400, 450), between=Wire(14_000, 50))
    meant = answer_to(
        profiles.exposed(),
        ranks=[8, 16, 32, 64],
        ranks_per_node=8,
        algorithms=list(ALGORITHMS),
        fabric=fabric,
        compression=0.5,
        accumulation=2,
        straggler=0.05,
        link_name="mine",
    )
    assert typed == meant


def test_without_options_the_profiled_job_is_asked_about() -> None:
    assert ask(profiles.exposed()) == answer_to(profiles.exposed())


def test_one_profiled_rank_is_asked_about_at_the_sweeps_ranks() -> None:
    assert only(ask(one_rank_with_everything_timed(), link="infiniband")).ranks == 16


def test_shares_are_read_with_and_without_their_sign() -> None:
    assert ask(profiles.hidden(), straggler="5%") == ask(profiles.hidden(), straggler="0.05")
    with pytest.raises(BadInput, match="--straggler a lot"):
        ask(profiles.hidden(), straggler="a lot")


def test_a_link_inside_nodes_that_is_used_between_them_is_said_to_be() -> None:
    answer = ask(profiles.exposed(), link="nvlink", ranks="64")
    assert any("hops between nodes are taken to be as those inside" in line for line in answer.notes)
