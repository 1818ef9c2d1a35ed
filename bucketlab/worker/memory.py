"""What of one rank's memory is parameters, gradients, buckets and optimizer state. Reads sizes, allocates nothing."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from bucketlab.cgroups import memory_limit_bytes
from bucketlab.schema.profile import Memory


def resident_bytes() -> int:
    """Resident size of this process now; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def peak_bytes(device: torch.device) -> int:
    """Most memory this rank has held: allocated on the GPU, resident on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def capacity_bytes(device: torch.device, ranks_on_host: int) -> int:
    """Memory of the GPU; on CPU the host's, or its control group's limit, shared out over its ranks."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return host_memory_bytes() // max(1, ranks_on_host)


def host_memory_bytes() -> int:
    """Of the host, or of what its control group allows."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit_bytes()
    return total if limit is None else min(total, limit)


def measure(
    modules: list[DistributedDataParallel],
    optimizers: Iterable[torch.optim.Optimizer],
    device: torch.device,
    peak: int,
    fixed: int,
    ranks_on_host: int,
) -> Memory:
    """Sizes of this rank's tensors, and the largest model of the same shape that plain DDP would fit.

    The estimate of the largest model takes everything but `fixed` (interpreter, libraries, other programs on the
    device; bytes) to grow in proportion to the parameters, activations included.
    """
    parameters = _unique(parameter for module in modules for parameter in module.parameters())
    gradients = sum(_bytes(one) for one in parameters if one.requires_grad)
    viewed = sum(
        _bytes(one)
        for module in modules
        if module.gradient_as_bucket_view
        for one in _unique(module.parameters())
        if one.requires_grad
    )
    buffers = _unique(buffer for module in modules for buffer in module.buffers())
    states = _unique(
        value
        for one in optimizers
        for state in one.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    )
    capacity = capacity_bytes(device, ranks_on_host)
    growing = max(1, peak - fixed)
    count = sum(one.numel() for one in parameters)
    return Memory(
        parameters_bytes=sum(_bytes(one) for one in parameters),
        gradients_bytes=gradients,
        bucket_buffers_bytes=gradients,
        saved_by_view_bytes=viewed or gradients,
        optimizer_bytes=sum(_bytes(one) for one in states),
        buffers_bytes=sum(_bytes(one) for one in buffers),
        peak_bytes=peak,
        capacity_bytes=capacity,
        largest_model_parameters=int(count * max(0, capacity - fixed) / growing),
    )


def _bytes(tensor: torch.Tensor) -> int:
    """Of sparse ones too, as an optimizer's state may be: they have no `nbytes`."""
    return tensor.numel() * tensor.element_size()


def _unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(one): one for one in tensors}.values())
