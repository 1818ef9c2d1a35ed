"""Of one step, the time of work that no bucket takes part in: it tells how fast the machine was just then.

Forward passes up to the first backward that synchronises gradients, and the optimizer. What lies between (loading data,
logging) is left out: it may wait longer the faster the rest is. So is the backward pass, in which buckets are reduced.
Only on CPUs: a GPU whose host does not keep ahead waits for it in the forward pass, too, and longer after a faster
backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bucketlab.worker.clock import HostClock

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from bucketlab.worker.clock import Clock
    from bucketlab.worker.observe import Step


@dataclass(frozen=True)
class Untouched:
    """Nanoseconds of one step on one rank; 0 where a part was not seen, as forward passes under torch.compile."""

    forward_ns: int
    optimizer_ns: int

    @classmethod
    def of(cls, step: Step, clock: Clock) -> Untouched:
        if not isinstance(clock, HostClock):
            return cls(0, 0)
        optimizer = sum(clock.between(begin, end) for begin, end in step.optimizing)
        if step.called is None or step.backward_start is None:
            return cls(0, optimizer)
        loading = sum(clock.between(begin, end) for begin, end in step.loading)
        return cls(max(0, clock.between(step.called, step.backward_start) - loading), optimizer)


def forward_waits(modules: Sequence[DistributedDataParallel]) -> bool:
    """Whether ranks wait in forward passes for the first one's buffers, as BatchNorm has some."""
    return any(module.will_sync_module_buffers() for module in modules)
