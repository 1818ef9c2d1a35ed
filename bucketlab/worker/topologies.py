"""Ring and parameter server as real exchanges of a DDP job, made of sends and receives, so that they can be compared.

    reducer = Reducer(ring_all_reduce, dist.new_group())
    module.register_comm_hook(reducer, reduce_bucket)

Both replace DDP's all-reduce and give the same averages but for rounding. They count what they send and receive. They
are there to be measured side by side, not to be fast: for dense gradients on the CPU, on a backend whose sends and
receives may come from a thread of their own (gloo).
"""

# No postponed annotations in this file: DDP looks at those of a communication hook.
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import GradBucket


@dataclass
class Traffic:
    """Payload that this rank has exchanged, in bytes."""

    reduced_bytes: int = 0  # of the buffers that were averaged
    sent_bytes: int = 0
    received_bytes: int = 0


Exchange = Callable[[torch.Tensor, dist.ProcessGroup, Traffic], None]


class Reducer:
    """Averages buckets over a group's ranks in one way, one bucket after the other, while the backward pass goes on.

    Args:
        exchange: `ring_all_reduce` or `through_the_root`.
        group: of the same ranks as the module's, used by nothing else meanwhile: messages carry no tag.
    """

    def __init__(self, exchange: Exchange, group: dist.ProcessGroup) -> None:
        self.traffic = Traffic()
        self._exchange = exchange
        self._group = group
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bucketlab-reducer")

    def average(self, buffer: torch.Tensor) -> None:
        """Replaces a one-dimensional buffer by its average over all ranks, and returns when this rank has it."""
        buffer.mul_(1.0 / dist.get_world_size(self._group))  # before the sum, as DDP does
        self._exchange(buffer, self._group, self.traffic)
        self.traffic.reduced_bytes += buffer.nbytes

    def start(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """`average`, after all that was started before it; the future has the buffer or the error."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._thread.submit(self._finish, buffer, future)
        return future

    def close(self) -> None:
        """Ends its thread, after what was started."""
        self._thread.shutdown()

    def _finish(self, buffer: torch.Tensor, future: torch.futures.Future[torch.Tensor]) -> None:
        try:
            self.average(buffer)
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]  # torch 2.13 annotates it as the result's type
        else:
            future.set_result(buffer)


def reduce_bucket(reducer: Reducer, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook."""
    return reducer.start(bucket.buffer())


def ring_all_reduce(buffer: torch.Tensor, group: dist.ProcessGroup, traffic: Traffic) -> None:
    """Sums in 2(N-1) steps: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms ..." (JPDC 2009).

    The buffer is cut into N parts. For N-1 steps each rank hands a part on to its right and adds the one that comes
    from its left to its own; then each holds one part in full, and for N-1 steps hands those on.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    parts = torch.tensor_split(buffer, ranks)
    incoming = torch.empty_like(parts[0])  # the first parts are the largest
    for step in range(ranks - 1):
        outgoing, own = parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks]
        arrived = incoming[: own.numel()]
        _pass_on(outgoing, right, arrived, left, group, traffic)
        own.add_(arrived)
    for step in range(ranks - 1):
        _pass_on(parts[(rank - step + 1) % ranks], right, parts[(rank - step) % ranks], left, group, traffic)


def through_the_root(buffer: torch.Tensor, group: dist.ProcessGroup, traffic: Traffic) -> None:
    """Sums as nn.DataParallel does: rank 0 gathers all gradients, adds them up and sends the sums to each rank."""
    others = range(1, dist.get_world_size(group))
    if dist.get_rank(group) == 0:
        gathered = [torch.empty_like(buffer) for _ in others]
        _wait([_receive(one, rank, group, traffic) for rank, one in zip(others, gathered, strict=True)])
        for one in gathered:
            buffer.add_(one)
        _wait([_send(buffer, rank, group, traffic) for rank in others])
        return
    _wait([_send(buffer, 0, group, traffic)])
    _wait([_receive(buffer, 0, group, traffic)])


def _pass_on(
    outgoing: torch.Tensor, right: int, incoming: torch.Tensor, left: int, group: dist.ProcessGroup, traffic: Traffic
) -> None:
    # A buffer of fewer elements than ranks has empty parts, of which both ends know.
    works = [_receive(incoming, left, group, traffic)] if incoming.numel() else []
    works += [_send(outgoing, right, group, traffic)] if outgoing.numel() else []
    _wait(works)


def _send(tensor: torch.Tensor, to: int, group: dist.ProcessGroup, traffic: Traffic) -> dist.Work:
    traffic.sent_bytes += tensor.nbytes
    work = dist.isend(tensor, group=group, group_dst=to)
    assert work is not None  # it is for ranks outside of the group alone
    return work


def _receive(tensor: torch.Tensor, sender: int, group: dist.ProcessGroup, traffic: Traffic) -> dist.Work:
    traffic.received_bytes += tensor.nbytes
    work = dist.irecv(tensor, group=group, group_src=sender)
    assert work is not None
    return work


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
