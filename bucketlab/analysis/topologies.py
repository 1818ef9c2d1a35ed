"""Ring, parameter server and DDP's own all-reduce on one job, by what each rank timed and counted. Predicts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from bucketlab.analysis.steptime import step_time
from bucketlab.link.algorithms import ALGORITHMS
from bucketlab.schema.profile import RankVolume, Topology
from bucketlab.schema.rank import RankReport, TopologySteps


def topologies(reports: Sequence[RankReport], world_size: int) -> list[Topology]:
    """In the order of the reports; those that were timed on every rank that reported.

    Args:
        reports: of the ranks, in their order.
        world_size: ranks of the job.
    """
    names = [one.name for one in reports[0].topologies]
    found = (_topology(name, reports, world_size) for name in names)
    return [one for one in found if one is not None]


def _topology(name: str, reports: Sequence[RankReport], world_size: int) -> Topology | None:
    by_rank = [(report.rank, one) for report in reports for one in report.topologies if one.name == name]
    step = step_time([one.steps for _, one in by_rank])
    if step is None or len(by_rank) < len(reports):
        return None
    algorithm = ALGORITHMS.get(name)
    return Topology(
        name=name,
        step=step,
        volumes=[] if algorithm is None else [_volume(rank, one, world_size) for rank, one in by_rank],
        formula="" if algorithm is None else algorithm.source,
    )


def _volume(rank: int, counted: TopologySteps, world_size: int) -> RankVolume:
    """Per step; the formula is told how much was reduced, which is more than the gradient where steps sum up twice."""
    steps = len(counted.steps)
    formula = ALGORITHMS[counted.name].volume(counted.reduced_bytes / steps, world_size, 1)
    sent, received = (formula.sent, formula.received) if rank else (formula.root_sent, formula.root_received)
    return RankVolume(
        rank=rank,
        sent_bytes=round(counted.sent_bytes / steps),
        received_bytes=round(counted.received_bytes / steps),
        formula_sent_bytes=round(float(sent)),
        formula_received_bytes=round(float(received)),
    )
