"""The bucket setting in force on a script's DDP modules, in a few words: one where all have the same, else each."""

from __future__ import annotations

from collections.abc import Sequence

from bucketlab import units
from bucketlab.schema.profile import Module

_MOST_MODULES = 4


def differs_by_module(modules: Sequence[Module]) -> bool:
    return len({_capacity(one) for one in modules}) > 1


def capacities_in_force(modules: Sequence[Module]) -> str:
    """ "25 MiB, DDP's default"; "25 MiB, DDP's default (0 GPT); 4 MiB (1 Head)" where modules have different ones."""
    if not differs_by_module(modules):
        return _capacity(modules[0]) if modules else ""
    said = [f"{_capacity(one)} ({number} {one.name})" for number, one in enumerate(modules[:_MOST_MODULES])]
    more = len(modules) - len(said)
    return "; ".join([*said, *([f"and {more} more"] if more else [])])


def _capacity(module: Module) -> str:
    if module.bucket_cap_mb_list:
        return f"list of {len(module.bucket_cap_mb_list)}"
    default = ", DDP's default" if module.is_default else ""
    return units.capacity(module.bucket_cap_mb) + default
