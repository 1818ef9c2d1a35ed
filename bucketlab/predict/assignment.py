"""The rule by which DDP puts gradients into buckets, for readers that have no torch. Predicts no time.

The same result as `torch.distributed._compute_bucket_assignment_by_size`, called as DDP's reducer calls it when it
rebuilds its buckets (seen in torch 2.13.0); tests hold the two against each other on random models.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from bucketlab.schema.profile import Module

MIB = 2**20
_LISTS_SINCE = (2, 13)
DEFAULT_CAP_BYTES = 25 * MIB
DEFAULT_FIRST_BYTES = MIB

Buckets = list[list[int]]  # of each bucket, in the order of launch, the positions of its gradients


def assign(
    sizes_bytes: Sequence[int],
    caps_bytes: Sequence[int],
    kinds: Sequence[Hashable] = (),
    sparse: Sequence[bool] = (),
) -> Buckets:
    """Buckets of gradients given in the order in which they are ready.

    A gradient is never split; a bucket closes once it has reached its capacity, so it may well exceed it. Each kind
    fills a bucket of its own, and takes the capacities in turn, the last one again and again. Buckets that were
    never filled come last, those of the kind seen last first.

    Args:
        sizes_bytes: of each gradient.
        caps_bytes: at least one.
        kinds: of each gradient, its dtype and device; empty where all are alike.
        sparse: of each gradient, whether it is sparse: it then travels alone and changes no other bucket.
    """
    if not sparse and len(set(kinds)) <= 1:
        return [list(range(start, end)) for start, end in spans(list(accumulate(sizes_bytes)), caps_bytes)]
    buckets: Buckets = []
    open_buckets: dict[Hashable, _OpenBucket] = {}
    for position, size_bytes in enumerate(sizes_bytes):
        if sparse and sparse[position]:
            buckets.append([position])
            continue
        bucket = open_buckets.setdefault(kinds[position] if kinds else None, _OpenBucket())
        bucket.members.append(position)
        bucket.bytes += size_bytes
        if bucket.bytes >= caps_bytes[min(bucket.closed, len(caps_bytes) - 1)]:
            buckets.append(bucket.members)
            bucket.members, bucket.bytes, bucket.closed = [], 0, bucket.closed + 1
    return buckets + [bucket.members for bucket in reversed(open_buckets.values()) if bucket.members]


def spans(ends_bytes: Sequence[int], caps_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """`assign` for gradients that are all alike, which never skips one: buckets as (first, one past the last).

    Args:
        ends_bytes: running sum of the gradients' sizes.
        caps_bytes: at least one.
    """
    found: list[tuple[int, int]] = []
    start, sent_bytes, count = 0, 0, len(ends_bytes)
    while start < count:
        target = sent_bytes + caps_bytes[min(len(found), len(caps_bytes) - 1)]
        end = min(bisect_left(ends_bytes, target, lo=start), count - 1) + 1
        found.append((start, end))
        start, sent_bytes = end, ends_bytes[end - 1]
    return found


def caps_of(module: Module) -> list[int]:
    """The capacities, in bytes, that a module's rebuild goes by: its list, or its first bucket's and all others'."""
    if module.bucket_cap_mb_list:
        return [int(cap_mb * MIB) for cap_mb in module.bucket_cap_mb_list]
    return [int(module.first_bucket_mb * MIB), int(module.bucket_cap_mb * MIB)]


@dataclass
class _OpenBucket:
    members: list[int] = field(default_factory=list)
    bytes: int = 0
    closed: int = 0  # buckets of this kind before it


def takes_lists(torch_release: str) -> bool:
    """Whether DDP of this release takes a capacity for each bucket."""
    parts = torch_release.split("+")[0].split(".")[:2]
    return not all(part.isdigit() for part in parts) or tuple(map(int, parts)) >= _LISTS_SINCE
