"""The cost models against their limits, against each other, and against schedules played event by event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.link.algorithms import (
    ALGORITHMS,
    IN_SWITCH,
    PARAMETER_SERVER,
    RING,
    TREE,
    TWO_LEVEL,
    TWO_LEVEL_TREE,
    Algorithm,
    Fabric,
    Wire,
)

wires = st.builds(Wire, st.floats(0, 1e5), st.floats(0.01, 1000))
fabrics = st.builds(Fabric, wires, wires, st.floats(0, 1e5))
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))

FLAT = Fabric.flat(Wire(latency_ns=5_000, bandwidth_gb_s=10))
# H100: 18 NVLinks of 25 GB/s each way, eight adapters of 400 Gbit/s. Latencies of NCCL's tuning.cc (Ring, Simple).
HOPPER = Fabric(inside=Wire(3_400, 450), between=Wire(14_000, 400), start_ns=8_400)


# ---- limits -----------------------------------------------------------------------------------------------------


@every_algorithm
@given(size=st.floats(0, 1e10), per_node=st.integers(1, 16), fabric=fabrics)
def test_one_rank_costs_nothing(algorithm: Algorithm, size: float, per_node: int, fabric: Fabric) -> None:
    assert algorithm.time_ns(size, 1, per_node, fabric) == 0
    moved = algorithm.volume(size, 1, per_node)
    assert moved.sent == moved.received == moved.root_sent == moved.root_received == 0


@given(size=st.floats(1, 1e10), fabric=fabrics)
def test_two_ranks_on_two_nodes_exchange_halves_and_so_do_ring_tree_and_two_levels(size: float, fabric: Fabric) -> None:
    expected_ns = fabric.start_ns + 2 * fabric.between.latency_ns + size / fabric.between.bandwidth_gb_s
    for algorithm in (RING, TREE, TWO_LEVEL, TWO_LEVEL_TREE):
        assert algorithm.time_ns(size, 2, 1, fabric) == pytest.approx(expected_ns)
        assert algorithm.volume(size, 2, 1).sent == pytest.approx(size)


@pytest.mark.parametrize(
    ("algorithm", "hops"),
    [
        (RING, 2 * 63),
        (TREE, 2 * 6),
        (TWO_LEVEL, 2 * 63),
        (TWO_LEVEL_TREE, 2 * 6),
        (IN_SWITCH, 1),
        (PARAMETER_SERVER, 2),
    ],
    ids=lambda value: value.name if isinstance(value, Algorithm) else str(value),
)
def test_an_empty_buffer_takes_latencies_alone(algorithm: Algorithm, hops: int) -> None:
    assert algorithm.time_ns(0, 64, 1, FLAT) == hops * 5_000


@pytest.mark.parametrize(
    ("algorithm", "times_the_buffer"),
    [
        (RING, 2 * 63 / 64),
        (TREE, 2),
        (TWO_LEVEL, 2 * 63 / 64),
        (TWO_LEVEL_TREE, 2),
        (IN_SWITCH, 1),
        (PARAMETER_SERVER, 2 * 63),
    ],
    ids=lambda value: value.name if isinstance(value, Algorithm) else f"{value:.3g}",
)
def test_without_latency_time_is_volume_over_bandwidth(algorithm: Algorithm, times_the_buffer: float) -> None:
    fabric = Fabric.flat(Wire(latency_ns=0, bandwidth_gb_s=10))
    assert algorithm.time_ns(10**9, 64, 1, fabric) == pytest.approx(times_the_buffer * 1e8)


@given(
    size=st.floats(0, 1e10),
    nodes=st.integers(1, 300),
    per_node=st.integers(1, 16),
    fabric=fabrics,
)
def test_two_levels_are_a_ring_where_there_is_one_level(size: float, nodes: int, per_node: int, fabric: Fabric) -> None:
    one_node = TWO_LEVEL.time_ns(size, per_node, per_node, fabric)
    assert one_node == pytest.approx(RING.time_ns(size, per_node, per_node, fabric))
    one_rank_each = TWO_LEVEL.time_ns(size, nodes, 1, fabric)
    assert one_rank_each == pytest.approx(RING.time_ns(size, nodes, 1, fabric))


def test_a_ring_measured_gives_the_hops_that_make_it() -> None:
    fabric = Fabric.of_ring(latency_ns=300_000, bandwidth_gb_s=0.5, ranks=4)
    assert RING.time_ns(0, 4, 4, fabric) == pytest.approx(300_000)
    assert RING.time_ns(10**6, 4, 4, fabric) == pytest.approx(300_000 + 10**6 / 0.5)
    assert fabric.inside.bandwidth_gb_s == pytest.approx(0.75)  # its bus bandwidth


def test_what_is_no_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        RING.time_ns(1, 0, 1, FLAT)
    with pytest.raises(ValueError, match="a node at least one"):
        RING.volume(1, 4, 0)
    with pytest.raises(ValueError, match="fewer than two ranks"):
        Fabric.of_ring(1, 1, 1)


# ---- monotony and order -------------------------------------------------------------------------------------------


@every_algorithm
@given(
    size=st.floats(0, 1e9),
    more=st.floats(0, 1e9),
    nodes=st.integers(1, 500),
    more_nodes=st.integers(0, 500),
    per_node=st.integers(1, 16),
    fabric=fabrics,
)
def test_more_bytes_or_more_nodes_never_take_less(
    algorithm: Algorithm, size: float, more: float, nodes: int, more_nodes: int, per_node: int, fabric: Fabric
) -> None:
    time_ns = float(algorithm.time_ns(size, nodes * per_node, per_node, fabric))
    slack = 1 - 1e-12
    assert algorithm.time_ns(size + more, nodes * per_node, per_node, fabric) >= time_ns * slack
    assert algorithm.time_ns(size, (nodes + more_nodes) * per_node, per_node, fabric) >= time_ns * slack


@every_algorithm
@given(ranks=st.integers(1, 1000), per_node=st.integers(1, 16), fabric=fabrics, faster=st.floats(1, 10))
def test_a_faster_fabric_never_takes_longer(
    algorithm: Algorithm, ranks: int, per_node: int, fabric: Fabric, faster: float
) -> None:
    def sped_up(wire: Wire) -> Wire:
        return Wire(wire.latency_ns / faster, wire.bandwidth_gb_s * faster)

    better = Fabric(sped_up(fabric.inside), sped_up(fabric.between), fabric.start_ns)
    before_ns = float(algorithm.time_ns(10**6, ranks, per_node, fabric))
    assert algorithm.time_ns(10**6, ranks, per_node, better) <= before_ns * (1 + 1e-12)


@given(ranks=st.integers(3, 131_072), per_node=st.integers(1, 16), size=st.integers(1, 10**10))
def test_a_ring_moves_less_than_the_parameter_servers_root_for_more_than_two_ranks(
    ranks: int, per_node: int, size: int
) -> None:
    assert RING.volume(size, ranks, per_node).sent < PARAMETER_SERVER.volume(size, ranks, per_node).root_received


@given(nodes=st.integers(1, 200), per_node=st.integers(1, 16))
def test_two_levels_move_no_more_than_a_ring(nodes: int, per_node: int) -> None:
    inside = 2 * (per_node - 1) / per_node
    between = 2 * (nodes - 1) / nodes / per_node
    assert TWO_LEVEL.volume(1, nodes * per_node, per_node).sent == pytest.approx(inside + between)


def test_a_tree_beats_a_ring_for_small_buffers_on_many_nodes_and_a_ring_beats_it_for_large_ones() -> None:
    assert TREE.time_ns(64 * 1024, 8 * 128, 8, HOPPER) < RING.time_ns(64 * 1024, 8 * 128, 8, HOPPER) / 10
    assert RING.time_ns(2**32, 16, 1, FLAT) < TREE.time_ns(2**32, 16, 1, FLAT)


def test_two_levels_beat_a_flat_ring_where_latency_between_nodes_is_long() -> None:
    assert TWO_LEVEL.time_ns(2**20, 1024, 8, HOPPER) < RING.time_ns(2**20, 1024, 8, HOPPER)


def test_a_parameter_server_takes_times_the_ranks() -> None:
    times = PARAMETER_SERVER.time_ns(2**30, np.array([3, 5, 9, 17]), 1, Fabric.flat(Wire(0, 10)))
    assert times / times[0] == pytest.approx([1, 2, 4, 8])


@every_algorithm
def test_sizes_and_ranks_broadcast_to_a_table_of_131072_ranks_at_once(algorithm: Algorithm) -> None:
    sizes, ranks = np.geomspace(1, 1e10, 64)[:, None], 2 ** np.arange(3, 18)
    table = algorithm.time_ns(sizes, ranks, 8, HOPPER)
    assert table.shape == (64, 15)
    assert table[-1, -1] == algorithm.time_ns(1e10, 131_072, 8, HOPPER)
    assert algorithm.volume(sizes, ranks, 8).sent.shape == (64, 15)


# ---- schedules played event by event ------------------------------------------------------------------------------


def play_ring(hops: list[Wire], size: float) -> float:
    """When the last rank has all sums; `hops[i]` leads from rank i to the next one. Sends one after the other."""
    count = len(hops)
    part = size / count
    arrived = [[0.0] * count]  # by step: when each rank has what it passes on next
    free = [0.0] * count
    for _ in range(2 * (count - 1)):
        now = [0.0] * count
        for rank, wire in enumerate(hops):
            free[rank] = max(free[rank], arrived[-1][rank]) + part / wire.bandwidth_gb_s
            now[(rank + 1) % count] = free[rank] + wire.latency_ns
        arrived.append(now)
    return max(map(max, arrived))


@given(ranks=st.integers(2, 12), size=st.floats(0, 1e7), wire=wires)
def test_ring_equals_its_schedule_on_equal_hops(ranks: int, size: float, wire: Wire) -> None:
    played_ns = play_ring([wire] * ranks, size)
    assert RING.time_ns(size, ranks, 1, Fabric.flat(wire)) == pytest.approx(played_ns)
    assert RING.time_ns(size, ranks, ranks, Fabric.flat(wire)) == pytest.approx(played_ns)


def hops_of(nodes: int, per_node: int, fabric: Fabric) -> list[Wire]:
    last_of_node = nodes > 1
    return ([fabric.inside] * (per_node - 1) + [fabric.between if last_of_node else fabric.inside]) * nodes


@given(nodes=st.integers(1, 5), per_node=st.integers(1, 5), inside=st.floats(0, 1e4), more=st.floats(0, 1e4))
def test_ring_equals_its_schedule_on_two_kinds_of_latency(
    nodes: int, per_node: int, inside: float, more: float
) -> None:
    fabric = Fabric(Wire(inside, 1), Wire(inside + more, 1))
    if nodes * per_node > 1:
        played_ns = play_ring(hops_of(nodes, per_node, fabric), 0.0)
        assert RING.time_ns(0, nodes * per_node, per_node, fabric) == pytest.approx(played_ns)


@given(nodes=st.integers(1, 5), per_node=st.integers(1, 5), size=st.floats(1, 1e7), inside=wires, between=wires)
def test_ring_bounds_its_schedule_on_two_kinds_of_hop(
    nodes: int, per_node: int, size: float, inside: Wire, between: Wire
) -> None:
    inside = Wire(min(inside.latency_ns, between.latency_ns), inside.bandwidth_gb_s)
    fabric, ranks = Fabric(inside, between), nodes * per_node
    if ranks == 1:
        return
    played_ns = play_ring(hops_of(nodes, per_node, fabric), size)
    time_ns = float(RING.time_ns(size, ranks, per_node, fabric))
    assert played_ns <= time_ns * (1 + 1e-9)
    assert time_ns <= 2 * played_ns  # each of its two terms alone is a bound from below
    quick = Fabric(Wire(0, inside.bandwidth_gb_s), Wire(0, between.bandwidth_gb_s))
    played_ns = play_ring(hops_of(nodes, per_node, quick), size)
    assert RING.time_ns(size, ranks, per_node, quick) == pytest.approx(played_ns)


def play_parameter_server(ranks: int, per_node: int, size: float, fabric: Fabric, packets: int) -> float:
    """When the last rank has the average. Packets come in turn from all ranks and queue at the root's two links."""
    over = 0.0
    start = 0.0
    for _ in ("gather", "send back"):
        free = {"inside": start, "between": start}
        for _ in range(packets):
            for rank in range(1, ranks):
                way = "inside" if rank < per_node else "between"
                wire = fabric.inside if rank < per_node else fabric.between
                free[way] += size / packets / wire.bandwidth_gb_s
                over = max(over, free[way] + wire.latency_ns)
        start = over
    return over


@given(
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 4),
    size=st.floats(1, 1e7),
    latency_ns=st.floats(0, 1e5),
    inside=st.floats(0.01, 100),
    between=st.floats(0.01, 100),
    packets=st.integers(1, 5),
)
def test_parameter_server_equals_its_schedule(
    nodes: int, per_node: int, size: float, latency_ns: float, inside: float, between: float, packets: int
) -> None:
    fabric = Fabric(Wire(latency_ns, inside), Wire(latency_ns, between))
    ranks = nodes * per_node
    if ranks > 1:
        played_ns = play_parameter_server(ranks, per_node, size, fabric, packets)
        assert PARAMETER_SERVER.time_ns(size, ranks, per_node, fabric) == pytest.approx(played_ns)


def double_tree(members: int) -> list[dict[int, int]]:
    """Parents in two binary trees over the same members: in-order numbered, the second one mirrored or shifted."""
    first = {}
    for member in range(1, members):
        bit = member & -member
        parent = (member ^ bit) | (bit << 1)
        first[member] = parent if parent < members else member ^ bit
    if members % 2 == 0:
        return [first, {members - 1 - child: members - 1 - parent for child, parent in first.items()}]
    return [first, {(child + 1) % members: (parent + 1) % members for child, parent in first.items()}]


@pytest.mark.parametrize("members", [*range(2, 40), 63, 64, 65, 1000, 1024])
def test_trees_volume_and_depth_are_those_of_trees_that_were_built(members: int) -> None:
    sent = [0.0] * members
    depth = 0
    for parents in double_tree(members):
        for child, parent in parents.items():
            sent[child] += 0.5  # half of the buffer up
            sent[parent] += 0.5  # and the sums of it down
            steps, at = 0, child
            while at in parents:
                at, steps = parents[at], steps + 1
            depth = max(depth, steps)
    assert TREE.volume(1, members, 1).sent == max(sent)
    assert TREE.volume(1, members, 1).root_sent == sent[0] or members % 2 == 1
    assert TREE.time_ns(0, members, 1, Fabric.flat(Wire(1, 1))) == 2 * depth


# ---- published measurements ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "algorithm", "nodes", "per_node", "node_gb_s", "size", "published_bus_gb_s", "within"),
    [
        # GB200, three racks, one adapter of 400 Gbit/s for each GPU.
        ("NVIDIA/nccl issue 1801", RING, 3, 4, 200, 2**34, 196.72, 0.06),
        ("NVIDIA/nccl issue 1801", TREE, 3, 4, 200, 2**34, 234.43, 0.06),
        ("NVIDIA/nccl issue 1801", RING, 3, 8, 400, 2**34, 393.66, 0.06),
        ("NVIDIA/nccl issue 1801", TREE, 3, 8, 400, 2**34, 485.68, 0.06),
        # Five nodes of eight H100 with four adapters of 400 Gbit/s; sizes up to 1 GiB.
        ("NVIDIA/nccl issue 1368", RING, 5, 8, 200, 2**30, 190, 0.06),
        # A known miss: NCCL's trees stayed a quarter below what the formula promises there.
        ("NVIDIA/nccl issue 1368", TREE, 5, 8, 200, 2**30, 150, 0.35),
    ],
)
def test_bus_bandwidth_is_near_to_what_was_published(
    where: str,
    algorithm: Algorithm,
    nodes: int,
    per_node: int,
    node_gb_s: float,
    size: int,
    published_bus_gb_s: float,
    within: float,
) -> None:
    ranks = nodes * per_node
    inside = Wire(3_400, 900 if "1801" in where else 450)  # NVLink of GB200, of H100
    fabric = Fabric(inside, Wire(14_000, node_gb_s), HOPPER.start_ns)
    bus_gb_s = size / float(algorithm.time_ns(size, ranks, per_node, fabric)) * 2 * (ranks - 1) / ranks
    assert published_bus_gb_s <= bus_gb_s <= published_bus_gb_s * (1 + within), where


def test_latency_of_a_ring_of_40_is_near_to_what_was_published() -> None:
    # NVIDIA/nccl issue 1368: 354.9 us for 1 MiB, with the latencies that NCCL 2.20 itself reckons with.
    fabric = Fabric(HOPPER.inside, Wire(14_000, 200), HOPPER.start_ns)
    assert float(RING.time_ns(2**20, 40, 8, fabric)) == pytest.approx(354_900, rel=0.12)
