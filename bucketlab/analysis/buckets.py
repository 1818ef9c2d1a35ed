"""Which all-reduces of a traced step carry DDP's buckets, and which bucket each of them is. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence

from bucketlab.schema.analysis import CollectiveEvent, StepAnalysis


def buckets_in(step: StepAnalysis) -> list[CollectiveEvent]:
    """All-reduces that carry buckets, in order of launch."""
    return [one for one in step.events if one.bucket is not None]


def match_buckets(
    keys: Sequence[tuple[int, int]], size_of: dict[tuple[int, int], int], events: Sequence[CollectiveEvent]
) -> list[tuple[tuple[int, int], CollectiveEvent]]:
    """Each all-reduce of a step with its bucket: the next one of the same size, or by order where sizes are unknown."""
    if len(events) == len(keys):
        pairs = list(zip(keys, events, strict=True))
        if all(event.bytes in (None, size_of[key]) for key, event in pairs):
            return pairs
    waiting = list(keys)
    pairs = []
    for event in events:
        key = next((key for key in waiting if size_of[key] == event.bytes), None)
        if key is not None:
            waiting.remove(key)
            pairs.append((key, event))
    return pairs
