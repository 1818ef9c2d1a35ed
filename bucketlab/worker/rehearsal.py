"""Other buckets tried out beside the backward pass, without touching a gradient.

While DDP's own buckets are held back, zeros of the sizes of another layout's buckets are reduced as soon as the
gradients that would fill them are ready: compute and communication then slow each other as they would with that
layout, and the optimizer still sees the very bits it would have seen. Not for several modules, whose ranks could
start all-reduces in different orders, and not for more than one backward pass a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bucketlab.worker import ddp
from bucketlab.worker.clock import Clock, Mark


class Rehearsal:
    """One layout of one module; is told of each gradient that was written."""

    def __init__(self, module: DistributedDataParallel, layout: Sequence[Sequence[int]], clock: Clock) -> None:
        """
        Args:
            module: whose buckets are held back meanwhile.
            layout: of each bucket, in the order of launch, the positions of its parameters.
        """
        parameters = [parameter for _, parameter in ddp.named_parameters(module)]
        self._group, self._clock = module.process_group, clock
        self._bucket_of = {id(parameters[one]): number for number, bucket in enumerate(layout) for one in bucket}
        self._counts = [len(bucket) for bucket in layout]
        self._buffers = [
            torch.zeros(
                sum(parameters[one].numel() for one in bucket),
                dtype=parameters[bucket[0]].dtype,
                device=parameters[bucket[0]].device,
            )
            for bucket in layout
        ]
        self.end: Mark | None = None  # of the newest step's last all-reduce
        self._begin()

    def _begin(self) -> None:
        self._missing = list(self._counts)
        self._works: list[dist.Work] = []

    def note(self, parameter: torch.Tensor) -> None:
        """A gradient was written: launches each bucket that is full, once all before it are launched, as DDP does."""
        number = self._bucket_of.get(id(parameter))
        if number is None:
            return
        self._missing[number] -= 1
        while len(self._works) < len(self._buffers) and self._missing[len(self._works)] == 0:
            work = dist.all_reduce(self._buffers[len(self._works)], group=self._group, async_op=True)
            assert work is not None
            self._works.append(work)

    def finish(self) -> None:
        """Waits for all that was launched; what DDP held back may go from here on."""
        complete = len(self._works) == len(self._buffers)
        for work in self._works:
            work.wait()
        self.end = self._clock.mark() if complete else None
        self._begin()
