"""Ring and parameter server beside DDP's own all-reduce, for a profile's screen. Only prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bucketlab import units
from bucketlab.link.algorithms import PARAMETER_SERVER, RING
from bucketlab.schema.profile import RankVolume, Topology

REMARK = "measured in turns on this job; and the MiB that a rank receives in a step"
_NAMES = {"ddp": "DDP's own all-reduce", RING.name: "ring", PARAMETER_SERVER.name: "parameter server"}


def comparison(topologies: Sequence[Topology], new_table: Callable[..., Table]) -> list[RenderableType]:
    """The section's body.

    Args:
        topologies: at least one.
        new_table: makes a table of the page's kind with these headings.
    """
    table = new_table(
        "\n", "step\nms", "to\nDDP's", "rank 0,\ncounted", "by\nformula", "others,\ncounted", "by\nformula"
    )
    table.columns[0].justify = "left"
    times = units.milliseconds_alike([one.step.median_ns for one in topologies])
    own = next((one for one in topologies if not one.volumes), None)
    for one, time in zip(topologies, times, strict=True):
        ratio = f"x{one.step.median_ns / own.step.median_ns:.2f}" if own else units.NOTHING
        table.add_row(_NAMES.get(one.name, one.name), time, ratio, *_received(one.volumes))
    sentence = _why_one_root_loses({one.name: one for one in topologies})
    python = Text("Ring and parameter server are sends and receives from Python; DDP's own all-reduce is not.", "dim")
    return [table, *([sentence] if sentence else []), python]


def _received(volumes: Sequence[RankVolume]) -> list[str]:
    if not volumes:
        return ["not counted", units.NOTHING, "not counted", units.NOTHING]
    root = [one for one in volumes if one.rank == 0]
    others = [one for one in volumes if one.rank != 0]
    return [
        units.mebibytes(max(values)) if values else units.NOTHING
        for group in (root, others)
        for values in ([one.received_bytes for one in group], [one.formula_received_bytes for one in group])
    ]


def _why_one_root_loses(topologies: dict[str, Topology]) -> Text | None:
    """What nn.DataParallel's way costs, in one sentence."""
    if RING.name not in topologies or PARAMETER_SERVER.name not in topologies:
        return None
    ring, server = topologies[RING.name], topologies[PARAMETER_SERVER.name]
    if not ring.volumes or not server.volumes:
        return None
    ratio = server.step.median_ns / ring.step.median_ns
    through_root, through_ring = server.volumes[0].received_bytes, ring.volumes[0].received_bytes
    volumes = f"rank 0 receives {units.size(through_root)} in a step, in the ring {units.size(through_ring)}"
    return Text(f"Through one root, as nn.DataParallel does it, a step takes x{ratio:.2f} of the ring's; {volumes}.")
