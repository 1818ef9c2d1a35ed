"""Which steps are like a job's others, so that their times can be compared. Looks at no figure that buckets change.

A rank judges a step by what its script did in it, never by how long the step took as a whole: to leave out slow steps
would flatter the settings that are slow now and then. A step counts if

- its optimizer stepped (a GradScaler may skip it), with as many forward and backward passes as usual, evaluating ones
  included, on batches of the usual sizes;
- its pauses are as long as usual. A pause is what lies between a backward pass and the next forward: loading data,
  logging, checkpoints, evaluation of the module inside DDP, the optimizer. No bucket is reduced in it, so its length
  tells nothing of a setting. It is too long from the usual pauses plus half a step on; what is shorter is left to
  medians.

A pause after the last backward of a step delays the other ranks in their next step, so it counts for both. Ranks may
judge a step differently: it is measured where all of them count it, which those who ask here see to.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from bucketlab.worker.clock import Clock
    from bucketlab.worker.observe import Step

T = TypeVar("T")

_REMEMBERED_STEPS = 64
_LONG = 0.5  # of a step
_MOST_STEPS = 0.8  # that are alike; else they differ all the time, and this says nothing


class Usual:
    """What one rank's steps are like. The caller settles the clock before it asks for pauses."""

    def __init__(self) -> None:
        self._backwards: Counter[int] = Counter()
        self._evaluations: Counter[int] = Counter()
        self._forwards: Counter[int] = Counter()
        self._batches: dict[int, Counter[int | None]] = {}  # by the number of the forward pass within its step
        self._recent: deque[Step] = deque(maxlen=_REMEMBERED_STEPS)

    def saw(self, step: Step) -> None:
        """Each step, as soon as it is over."""
        self._backwards[step.backwards] += 1
        self._evaluations[step.evaluations] += 1
        self._forwards[len(step.batches)] += 1
        for number, size in enumerate(step.batches):
            self._batches.setdefault(number, Counter())[size] += 1
        self._recent.append(step)

    def backwards(self) -> int:
        """Of one step; 0 where none was seen."""
        return _most_common(self._backwards) or 0

    def is_like_others(self, step: Step) -> bool:
        """By what was called in it, pauses aside."""
        return (
            not step.skipped
            and step.backwards == self.backwards()
            and step.evaluations == _most_common(self._evaluations)
            and _agreed(self._forwards) in (None, len(step.batches))
            and all(_agreed(self._batches[number]) in (None, size) for number, size in enumerate(step.batches))
        )

    def are_like_others(self, steps: Sequence[Step], clock: Clock) -> list[bool]:
        """By what was called in each of these steps, and by its pauses."""
        if not steps:
            return []
        usual_ns = statistics.median(_pauses_ns(one, clock) for one in self._recent)
        step_ns = statistics.median(clock.between(one.start, one.end) for one in self._recent)
        long = too_long([_pauses_ns(one, clock) for one in steps], usual_ns, step_ns)
        return [self.is_like_others(one) and not is_long for one, is_long in zip(steps, long, strict=True)]


def too_long(pauses_ns: Sequence[int], usual_ns: float, step_ns: float) -> list[bool]:
    """Which steps of a block paused too long.

    The shortest of a block never does: where all of them pause for long, that is what the job does now, be it that
    its data come slowly or that it waits for them more since its buckets have made it faster.

    Args:
        pauses_ns: of each step, in all.
        usual_ns: of recent steps, those of other settings among them.
        step_ns: a recent step's usual length.
    """
    most_ns = max(usual_ns, min(pauses_ns)) + _LONG * step_ns
    return [one > most_ns for one in pauses_ns]


def _pauses_ns(step: Step, clock: Clock) -> int:
    return sum(clock.between(begin, end) for begin, end in step.pauses)


def _most_common(seen: Counter[T]) -> T | None:
    return seen.most_common(1)[0][0] if seen else None


def _agreed(seen: Counter[T]) -> T | None:
    """What most steps have in common."""
    [(value, count)] = seen.most_common(1)
    return value if count >= _MOST_STEPS * seen.total() else None
