"""Of one step, the time of work that no bucket takes part in: it tells how fast the machine was just then.

Forward passes up to the first backward that synchronises gradients, and the optimizer. What lies between (loading data,
logging) is left out: it may wait longer the faster the rest is. So is the backward pass, in which buckets are reduced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bucketlab.worker.clock import Clock
    from bucketlab.worker.observe import Step


def untouched_ns(step: Step, clock: Clock) -> int | None:
    """Nanoseconds, one or more; None where neither part was seen. The caller settles the clock before.

    Without a forward pass, which no one sees under torch.compile, it is the optimizer's alone.
    """
    total = sum(clock.between(begin, end) for begin, end in step.optimizing)
    if step.called is not None and step.backward_start is not None:
        total += clock.between(step.called, step.backward_start)
        total -= sum(clock.between(begin, end) for begin, end in step.loading)
    return total if total > 0 else None
