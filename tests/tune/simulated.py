"""Training jobs that run in no time: steps replayed from a made-up model and link, with the noise of shared machines.

Noise is that of hosts that others use too, in three parts: independent from step to step, a drift that wanders over
tens of steps, and bursts of some steps during which everything is slower. Its size is an argument, so that a test says
how noisy the world is in which its claim holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bucketlab.link.curve import LinkCurve
from bucketlab.link.sweep import Range, Search
from bucketlab.predict.assignment import MIB
from bucketlab.predict.replay import NO_SLOWDOWN, ModuleGradients, Slowdown, Timeline, replay
from bucketlab.schema.profile import PredictedPoint, Prediction
from bucketlab.schema.tuning import DDPS_DEFAULT, Capacities, TunedSetting, Tuning
from bucketlab.tune import Block, JobFacts, Tuner
from bucketlab.tune.pairs import Times

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
    untouched: float = 0.0  # part of a step that is forward pass and optimizer, slowed as the whole; 0: not told
    own: float = 0.02  # of that part alone, from step to step


QUIET = Noise()
CALM = Noise(step=0.01, drift=0.05, drift_steps=400, burst=0.1)
MILD = Noise(step=0.02, drift=0.10, drift_steps=400, burst=0.2)
SHARED = Noise(step=0.03, drift=0.10, drift_steps=100, burst=0.3)


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

    def exact_of(self, bucket_bytes: list[int]) -> float:
        """The same for buckets that this job has run with."""
        return self._exact[tuple(bucket_bytes)]

    def best_ns(self, low_mb: float = 0.25, high_mb: float = 256.0, points: int = 64) -> float:
        """Of an exhaustive grid."""
        return min(self.exact_ns([int(cap * MIB)]) for cap in np.geomspace(low_mb, high_mb, points))

    def run(self, caps_bytes: list[int], steps: int) -> list[int]:
        """Noisy times of so many steps."""
        return list(self.times(caps_bytes, steps).step_ns)

    def times(self, caps_bytes: list[int], steps: int) -> Times:
        """The same, with what in them was untouched by buckets."""
        exact, noise = self.exact_ns(caps_bytes), [self._next_noise() for _ in range(steps)]
        step_ns = [round(exact * math.exp(one)) for one in noise]
        if not self.noise.untouched:
            return Times(step_ns)
        usual = self.noise.untouched * self.timeline.compute_end_ns
        own = self.noise.own * self.rng.standard_normal(steps)
        return Times(step_ns, [round(usual * math.exp(one + extra)) for one, extra in zip(noise, own, strict=True)])

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


# ---- tuning it ------------------------------------------------------------------------------------------------


def simulated_jobs(links: Iterable[str] = ("gloo-1gbit", "gloo-4gbit", "infiniband")) -> list[SimulatedJob]:
    """Each model on each link, once bound by compute and once by the link; without noise."""
    return [
        SimulatedJob.of(model(), LINKS[link], communication)
        for model in MODELS.values()
        for link in links
        for communication in (0.7, 1.3)
    ]


def noisy(job: SimulatedJob, noise: Noise, seed: int) -> SimulatedJob:
    """The same job at another time."""
    return dataclasses.replace(
        job, noise=noise, rng=np.random.default_rng(seed), steps=0, _drift=0.0, _burst_left=0, _exact=job._exact
    )


def where_buckets_do_not_matter(noise: Noise, seed: int) -> SimulatedJob:
    """An infinitely fast link, and steps of 145 ms."""
    job = SimulatedJob.of(convolutional(), LinkCurve.straight(0, 1e6), 1e-6, noise, seed)
    job.slowdown = Slowdown()
    return job


def facts(job: SimulatedJob, current: Capacities = DDPS_DEFAULT, prediction: Prediction | None = None) -> JobFacts:
    return JobFacts(
        modules=[job.gradients],
        current=current,
        current_is_default=current == DDPS_DEFAULT,
        current_bucket_bytes=tuple(job.buckets(caps_bytes(current))),
        world_size=2,
        prediction=prediction,
    )


def prediction_for(job: SimulatedJob, link_error: float, slowdown: Slowdown = NO_SLOWDOWN) -> Prediction:
    """What a profile would predict that measured the link wrong by a part and knows of this slowdown only."""
    curve = dataclasses.replace(job.curve, ns=job.curve.ns * (1 + link_error), slope_ns=job.curve.slope_ns)
    points: dict[tuple[int, ...], PredictedPoint] = {}
    for cap in np.geomspace(0.25, 256, 64).round(2).tolist():
        layout = job.gradients.buckets([int(cap * MIB)])
        step_ns = round(replay(job.timeline, [layout], curve, slowdown).step_ns)
        points.setdefault(tuple(map(len, layout)), PredictedPoint(bucket_cap_mb=cap, step_ns=step_ns))
    best = min(points.values(), key=lambda one: one.step_ns)
    return Prediction(points=list(points.values()), best=best, current_step_ns=best.step_ns, floor_ns=best.step_ns)


def caps_bytes(capacities: Capacities) -> list[int]:
    return [int(cap * MIB) for cap in capacities.mb()]


def tuner_of(job: SimulatedJob, seed: int = 0, **arguments: Any) -> Tuner:
    chosen = {"search": Search(bucket_cap_mb=Range(low=0.25, high=256)), "storage": None, "study": "simulated"}
    job_facts = arguments.pop("job_facts", None) or facts(job)
    return Tuner(job_facts, seed=seed, **(chosen | arguments))


def train(tuner: Tuner, job: SimulatedJob, block: Block) -> None:
    """Runs one block's steps and tells their times."""
    caps = caps_bytes(block.candidate.capacities) or caps_bytes(tuner.job.current)
    job.run(caps, block.settle_steps)
    times = job.times(caps, block.steps)
    tuner.tell(block, times.step_ns, job.buckets(caps), untouched_ns=times.untouched_ns)


def tuned(job: SimulatedJob, seed: int = 0, **arguments: Any) -> Tuning:
    """A whole study."""
    tuner = tuner_of(job, seed, **arguments)
    while (block := tuner.next_block()) is not None:
        train(tuner, job, block)
    result = tuner.result()
    tuner.close()
    return result


def loss(job: SimulatedJob, setting: TunedSetting, best_ns: float) -> float:
    """By which part the setting's step is longer than the best."""
    return job.exact_ns(caps_bytes(setting.candidate().capacities)) / best_ns - 1


def found_after(job: SimulatedJob, result: Tuning, best_ns: float, within: float = 0.01) -> int:
    """Steps until a setting so near to the best had been measured for the first time."""
    near = [
        trial.after_steps
        for trial in result.trials
        if trial.after_steps is not None and job.exact_of(trial.bucket_bytes) <= best_ns * (1 + within)
    ]
    return min(near, default=10**9)
