"""What an all-reduce costs on links and at scales that are not there: time and volume, by algorithm. Measures nothing.

Models of the alpha-beta kind (Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", IJHPCA 2005, section 3): a message of S bytes over one hop takes alpha + S beta, a rank sends and receives at
the same time, and adding numbers up costs nothing. Every algorithm here is then a straight line in S:

    time = start + latency(ranks, ranks per node) + S * ns_per_byte(ranks, ranks per node)

Two kinds of hop are told apart, inside a node and between nodes. Symbols: N ranks, m of them on each node, M nodes, S
bytes of gradients. A last node that is not full counts as a full one.

What is left out: the cost of cutting S into chunks so that the levels of a tree work at once (NCCL lowers its tree's
bandwidth by up to a half at medium sizes for it: `treeCorrectionFactor` in its src/graph/tuning.cc), protocols
(NCCL's LL and LL128 have less latency and less bandwidth), and switches that are short of bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Wire:
    """One hop."""

    latency_ns: float  # alpha: of a message without content
    bandwidth_gb_s: float  # 1 / beta, bytes per ns, in each direction at once

    @property
    def ns_per_byte(self) -> float:
        return 1 / self.bandwidth_gb_s


@dataclass(frozen=True)
class Fabric:
    """What joins the ranks."""

    inside: Wire  # between ranks of one node; the bandwidth is each rank's own
    between: Wire  # between nodes; the bandwidth is a node's, all its adapters together
    start_ns: float = 0.0  # once per collective, whatever the algorithm: `baseLat` of NCCL's tuning.cc

    @classmethod
    def flat(cls, wire: Wire) -> Fabric:
        """The same hop everywhere."""
        return cls(inside=wire, between=wire)

    @classmethod
    def of_ring(cls, latency_ns: float, bandwidth_gb_s: float, ranks: int) -> Fabric:
        """The one kind of hop with which a ring takes latency + bytes / bandwidth, as a link's fit has them.

        Args:
            latency_ns: of the whole all-reduce.
            bandwidth_gb_s: bytes of the buffer per ns, which is not bus bandwidth.
            ranks: that took part, at least 2.
        """
        if ranks < 2:
            raise ValueError("a link between fewer than two ranks says nothing about a hop")
        hops = 2 * (ranks - 1)
        return cls.flat(Wire(latency_ns / hops, bandwidth_gb_s * hops / ranks))


@dataclass(frozen=True, eq=False)
class Volume:
    """Bytes that cross a rank's links in one all-reduce; arrays of the shape of bytes and ranks broadcast together."""

    sent: Float64s  # by the rank, other than the root, that sends most
    received: Float64s
    root_sent: Float64s  # the same as `sent` where the algorithm has no root
    root_received: Float64s


@dataclass(frozen=True, eq=False)
class _Cluster:
    """N, m and M, all of one shape."""

    ranks: Float64s
    per_node: Float64s
    nodes: Float64s

    @classmethod
    def of(cls, ranks: npt.ArrayLike, ranks_per_node: npt.ArrayLike) -> _Cluster:
        n, m = np.broadcast_arrays(np.asarray(ranks, dtype=np.float64), np.asarray(ranks_per_node, dtype=np.float64))
        if np.any(n < 1) or np.any(m < 1):
            raise ValueError("an all-reduce needs at least one rank, and a node at least one")
        m = np.minimum(m, n)
        return cls(n, m, np.ceil(n / m))


_Cost = Callable[[_Cluster, Fabric], tuple[Float64s, Float64s]]  # latency in ns, ns per byte
_Share = Callable[[_Cluster], tuple[Float64s, Float64s]]  # sent as a multiple of S: by others, by the root


@dataclass(frozen=True)
class Algorithm:
    """One way to add up gradients over all ranks. `ALGORITHMS` holds them by name."""

    name: str
    what: str  # one line for people
    source: str  # of the formulas
    _cost: _Cost
    _share: _Share

    def line(self, ranks: npt.ArrayLike, ranks_per_node: npt.ArrayLike, fabric: Fabric) -> tuple[Float64s, Float64s]:
        """Latency in ns and ns per byte of one all-reduce, each of the arguments' shape; both 0 for one rank.

        Raises:
            ValueError: fewer than one rank, or fewer than one per node.
        """
        cluster = _Cluster.of(ranks, ranks_per_node)
        latency_ns, ns_per_byte = self._cost(cluster, fabric)
        alone = cluster.ranks == 1
        return np.where(alone, 0.0, fabric.start_ns + latency_ns), np.where(alone, 0.0, ns_per_byte)

    def time_ns(
        self, bytes: npt.ArrayLike, ranks: npt.ArrayLike, ranks_per_node: npt.ArrayLike, fabric: Fabric
    ) -> Float64s:
        """Time of one all-reduce in ns. All arguments broadcast: `bytes[:, None]` against `ranks` gives a table."""
        latency_ns, ns_per_byte = self.line(ranks, ranks_per_node, fabric)
        return np.asarray(latency_ns + np.asarray(bytes, dtype=np.float64) * ns_per_byte)

    def volume(self, bytes: npt.ArrayLike, ranks: npt.ArrayLike, ranks_per_node: npt.ArrayLike) -> Volume:
        """Bytes that ranks send and receive in one all-reduce; all arguments broadcast.

        In every algorithm here a rank sends as much as it receives, but their root may do more or less than others.
        """
        cluster = _Cluster.of(ranks, ranks_per_node)
        alone = cluster.ranks == 1
        sizes = np.asarray(bytes, dtype=np.float64)
        others, root = (np.asarray(np.where(alone, 0.0, share) * sizes) for share in self._share(cluster))
        return Volume(sent=others, received=others, root_sent=root, root_received=root)


def _ring_share(count: Float64s) -> Float64s:
    """2(n-1)/n: each rank sends every part of S but one, once to be added up and once more when it is whole."""
    return 2 * (count - 1) / count


def _trees_share(count: Float64s) -> Float64s:
    """Largest part of S that one of so many members of a double binary tree sends, as a multiple.

    Half of S goes through each tree. A member with two children in one tree is a leaf of the other: S/2 up and S
    down, and S/2 up again. With each neighbour in a tree it exchanges S/2: of two members each has two such ties, of
    three members none has more than three.
    """
    return np.where(count == 1, 0.0, np.minimum(count / 2, 2.0))


def _levels(count: Float64s) -> Float64s:
    return np.ceil(np.log2(count))


# ---- time -----------------------------------------------------------------------------------------------------


def _ring(c: _Cluster, f: Fabric) -> tuple[Float64s, Float64s]:
    hops = 2 * (c.ranks - 1)
    # The last part to arrive went through all hops but two neighbouring ones, twice: those left out are inside a node
    # where there are any.
    spared = np.clip(3 - c.per_node, 0, 2)
    crossings = np.where(c.nodes == 1, 0.0, np.minimum(hops, 2 * c.nodes - spared))
    latency_ns = crossings * f.between.latency_ns + (hops - crossings) * f.inside.latency_ns
    return latency_ns, _ring_share(c.ranks) * _slower(c, f)


def _tree(c: _Cluster, f: Fabric) -> tuple[Float64s, Float64s]:
    latency_ns = 2 * ((c.per_node - 1) * f.inside.latency_ns + _levels(c.nodes) * f.between.latency_ns)
    along_chain = np.minimum(c.per_node - 1, 2.0)
    return latency_ns, np.maximum(along_chain * f.inside.ns_per_byte, _trees_share(c.nodes) * f.between.ns_per_byte)


def _two_level(c: _Cluster, f: Fabric) -> tuple[Float64s, Float64s]:
    latency_ns = 2 * (c.per_node - 1) * f.inside.latency_ns + 2 * (c.nodes - 1) * f.between.latency_ns
    inside = _ring_share(c.per_node) * f.inside.ns_per_byte
    return latency_ns, inside + _ring_share(c.nodes) * f.between.ns_per_byte


def _two_level_tree(c: _Cluster, f: Fabric) -> tuple[Float64s, Float64s]:
    latency_ns = 2 * (c.per_node - 1) * f.inside.latency_ns + 2 * _levels(c.nodes) * f.between.latency_ns
    inside = _ring_share(c.per_node) * f.inside.ns_per_byte
    return latency_ns, inside + _trees_share(c.nodes) * f.between.ns_per_byte


def _in_switch(c: _Cluster, f: Fabric) -> tuple[Float64s, Float64s]:
    shared, spread = c.per_node > 1, c.nodes > 1
    latency_ns = np.where(shared, 2 * f.inside.latency_ns, 0.0) + np.where(spread, f.between.latency_ns, 0.0)
    inside = np.where(shared, (1 + 1 / c.per_node) * f.inside.ns_per_byte, 0.0)
    return latency_ns, np.maximum(inside, np.where(spread, f.between.ns_per_byte, 0.0))


def _parameter_server(c: _Cluster, f: Fabric) -> tuple[Float64s, Float64s]:
    far_ns = np.where(c.nodes > 1, f.between.latency_ns, 0.0)
    near_ns = np.where(c.per_node > 1, f.inside.latency_ns, 0.0)
    from_own_node = (c.per_node - 1) * f.inside.ns_per_byte
    from_others = (c.ranks - c.per_node) * f.between.ns_per_byte
    return 2 * np.maximum(far_ns, near_ns), 2 * np.maximum(from_own_node, from_others)


def _slower(c: _Cluster, f: Fabric) -> Float64s:
    """ns per byte of the slowest hop that the ring has."""
    inside = np.where(c.per_node > 1, f.inside.ns_per_byte, 0.0)
    return np.maximum(inside, np.where(c.nodes > 1, f.between.ns_per_byte, 0.0))


# ---- volume ---------------------------------------------------------------------------------------------------


def _of_ring(c: _Cluster) -> tuple[Float64s, Float64s]:
    return _ring_share(c.ranks), _ring_share(c.ranks)


def _of_tree(c: _Cluster) -> tuple[Float64s, Float64s]:
    # The root of one tree has a single child there, and is a leaf of the other.
    return _trees_share(c.ranks), np.ones_like(c.ranks)


def _of_two_level_tree(c: _Cluster) -> tuple[Float64s, Float64s]:
    inside = _ring_share(c.per_node)
    root = np.where(c.nodes > 1, 1.0, 0.0)
    return inside + _trees_share(c.nodes) / c.per_node, inside + root / c.per_node


def _of_switch(c: _Cluster) -> tuple[Float64s, Float64s]:
    inside = np.where(c.per_node > 1, 1 + 1 / c.per_node, 0.0)
    share = inside + np.where(c.nodes > 1, 1 / c.per_node, 0.0)
    return share, share


def _of_parameter_server(c: _Cluster) -> tuple[Float64s, Float64s]:
    return np.ones_like(c.ranks), c.ranks - 1


RING = Algorithm(
    "ring",
    "one ring through all ranks: least volume, latency grows with every rank",
    "Patarasu and Yuan, 'Bandwidth optimal all-reduce algorithms for clusters of workstations', JPDC 69 (2009), "
    "section 3: 2(N-1) steps of S/N; hops inside and between nodes counted apart as in NCCL's src/graph/tuning.cc",
    _ring,
    _of_ring,
)
TREE = Algorithm(
    "tree",
    "double binary tree between nodes, a chain inside each: latency grows with the logarithm of the nodes",
    "Sanders, Speck, Traeff, 'Two-tree algorithms for full bandwidth broadcast, reduction and scan', Parallel "
    "Computing 35 (2009); NCCL since 2.4, latency and half of the bandwidth as in its src/graph/tuning.cc; volume 2S, "
    "root S: NVIDIA/nccl issue 457; less of it on two nodes: issue 946",
    _tree,
    _of_tree,
)
TWO_LEVEL = Algorithm(
    "two-level",
    "reduce-scatter inside each node, rings between nodes, all-gather inside each node, one after the other",
    "Cho et al., 'BlueConnect: Decomposing All-Reduce for Deep Learning on Heterogeneous Network Hierarchy', MLSys "
    "2019, with two levels; Thakur et al. 2005 for the cost of each part",
    _two_level,
    _of_ring,  # sent in all: 2(m-1)/m + 2(M-1)/M / m = 2(N-1)/N
)
TWO_LEVEL_TREE = Algorithm(
    "two-level-tree",
    "as two-level, with double binary trees between nodes",
    f"{TWO_LEVEL.source}; between nodes Sanders, Speck, Traeff 2009",
    _two_level_tree,
    _of_two_level_tree,
)
IN_SWITCH = Algorithm(
    "in-switch",
    "switches add up: NVLink SHARP inside a node, SHARP between nodes",
    "Graham et al., 'Scalable Hierarchical Aggregation Protocol (SHArP)', COM-HPC 2016: each rank sends S and receives "
    "S in a time that hardly grows with ranks; inside a node (m+1)/m of S each way, as nccl-tests' doc/PERFORMANCE.md "
    "has it; latency as CollNet's in NCCL's src/graph/tuning.cc",
    _in_switch,
    _of_switch,
)
PARAMETER_SERVER = Algorithm(
    "parameter-server",
    "as nn.DataParallel: the root gathers all gradients and sends the result back to each rank",
    "Li et al., 'Scaling Distributed Machine Learning with the Parameter Server', OSDI 2014, with one server that is a "
    "worker too; torch.nn.DataParallel adds replicas' gradients up on one device and copies weights out from it",
    _parameter_server,
    _of_parameter_server,
)

ALGORITHMS = {one.name: one for one in (RING, TREE, TWO_LEVEL, TWO_LEVEL_TREE, IN_SWITCH, PARAMETER_SERVER)}
