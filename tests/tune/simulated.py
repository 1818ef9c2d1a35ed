"""Training jobs that run in no time: steps replayed from a made-up model and link, with the noise of shared machines.

Noise is that of hosts that others use too, in three parts: independent from step to step, a drift that wanders over
tens of steps, and bursts of some steps during which everything is slower. Its size is an argument, so that a test says
how noisy the world is in which its claim holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from bucketlab.link.curve import LinkCurve
from bucketlab.predict.assignment import MIB
from bucketlab.predict.replay import ModuleGradients, Slowdown, Timeline, replay

KIB = 1024


def transformer(layers: int = 12, width: int = 768, vocab: int = 16_384) -> list[int]:
    """Bytes of the gradients of a GPT-like model in ready order: the output layer first, the embedding last."""
    block = [4 * n for n in (width, width, 4 * width * width, width, 4 * width * width, 4 * width, width, width)]
    block += [4 * n for n in (width * width, width, 3 * width * width, 3 * width)]
    return [4 * vocab * width, 4 * width, 4 * width, *(block * layers), 4 * 512 * width, 4 * vocab * width]


def convolutional() -> list[int]:
    """Of a ResNet-50-like model: many small tensors, large ones first."""
    sizes = [4 * 1000, 4 * 1000 * 2048]
    for width, blocks in ((512, 3), (256, 6), (128, 4), (64, 3)):
        for _ in range(blocks):
            sizes += [4 * n for n in (4 * width, 4 * width, 4 * width * width)]
            sizes += [4 * n for n in (width, width, 9 * width * width, width, width, 4 * width * width)]
    return [*sizes, 4 * 64, 4 * 64, 4 * 64 * 3 * 49]


def wide_embedding() -> list[int]:
    """One gradient of 64 MiB that is ready first, and a body of 40 tensors of up to 1 MiB."""
    return [64 * MIB, *([MIB, 4 * KIB, 512 * KIB, 4 * KIB] * 10), 16 * MIB]


MODELS = {"transformer": transformer, "convolutional": convolutional, "wide-embedding": wide_embedding}
# Latency in ns, bytes per ns, collectives at a time: of one all-reduce as the job sees it.
LINKS = {
    "gloo-1gbit": LinkCurve.straight(400_000, 0.11, 2),
    "gloo-4gbit": LinkCurve.straight(350_000, 0.42, 2),
    "ethernet-25g": LinkCurve.straight(120_000, 1.5),
    "infiniband": LinkCurve.straight(40_000, 12.0),
    "nvlink": LinkCurve.straight(20_000, 150.0),
}


@dataclass(frozen=True)
class Noise:
    """Standard deviations as parts of a step."""

    step: float = 0.0
    drift: float = 0.0  # of where it wanders to
    drift_steps: float = 40.0  # over which it forgets
    burst: float = 0.0  # how much slower while one lasts
    burst_every: float = 60.0  # steps, on average
    burst_steps: float = 4.0


QUIET = Noise()
SHARED = Noise(step=0.03, drift=0.10, burst=0.30)


@dataclass
class SimulatedJob:
    """One training job. Its clock is a count of steps."""

    gradients: ModuleGradients
    timeline: Timeline
    curve: LinkCurve
    slowdown: Slowdown
    noise: Noise
    rng: np.random.Generator
    steps: int = 0
    _drift: float = 0.0
    _burst_left: int = 0
    _exact: dict[tuple[int, ...], float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, sizes_bytes: list[int], curve: LinkCurve, communication: float = 1.0, noise: Noise = QUIET, seed: int = 0
    ) -> SimulatedJob:
        """A job whose all-reduce of everything in one piece takes `communication` times as long as its backward."""
        backward_ns = float(curve.time_ns(sum(sizes_bytes))) / communication
        weights = np.cumsum(np.asarray(sizes_bytes, dtype=np.float64) ** 0.6)  # large layers are faster per byte
        ready = 0.5 * backward_ns + backward_ns * weights / weights[-1]
        gradients = ModuleGradients(sizes_bytes, ready.tolist(), ["float32"] * len(sizes_bytes))
        timeline = Timeline([gradients], float(ready[-1]), 0.05 * backward_ns)
        slowdown = Slowdown(0.15, 0.1)
        return cls(gradients, timeline, curve, slowdown, noise, np.random.default_rng(seed))

    def buckets(self, caps_bytes: list[int]) -> list[int]:
        """Bytes of the buckets that DDP would build."""
        sizes = self.gradients.bytes
        return [sum(sizes[one] for one in bucket) for bucket in self.gradients.buckets(caps_bytes)]

    def exact_ns(self, caps_bytes: list[int]) -> float:
        """The step without noise."""
        key = tuple(self.buckets(caps_bytes))
        if key not in self._exact:
            run = replay(self.timeline, [self.gradients.buckets(caps_bytes)], self.curve, self.slowdown)
            self._exact[key] = run.step_ns
        return self._exact[key]

    def best_ns(self, caps_mb: Iterable[float]) -> float:
        """Of an exhaustive grid."""
        return min(self.exact_ns([int(cap * MIB)]) for cap in caps_mb)

    def run(self, caps_bytes: list[int], steps: int) -> list[int]:
        """Noisy times of so many steps."""
        exact = self.exact_ns(caps_bytes)
        return [round(exact * math.exp(self._next_noise())) for _ in range(steps)]

    def _next_noise(self) -> float:
        self.steps += 1
        noise = self.noise
        kept = math.exp(-1 / noise.drift_steps)
        self._drift = kept * self._drift + math.sqrt(1 - kept**2) * noise.drift * self.rng.standard_normal()
        if self._burst_left == 0 and noise.burst and self.rng.random() < 1 / noise.burst_every:
            self._burst_left = 1 + int(self.rng.exponential(noise.burst_steps))
        slower = noise.burst * self.rng.random() if self._burst_left else 0.0
        self._burst_left = max(0, self._burst_left - 1)
        return self._drift + slower + noise.step * self.rng.standard_normal()
