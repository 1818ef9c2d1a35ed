"""What a traced step consists of: parts that exclude one another, have a name each and add up to the step.

The terminal, the page of a run and that of two all show these. Measures nothing.
"""

from __future__ import annotations

import math

import msgspec

from bucketlab.schema.profile import Breakdown

REST = "rest"
WHAT_REST_IS = (
    "The rest: medians of parts need not add up to the median step, and what a step launched may run on into the next."
)
_TENTHS = 1000  # of a per cent in the whole


class Part(msgspec.Struct, kw_only=True):
    """One part of a step. All of a step's `ns` make up its time, all of its `tenths` 1000."""

    name: str
    tone: str  # of the page's style sheet
    ns: int  # negative only for the rest, where the others exceed the step
    tenths: int  # of a per cent of the step

    @property
    def per_cent(self) -> str:
        return f"{self.tenths / 10:.1f} %"


def parts_of(step: Breakdown) -> list[Part]:
    """The parts of a traced step, those left out of which there is nothing; [] of a step without length.

    Copies count where neither kernels nor collectives run beside them. What the others leave of the step, or exceed
    it by, is the rest.
    """
    if step.wall_ns <= 0:
        return []
    copies_ns = min(step.memory_ns, max(0, step.busy_ns - step.compute_ns - step.exposed_ns))
    found = [
        ("compute alone", "compute", step.compute_ns - step.overlap_ns),
        ("overlap (hidden)", "overlap", step.overlap_ns),
        ("exposed", "exposed", step.exposed_ns),
        ("copies alone", "copies", copies_ns),
        ("idle", "idle", step.idle_ns),
    ]
    found.append((REST, REST, step.wall_ns - sum(ns for _, _, ns in found)))
    there = [one for one in found if one[2]]
    tenths = _adding_up([_TENTHS * ns / step.wall_ns for _, _, ns in there])
    return [
        Part(name=name, tone=tone, ns=ns, tenths=count) for (name, tone, ns), count in zip(there, tenths, strict=True)
    ]


def _adding_up(shares: list[float]) -> list[int]:
    """Rounded so that the sum stays: what is missing goes to those that lost most (largest remainders)."""
    counts = [math.floor(one) for one in shares]
    missing = round(sum(shares)) - sum(counts)
    lost = sorted(range(len(shares)), key=lambda at: counts[at] - shares[at])
    for at in lost[:missing]:
        counts[at] += 1
    return counts
