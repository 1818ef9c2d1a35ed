"""When each gradient is ready if nothing but compute runs: measured for a few steps with communication held back.

A communication hook keeps every bucket until the last one is ready and then reduces them all, with DDP's own
arithmetic and in DDP's own buckets, so the optimizer sees the very bits it would have seen. The time is noted by a
hook on each parameter at the moment its gradient is written, before any queueing.
"""

# No postponed annotations in this file: DDP looks at those of a communication hook.
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from bucketlab.worker import ddp
from bucketlab.worker.averaging import Averaging
from bucketlab.worker.clock import Clock, Mark


class ReadyTimes:
    """Marks of the newest step: parameter -> the moment its gradient was written last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.marks: dict[int, Mark] = {}
        self.on_ready: Callable[[torch.Tensor], None] | None = None  # told of each gradient, after its mark

    def note(self, parameter: torch.Tensor) -> None:
        self.marks[id(parameter)] = self._clock.mark()
        if self.on_ready is not None:
            self.on_ready(parameter)

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


class HeldBack:
    """Communication of some modules while it is held back."""

    def __init__(self, modules: list[DistributedDataParallel], layouts: list[ddp.Layout]) -> None:
        """
        Args:
            modules: whose communication is held back.
            layouts: the buckets that each has; a reducer made a moment ago does not tell them.
        """
        self._modules = [_HeldModule(*one) for one in zip(modules, layouts, strict=True)]

    def __enter__(self) -> "HeldBack":
        for module in self._modules:
            module.hold()
        return self

    def before_reducing(self, call: Callable[[], None] | None) -> None:
        """Calls this after a module's last gradient, before what was held back is reduced."""
        for module in self._modules:
            module.before_reducing = call

    def __exit__(self, *_: object) -> None:
        for module in self._modules:
            module.let_go()


class _HeldModule:
    def __init__(self, module: DistributedDataParallel, buckets: ddp.Layout) -> None:
        self._module: Any = module
        self._buckets = buckets
        self._ranks: int = dist.get_world_size(module.process_group)
        self._waiting: list[tuple[GradBucket, torch.futures.Future[torch.Tensor]]] = []
        self._averaging: Averaging | None = None
        self.before_reducing: Callable[[], None] | None = None

    def hold(self) -> None:
        ddp.put_in_new_reducer(self._module, self._buckets)
        self._averaging = Averaging(self._module, self._ranks)
        self._module.register_comm_hook(self, _reduce_after_the_last)
        self._module._comm_hooks.clear()  # what `register_comm_hook` remembers outlives the reducer
        self._module.register_comm_hook = self._register_after_letting_go

    def let_go(self) -> None:
        if self._averaging is None:
            return
        self._averaging.close()
        self._averaging = None
        del self._module.register_comm_hook
        ddp.put_in_new_reducer(self._module, self._buckets)

    def _register_after_letting_go(self, *args: Any, **kwargs: Any) -> None:
        """The script registers a hook of its own just now: a reducer takes only one."""
        self.let_go()
        self._module.register_comm_hook(*args, **kwargs)

    def reduce(self, bucket: GradBucket, future: torch.futures.Future[torch.Tensor]) -> None:
        self._waiting.append((bucket, future))
        # In the first backward of a static graph DDP gives every bucket index 0 and calls none of them the last.
        if not bucket.is_last() and len(self._waiting) < len(self._buckets):
            return
        waiting, self._waiting = self._waiting, []
        if self.before_reducing is not None:
            self.before_reducing()
        works = []
        for one, _ in waiting:
            assert self._averaging is not None
            self._averaging.average(one)
            works.append(dist.all_reduce(one.buffer(), group=self._module.process_group, async_op=True))
        for (one, kept), work in zip(waiting, works, strict=True):
            assert work is not None
            work.wait()
            kept.set_result(one.buffer())


def _reduce_after_the_last(held: _HeldModule, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    device = bucket.buffer().device
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[device] if device.type == "cuda" else [])
    held.reduce(bucket, future)
    return future
