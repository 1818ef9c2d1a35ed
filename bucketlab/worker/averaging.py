"""What DDP does to a gradient before it is reduced, for hooks that must give the very same bits."""

from __future__ import annotations

import torch
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from bucketlab.worker import ddp


class Averaging:
    """DDP's own arithmetic, so that the result is the same to the last bit.

    It multiplies by the reciprocal while it copies a gradient into its bucket, and divides a gradient that lives there
    already (`Reducer::mark_variable_ready_dense` in torch's reducer.cpp, seen in 2.13). Which one it is shows only
    while the gradient is accumulated. By a power of two both give the same, and there is nothing to tell apart.
    """

    def __init__(self, module: DistributedDataParallel, ranks: int) -> None:
        self._ranks = ranks
        self._storage: dict[int, int] = {}  # id of a parameter -> address of the storage its gradient was written to
        self._handles: list[RemovableHandle] = []
        if module.gradient_as_bucket_view and not _is_power_of_two(ranks):
            parameters = [one for _, one in ddp.named_parameters(module)]
            self._handles = [one.register_post_accumulate_grad_hook(self._note) for one in parameters]
            for one in parameters:
                self._note(one)  # a new reducer has moved gradients that there were into its buckets

    def average(self, bucket: GradBucket) -> None:
        """Divides the bucket's gradients by the number of ranks."""
        if self._ranks == 1:
            return
        if not self._handles:
            bucket.buffer().mul_(1.0 / self._ranks)
            return
        here = bucket.buffer().untyped_storage().data_ptr()
        for gradient, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
            if self._storage.get(id(parameter)) == here:
                gradient.div_(self._ranks)
            else:
                gradient.mul_(1.0 / self._ranks)
            self._storage[id(parameter)] = here  # where it stays if it gets no gradient next time

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _note(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._storage[id(parameter)] = parameter.grad.untyped_storage().data_ptr()


def _is_power_of_two(number: int) -> bool:
    return number.bit_count() == 1
