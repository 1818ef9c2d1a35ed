"""The job's own steps with its gradients reduced in several ways in turns: DDP's all-reduce, a ring, one root.

    comparison = Comparison(modules, buckets)
    comparison.use("ring")          # between two steps, on every rank
    ...                             # a few steps of the script
    comparison.traffic              # of this rank, since `use`
    comparison.end()

The buckets stay as they are and the averages are DDP's but for the order of a sum, so the training goes on.

For gradients on the CPU only: the ring and the root are made of gloo's sends and receives from a thread of their own.
On a GPU, where NCCL reduces, `why_not_compared` refuses and the rest of the profile goes on; what the topologies would
cost there is a prediction (`bucketlab predict --algorithm`), never a measurement.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bucketlab.link.algorithms import PARAMETER_SERVER, RING
from bucketlab.worker import ddp
from bucketlab.worker.ready import why_not_held_back
from bucketlab.worker.topologies import (
    Exchange,
    Reducer,
    Traffic,
    reduce_bucket,
    ring_all_reduce,
    through_the_root,
)

DDPS_OWN = "ddp"
_EXCHANGES: dict[str, Exchange] = {RING.name: ring_all_reduce, PARAMETER_SERVER.name: through_the_root}
TOPOLOGIES = (DDPS_OWN, *_EXCHANGES)


def turns(rounds: int) -> list[str]:
    """Each topology once a round, and none always first: a machine's pace changes."""
    return [TOPOLOGIES[(place + turn) % len(TOPOLOGIES)] for turn in range(rounds) for place in range(len(TOPOLOGIES))]


def why_not_compared(modules: list[DistributedDataParallel]) -> str | None:
    """Why topologies cannot be compared on this job, or None."""
    for module in modules:
        device = next((one.device.type for one in module.parameters() if one.device.type != "cpu"), None)
        if device is not None:
            return (
                f"measured for gradients on the CPU alone, and this job's are on {device}: train on the CPU with gloo "
                "to measure them, or let `bucketlab predict --algorithm` tell what they would cost"
            )
        if dist.get_world_size(module.process_group) != dist.get_world_size():
            return "a DDP module reduces over some of the ranks only"
        if (reason := why_not_held_back(module)) is not None:
            return reason
    return "one rank exchanges nothing" if dist.get_world_size() == 1 else None


class Comparison:
    """Switches modules between topologies. Every rank must make it, switch it and end it at the same steps.

    Args:
        modules: of which `why_not_compared` says None.
        buckets: of each, the layout in force.
    """

    def __init__(self, modules: list[DistributedDataParallel], buckets: list[ddp.Layout]) -> None:
        self._modules: list[tuple[Any, ddp.Layout]] = list(zip(modules, buckets, strict=True))
        # One group of its own for each: messages carry no tag, and modules may run beside one another.
        self._reducers = {
            name: [Reducer(exchange, dist.new_group(backend="gloo")) for _ in modules]
            for name, exchange in _EXCHANGES.items()
        }
        self._in_use: list[Reducer] = []
        self._before = Traffic()

    def use(self, topology: str) -> None:
        """One of `TOPOLOGIES`, from the next backward pass on."""
        self._in_use = self._reducers.get(topology, [])
        self._renew()
        for (module, _), reducer in zip(self._modules, self._in_use, strict=False):
            module.register_comm_hook(reducer, reduce_bucket)
            module._comm_hooks.clear()  # what `register_comm_hook` remembers outlives the reducer
        self.count_anew()

    def count_anew(self) -> None:
        self._before = self._total()

    @property
    def traffic(self) -> Traffic:
        """What this rank has exchanged since `count_anew`; nothing is counted of DDP's own all-reduce."""
        return Traffic(
            *(now - before for now, before in zip(astuple(self._total()), astuple(self._before), strict=True))
        )

    def end(self) -> None:
        """Leaves the modules to DDP's own all-reduce."""
        self._renew()
        for reducers in self._reducers.values():
            for reducer in reducers:
                reducer.close()

    def _renew(self) -> None:
        for module, buckets in self._modules:
            ddp.put_in_new_reducer(module, buckets)

    def _total(self) -> Traffic:
        columns = zip(*(astuple(one.traffic) for one in self._in_use), strict=True)
        return Traffic(*map(sum, columns)) if self._in_use else Traffic()
