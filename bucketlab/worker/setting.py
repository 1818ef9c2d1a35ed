"""Puts a bucket setting in force: on DDP modules between two steps, or in the arguments of DDP's constructor.

What is put in force is read back from DDP by whoever asked for it; here nothing is measured and nothing is chosen.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bucketlab.schema.tuning import CURRENT, DDPS_DEFAULT, Candidate, Capacities, Compression
from bucketlab.worker import ddp

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from bucketlab.worker.emulate import Emulation

_MIB = 2**20  # DDP's "mb"
_POWER_SGD_FROM_STEP = 2  # its own least, so that the buckets are final


@dataclass(frozen=True)
class _Own:
    """What the script itself told one module."""

    capacities: ddp.Capacities
    gradient_as_bucket_view: bool
    static_graph: bool
    hooks: list[tuple[Callable[..., Any], object]]


class InPlace:
    """The settings of a job's modules, changed between two steps; every rank must change to the same at the same step.

    Args:
        modules: that train.
        emulation: link that is installed under them and goes on under their new buckets.
    """

    def __init__(self, modules: Sequence[DistributedDataParallel], emulation: Emulation | None = None) -> None:
        self._modules = list(modules)
        self._emulation = emulation
        self._own = [_own(module) for module in modules]
        self._compiled = any(ddp.is_compiled_inside(module) for module in modules)
        self.in_force: Candidate = CURRENT

    def apply(self, candidate: Candidate) -> None:
        """May raise whatever torch raises, out of memory for one; the module it happened at is as it was."""
        if candidate == self.in_force:
            return
        for module, own in zip(self._modules, self._own, strict=True):
            self._apply(module, own, candidate)
        if self._compiled:
            # The compiled graphs are split where the old buckets ended.
            torch.compiler.reset()
        self.in_force = candidate

    def bucket_bytes(self) -> list[int]:
        """As DDP built them, all modules one after the other; tells a new layout from the fourth step on."""
        found: list[int] = []
        for module in self._modules:
            sizes = [one.nbytes for _, one in ddp.named_parameters(module)]
            found += [sum(sizes[index] for index in bucket) for bucket in ddp.layout(module)]
        return found

    def _apply(self, module: DistributedDataParallel, own: _Own, candidate: Candidate) -> None:
        order = [index for bucket in ddp.layout(module) for index in bucket]
        view, static = candidate.gradient_as_bucket_view, candidate.static_graph
        module.gradient_as_bucket_view = own.gradient_as_bucket_view if view is None else view
        module.static_graph = own.static_graph if static is None else static
        wanted = _capacities(candidate.capacities, own.capacities)
        ddp.change_capacities(module, wanted)
        if candidate.compression is not None:
            register_compression(module, candidate.compression)
        elif own.hooks:
            ddp.register_again(module, own.hooks)
        elif self._emulation is not None:
            self._emulation.attach(module, ddp.assignment(module, wanted, order))


def why_not_in_place(module: DistributedDataParallel) -> str | None:
    """Why this module's buckets cannot be changed between two steps, or None."""
    reason = ddp.why_not_rebuildable(module)
    if reason is not None:
        return reason
    hook = ddp.hook_of(module)
    if hook is None:
        return None
    known = ddp.hooks(module)
    if not known:
        return f"its communication hook {hook} is one of torch's own in C++, and cannot be registered again"
    if any(state is not None and not isinstance(state, torch.distributed.ProcessGroup) for _, state in known):
        return f"its communication hook {hook} keeps a state, which belongs to the buckets it has seen"
    return None


def _own(module: DistributedDataParallel) -> _Own:
    return _Own(
        capacities=ddp.capacities(module),
        gradient_as_bucket_view=bool(module.gradient_as_bucket_view),
        static_graph=bool(module.static_graph),
        hooks=ddp.hooks(module),
    )


def _capacities(told: Capacities, own: ddp.Capacities) -> ddp.Capacities:
    if told.bucket_cap_mb_list:
        each = tuple(int(cap * _MIB) for cap in told.bucket_cap_mb_list)
        return ddp.Capacities(max(each), max(each), each)
    if told.bucket_cap_mb is None:
        return own
    cap = int(told.bucket_cap_mb * _MIB)
    if told.first_bucket_mb is None or told.first_bucket_mb == told.bucket_cap_mb:
        return ddp.Capacities(cap, cap)
    first = int(told.first_bucket_mb * _MIB)
    if told == DDPS_DEFAULT:
        return ddp.Capacities(cap, first)
    return ddp.Capacities(max(first, cap), max(first, cap), (first, cap))


def register_compression(module: DistributedDataParallel, compression: Compression) -> None:
    """A communication hook of torch's that sends less; it changes what is computed."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            module.process_group, start_powerSGD_iter=_POWER_SGD_FROM_STEP, use_error_feedback=False, warm_start=False
        )
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return
    hook = default_hooks.fp16_compress_hook if compression == "fp16" else default_hooks.bf16_compress_hook
    module.register_comm_hook(module.process_group, hook)


# ---- in the constructor's arguments -----------------------------------------------------------------------------


def build_with(
    candidate: Candidate, constructor: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Constructs a DDP module with this setting, whatever the script says."""
    constructor(module, **with_setting(constructor, candidate, (module, *args), kwargs))
    if candidate.compression is not None:
        register_compression(module, candidate.compression)


def with_setting(
    constructor: Callable[..., Any], candidate: Candidate, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of DDP's constructor as keywords, with the setting in place of the script's own.

    Args:
        constructor: DDP's own `__init__`; what it does not take, such as a list of capacities before torch 2.13, is
            given in the nearest form that it takes.
        candidate: a compression is no argument; see `register_compression`.
        args: as the script gave them, `self` first.
        kwargs: likewise.
    """
    bound = inspect.signature(constructor).bind_partial(*args, **kwargs)
    known = inspect.signature(constructor).parameters
    arguments = dict(bound.arguments)
    arguments.pop("self", None)
    capacities = candidate.capacities
    if capacities.mb():
        arguments.pop("bucket_cap_mb", None)
        arguments.pop("bucket_cap_mb_list", None)
        arguments.update(_bucket_arguments(capacities, "bucket_cap_mb_list" in known))
    if candidate.gradient_as_bucket_view is not None:
        arguments["gradient_as_bucket_view"] = candidate.gradient_as_bucket_view
    if candidate.static_graph is not None:
        arguments["static_graph"] = candidate.static_graph
    return arguments


def _bucket_arguments(capacities: Capacities, takes_lists: bool) -> dict[str, Any]:
    if capacities == DDPS_DEFAULT:
        return {}
    listed = capacities.bucket_cap_mb_list
    if not takes_lists:
        return {"bucket_cap_mb": listed[-1] if listed else capacities.bucket_cap_mb}
    if listed:
        return {"bucket_cap_mb_list": list(listed)}
    first, cap = capacities.first_bucket_mb, capacities.bucket_cap_mb
    if first is None or first == cap:
        return {"bucket_cap_mb": cap}
    return {"bucket_cap_mb_list": [first, cap]}
