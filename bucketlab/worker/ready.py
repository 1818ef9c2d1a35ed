"""When each gradient is ready if nothing but compute runs: measured for a few steps with communication held back.

A communication hook keeps every bucket until the last one is ready and then reduces them all, with DDP's own
arithmetic and in DDP's own buckets, so the optimizer sees the very bits it would have seen. The time is noted by a
hook on each parameter at the moment its gradient is written, before any queueing.
"""

# No postponed annotations in this file: DDP looks at those of a communication hook.
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from bucketlab.worker import ddp
from bucketlab.worker.clock import Clock, Mark


class ReadyTimes:
    """Marks of the newest step: parameter -> the moment its gradient was written last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.marks: dict[int, Mark] = {}

    def note(self, parameter: torch.Tensor) -> None:
        self.marks[id(parameter)] = self._clock.mark()

    @contextmanager
    def watching(self, modules: list[DistributedDataParallel]) -> Iterator[None]:
        handles = [
            parameter.register_post_accumulate_grad_hook(self.note)
            for module in modules
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def why_not_held_back(module: DistributedDataParallel) -> str | None:
    """Why communication of this module cannot be held back, or None."""
    hook = ddp.hook_of(module)
    if hook is not None:
        return f"the script registered its own communication hook, {hook}"
    return ddp.why_not_rebuildable(module)


@contextmanager
def communication_held_back(modules: list[DistributedDataParallel]) -> Iterator[None]:
    """Within it, each backward of these modules computes first and communicates last. Enter and leave between steps."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(_held_back(module))
        yield


class _Held:
    def __init__(self, module: DistributedDataParallel) -> None:
        self.group: dist.ProcessGroup = module.process_group
        self.divisor: int = dist.get_world_size(module.process_group)
        self.futures: list[tuple[GradBucket, torch.futures.Future[torch.Tensor]]] = []


@contextmanager
def _held_back(module: DistributedDataParallel) -> Iterator[None]:
    buckets = ddp.layout(module)
    ddp.put_in_new_reducer(module, buckets)
    module.register_comm_hook(_Held(module), _reduce_after_the_last)
    module._comm_hooks.clear()  # what `register_comm_hook` remembers outlives the reducer
    try:
        yield
    finally:
        ddp.put_in_new_reducer(module, buckets)


def _reduce_after_the_last(held: _Held, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    device = bucket.buffer().device
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[device] if device.type == "cuda" else [])
    held.futures.append((bucket, future))
    if not bucket.is_last():
        return future
    waiting, held.futures = held.futures, []
    works = []
    for one, _ in waiting:
        # DDP multiplies by the reciprocal while it copies a gradient into its bucket; the same operation, so that
        # the result is the same to the last bit.
        one.buffer().mul_(1.0 / held.divisor)
        works.append(dist.all_reduce(one.buffer(), group=held.group, async_op=True))
    for (one, kept), work in zip(waiting, works, strict=True):
        assert work is not None
        work.wait()
        kept.set_result(one.buffer())
    return future
