"""What `bucketlab predict` computes, on the processor: the curve, the best partition, the floor of one profile.

    python -m bench.predicting

A profile of a thousand gradients of 1 MiB, made up. How near predictions come to what is measured is another matter:
`bench.prediction`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import msgspec

from bench.figures import Figure, Wanted
from bucketlab.predict import predict
from tests.report.profiles import thousand_buckets

_REPEATS, _QUICK_REPEATS = 15, 5
_DECODES = 30  # in a sample: they take as long as a prediction then


def figures(wanted: Wanted) -> list[Figure]:
    """Over the time that Python's decoder takes for the profile's own text: both grow with the gradients."""
    repeats = _QUICK_REPEATS if wanted.quick else _REPEATS
    profile = thousand_buckets()
    text = msgspec.json.encode(profile)
    predict(profile)
    took_s, decoded_s = [], []
    for _ in range(repeats):  # in turns, so that what else the machine does meets both
        took_s.append(_processor_seconds(lambda: predict(profile)))
        decoded_s.append(_processor_seconds(lambda: [json.loads(text) for _ in range(_DECODES)]) / _DECODES)
    return [
        Figure(
            name="predict, 1,000 gradients",
            value=statistics.median(took_s) * 1e3,
            unit="ms",
            ratio=statistics.median(took / decoded for took, decoded in zip(took_s, decoded_s, strict=True)),
            over="json.loads of the profile",
            samples=repeats,
        )
    ]


def _processor_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


if __name__ == "__main__":
    for figure in figures(Wanted()):
        print(f"{figure.name}: {figure.value:.1f} ms of a core, {figure.ratio:.1f} times {figure.over}")
