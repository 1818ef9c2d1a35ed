"""An event model of one DDP step: when each bucket would be ready, start and end, and when the step would be over.

Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2: a bucket's all-reduce is launched once its last gradient
is ready and all buckets before it are launched; the optimizer waits for the last one. Added here: the link moves
`concurrency` collectives at a time in the order of launch, and while compute and communication both run each slows
the other. Predicts; measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np

from bucketlab.link.curve import Float64s, LinkCurve
from bucketlab.predict.assignment import Buckets, assign

_NOTHING_NS = 1e-6  # what remains after rounding errors


@dataclass(frozen=True)
class Slowdown:
    """How much slower each gets while both run: compute takes (1 + compute) times as long, communication likewise."""

    compute: float = 0.0
    communication: float = 0.0


NO_SLOWDOWN = Slowdown()


@dataclass(frozen=True, eq=False)
class ModuleGradients:
    """Gradients of one DDP module, in the order in which they go into buckets."""

    bytes: list[int]
    ready_ns: list[float]  # pure compute, from the step's start
    kinds: list[str]  # dtypes: gradients of different ones share no bucket
    sparse: list[bool] = field(default_factory=list)  # those travel alone; empty: none
    rebuilt: bool = True  # in ready order; False: in declared order, as DDP leaves them when it looks for unused ones

    def buckets(self, caps_bytes: Sequence[int]) -> Buckets:
        """What DDP makes of these capacities."""
        made = assign(self.bytes, caps_bytes, self.kinds, self.sparse)
        return made if self.rebuilt else sorted(made, key=min, reverse=True)


@dataclass(frozen=True, eq=False)
class Timeline:
    """One step of pure compute. Times count from the step's start."""

    modules: list[ModuleGradients]  # several share the link
    compute_end_ns: float  # of the backward pass; no gradient is ready later
    optimizer_ns: float  # all that follows, once the last bucket is there


@dataclass(frozen=True, eq=False)
class Replay:
    """What one layout of buckets makes of a step. Columns have one row per bucket, in the order of launch."""

    module: list[int]
    members: Buckets  # positions in the module's gradients
    bytes: list[int]
    start_ns: Float64s
    end_ns: Float64s
    compute_end_ns: float  # later than without communication, which slows it
    step_ns: float
    _launch_ns: list[float]  # in compute's own time
    _clock: tuple[list[float], list[float]]  # compute's own time, and the time when it had come so far

    @cached_property
    def ready_ns(self) -> Float64s:
        """When a bucket and all before it were ready."""
        done_ns, at_ns = self._clock
        return np.asarray(np.interp(self._launch_ns, done_ns, at_ns))

    @property
    def exposed_ns(self) -> Float64s:
        """Of each bucket, the time it moves while no compute runs."""
        return np.maximum(0.0, self.end_ns - np.maximum(self.start_ns, self.compute_end_ns))

    @property
    def communication_ns(self) -> float:
        """Time in which at least one bucket moves."""
        return self._moving_until(np.inf)

    @property
    def overlap_ns(self) -> float:
        """Of that, the time in which compute runs too."""
        return self._moving_until(self.compute_end_ns)

    @property
    def last_busy_ns(self) -> float:
        """From when the link last stood idle to the end of the last bucket."""
        ends = np.maximum.accumulate(self.end_ns)
        after_idle = np.flatnonzero(self.start_ns[1:] > ends[:-1] + _NOTHING_NS)
        first = int(after_idle[-1]) + 1 if len(after_idle) else 0
        return float(ends[-1] - self.start_ns[first])

    def _moving_until(self, end_ns: float) -> float:
        ends = np.maximum.accumulate(np.minimum(self.end_ns, end_ns))  # buckets start in order
        before = np.concatenate([[0.0], ends[:-1]])
        return float(np.maximum(0.0, ends - np.maximum(self.start_ns, before)).sum())


def replay(
    timeline: Timeline, layouts: Sequence[Buckets], curve: LinkCurve, slowdown: Slowdown = NO_SLOWDOWN
) -> Replay:
    """One step with these buckets.

    Args:
        timeline: pure compute.
        layouts: of each module, its buckets in order; together they hold every gradient once.
        curve: of the link, time of one all-reduce alone, and how many move at a time.
        slowdown: while both run.
    """
    return Queue(timeline, layouts, curve).replay(slowdown)


class Queue:
    """The buckets of one layout in the order in which the link gets them, to be replayed with several slowdowns."""

    def __init__(self, timeline: Timeline, layouts: Sequence[Buckets], curve: LinkCurve) -> None:
        self._timeline, self._curve = timeline, curve
        queue = queued(timeline, layouts)
        self._launch_ns = [launch for launch, _, _, _ in queue]
        self._sizes = [size for _, size, _, _ in queue]
        self._module = [module for _, _, module, _ in queue]
        self._members = [members for _, _, _, members in queue]
        self._work_ns: list[float] = curve.time_ns(self._sizes).tolist()

    def replay(self, slowdown: Slowdown) -> Replay:
        compute_ns = self._timeline.compute_end_ns
        if self._curve.concurrency == 1:
            run = _in_turn(self._launch_ns, self._work_ns, compute_ns, slowdown)
        else:
            run = _several_at_a_time(self._launch_ns, self._work_ns, compute_ns, self._curve, slowdown)
        return Replay(
            module=self._module,
            members=self._members,
            bytes=self._sizes,
            start_ns=np.array(run.start_ns),
            end_ns=np.array(run.end_ns),
            compute_end_ns=run.compute_end_ns,
            step_ns=max([run.compute_end_ns, *run.end_ns]) + self._timeline.optimizer_ns,
            _launch_ns=self._launch_ns,
            _clock=(run.done_ns, run.at_ns),
        )


def queued(timeline: Timeline, layouts: Sequence[Buckets]) -> list[tuple[float, int, int, list[int]]]:
    """Launch in compute's own time, bytes, module, members of each bucket, in the order in which the link gets them."""
    queue: list[tuple[float, int, int, list[int]]] = []
    for number, (module, buckets) in enumerate(zip(timeline.modules, layouts, strict=True)):
        ready_ns, sizes = module.ready_ns, module.bytes
        launches = accumulate((max([ready_ns[one] for one in bucket]) for bucket in buckets), max)
        queue += [
            (launch, sum([sizes[one] for one in bucket]), number, bucket)
            for launch, bucket in zip(launches, buckets, strict=True)
        ]
    return sorted(queue, key=lambda row: row[0]) if len(layouts) > 1 else queue


@dataclass(slots=True)
class _Run:
    start_ns: list[float]
    end_ns: list[float]
    done_ns: list[float]  # how far compute had come in its own time ...
    at_ns: list[float]  # ... at these times
    compute_end_ns: float = 0.0

    def note(self, done: float, now: float) -> None:
        self.done_ns.append(done)
        self.at_ns.append(now)

    def with_the_rest_of_compute(self, now: float, done: float, compute_ns: float) -> _Run:
        if done < compute_ns:
            self.note(compute_ns, now + compute_ns - done)
        over = (at for done_by_then, at in zip(self.done_ns, self.at_ns, strict=True) if done_by_then >= compute_ns)
        self.compute_end_ns = next(over)
        return self


def _in_turn(launches: list[float], works: list[float], compute_ns: float, slowdown: Slowdown) -> _Run:
    """One collective at a time: where each ends follows in closed form from where the one before it did."""
    run = _Run([], [], [0.0], [0.0])
    slower = 1 + slowdown.communication
    pace = slower / (1 + slowdown.compute)  # compute done while a unit of communication is, if both run
    now = done = 0.0
    for launch, work in zip(launches, works, strict=True):
        if done < launch:
            now += launch - done
            done = launch
            run.note(done, now)
        run.start_ns.append(now)
        if done == compute_ns:
            now += work
        elif done + work * pace < compute_ns:
            now += work * slower
            done += work * pace
            run.note(done, now)
        else:
            together = (compute_ns - done) / pace
            done = compute_ns
            run.note(done, now + together * slower)
            now += together * slower + work - together
        run.end_ns.append(now)
    return run.with_the_rest_of_compute(now, done, compute_ns)


def _several_at_a_time(
    launches: list[float], works: list[float], compute_ns: float, curve: LinkCurve, slowdown: Slowdown
) -> _Run:
    """Events one after the other. Each collective first spends its latency, alongside others, then moves its bytes.

    Those that move bytes share the link evenly; two or more of them move `pair_gain` times what one alone does.
    """
    count, latency = len(launches), float(curve.latency_ns)
    run = _Run([0.0] * count, [0.0] * count, [0.0], [0.0])
    compute_rate = 1 / (1 + slowdown.compute)
    slower = 1 / (1 + slowdown.communication)
    moving: list[list[float]] = []  # latency left, bytes' time left, number of the bucket
    now = done = 0.0
    sent = 0
    while sent < count or moving:
        if not moving and done < launches[sent]:
            now += launches[sent] - done
            done = launches[sent]
            run.note(done, now)
        computing = done < compute_ns
        while sent < count and len(moving) < curve.concurrency and launches[sent] <= done:
            first = min(latency, works[sent])
            moving.append([first, works[sent] - first, sent])
            run.start_ns[sent] = now
            sent += 1
        rate = slower if computing else 1.0
        sharing = sum([one[0] <= 0 for one in moving])
        share = rate if sharing < 2 else rate * curve.pair_gain / sharing
        ahead = min([one[0] / rate if one[0] > 0 else one[1] / share for one in moving])
        if computing:
            target = compute_ns
            if sent < count and len(moving) < curve.concurrency:
                target = min(target, launches[sent])
            if target - done <= ahead * compute_rate:
                ahead = (target - done) / compute_rate
                done = target
            else:
                done += ahead * compute_rate
            run.note(done, now + ahead)
        now += ahead
        for one in moving:
            if one[0] > 0:
                one[0] = one[0] - ahead * rate if one[0] - ahead * rate > _NOTHING_NS else 0.0
            else:
                one[1] -= ahead * share
            if one[0] <= 0 and one[1] <= _NOTHING_NS:
                run.end_ns[int(one[2])] = now
        moving = [one for one in moving if one[0] > 0 or one[1] > _NOTHING_NS]
    return run.with_the_rest_of_compute(now, done, compute_ns)
