"""What can be tuned about one job, and which capacities give the same buckets. Measures nothing, needs no Optuna."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Literal

import msgspec
import numpy as np

from bucketlab.link.sweep import Search
from bucketlab.predict.assignment import MIB
from bucketlab.predict.forecast import rounded_up, timeline_of
from bucketlab.predict.replay import ModuleGradients
from bucketlab.schema.profile import Prediction, Profile
from bucketlab.schema.tuning import (
    CURRENT,
    DDPS_DEFAULT,
    Candidate,
    Capacities,
    Compression,
    JobIdentity,
)
from bucketlab.settings import capacities_in_force, differs_by_module
from bucketlab.tune.beliefs import features_of

_CAPACITIES = 300  # over the whole range; with two digits no more than 90 in a factor of ten are different
_DIGITS = 2
_PREDICTED_STARTS = 5
_APART = 1.4  # predicted starts differ by this factor, so that one error of the prediction does not spoil them all

Options = tuple[bool, bool, Compression | None]  # gradient_as_bucket_view, static_graph, compression


@dataclass(frozen=True)
class Key:
    """Two candidates with equal keys are one: they train in the same way."""

    bucket_bytes: tuple[int, ...]  # of all modules, one after the other
    options: Options


@dataclass(frozen=True, eq=False)
class JobFacts:
    """All that tuning must know of a job."""

    modules: list[ModuleGradients]  # in ready order
    current: Capacities  # in force; of several modules with different ones, the largest's
    current_is_default: bool
    current_bucket_bytes: tuple[int, ...]  # of all modules, read back from DDP
    world_size: int
    interconnect: str = ""
    kind: Literal["measured", "emulated"] = "measured"
    lists: bool = True  # this torch takes bucket_cap_mb_list
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    prediction: Prediction | None = None
    current_by_module: str = ""  # in words, where modules have different capacities

    @classmethod
    def of(cls, profile: Profile, lists: bool, kind: Literal["measured", "emulated"] = "measured") -> JobFacts:
        """From a profile; one without ready times will do, with DDP's declared order reversed for the ready order."""
        untimed = all(one.ready_ns is None for one in profile.gradients)
        timeline = timeline_of(
            msgspec.structs.replace(
                profile,
                forward_ns=profile.forward_ns or 0,
                optimizer_ns=profile.optimizer_ns or 0,
                gradients=profile.gradients[::-1] if untimed else profile.gradients,
            )
        )
        largest = max(profile.modules, key=lambda one: one.parameters)
        return cls(
            modules=timeline.modules,
            current=Capacities(
                bucket_cap_mb=None if largest.bucket_cap_mb_list else largest.bucket_cap_mb,
                first_bucket_mb=None if largest.bucket_cap_mb_list else largest.first_bucket_mb,
                bucket_cap_mb_list=tuple(largest.bucket_cap_mb_list),
            ),
            current_is_default=all(module.is_default for module in profile.modules),
            current_by_module=capacities_in_force(profile.modules) if differs_by_module(profile.modules) else "",
            current_bucket_bytes=tuple(size for module in profile.modules for size in module.bucket_bytes),
            world_size=profile.world_size,
            interconnect=profile.link.what if profile.link else "",
            kind=kind,
            lists=lists,
            gradient_as_bucket_view=largest.gradient_as_bucket_view,
            static_graph=largest.static_graph,
            prediction=profile.prediction,
        )

    def identity(self) -> JobIdentity:
        gradients = [
            (number, size, kind)
            for number, module in enumerate(self.modules)
            for size, kind in zip(module.bytes, module.kinds, strict=True)
        ]
        return identity_of(gradients, self.world_size)


def identity_of(gradients: Iterable[tuple[int, int, str]], world_size: int) -> JobIdentity:
    """The same for the same model, whatever order its gradients came in.

    Args:
        gradients: of each its module's number, its bytes, its dtype.
        world_size: ranks of the job.
    """
    known = sorted(gradients)
    return JobIdentity(
        gradients=hashlib.sha256(repr(known).encode()).hexdigest()[:16],
        gradient_bytes=sum(size for _, size, _ in known),
        world_size=world_size,
    )


@dataclass(frozen=True)
class Layout:
    """Capacities in a row that give the same buckets, named by the shortest of them."""

    bucket_cap_mb: float
    low_mb: float
    high_mb: float
    bucket_bytes: tuple[int, ...]

    def distance(self, cap_mb: float) -> float:
        """In octaves, zero inside."""
        return max(0.0, math.log2(self.low_mb / cap_mb), math.log2(cap_mb / self.high_mb))


@dataclass(eq=False)
class Space:
    """The candidates of one job."""

    job: JobFacts
    search: Search
    _layouts: dict[float | None, list[Layout]] = field(default_factory=dict)
    _bucket_bytes: dict[Capacities, tuple[int, ...]] = field(default_factory=dict)
    _predicted_gains: dict[tuple[int, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = [size for module in self.job.modules for size in module.bytes if size > 0]
        smallest_mb, whole_mb = min(sizes) / MIB, max(sum(module.bytes) for module in self.job.modules) / MIB
        asked = self.search.bucket_cap_mb
        # Beyond these bounds buckets stay what they are at them.
        self.low_mb = min(max(asked.low, smallest_mb), asked.high)
        self.high_mb = max(self.low_mb, min(asked.high, rounded_up(whole_mb, _DIGITS)))

    # ---- what is the same ------------------------------------------------------------------------------------

    def key(self, candidate: Candidate, built: tuple[int, ...] | None = None) -> Key:
        """By DDP's rule, or by what it really built."""
        if built is None:
            built = self.bucket_bytes(candidate.capacities)
        return Key(built, self._options(candidate))

    def bucket_bytes(self, capacities: Capacities) -> tuple[int, ...]:
        """What DDP's rule makes of these capacities."""
        if not capacities.mb():
            return self.job.current_bucket_bytes
        if capacities not in self._bucket_bytes:
            caps = [int(cap * MIB) for cap in capacities.mb()]
            self._bucket_bytes[capacities] = tuple(
                sum(module.bytes[one] for one in bucket)
                for module in self.job.modules
                for bucket in module.buckets(caps)
            )
        return self._bucket_bytes[capacities]

    def _options(self, candidate: Candidate) -> Options:
        view, static = candidate.gradient_as_bucket_view, candidate.static_graph
        return (
            self.job.gradient_as_bucket_view if view is None else view,
            self.job.static_graph if static is None else static,
            candidate.compression,
        )

    # ---- what to try -----------------------------------------------------------------------------------------

    def starts(self) -> list[Candidate]:
        """What is tried first, each layout once, other than the current setting.

        DDP's default, what prediction thinks best, and the options that were opted in to on the buckets in force.
        """
        told = [DDPS_DEFAULT]
        prediction = self.job.prediction
        if prediction is not None:
            told += self._predicted_best()
            if prediction.plan is not None and self.search.planned_list and self.job.lists:
                told.insert(2, Capacities(bucket_cap_mb_list=tuple(prediction.plan.bucket_cap_mb_list)))
        return self._distinct([*(Candidate(capacities=one) for one in told if one.mb()), *self.choices()])

    def _predicted_best(self) -> list[Capacities]:
        assert self.job.prediction is not None
        points = [
            one for one in self.job.prediction.points if not one.bucket_cap_mb_list and one.first_bucket_mb is None
        ]
        chosen: list[float] = []
        for point in sorted(points, key=lambda one: one.step_ns):
            cap = point.bucket_cap_mb
            inside = self.search.bucket_cap_mb.low <= cap <= self.search.bucket_cap_mb.high
            if inside and all(abs(math.log(cap / other)) > math.log(_APART) for other in chosen):
                chosen.append(cap)
        return [Capacities(bucket_cap_mb=cap) for cap in chosen[:_PREDICTED_STARTS]]

    def predicted_gain(self, bucket_bytes: tuple[int, ...]) -> float:
        """Logarithm of the speed-up predicted for this layout, or the one most like it; zero without a prediction."""
        if bucket_bytes not in self._predicted_gains:
            self._predicted_gains[bucket_bytes] = self._predicted_gain(bucket_bytes)
        return self._predicted_gains[bucket_bytes]

    def _predicted_gain(self, bucket_bytes: tuple[int, ...]) -> float:
        prediction = self.job.prediction
        if prediction is None or not self.predicted_ns:
            return 0.0
        step_ns = self.predicted_ns.get(bucket_bytes)
        if step_ns is None:
            here = np.array(features_of(bucket_bytes))
            like = min(self.predicted_ns, key=lambda one: float(np.abs(np.array(features_of(one)) - here).sum()))
            step_ns = self.predicted_ns[like]
        return math.log(prediction.current_step_ns / step_ns)

    @cached_property
    def predicted_ns(self) -> dict[tuple[int, ...], int]:
        """Of each layout that a step was predicted for."""
        points = self.job.prediction.points if self.job.prediction else []
        told = [
            (Capacities(bucket_cap_mb_list=tuple(point.bucket_cap_mb_list)), point.step_ns)
            if point.bucket_cap_mb_list
            else (Capacities(bucket_cap_mb=point.bucket_cap_mb, first_bucket_mb=point.first_bucket_mb), point.step_ns)
            for point in points
        ]
        return {self.bucket_bytes(capacities): step_ns for capacities, step_ns in told if capacities.mb()}

    def _distinct(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        found = {self.key(CURRENT): CURRENT}
        for candidate in candidates:
            found.setdefault(self.key(candidate), candidate)
        return list(found.values())[1:]

    def choices(self) -> list[Candidate]:
        """Every combination of the options that were opted in to, on the script's own buckets."""
        views = [False, True] if self.search.gradient_as_bucket_view else [None]
        statics = [False, True] if self.search.static_graph and not self.job.static_graph else [None]
        compressions: list[Compression | None] = [None, *self.search.compression]
        return [
            Candidate(gradient_as_bucket_view=view, static_graph=static, compression=compression)
            for view, static, compression in product(views, statics, compressions)
        ]

    def nearest(self, wanted: Candidate, taken: Collection[Key]) -> Candidate | None:
        """The candidate nearest to a wanted one whose layout is not taken; other options where all of its own are."""
        cap_mb, first_mb = wanted.capacities.bucket_cap_mb, wanted.capacities.first_bucket_mb
        assert cap_mb is not None
        own = self._options(wanted)
        for choice in sorted(self.choices(), key=lambda one: _differences(self._options(one), own)):
            for layout in sorted(self.layouts(first_mb), key=lambda one: one.distance(cap_mb)):
                if Key(layout.bucket_bytes, self._options(choice)) not in taken:
                    capacities = Capacities(bucket_cap_mb=layout.bucket_cap_mb, first_bucket_mb=first_mb)
                    return msgspec.structs.replace(choice, capacities=capacities)
        return None

    def layouts(self, first_mb: float | None = None) -> list[Layout]:
        """The different layouts over all capacities, by rising capacity, with this capacity for the first bucket."""
        if first_mb not in self._layouts:
            self._layouts[first_mb] = self._enumerate(first_mb)
        return self._layouts[first_mb]

    def count_others(self) -> int:
        """Ways to form other buckets than the current ones, as far as the search reaches."""
        firsts: list[float | None] = [*self.firsts()]
        found = {layout.bucket_bytes for first_mb in firsts or [None] for layout in self.layouts(first_mb)}
        found |= {self.bucket_bytes(one.capacities) for one in self.starts()}
        return len(found - {self.job.current_bucket_bytes})

    def _enumerate(self, first_mb: float | None) -> list[Layout]:
        spread = np.geomspace(self.low_mb, self.high_mb, _CAPACITIES).tolist()
        found: dict[tuple[int, ...], list[float]] = {}
        for cap in sorted({min(rounded_up(one, _DIGITS), self.high_mb) for one in spread}):
            found.setdefault(self.bucket_bytes(Capacities(bucket_cap_mb=cap, first_bucket_mb=first_mb)), []).append(cap)
        return [
            Layout(min(caps, key=lambda one: (len(f"{one:g}"), one)), caps[0], caps[-1], bucket_bytes)
            for bucket_bytes, caps in found.items()
        ]

    def firsts(self) -> list[float]:
        """Capacities of the first bucket that are searched, a factor of two apart; empty: none other than the rest."""
        asked = self.search.first_bucket_mb
        if asked is None or not self.job.lists:
            return []
        count = 1 + math.floor(math.log2(asked.high / asked.low))
        return [float(f"{asked.low * 2**octave:.3g}") for octave in range(count)]


def _differences(options: Options, others: Options) -> int:
    return sum(one != other for one, other in zip(options, others, strict=True))


def how_to_apply(candidate: Candidate, job: JobFacts) -> str:
    """The change to the script, for people who prefer to edit it: one line, and one more for a hook."""
    capacities = candidate.capacities
    words = []
    if capacities.bucket_cap_mb_list:
        words.append(f"bucket_cap_mb_list=[{', '.join(f'{cap:g}' for cap in capacities.bucket_cap_mb_list)}]")
    elif capacities.bucket_cap_mb is not None and capacities != DDPS_DEFAULT:
        first_mb = capacities.first_bucket_mb
        if job.lists and first_mb is not None and first_mb != capacities.bucket_cap_mb:
            words.append(f"bucket_cap_mb_list=[{first_mb:g}, {capacities.bucket_cap_mb:g}]")
        else:
            words.append(f"bucket_cap_mb={capacities.bucket_cap_mb:g}")
    for name in ("gradient_as_bucket_view", "static_graph"):
        value = getattr(candidate, name)
        if value is not None and value != getattr(job, name):
            words.append(f"{name}={value}")
    line = f"DistributedDataParallel({', '.join(['...', *words])})"
    if capacities == DDPS_DEFAULT:
        line += "  # without bucket_cap_mb: DDP's default"
    if candidate.compression is not None:
        line += f"\n{_HOOKS[candidate.compression]}  # changes numerics"
    return line


def in_shell(variables: Mapping[str, str]) -> str:
    """Variables of the environment as a line for the shell that launches; empty for none."""
    return shlex.join([*(["export"] if variables else []), *(f"{name}={value}" for name, value in variables.items())])


_HOOKS: dict[Compression, str] = {
    "fp16": "model.register_comm_hook(None, default_hooks.fp16_compress_hook)",
    "bf16": "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
    "powersgd": "model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)",
}
