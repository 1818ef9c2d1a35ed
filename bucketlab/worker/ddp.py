"""The only file that knows private names of torch. Seen in 2.9.1 and 2.13.0; `missing_names` checks them at start.

DistributedDataParallel keeps its buckets in a C++ reducer. A new reducer can be put in its place between two steps,
as DDP itself does when it is unpickled; the old one takes its autograd hooks with it. Here that serves to hold
communication back for a few steps while the layout of the buckets, and with it the order of every sum, stays as it is.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

_NEEDED_OF_DDP = (
    "_ddp_init_helper",
    "_build_params_for_reducer",
    "_build_debug_param_to_name_mapping",
    "_get_ddp_logging_data",
)
_HELPER_ARGUMENTS = ["self", "parameters", "expect_sparse_gradient", "param_to_name_mapping", "static_graph"]

Layout = list[list[int]]  # parameter indices of each bucket, in the order of the buckets


@dataclass(frozen=True)
class Capacities:
    """A bucket setting in bytes: what DDP makes of its arguments.

    DDP's default is a small first bucket and 25 MiB for the others; with an explicit `bucket_cap_mb` the first bucket
    has the same capacity. `each` is `bucket_cap_mb_list`; its last capacity holds for all further ones.
    """

    cap: int
    first: int
    each: tuple[int, ...] = ()

    @property
    def limits(self) -> list[int]:
        """As DDP's rule for forming buckets takes them."""
        return list(self.each) or ([self.first, self.cap] if self.first != self.cap else [self.cap])


_DDPS_DEFAULT = Capacities(25 * 2**20, 2**20)


def missing_names() -> list[str]:
    """Private names that this release of torch lacks, or has in another form; empty when all is well."""
    missing = [
        f"DistributedDataParallel.{name}" for name in _NEEDED_OF_DDP if not hasattr(DistributedDataParallel, name)
    ]
    if not missing:
        helper = inspect.signature(DistributedDataParallel._ddp_init_helper)
        if list(helper.parameters) != _HELPER_ARGUMENTS:
            missing.append(f"DistributedDataParallel._ddp_init_helper{helper}")
    if not hasattr(dist, "_compute_bucket_assignment_by_size"):
        missing.append("torch.distributed._compute_bucket_assignment_by_size")
    if not hasattr(distributed_c10d, "_get_default_store"):
        missing.append("torch.distributed.distributed_c10d._get_default_store")
    if not hasattr(torch.autograd.profiler.profile, "_prepare_trace"):
        missing.append("torch.autograd.profiler.profile._prepare_trace")
    return missing


def default_store() -> dist.Store:
    """The key-value store that the job's ranks met at."""
    store: dist.Store = distributed_c10d._get_default_store()
    return store


def profiler_is_running() -> bool:
    """Whether some torch profiler, the script's own for example, records right now."""
    return bool(torch._C._autograd._profiler_enabled())


@contextmanager
def before_profilers_start(act: Callable[[object], None]) -> Iterator[None]:
    """Calls `act` with each torch profiler that is about to start: torch.profiler's inner one, or the older one."""
    owner: Any = torch.autograd.profiler.profile
    start = owner._prepare_trace

    def act_and_start(profiler: object) -> object:
        act(profiler)
        return start(profiler)

    owner._prepare_trace = act_and_start
    try:
        yield
    finally:
        owner._prepare_trace = start


# Parameters, which of them have sparse gradients, and their names for DDP's messages.
_AsBuilt = tuple[list[Any], list[bool], dict[int, str]]
_as_built: weakref.WeakKeyDictionary[DistributedDataParallel, _AsBuilt] = weakref.WeakKeyDictionary()


def note_built(module: DistributedDataParallel) -> None:
    """To be called right after construction: a parameter frozen or thawed later does not change the reducer's list."""
    parameters, sparse = module._build_params_for_reducer()
    names = module._build_debug_param_to_name_mapping(parameters)
    _as_built[module] = list(parameters), list(sparse), names


def parameters_of_reducer(module: DistributedDataParallel) -> tuple[list[Any], list[bool]]:
    """Parameters in the order of the reducer's indices, and which of them have sparse gradients."""
    if module not in _as_built:
        note_built(module)
    parameters, sparse, _ = _as_built[module]
    return parameters, sparse


def named_parameters(module: DistributedDataParallel) -> list[tuple[str, torch.nn.Parameter]]:
    """Names and parameters in the order of the reducer's indices."""
    parameters, _ = parameters_of_reducer(module)
    names = {parameter: name for name, parameter in module.module.named_parameters()}
    return [(names[parameter], parameter) for parameter in parameters]


def layout(module: DistributedDataParallel) -> Layout:
    """The buckets as DDP built them, read back from it; before its rebuild, the ones it began with."""
    text = module._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    if text:
        return [[int(index) for index in bucket.split()] for bucket in text.split(",")]
    parameters, expect_sparse = parameters_of_reducer(module)
    indices, _ = dist._compute_bucket_assignment_by_size(parameters, _initial_limits(module), expect_sparse)
    return [list(bucket) for bucket in reversed(indices)]


def _initial_limits(module: DistributedDataParallel) -> list[int]:
    if hasattr(module, "_bucket_config"):
        limits, _ = module._bucket_config.compute_bucket_size_limits(
            static_graph=module.static_graph, find_unused_parameters=module.find_unused_parameters
        )
        return [int(limit) for limit in limits]
    # Releases before 2.13.
    if not _keeps_declared_order(module):
        return [sys.maxsize]
    return (
        [dist._DEFAULT_FIRST_BUCKET_BYTES, module.bucket_bytes_cap]
        if module.bucket_bytes_cap_default
        else [module.bucket_bytes_cap]
    )


def capacities(module: DistributedDataParallel) -> Capacities:
    """The setting in force."""
    if not hasattr(module, "_bucket_config"):  # releases before 2.13
        first = dist._DEFAULT_FIRST_BUCKET_BYTES if module.bucket_bytes_cap_default else module.bucket_bytes_cap
        return Capacities(module.bucket_bytes_cap, first)
    config = module._bucket_config
    return Capacities(config.bucket_bytes_cap, config.first_bucket_bytes_cap, tuple(config.per_bucket_bytes_caps))


def change_capacities(module: DistributedDataParallel, wanted: Capacities) -> None:
    """Gives the module other buckets between two steps, without a new process; read `layout` after two more steps.

    The buckets are formed by DDP's own rule from the ready order that it found in its first backward, so they hold
    from the next backward on; DDP forms them once more after that, as it does after its construction.
    """
    private: Any = module
    order = [index for bucket in layout(module) for index in bucket]
    private.bucket_bytes_cap = wanted.cap
    private.bucket_bytes_cap_default = wanted == _DDPS_DEFAULT
    if hasattr(module, "_bucket_config"):
        private.bucket_bytes_cap_list = list(wanted.each)
        private._bucket_config = dataclasses.replace(
            private._bucket_config,
            bucket_bytes_cap=wanted.cap,
            first_bucket_bytes_cap=wanted.first,
            per_bucket_bytes_caps=wanted.each,
        )
    put_in_new_reducer(module, assignment(module, wanted, order))


def assignment(module: DistributedDataParallel, wanted: Capacities, order: list[int]) -> Layout:
    """The buckets that DDP's own rule forms for a module that finds its gradients ready in this order of indices."""
    parameters, expect_sparse = parameters_of_reducer(module)
    if _keeps_declared_order(module):
        indices, _ = dist._compute_bucket_assignment_by_size(parameters, wanted.limits, expect_sparse)
        return [list(bucket) for bucket in reversed(indices)]
    ordered = [parameters[index] for index in order]
    # Which are sparse goes by the index of a parameter, not by its place in the order.
    indices, _ = dist._compute_bucket_assignment_by_size(ordered, wanted.limits, expect_sparse, order)
    return [list(bucket) for bucket in indices]


def _keeps_declared_order(module: DistributedDataParallel) -> bool:
    """Whether DDP never forms the buckets anew in ready order: it looks for unused parameters in every step."""
    return bool(module.find_unused_parameters) and not module.static_graph


def takes_lists() -> bool:
    """Whether DDP takes a capacity for each bucket."""
    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


def is_default_capacity(module: DistributedDataParallel) -> bool:
    return bool(module.bucket_bytes_cap_default)


def why_not_rebuildable(module: DistributedDataParallel) -> str | None:
    """Why this module's reducer must be left alone, or None when a new one may be put in its place."""
    missing = missing_names()
    if missing:
        return f"torch {torch.__version__} has no {missing[0]}"
    if getattr(module, "_use_python_reducer", False):
        return "it uses torch.compile's Python reducer"
    if getattr(module, "mixed_precision", None) is not None:
        return "it uses DDP's own mixed precision"
    if getattr(module, "skip_all_reduce_unused_params", False):
        return "it skips the all-reduce of unused parameters"
    if getattr(module, "_delay_all_reduce_params", None):
        return "it delays the all-reduce of some parameters"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in module.parameters()):
        return "its optimizer runs inside the backward pass"
    if any(parameters_of_reducer(module)[1]):
        return "it has sparse gradients"
    if module._join_config.enable:
        return "it runs in a Join of uneven inputs"
    return None


def put_in_new_reducer(module: DistributedDataParallel, buckets: Layout) -> None:
    """Puts a new reducer in place, between two steps, with just these buckets from its first backward on.

    DDP would run its first backward in one bucket and so sum in another order for one step; handing it the layout
    for that one call keeps every sum as it was. Gradients are kept. A communication hook must be registered anew.
    """
    if not dist.is_initialized():
        return  # the script has ended its process group: nothing will be reduced any more
    private: Any = module
    parameters, expect_sparse = parameters_of_reducer(module)
    names = _as_built[module][2]
    before = private.logger, private.reducer
    with _assignment(buckets, private.bucket_bytes_cap), _all_requiring_grad(parameters):
        private.logger = private.reducer = None
        try:
            private._ddp_init_helper(parameters, expect_sparse, names, private.static_graph)
        except BaseException:
            private.logger, private.reducer = before
            raise
    del before  # the old reducer takes its autograd hooks with it
    if private.static_graph:
        private._static_graph_delay_allreduce_enqueued = False
        private.reducer._set_static_graph()
        private.logger._set_static_graph()


@contextmanager
def _all_requiring_grad(parameters: list[Any]) -> Iterator[None]:
    """A reducer hooks itself to every parameter of its list, and crashes at one that was frozen meanwhile."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@contextmanager
def _assignment(buckets: Layout, cap_bytes: int) -> Iterator[None]:
    original: Callable[..., Any] = dist._compute_bucket_assignment_by_size

    def assign(*_: object) -> tuple[Layout, list[int]]:
        return [list(bucket) for bucket in reversed(buckets)], [cap_bytes] * len(buckets)

    dist._compute_bucket_assignment_by_size = assign  # type: ignore[assignment]
    try:
        yield
    finally:
        dist._compute_bucket_assignment_by_size = original


def hook_of(module: DistributedDataParallel) -> str | None:
    """Name of the communication hook that the script registered, None where there is none."""
    return module._get_ddp_logging_data().get("comm_hook") or None


def hooks(module: DistributedDataParallel) -> list[tuple[Callable[..., Any], object]]:
    """Communication hooks in Python that the script registered, each with its state."""
    return list(module._comm_hooks)


def register_again(module: DistributedDataParallel, known: list[tuple[Callable[..., Any], object]]) -> None:
    """Hooks of an earlier reducer, for a new one."""
    module._comm_hooks.clear()
    for hook, state in known:
        module.register_comm_hook(state, hook)


def hold_stream(cycles: int) -> None:
    """Keeps the current CUDA stream busy for so many cycles of the device's clock; torch's own tests do it this way."""
    torch.cuda._sleep(cycles)


def is_compiled_inside(module: DistributedDataParallel) -> bool:
    """Whether torch.compile has been applied to the wrapped module or to parts of it."""
    return any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in module.modules())
