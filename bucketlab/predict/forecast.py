"""From a profile to its prediction: step time for every bucket size, the best buckets, the floor. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from bucketlab.link.curve import Float64s, LinkCurve
from bucketlab.predict.assignment import DEFAULT_CAP_BYTES, DEFAULT_FIRST_BYTES, MIB, Buckets, caps_of, takes_lists
from bucketlab.predict.planner import as_buckets, best_partition, caps_mb, floor_ns, merged_as_mg_wfbp
from bucketlab.predict.replay import ModuleGradients, Queue, Replay, Slowdown, Timeline, replay
from bucketlab.schema.profile import (
    Bucket,
    Gradient,
    Module,
    PlannedBuckets,
    PredictedPoint,
    Prediction,
    Profile,
    StepTime,
)

_POINTS = 64
_FINER_POINTS = 12
# A layout that wins less than this over the one in force is no reason to change anything.
NO_DIFFERENCE = 0.001
_LEAST_PACE = 0.3
# Steps of one kind that took so much longer than those of another were not measured under the same conditions.
_BUSIER = 0.05
# The fit of the two slowdowns: where it looks first, from how many of these it goes on and how, what the ends of
# compute and communication and the times of buckets weigh beside the step's, and what holds rates small that nothing
# tells of.
_RATES = (0.0, 0.25, 0.6, 1.2, 2.4)
_STARTS, _ROUNDS, _NUDGE = 4, 8, 0.002
_OF_AN_END, _OF_BUCKETS, _HELD_SMALL = 0.5, 0.3, 1e-3
# Nine of ten values of a normal distribution lie within so many standard deviations; its middle 80 % are 2.56 wide.
_NINE_OF_TEN = 1.645
_DEVIATIONS_P10_TO_P90 = 2.56


@dataclass(frozen=True)
class Observation:
    """What one layout measured: the data that slowdowns are fitted to."""

    layouts: list[Buckets]  # of each module
    step_ns: float
    compute_end_ns: float | None = None
    communication_end_ns: float | None = None
    # Of each bucket in the order of launch, nan where it was not seen.
    ready_ns: Float64s | None = None
    end_ns: Float64s | None = None


def predict(profile: Profile) -> Prediction | None:
    """Step time for every distinct layout of buckets; None where `unsayable` has something to say."""
    if unsayable(profile):
        return None
    forecast = Forecast.of(profile)
    timeline, curve, slowdown, now = forecast.timeline, forecast.curve, forecast.slowdown, forecast.now
    current = forecast.point_of_current(now)
    points = forecast.points(current, now)
    best = min((one for one in points if one.first_bucket_mb is None or one is current), key=lambda one: one.step_ns)
    if current.step_ns <= best.step_ns * (1 + NO_DIFFERENCE):
        best = current
    reached_ns = floor_ns(
        [size for module in timeline.modules for size in module.bytes],
        [ready for module in timeline.modules for ready in module.ready_ns],
        timeline.compute_end_ns,
        curve,
        slowdown,
    )
    return Prediction(
        points=points,
        best=best,
        current_step_ns=current.step_ns,
        floor_ns=math.floor(reached_ns + timeline.optimizer_ns),
        current=current,
        default=forecast.default_point(),
        plan=forecast.plan(min(point.step_ns for point in points)),
        slowed_compute=round(slowdown.compute, 3),
        slowed_communication=round(slowdown.communication, 3),
        error=None if profile.step is None else round(forecast.error, 4),
        notes=_notes(profile, timeline, now),
    )


def unsayable(profile: Profile) -> list[str]:
    """Why this profile allows no prediction, one line each; empty where it does."""
    reasons = []
    if profile.world_size == 1:
        reasons.append("prediction: one rank sends no gradients")
    if profile.link is None:
        reasons.append("prediction: the link was not measured, so no bucket's transfer time is known")
    if not any(gradient.ready_ns is not None for gradient in profile.gradients):
        reasons.append("prediction: ready times were not measured, so when a bucket could start is not known")
    if profile.forward_ns is None or profile.optimizer_ns is None:
        reasons.append("prediction: no step was timed, so what surrounds the backward pass is not known")
    return reasons


# ---- what the profile says ------------------------------------------------------------------------------------


def timeline_of(profile: Profile) -> Timeline:
    """Pure compute of the slowest rank, from a profile that has ready times."""
    timeline = _timeline_alone(profile)
    return timeline if profile.held_back is None else _paced(timeline, pace_of(profile))


def pace_of(profile: Profile) -> float:
    """How long compute takes in timed steps, over how long it took in those whose communication was held back.

    1, unless the latter alone would make a step longer than the timed ones: then the machine was busier with something
    else in them, and the timed steps, which are more and lie around them, are believed.
    """
    if profile.held_back is None or profile.step is None or profile.link is None:
        return 1.0
    timeline, curve = _timeline_alone(profile), curve_in_training(profile)
    now = current_layouts(profile, timeline)

    def step_ns(pace: float) -> float:
        return replay(_paced(timeline, pace), now, curve).step_ns

    if step_ns(1.0) <= profile.step.median_ns:
        return 1.0
    low, high = _LEAST_PACE, 1.0
    while high - low > NO_DIFFERENCE:
        middle = (low + high) / 2
        low, high = (middle, high) if step_ns(middle) < profile.step.median_ns else (low, middle)
    return high


def _paced(timeline: Timeline, pace: float) -> Timeline:
    modules = [replace(one, ready_ns=[pace * ready_ns for ready_ns in one.ready_ns]) for one in timeline.modules]
    return Timeline(modules, pace * timeline.compute_end_ns, pace * timeline.optimizer_ns)


def _timeline_alone(profile: Profile) -> Timeline:
    assert profile.forward_ns is not None and profile.optimizer_ns is not None
    late_ns = _late_ns(profile)
    modules = [
        _gradients_of(module, [one for one in profile.gradients if one.module == number], profile.forward_ns, late_ns)
        for number, module in enumerate(profile.modules)
    ]
    last_ns = max((max(module.ready_ns) for module in modules if module.ready_ns), default=float(profile.forward_ns))
    alone = profile.held_back
    if alone is None:
        return Timeline(modules, last_ns, float(profile.optimizer_ns))
    # Rank 0 was timed; a step ends when the rank is done that is slowest in it.
    factor = alone.compute_ns / (last_ns - late_ns)
    stretched = [
        replace(module, ready_ns=[(ready_ns - late_ns) * factor for ready_ns in module.ready_ns]) for module in modules
    ]
    # What is left of the step is the optimizer, and the wait for the rank whose optimizer or input took longest.
    rest_ns = alone.rest_ns
    if rest_ns is None:
        rest_ns = max(0, alone.step_ns - alone.compute_ns - alone.communication_ns)
    # The last of them is ready when compute ends; the product may differ from it by rounding.
    end_ns = max((max(module.ready_ns) for module in stretched if module.ready_ns), default=float(alone.compute_ns))
    return Timeline(stretched, end_ns, float(rest_ns))


def curve_in_training(profile: Profile) -> LinkCurve:
    """The link's curve, stretched to what it took for the job's own buckets between steps of training.

    There the ranks' caches are cold and DDP copies buckets, which all-reduces of one buffer again and again do not see.
    """
    assert profile.link is not None
    curve, alone = LinkCurve.of(profile.link), profile.held_back
    if alone is None:
        return curve
    modules = _timeline_alone(profile).modules
    together = Timeline([replace(one, ready_ns=[0.0] * len(one.bytes)) for one in modules], 0.0, 0.0)
    expected_ns = replay(together, current_layouts(profile, together), curve).step_ns
    return _scaled(curve, alone.communication_ns / expected_ns)


def _gradients_of(module: Module, gradients: list[Gradient], forward_ns: int, late_ns: int) -> ModuleGradients:
    # DDP counts a parameter that gets no gradient as ready when the backward pass starts.
    ready_ns = {id(one): float(forward_ns if one.ready_ns is None else one.ready_ns) for one in gradients}
    rebuilt = module.static_graph or not module.find_unused_parameters
    if rebuilt:
        ordered = sorted(gradients, key=lambda one: ready_ns[id(one)])
    elif all(one.declared is not None for one in gradients):
        ordered = sorted(gradients, key=lambda one: one.declared or 0)
    else:  # the backward pass goes roughly from the last parameter to the first
        ordered = sorted(gradients, key=lambda one: -ready_ns[id(one)])
    return ModuleGradients(
        bytes=[one.bytes for one in ordered],
        ready_ns=[ready_ns[id(one)] + late_ns for one in ordered],
        kinds=[one.dtype for one in ordered],
        sparse=[one.sparse for one in ordered] if any(one.sparse for one in ordered) else [],
        rebuilt=rebuilt,
    )


def _late_ns(profile: Profile) -> int:
    """By how much the rank that is always latest comes later than rank 0, whose gradients were timed."""
    ranks = profile.stragglers.by_rank if profile.stragglers else []
    first = next((rank.lag_p10_ns for rank in ranks if rank.rank == 0), 0)
    return max([0, *(rank.lag_p10_ns - first for rank in ranks)])


def current_layouts(profile: Profile, timeline: Timeline) -> list[Buckets]:
    """The buckets that DDP makes of the setting in force, by its rule."""
    return [
        gradients.buckets(caps_of(module)) for gradients, module in zip(timeline.modules, profile.modules, strict=True)
    ]


def observations(profile: Profile, now: list[Buckets]) -> list[Observation]:
    """What the profile measured with the setting in force; empty where it timed no step."""
    if profile.step is None:
        return []
    if pace_of(profile) < 1 - _BUSIER:  # traced and rehearsed steps met another machine than the timed ones
        return [Observation(now, float(profile.step.median_ns))]
    return [_timed(profile, now), *_rehearsed(profile)]


def _timed(profile: Profile, now: list[Buckets]) -> Observation:
    assert profile.step is not None
    step_ns, traced = float(profile.step.median_ns), profile.breakdown
    seen = _in_order_of_launch(profile, now)
    if traced is None or traced.wall_ns == 0 or not seen:
        return Observation(now, step_ns)
    # Tracing itself takes time: what it saw is put on the clock of a step without it. A bucket moves when the last
    # rank has it; where that is not known, a rank that is always late stands for it.
    clock, late_ns = min(1.0, step_ns / traced.wall_ns), _late_ns(profile)
    first_ready = [math.nan if one.ready_ns is None else one.ready_ns + late_ns for one in seen]
    ready = [
        first if one.last_ready_ns is None else one.last_ready_ns for first, one in zip(first_ready, seen, strict=True)
    ]
    end = [math.nan if one.end_ns is None else one.end_ns for one in seen]
    return Observation(now, step_ns, ready_ns=clock * np.array(ready), end_ns=clock * np.array(end))


def _rehearsed(profile: Profile) -> list[Observation]:
    """Steps with other layouts than the one in force, of one module."""
    timeline = _timeline_alone(profile)
    if len(timeline.modules) != 1:
        return []
    [module], found = timeline.modules, []
    for one in profile.rehearsals:
        buckets = module.buckets([one.cap_bytes])
        made = [sum(module.bytes[at] for at in bucket) for bucket in buckets]
        step_ns = max(one.compute_ns, one.end_ns) + timeline.optimizer_ns
        if made == one.bucket_bytes and step_ns > 0:
            found.append(Observation([buckets], step_ns, one.compute_ns, one.end_ns))
    return found


def _in_order_of_launch(profile: Profile, now: list[Buckets]) -> list[Bucket]:
    """The traced buckets as the replay queues them; empty where they are not the same ones."""
    expected = replay(_timeline_alone(profile), now, LinkCurve.straight(0, 1.0))
    traced = {(one.module, one.index): one for one in profile.buckets}
    index_of = [expected.module[:at].count(module) for at, module in enumerate(expected.module)]
    seen = [traced.get(key) for key in zip(expected.module, index_of, strict=True)]
    found = [one for one in seen if one is not None]
    return found if [one.bytes for one in found] == expected.bytes and len(found) == len(traced) else []


def _notes(profile: Profile, timeline: Timeline, now: list[Buckets]) -> list[str]:
    notes = []
    for number, module in enumerate(profile.modules):
        expected = [sum(timeline.modules[number].bytes[one] for one in bucket) for bucket in now[number]]
        if sorted(module.bucket_bytes) != sorted(expected):
            notes.append(
                f"DDP built {len(module.bucket_bytes)} buckets for {module.name}, its rule gives {len(expected)}: "
                "the prediction is for those of the rule"
            )
    busier = 1 / pace_of(profile) - 1
    if busier > _BUSIER:
        notes.append(
            f"compute took {100 * busier:.0f} % longer while communication was held back than in timed steps: "
            "something else used the machine, and bands are wide for it"
        )
    return [*notes, *simplifications(profile)]


def simplifications(profile: Profile) -> list[str]:
    """What any prediction for this job leaves out, on whatever link and ranks; one line each."""
    notes = [
        f"predicted for plain all-reduces, not for the script's hook {module.communication_hook}"
        for module in profile.modules
        if module.communication_hook is not None
    ]
    if len(profile.modules) > 1:
        notes.append("predicted as if all modules shared one backward pass")
    traced = profile.breakdown
    if (
        traced is not None
        and profile.accumulation > 1
        and traced.collectives >= profile.accumulation * len(profile.buckets)
    ):
        notes.append("only the last backward's all-reduces are predicted, and each backward of a step sends its own")
    return notes


# ---- how much compute and communication slow each other ---------------------------------------------------------


def fit_slowdown(timeline: Timeline, curve: LinkCurve, observed: Sequence[Observation]) -> Slowdown:
    """The two rates with which the replay comes nearest to what was measured.

    A step's time alone cannot tell a slower compute from slower transfers; a traced step can: a bucket that is ready
    later than pure compute makes it tells of compute, one that travels longer than the link's curve of the link.
    """
    if not observed:
        return Slowdown()
    queues = [Queue(timeline, one.layouts, curve) for one in observed]

    def residuals(rates: Float64s) -> Float64s:
        slowdown = Slowdown(float(rates[0]), float(rates[1]))
        rows = [_HELD_SMALL * rates]
        for one, queue in zip(observed, queues, strict=True):
            run = queue.replay(slowdown)
            rows.append(np.array([run.step_ns / one.step_ns - 1]))
            if one.compute_end_ns is not None and one.communication_end_ns is not None:
                ends_ns = [run.compute_end_ns - one.compute_end_ns, run.end_ns.max() - one.communication_end_ns]
                rows.append(_OF_AN_END * np.array(ends_ns) / one.step_ns)
            if one.ready_ns is not None and one.end_ns is not None:
                off_ns = np.concatenate([run.ready_ns - one.ready_ns, run.end_ns - one.end_ns])
                rows.append(_OF_BUCKETS / math.sqrt(len(off_ns)) * np.nan_to_num(off_ns) / one.step_ns)
        return np.concatenate(rows)

    coarse = sorted((np.array(rates) for rates in product(_RATES, repeat=2)), key=lambda one: _square(residuals(one)))
    best = min(
        (_least_squares(residuals, start) for start in coarse[:_STARTS]), key=lambda one: _square(residuals(one))
    )
    return Slowdown(float(best[0]), float(best[1]))


def _least_squares(residuals: Callable[[Float64s], Float64s], start: Float64s) -> Float64s:
    """Values, none negative, with the least sum of squared residuals near a start: Levenberg's and Marquardt's method.

    Marquardt, "An Algorithm for Least-Squares Estimation of Nonlinear Parameters", SIAM 1963.
    """
    at, here, damping = start, residuals(start), 1e-3
    for _ in range(_ROUNDS):
        slopes = np.stack([(residuals(at + _NUDGE * one) - here) / _NUDGE for one in np.eye(len(at))], axis=1)
        normal = slopes.T @ slopes
        stride = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), -slopes.T @ here)
        there = np.maximum(0.0, at + stride)
        residual = residuals(there)
        if _square(residual) < _square(here):
            moved = np.abs(there - at).max()
            at, here, damping = there, residual, damping / 4
            if moved < _NUDGE:
                break
        else:
            damping *= 8
    return at


def _square(values: Float64s) -> float:
    return float(values @ values)


# ---- the curve ------------------------------------------------------------------------------------------------


class Forecast:
    """What a profile says of any layout of buckets. Make one with `of`."""

    def __init__(
        self, profile: Profile, timeline: Timeline, curve: LinkCurve, slowdown: Slowdown, now: list[Buckets]
    ) -> None:
        self.profile, self.timeline, self.curve, self.slowdown, self.now = profile, timeline, curve, slowdown, now
        self.lists = takes_lists(profile.versions.get("torch", ""))
        self.spread = _spread_of_median(profile)
        self.link_spread = _link_spread(profile)
        self.pace = pace_of(profile)
        step_ns = self.run(now).step_ns
        self.error = 0.0 if profile.step is None else step_ns / profile.step.median_ns - 1

    @classmethod
    def of(cls, profile: Profile) -> Forecast:
        """Of a profile that `unsayable` has nothing to say of."""
        timeline, curve = timeline_of(profile), curve_in_training(profile)
        now = current_layouts(profile, timeline)
        return cls(profile, timeline, curve, fit_slowdown(timeline, curve, observations(profile, now)), now)

    def at(self, cap_mb: float, first_mb: float | None = None) -> PredictedPoint:
        """With this capacity for every bucket; for the first one too where nothing else is said, as in DDP."""
        return self._point(cap_mb, self.layouts([int((first_mb or cap_mb) * MIB), int(cap_mb * MIB)]))

    def run(self, layouts: list[Buckets]) -> Replay:
        return replay(self.timeline, layouts, self.curve, self.slowdown)

    def layouts(self, caps_bytes: list[int]) -> list[Buckets]:
        return [module.buckets(caps_bytes) for module in self.timeline.modules]

    def point_of_current(self, now: list[Buckets]) -> PredictedPoint:
        module = max(self.profile.modules, key=lambda one: one.parameters)
        point = self._point(module.bucket_cap_mb, now)
        point.bucket_cap_mb_list = module.bucket_cap_mb_list
        if not module.bucket_cap_mb_list and module.first_bucket_mb != module.bucket_cap_mb:
            point.first_bucket_mb = module.first_bucket_mb
        return point

    def default_point(self) -> PredictedPoint:
        point = self._point(DEFAULT_CAP_BYTES / MIB, self.layouts([DEFAULT_FIRST_BYTES, DEFAULT_CAP_BYTES]))
        point.first_bucket_mb = DEFAULT_FIRST_BYTES / MIB
        return point

    def points(self, current: PredictedPoint, now: list[Buckets]) -> list[PredictedPoint]:
        """Distinct layouts over all capacities, and more of them around the best; the current one among them."""
        totals = [sum(module.bytes) for module in self.timeline.modules]
        smallest = min(size for module in self.timeline.modules for size in module.bytes if size > 0)
        found = {key_of(now): current}
        default = self.default_point()
        found.setdefault(key_of(self.layouts([DEFAULT_FIRST_BYTES, DEFAULT_CAP_BYTES])), default)
        self._add(found, np.geomspace(smallest / MIB, max(totals) / MIB, _POINTS).tolist(), 2)
        ranked = sorted(found.values(), key=lambda one: one.bucket_cap_mb)
        best = min(range(len(ranked)), key=lambda at: ranked[at].step_ns)
        low, high = ranked[max(0, best - 1)].bucket_cap_mb, ranked[min(len(ranked) - 1, best + 1)].bucket_cap_mb
        low, high = max(low, smallest / MIB), max(high, smallest / MIB)  # DDP takes 0, too
        self._add(found, np.geomspace(low, high, _FINER_POINTS).tolist(), 3)
        return sorted(found.values(), key=lambda one: (one.bucket_cap_mb, one.first_bucket_mb or one.bucket_cap_mb))

    def _add(self, found: dict[tuple[int, ...], PredictedPoint], caps: list[float], digits: int) -> None:
        for cap in sorted({rounded_up(one, digits) for one in caps}, key=lambda one: (len(f"{one:g}"), one)):
            layouts = self.layouts([int(cap * MIB)])
            key = key_of(layouts)
            if key not in found:
                found[key] = self._point(cap, layouts)

    def _point(self, cap_mb: float, layouts: list[Buckets]) -> PredictedPoint:
        run = self.run(layouts)
        low, high = self._band(run)
        return PredictedPoint(
            bucket_cap_mb=cap_mb,
            step_ns=round(run.step_ns),
            low_ns=low,
            high_ns=high,
            buckets=len(run.bytes),
            exposed_ns=round(run.communication_ns - run.overlap_ns),
        )

    def _band(self, run: Replay) -> tuple[int, int]:
        """From the spread of the steps, what the prediction misses the measured setting by, and the link's own spread.

        A slower link shifts the end by its part of the time since the link last stood idle.
        """
        last_ns, shift_ns = float(run.end_ns.max()), self.link_spread * run.last_busy_ns
        own_ns = math.hypot(self.spread, self.error, 1 / self.pace - 1) * run.step_ns
        over_ns = run.step_ns - self.timeline.optimizer_ns
        later_ns = max(over_ns, last_ns + shift_ns) - over_ns
        earlier_ns = over_ns - max(run.compute_end_ns, last_ns - shift_ns)
        return (
            round(run.step_ns - math.hypot(max(0.0, earlier_ns), own_ns)),
            round(run.step_ns + math.hypot(later_ns, own_ns)),
        )

    def plan(self, others_ns: float) -> PlannedBuckets | None:
        """The best consecutive buckets, where all gradients are of one module and dtype; None where they win nothing.

        The planner knows a link that moves one bucket at a time and never slows; its buckets are judged by replay.

        Args:
            others_ns: the fastest step that a capacity for all buckets makes.
        """
        if len(self.timeline.modules) != 1:
            return None
        module = self.timeline.modules[0]
        if len(set(module.kinds)) != 1 or module.sparse or not module.rebuilt:
            return None
        curves = {1.0, 1 + self.slowdown.communication}
        partitions = [best_partition(module.bytes, module.ready_ns, _scaled(self.curve, one)) for one in sorted(curves)]
        runs = [self.run([as_buckets(one)]) for one in partitions]
        best = min(range(len(runs)), key=lambda at: runs[at].step_ns)
        if runs[best].step_ns >= others_ns * (1 - NO_DIFFERENCE):
            return None
        merged = merged_as_mg_wfbp(module.bytes, module.ready_ns, self.curve)
        return PlannedBuckets(
            bucket_bytes=runs[best].bytes,
            bucket_cap_mb_list=(caps_mb(module.bytes, partitions[best]) or []) if self.lists else [],
            step_ns=round(runs[best].step_ns),
            mg_wfbp_step_ns=round(self.run([as_buckets(merged)]).step_ns),
        )


def key_of(layouts: list[Buckets]) -> tuple[int, ...]:
    """Two layouts by one rule are the same if their buckets hold as many gradients, one after the other."""
    return tuple(len(bucket) for buckets in layouts for bucket in [*buckets, []])


def rounded_up(value: float, digits: int) -> float:
    """To so many significant digits."""
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return float(f"{math.ceil(value * scale - 1e-9) / scale:.12g}")


def _scaled(curve: LinkCurve, factor: float) -> LinkCurve:
    return replace(
        curve,
        ns=curve.ns * factor,
        slope_ns=curve.slope_ns * factor,
        latency_ns=round(curve.latency_ns * factor),
        bandwidth_gb_s=curve.bandwidth_gb_s / factor,
    )


def deviation_of(step: StepTime) -> float:
    """Standard deviation of steps, as a part of the median one; by their middle 80 %, which pauses do not move."""
    return (step.p90_ns - step.p10_ns) / _DEVIATIONS_P10_TO_P90 / step.median_ns


def _spread_of_median(profile: Profile) -> float:
    """Half the width of what nine of ten medians of as many steps would lie in, as a part of the step."""
    step = profile.step
    if step is None or not step.samples:
        return 0.0
    # A median of normal values spreads by a quarter more than their mean; the measurement of it, as much again.
    return float(_NINE_OF_TEN * 1.25 * math.sqrt(2 / len(step.samples)) * deviation_of(step))


def _link_spread(profile: Profile) -> float:
    """How far the link's time may lie from its curve in another minute, as a part; large buffers count most.

    Its points' distance from the curve, and their own spread: not that of a median, which only tells of chance, since
    what else uses the link or the cores changes from minute to minute.
    """
    assert profile.link is not None
    alone = [point for point in profile.link.points if point.in_flight == 1 and point.ns > 0]
    if not alone:
        return 0.0
    sizes = np.array([point.bytes for point in alone], dtype=np.float64)
    times = np.array([point.ns for point in alone], dtype=np.float64)
    spreads = np.array([point.p90_ns - point.p10_ns for point in alone]) / _DEVIATIONS_P10_TO_P90 / times
    errors = LinkCurve.fit(alone).time_ns(sizes) / times - 1
    return float(_NINE_OF_TEN * np.sqrt(np.average(errors**2 + spreads**2, weights=sizes)))
