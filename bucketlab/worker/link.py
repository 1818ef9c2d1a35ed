"""Measures the job's link: all-reduces of growing size on its own process group, dtype and device, time-boxed.

Every rank makes the same decisions, since each is made of a number that all of them have reduced together. Times are
nccl-tests': operations back to back, the slowest rank's time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from bucketlab.link.bandwidth import bus_factor
from bucketlab.medians import median_interval
from bucketlab.schema.profile import LinkPoint

_SMALLEST_BYTES = 4096
_MIB = 2**20
_GROWTH_OF_SMALL, _GROWTH_OF_LARGE = 4, 2  # below a MiB latency rules, above it bandwidth does, and links bend
_BLOCK_NS = 2_000_000  # operations back to back until this long, so that the clock and the start do not matter
_MOST_IN_BLOCK = 50
_BLOCKS_AT_A_TIME = 5
_MOST_BLOCKS = 60
_CLOSE_ENOUGH = 0.03  # half the width of the median's 95 % confidence interval, as a part of the median
_IN_FLIGHT_BYTES = (64 * 1024, _MIB, 8 * _MIB)
_PART_FOR_PAIRS = 0.2  # of the time box
_PART_FOR_LARGEST = 0.4  # of what is left of it then
_FEWEST_OPERATIONS = 3  # to warm up, to see how many make a block, and the block
_FEWEST_SAMPLES = 3  # with fewer, one that met a busy host is not told from the others

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LinkMeasurement:
    """What was measured of a link in its time box."""

    points: list[LinkPoint]
    cut_at_bytes: int | None  # largest size measured, where time or memory did not allow the whole gradient


class LinkMeter:
    """All-reduces on one process group.

    Args:
        group: the process group of the job's DDP module.
        dtype: of its gradients.
        device: of its gradients.
        seconds: time box of the whole measurement; the size under way is finished.
        repeat_seconds: of them, what may be spent on making times surer once each has a few samples.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        dtype: torch.dtype,
        device: torch.device,
        seconds: float,
        repeat_seconds: float = math.inf,
    ) -> None:
        self._group = group
        self._dtype = dtype
        self._device = device
        self._box_ns = seconds * 1e9
        self._repeat_ns = min(seconds, repeat_seconds) * 1e9
        self._ranks = dist.get_world_size(group)

    def measure(self, gradient_bytes: int) -> LinkMeasurement:
        """Points of rising size up to `gradient_bytes`, then a few with two in flight. Every rank must call it."""
        began_ns = time.monotonic_ns()
        order = in_order_of_need(_sizes(gradient_bytes))
        points: list[LinkPoint] = []
        for done, size in enumerate(order):
            spent_ns = self._agree(float(time.monotonic_ns() - began_ns), dist.ReduceOp.MAX)
            left_ns = self._box_ns * (1 - _PART_FOR_PAIRS) - spent_ns
            if not self._fits(size) or _guess_ns(points, size) * _FEWEST_OPERATIONS > left_ns:
                continue
            part = _PART_FOR_LARGEST if size == gradient_bytes else 1 / (len(order) - done)
            repeat_ns = (self._repeat_ns * (1 - _PART_FOR_PAIRS) - spent_ns) * part
            points.append(self._point(size, 1, repeat_ns, left_ns * part))
        points.sort(key=lambda point: point.bytes)
        largest = points[-1].bytes if points else None
        cut = largest is None or largest < gradient_bytes - self._dtype.itemsize
        return LinkMeasurement(points + self._pairs(points), cut_at_bytes=largest if cut else None)

    def _pairs(self, alone: list[LinkPoint]) -> list[LinkPoint]:
        box_ns = self._box_ns * _PART_FOR_PAIRS / len(_IN_FLIGHT_BYTES)
        fitting = {point.bytes for point in alone if 2 * point.ns * _FEWEST_OPERATIONS <= box_ns}
        sizes = [size for size in _IN_FLIGHT_BYTES if size in fitting]
        repeat_ns = self._repeat_ns * _PART_FOR_PAIRS / max(1, len(sizes))
        return [self._point(size, 2, repeat_ns, box_ns) for size in sizes]

    def _point(self, size: int, in_flight: int, repeat_ns: float, box_ns: float) -> LinkPoint:
        """With at least one block of operations, and a few in the box, and more in the time for repeating it.

        More until the median is sure.
        """
        elements = max(1, size // self._dtype.itemsize)
        buffers = [torch.zeros(elements, dtype=self._dtype, device=self._device) for _ in range(in_flight)]
        self._block_ns(buffers, 1)  # connections and buffers of this size are made now
        once_ns = self._agree(self._block_ns(buffers, 1), dist.ReduceOp.MAX)
        operations = int(np.clip(_BLOCK_NS / once_ns, 1, _MOST_IN_BLOCK))
        at_a_time = int(np.clip(repeat_ns / (once_ns * operations), 1, _BLOCKS_AT_A_TIME))
        blocks_ns = np.array([once_ns] if operations == 1 else [])
        while len(blocks_ns) < _MOST_BLOCKS:
            mine = torch.tensor([self._block_ns(buffers, operations) for _ in range(at_a_time)]).double()
            blocks_ns = np.concatenate([blocks_ns, self._reduce(mine, dist.ReduceOp.MAX)])
            # Every rank has the same samples, so all of them stop together.
            enough = len(blocks_ns) >= _BLOCKS_AT_A_TIME and _half_width(blocks_ns) < _CLOSE_ENOUGH
            next_ns = blocks_ns.sum() + blocks_ns[-1]
            if enough or next_ns > (repeat_ns if len(blocks_ns) >= _FEWEST_SAMPLES else box_ns):
                break
        each_ns = blocks_ns / (operations * in_flight)
        return _point(elements * self._dtype.itemsize, in_flight, each_ns, operations * in_flight, self._ranks)

    def _block_ns(self, buffers: list[torch.Tensor], operations: int) -> int:
        self._agree(0.0, dist.ReduceOp.MAX)  # all ranks start together
        began_ns = time.perf_counter_ns()
        for _ in range(operations):
            works = [dist.all_reduce(buffer, group=self._group, async_op=True) for buffer in buffers]
            for work in works:
                assert work is not None
                work.wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter_ns() - began_ns

    def _fits(self, size: int) -> bool:
        """Whether every rank has room for two buffers of this size and as much again."""
        free = 4 * size
        if self._device.type == "cuda":
            free = torch.cuda.mem_get_info(self._device)[0]
        return self._agree(float(free), dist.ReduceOp.MIN) >= 4 * size

    def _agree(self, value: float, op: dist.ReduceOp.RedOpType) -> float:
        return float(self._reduce(torch.tensor([value], dtype=torch.float64), op)[0])

    def _reduce(self, values: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Samples:
        on_device = values.to(self._device)
        dist.all_reduce(on_device, op=op, group=self._group)
        reduced: Samples = on_device.cpu().numpy()
        return reduced


def _sizes(gradient_bytes: int) -> list[int]:
    sizes: list[int] = []
    size = _SMALLEST_BYTES
    while size < gradient_bytes:
        sizes.append(size)
        size *= _GROWTH_OF_SMALL if size < _MIB else _GROWTH_OF_LARGE
    return [*sizes, max(gradient_bytes, _SMALLEST_BYTES)]


def in_order_of_need(sizes: Sequence[int]) -> list[int]:
    """So that a cut loses a size between others: the ends first, and before the largest one that tells its time."""
    telling = max((size for size in sizes if size <= _MIB), default=sizes[0])
    first = dict.fromkeys([sizes[0], telling, sizes[-1]])
    return [*first, *(size for size in sizes if size not in first)]


def _guess_ns(points: Sequence[LinkPoint], size: int) -> float:
    """Time of an all-reduce by the smallest size and the nearest smaller one; 0 where no size tells bandwidth yet."""
    smaller = [point for point in points if _MIB <= point.bytes <= size]
    if not smaller:
        return 0.0
    nearest, smallest = max(smaller, key=lambda point: point.bytes), min(points, key=lambda point: point.bytes)
    if nearest is smallest:
        return nearest.ns * size / nearest.bytes
    rise = max(0.0, nearest.ns - smallest.ns) / (nearest.bytes - smallest.bytes)
    return nearest.ns + (size - nearest.bytes) * rise


def _half_width(samples: Samples) -> float:
    low, high = median_interval(samples.tolist())
    return (high - low) / 2 / float(np.median(samples))


def _point(size: int, in_flight: int, samples_ns: Samples, operations: int, ranks: int) -> LinkPoint:
    p10, median, p90 = (float(one) for one in np.percentile(samples_ns, [10, 50, 90]))
    low, high = median_interval(samples_ns.tolist())
    return LinkPoint(
        bytes=size,
        in_flight=in_flight,
        ns=round(median),
        p10_ns=round(p10),
        p90_ns=round(p90),
        low_ns=round(low),
        high_ns=round(high),
        repetitions=len(samples_ns) * operations,
        algorithm_gb_s=size / median,
        bus_gb_s=size / median * (bus_factor("allreduce", ranks) or 0.0),
    )
