"""Marks on the time line of a device, and the time between two of them.

On a GPU the host runs ahead, so a mark is a CUDA event in the current stream; on CPU it is the host's clock.
"""

from __future__ import annotations

import time
from typing import Protocol

import torch

Mark = object


class Clock(Protocol):
    """Of one kind of device."""

    def mark(self) -> Mark: ...

    def between(self, earlier: Mark, later: Mark) -> int:
        """Nanoseconds; marks must have been settled."""
        ...

    def settle(self) -> None:
        """Waits until all marks have been reached."""
        ...


class HostClock:
    """Of a CPU."""

    def mark(self) -> Mark:
        return time.perf_counter_ns()

    def between(self, earlier: Mark, later: Mark) -> int:
        assert isinstance(earlier, int) and isinstance(later, int)
        return later - earlier

    def settle(self) -> None:
        return


class CudaClock:
    """Of a GPU: events in the current stream."""

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, earlier: Mark, later: Mark) -> int:
        assert isinstance(earlier, torch.cuda.Event) and isinstance(later, torch.cuda.Event)
        return round(float(earlier.elapsed_time(later)) * 1e6)

    def settle(self) -> None:
        torch.cuda.synchronize()


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
