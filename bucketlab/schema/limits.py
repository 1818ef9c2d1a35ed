"""What no honest document of ours holds: numbers beyond what is measured, sizes below zero, indices that lead nowhere.

Types are msgspec's business. This is about values that a type allows and that arithmetic on them does not survive:
JSON has integers of any length, and a file may come from anywhere.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from bucketlab.schema.profile import Profile

MOST = 2**53  # as float64 holds exactly; as nanoseconds a hundred days
_DEEPEST = 20


def wrong_in(document: object, most: int = MOST) -> str | None:
    """What is wrong with a decoded document, and where in it; None where nothing is.

    Args:
        document: of msgspec's structs, lists and dictionaries.
        most: no number in it may be further from 0.
    """
    found = _wrong_number(document, "", 0, most)
    if found is None and isinstance(document, Profile):
        found = _wrong_profile(document)
    return found


def _wrong_number(value: Any, where: str, depth: int, most: int) -> str | None:
    if isinstance(value, bool | str | None):
        return None
    if isinstance(value, int | float):
        return _what_is_wrong(value, where, most)
    if depth > _DEEPEST:
        return f"{where} is nested too deep"
    if isinstance(value, msgspec.Struct):
        if getattr(value, "significant", False) and None in (getattr(value, "ci95", 0), getattr(value, "speedup", 0)):
            return f"{where or 'the result'} is significant without an interval"
        parts = [(f"{where}.{name}" if where else name, getattr(value, name)) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = [(f"{where}.{key}", one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{where}[{index}]", one) for index, one in enumerate(value)]
    else:
        return None
    return next((wrong for name, one in parts if (wrong := _wrong_number(one, name, depth + 1, most))), None)


def _what_is_wrong(value: float, where: str, most: int) -> str | None:
    if not math.isfinite(value) or abs(value) > most:
        return f"{where} is {value:.3g}, which no run measures" if isinstance(value, float) else f"{where} is too large"
    name = where.rpartition(".")[2].partition("[")[0]
    if value < 0 and (name.endswith(("bytes", "_mb", "samples", "ranks", "rank", "parameters"))):
        return f"{where} is {value}, less than nothing"
    if name == "speedup" and value <= -1:
        return f"{where} is {value}: a step would take less than no time"
    return None


def _wrong_profile(profile: Profile) -> str | None:
    if profile.world_size < 1 or profile.nodes < 1:
        return f"world_size {profile.world_size} on {profile.nodes} nodes is no job"
    if profile.step is not None and profile.step.median_ns <= 0:
        return "step.median_ns is no time that a step takes"
    if profile.gradients and not any(one.bytes for one in profile.gradients):
        return "gradients are all empty"
    if profile.gradients and not profile.modules:
        return "gradients are of no module"
    modules = range(len(profile.modules))
    owners = [("buckets", one.module) for one in profile.buckets]
    owners += [("gradients", one.module) for one in profile.gradients]
    # A profile of traces alone has buckets and no modules.
    if profile.modules:
        return next(
            (f"{where} name module {one}, of {len(modules)}" for where, one in owners if one not in modules), None
        )
    return None
