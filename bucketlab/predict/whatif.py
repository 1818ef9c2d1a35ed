"""What a profiled job would do elsewhere: on another link, with more ranks, another algorithm, less to send. Predicts.

The compute of one rank is taken from the profile, with the batch that it had: more ranks train on more samples in a
step (weak scaling). Only what happens between ranks is made anew, by the models of `bucketlab.link.algorithms`. Without
another link the measured one is carried over: its curve keeps its bends, and is stretched by what the models say of the
asked for algorithm and ranks against a ring of the ranks that were measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from bucketlab.errors import BadInput
from bucketlab.link.algorithms import ALGORITHMS, RING, Algorithm, Fabric
from bucketlab.link.curve import Float64s, LinkCurve
from bucketlab.link.sweep import fabric_of, load_sweep
from bucketlab.predict.assignment import MIB, Buckets
from bucketlab.predict.forecast import (
    NO_DIFFERENCE,
    current_layouts,
    curve_in_training,
    fit_slowdown,
    key_of,
    observations,
    simplifications,
    timeline_of,
    unsayable,
)
from bucketlab.predict.replay import NO_SLOWDOWN, ModuleGradients, Replay, Slowdown, Timeline, queued, replay
from bucketlab.schema.profile import Profile

_CAPACITIES = 28
_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "float8": 1, "fp8": 1}
_HALF = 0.5
# An added rank that brings less than this part of its own compute is hardly worth its price.
_WORTH_IT = 0.25
_RATIO_FLOOR_NS = 1e-9
_MOST_RANKS = 10**7


@dataclass(frozen=True)
class Question:
    """What is to be different from the profiled job. Each default leaves things as they were."""

    ranks: Sequence[int] = ()  # empty: the profiled number
    ranks_per_node: int | None = None
    algorithms: Sequence[str] = (RING.name,)  # names in `ALGORITHMS`
    fabric: Fabric | None = None  # another link, for example `bucketlab.link.sweep.fabric_of`; None: the measured one
    link_name: str = ""  # what to call it
    concurrency: int = 1  # collectives that move at a time on that other link
    bandwidth_scale: float = 1.0  # every hop carries so many times the bytes in the same time; latencies stay
    compute_scale: float = 1.0  # compute takes so many times as long: 0.5 is a device twice as fast
    compression: float = 1.0  # bytes that travel, over bytes of the gradients; see `compression_of`
    accumulation: int | None = None  # backward passes per step, of which the last one synchronises
    straggler: float = 0.0  # the slowest rank's compute takes (1 + straggler) times as long as the others'


class Row(msgspec.Struct, kw_only=True):
    """One algorithm at one number of ranks, with the bucket capacity that is best there. Predicted."""

    ranks: int
    nodes: int
    algorithm: str
    step_ns: int
    efficiency: float  # samples per second and rank, over those of a rank that waits for nobody
    exposed_ns: int  # communication in which no compute runs
    communication_ns: int
    latency_share: float  # of the time of all transfers, what would remain if they had no content
    bucket_cap_mb: float | None  # best, the one in force unless another wins something; None: one rank, no buckets
    buckets: int
    current_step_ns: int  # with the setting that was in force when profiled
    sent_bytes: int  # in a step, by each rank other than the root; as much is received
    root_bytes: int  # by the root, where the algorithm has one; else as the others


class WhatIf(msgspec.Struct, kw_only=True):
    """All rows of a question, by algorithm and rising ranks."""

    kind: Literal["predicted"] = "predicted"
    run: str
    link: str
    ranks_per_node: int
    compute_ns: int  # of a step of a rank that waits for nobody
    measured_step_ns: int | None  # of the profiled job
    error: float | None  # what the same model misses that measured step by, as a part
    rows: list[Row]
    findings: list[str]  # where things turn, one line each
    notes: list[str]  # what the figures rest on, one line each


def what_if(profile: Profile, question: Question) -> WhatIf:
    """Step time, efficiency, exposed communication, best buckets and volume for each algorithm and number of ranks.

    Raises:
        BadInput: the profile lacks what is needed, or the question makes no sense; the message says what.
    """
    _check(profile, question)
    base = timeline_of(profile)
    now = current_layouts(profile, base)
    slowdown, error = _as_measured(profile, base, now)
    timeline = _compute_of(profile, base, question)
    ideal_ns = timeline.compute_end_ns + timeline.optimizer_ns
    slowest = _stretched(timeline, 1 + question.straggler, _input_ns(profile))
    per_node = question.ranks_per_node or math.ceil(profile.world_size / max(1, profile.nodes))
    scene = _Scene(profile, question, slowest, ideal_ns, slowdown, now, per_node)
    rows = [
        scene.row(ALGORITHMS[name], ranks)
        for name in question.algorithms
        for ranks in sorted(set(question.ranks or [profile.world_size]))
    ]
    return WhatIf(
        run=profile.run,
        link=_link_name(profile, question),
        ranks_per_node=per_node,
        compute_ns=round(ideal_ns),
        measured_step_ns=profile.step.median_ns if profile.step else None,
        error=error,
        rows=rows,
        findings=_findings(rows),
        notes=_notes(profile, question, rows, slowdown),
    )


def ask(
    profile: Profile,
    *,
    link: str | None = None,
    ranks: str | None = None,
    ranks_per_node: int | None = None,
    algorithms: Sequence[str] = (),
    compute_scale: float = 1.0,
    bandwidth_scale: float = 1.0,
    dtype: str | None = None,
    accumulate: int | None = None,
    straggler: str | None = None,
) -> WhatIf:
    """`what_if` of options as they are typed.

    Args:
        link: a sweep's name or file, "infiniband:hdr" for one of its presets.
        ranks: "64", "8,12,16", or "8..131072" for every doubling.
        ranks_per_node: else the sweep's, else the profiled ones.
        algorithms: names, or "all"; none is a ring.
        straggler: "5%" or "0.05".

    Raises:
        BadInput: an option that cannot be understood, or what `what_if` raises.
    """
    question = Question(
        ranks=ranks_of(ranks) if ranks else (),
        ranks_per_node=ranks_per_node,
        algorithms=tuple(ALGORITHMS) if "all" in algorithms else tuple(algorithms) or (RING.name,),
        compute_scale=compute_scale,
        bandwidth_scale=bandwidth_scale,
        compression=compression_of(profile, dtype) if dtype else 1.0,
        accumulation=accumulate,
        straggler=_share_of(straggler) if straggler else 0.0,
    )
    if link is None:
        return what_if(profile, question)
    sweep = load_sweep(link)
    return what_if(
        profile,
        replace(
            question,
            ranks=question.ranks or ([profile.world_size] if profile.world_size > 1 else [sweep.link.ranks]),
            ranks_per_node=ranks_per_node or sweep.link.ranks_per_node,
            fabric=fabric_of(sweep.link),
            link_name=f"{sweep.name}, {sweep.link.preset}" if sweep.link.preset else sweep.name,
            concurrency=sweep.link.concurrency,
        ),
    )


def ranks_of(text: str) -> list[int]:
    """Numbers of ranks from "64", "8,12,16" or "8..131072", which doubles as far as it goes and ends with its end.

    Raises:
        BadInput: it is none of these.
    """
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if ends:
        first, last = int(ends[1]), int(ends[2])
        if 0 < first <= last <= _MOST_RANKS:
            doubled = [first << power for power in range(last.bit_length()) if first << power < last]
            return [*doubled, last]
    elif re.fullmatch(r"\d+(,\d+)*", text):
        ranks = [int(one) for one in text.split(",")]
        if all(0 < one <= _MOST_RANKS for one in ranks):
            return ranks
    raise BadInput(f"--ranks {text}: give 64, or 8,12,16, or 8..131072 for every doubling; at most {_MOST_RANKS:,}")


def _share_of(text: str) -> float:
    number = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", text)
    if number is None:
        raise BadInput(f"--straggler {text}: give a share such as 5%")
    return float(number[1]) / (100 if number[2] else 1)


def compression_of(profile: Profile, dtype: str) -> float:
    """Bytes that travel over bytes of the gradients, if gradients wider than `dtype` are sent as that.

    Raises:
        BadInput: no such element type.
    """
    if dtype not in _ITEM_BYTES:
        raise BadInput(f"--dtype {dtype}: no such element type; known are {', '.join(_ITEM_BYTES)}")
    total = sum(one.bytes for one in profile.gradients)
    if total == 0:
        return 1.0
    width = _ITEM_BYTES[dtype]
    return sum(one.bytes * min(1.0, width / _ITEM_BYTES.get(one.dtype, width)) for one in profile.gradients) / total


def _check(profile: Profile, question: Question) -> None:
    reasons = unsayable(profile)
    if question.fabric is not None:  # then one rank is enough, and no link of its own is needed
        reasons = _missing_compute(profile)
    if reasons:
        raise BadInput("\n".join(reasons))
    for name in question.algorithms:
        if name not in ALGORITHMS:
            raise BadInput(f"--algorithm {name}: known are {', '.join(ALGORITHMS)}, all")
    positive = {
        "--ranks": min(question.ranks, default=1),
        "--ranks-per-node": 1 if question.ranks_per_node is None else question.ranks_per_node,
        "--compute-scale": question.compute_scale,
        "--bandwidth-scale": question.bandwidth_scale,
        "--dtype": question.compression,
        "--accumulate": 1 if question.accumulation is None else question.accumulation,
    }
    for option, value in positive.items():
        if not (value > 0 and math.isfinite(value)):
            raise BadInput(f"{option} {value}: must be more than 0")
    if not 0 <= question.straggler < math.inf:
        raise BadInput(f"--straggler {question.straggler}: must not be negative")


def _missing_compute(profile: Profile) -> list[str]:
    if profile.forward_ns is None or profile.optimizer_ns is None:
        return ["what if: no step was timed, so what surrounds the backward pass is not known"]
    if not any(one.ready_ns is not None for one in profile.gradients):
        return ["what if: ready times were not measured, so when a bucket could start is not known"]
    return []


# ---- compute ----------------------------------------------------------------------------------------------------


def _as_measured(profile: Profile, timeline: Timeline, now: list[Buckets]) -> tuple[Slowdown, float | None]:
    """How compute and communication slowed each other when profiled, and what the model misses that step by."""
    if profile.link is None or profile.world_size == 1:
        return NO_SLOWDOWN, None
    curve = curve_in_training(profile)
    slowdown = fit_slowdown(timeline, curve, observations(profile, now))
    if profile.step is None:
        return slowdown, None
    return slowdown, replay(timeline, now, curve, slowdown).step_ns / profile.step.median_ns - 1


def _compute_of(profile: Profile, base: Timeline, question: Question) -> Timeline:
    """The profiled compute at another speed and with another number of backward passes."""
    assert profile.forward_ns is not None
    stretched = _stretched(base, question.compute_scale, _input_ns(profile))
    if question.accumulation is None:
        return stretched
    # All passes but the last backward are in forward_ns.
    last_backward_ns = (base.compute_end_ns - profile.forward_ns) * question.compute_scale
    pass_ns = (stretched.compute_end_ns - profile.accumulation * last_backward_ns) / profile.accumulation
    return _later(stretched, (question.accumulation - profile.accumulation) * (pass_ns + last_backward_ns))


def _input_ns(profile: Profile) -> float:
    return float(profile.input_ns or 0)


def _stretched(timeline: Timeline, factor: float, fixed_ns: float) -> Timeline:
    """All compute takes `factor` times as long, but for what comes before `fixed_ns`: waiting for data."""

    def moved(at_ns: float) -> float:
        return fixed_ns + (at_ns - fixed_ns) * factor

    return Timeline(
        [replace(one, ready_ns=[moved(at) for at in one.ready_ns]) for one in timeline.modules],
        moved(timeline.compute_end_ns),
        timeline.optimizer_ns * factor,
    )


def _later(timeline: Timeline, by_ns: float) -> Timeline:
    modules: list[ModuleGradients] = [
        replace(one, ready_ns=[at + by_ns for at in one.ready_ns]) for one in timeline.modules
    ]
    return Timeline(modules, timeline.compute_end_ns + by_ns, timeline.optimizer_ns)


# ---- rows -------------------------------------------------------------------------------------------------------


class _Scene:
    """What all rows share."""

    def __init__(
        self,
        profile: Profile,
        question: Question,
        timeline: Timeline,
        ideal_ns: float,
        slowdown: Slowdown,
        now: list[Buckets],
        per_node: int,
    ) -> None:
        self.profile, self.question, self.timeline = profile, question, timeline
        self.ideal_ns, self.slowdown, self.now, self.per_node = ideal_ns, slowdown, now, per_node
        self.travelling_bytes = question.compression * sum(sum(module.bytes) for module in timeline.modules)
        self.measured = None if profile.link is None else curve_in_training(profile)
        self.fabric = _faster(question.fabric or _fabric_of(profile), question.bandwidth_scale)
        self.layouts = _layouts(timeline)
        self.cap_mb_now = max(profile.modules, key=lambda one: one.parameters).bucket_cap_mb

    def row(self, algorithm: Algorithm, ranks: int) -> Row:
        moved = algorithm.volume(self.travelling_bytes, ranks, self.per_node)
        best = None
        cap_mb, latency_share = None, 0.0
        step_ns = current_ns = self.ideal_ns
        if ranks > 1:
            curve = self.curve(algorithm, ranks)
            cap_mb, best = self.best(curve)
            current = self.run(self.now, curve)
            if current.step_ns <= best.step_ns * (1 + NO_DIFFERENCE):
                cap_mb, best = self.cap_mb_now, current
            step_ns, current_ns = best.step_ns, current.step_ns
            latency_share = self.latency_share(algorithm, ranks, len(best.bytes))
        return Row(
            ranks=ranks,
            nodes=math.ceil(ranks / self.per_node),
            algorithm=algorithm.name,
            step_ns=round(step_ns),
            efficiency=self.ideal_ns / step_ns,
            exposed_ns=round(best.communication_ns - best.overlap_ns) if best else 0,
            communication_ns=round(best.communication_ns) if best else 0,
            latency_share=latency_share,
            bucket_cap_mb=cap_mb,
            buckets=len(best.bytes) if best else 0,
            current_step_ns=round(current_ns),
            sent_bytes=round(float(moved.sent)),
            root_bytes=round(float(moved.root_sent)),
        )

    def run(self, layouts: list[Buckets], curve: LinkCurve) -> Replay:
        return replay(self.timeline, layouts, curve, self.slowdown)

    def best(self, curve: LinkCurve) -> tuple[float, Replay]:
        """The capacity of the fastest step, or the largest of those that make no difference to it; with its replay.

        Layouts are tried by rising number of buckets, and those that cannot be the best are left out.
        """
        floors_ns = [one.floor_ns(curve) for one in self.layouts]
        least_ns = max(min(floors_ns), self.timeline.compute_end_ns) + self.timeline.optimizer_ns
        tried: list[tuple[float, Replay]] = []
        best_ns = math.inf
        for layout, floor_ns in zip(self.layouts, floors_ns, strict=True):
            if floor_ns + self.timeline.optimizer_ns > best_ns:
                continue
            run = self.run(layout.buckets, curve)
            tried.append((layout.cap_mb, run))
            best_ns = min(best_ns, run.step_ns)
            if run.step_ns <= least_ns * (1 + NO_DIFFERENCE):
                break
        return next(one for one in tried if one[1].step_ns <= best_ns * (1 + NO_DIFFERENCE))

    def latency_share(self, algorithm: Algorithm, ranks: int, buckets: int) -> float:
        latency_ns, slope_ns = (float(one) for one in algorithm.line(ranks, self.per_node, self.fabric))
        all_ns = buckets * latency_ns + self.travelling_bytes * slope_ns
        return buckets * latency_ns / all_ns if all_ns else 0.0

    def curve(self, algorithm: Algorithm, ranks: int) -> LinkCurve:
        """Time of one all-reduce against the size of its bucket, which is that before compression."""
        latency_ns, slope_ns = (float(one) for one in algorithm.line(ranks, self.per_node, self.fabric))
        if self.question.fabric is None:
            assert self.measured is not None
            return _compressed(self.carried_over(self.measured, latency_ns, slope_ns), self.question.compression)
        straight = LinkCurve.straight(round(latency_ns), 1 / slope_ns, self.question.concurrency)
        return _compressed(straight, self.question.compression)

    def carried_over(self, measured: LinkCurve, latency_ns: float, slope_ns: float) -> LinkCurve:
        """The measured curve, stretched at each size by another line over the one that was fitted to it."""
        fitted_ns = measured.latency_ns + measured.bytes / measured.bandwidth_gb_s
        asked_ns = latency_ns + measured.bytes * slope_ns
        ns = measured.ns * asked_ns / np.maximum(fitted_ns, _RATIO_FLOOR_NS)
        return replace(
            measured,
            ns=np.maximum.accumulate(ns),
            slope_ns=measured.slope_ns * slope_ns * measured.bandwidth_gb_s,
            latency_ns=round(latency_ns),
            bandwidth_gb_s=1 / slope_ns,
        )


def _compressed(curve: LinkCurve, factor: float) -> LinkCurve:
    """The same curve against bytes before compression. What compressing itself costs is left out."""
    return replace(
        curve,
        bytes=curve.bytes / factor,
        slope_ns=curve.slope_ns * factor,
        bandwidth_gb_s=curve.bandwidth_gb_s / factor,
    )


def _fabric_of(profile: Profile) -> Fabric:
    assert profile.link is not None
    curve = curve_in_training(profile)
    return Fabric.of_ring(curve.latency_ns, curve.bandwidth_gb_s, profile.link.ranks)


def _faster(fabric: Fabric, factor: float) -> Fabric:
    inside, between = (
        replace(wire, bandwidth_gb_s=wire.bandwidth_gb_s * factor) for wire in (fabric.inside, fabric.between)
    )
    return replace(fabric, inside=inside, between=between)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Buckets that one capacity makes, in the order of launch."""

    cap_mb: float
    buckets: list[Buckets]  # of each module
    bytes: Float64s  # (buckets,)
    ready_ns: Float64s  # (buckets,), when it and all before it are

    def floor_ns(self, curve: LinkCurve) -> float:
        """No earlier than this is the last bucket there, however little compute and communication slow each other."""
        still_ns = np.cumsum(curve.time_ns(self.bytes)[::-1])[::-1] / curve.concurrency
        return float((self.ready_ns + still_ns).max())


def _layouts(timeline: Timeline) -> list[_Layout]:
    """Distinct layouts over all capacities, by rising number of buckets, each with the largest capacity for it."""
    sizes = [size for module in timeline.modules for size in module.bytes if size > 0]
    largest = max(sum(module.bytes) for module in timeline.modules)
    caps_mb = np.geomspace(largest / MIB, min(sizes) / MIB, _CAPACITIES).tolist()
    found: dict[tuple[int, ...], _Layout] = {}
    for cap_mb in [_rounded_up(caps_mb[0]), *(float(f"{one:.2g}") for one in caps_mb[1:])]:
        cap_bytes = int(cap_mb * MIB)
        buckets = [module.buckets([cap_bytes]) for module in timeline.modules]
        key = key_of(buckets)
        if key not in found:
            found[key] = _layout(cap_mb, buckets, timeline)
    return sorted(found.values(), key=lambda one: len(one.bytes))


def _layout(cap_mb: float, buckets: list[Buckets], timeline: Timeline) -> _Layout:
    ready_ns, sizes = np.array([row[:2] for row in queued(timeline, buckets)], dtype=np.float64).T
    return _Layout(cap_mb, buckets, sizes, ready_ns)


def _rounded_up(cap_mb: float) -> float:
    return math.ceil(cap_mb * 100) / 100


# ---- words ------------------------------------------------------------------------------------------------------


def _link_name(profile: Profile, question: Question) -> str:
    scaled = "" if question.bandwidth_scale == 1 else f", bandwidth x {question.bandwidth_scale:g}"
    if question.fabric is not None:
        return f"{question.link_name or 'another link'}{scaled}"
    assert profile.link is not None
    return f"{profile.link.what}{scaled or ', as measured'}"


def _findings(rows: list[Row]) -> list[str]:
    found = []
    for name in dict.fromkeys(row.algorithm for row in rows):
        own = [row for row in rows if row.algorithm == name and row.ranks > 1]
        slow = next((row for row in own if row.latency_share > _HALF), None)
        if slow is not None:
            found.append(f"{name}: from {slow.ranks:,} ranks on latency is more than half of communication")
        poor = next((row for row in own if row.efficiency < _HALF), None)
        if poor is not None:
            found.append(f"{name}: from {poor.ranks:,} ranks on more than half of each step is lost")
        for before, after in pairwise(own):
            gained = (after.ranks * after.efficiency - before.ranks * before.efficiency) / (after.ranks - before.ranks)
            if gained < _WORTH_IT:
                found.append(
                    f"{name}: scaling stops being worth it at {before.ranks:,} ranks: of those further up to "
                    f"{after.ranks:,}, each brings {max(0.0, 100 * gained):.0f} % of what it computes alone"
                )
                break
    return [*found, *_overtakings(rows)]


def _overtakings(rows: list[Row]) -> list[str]:
    """From where on which other algorithm is faster than the ring."""
    ring = {row.ranks: row.step_ns for row in rows if row.algorithm == RING.name}
    found = []
    for name in dict.fromkeys(row.algorithm for row in rows if row.algorithm != RING.name):
        faster = [row.ranks for row in rows if row.algorithm == name and row.step_ns < ring.get(row.ranks, 0) * 0.99]
        if faster:
            found.append(f"{name} is faster than a ring from {min(faster):,} ranks on")
    return found


def _notes(profile: Profile, question: Question, rows: list[Row], slowdown: Slowdown) -> list[str]:
    notes = [
        "compute is one rank's, as profiled and with its batch: more ranks train on more samples in a step",
        *simplifications(profile),
    ]
    if question.fabric is None:
        notes.append("latency and bandwidth of one hop are what a ring of the measured ranks would need")
        if profile.nodes == 1 and any(row.nodes > 1 for row in rows):
            notes.append(
                "the link between nodes was not measured and is taken to be as fast as that inside: see --link"
            )
        elif profile.nodes > 1 and profile.world_size > profile.nodes:
            notes.append(
                "hops inside nodes and between them were measured together and are taken to be alike: see --link"
            )
        return [*notes, *_omissions(question, rows)]
    fabric = question.fabric
    if fabric.inside == fabric.between and any(1 < row.nodes < row.ranks for row in rows):
        notes.append("hops between nodes are taken to be as those inside, since the link has no figures of their own")
    if slowdown != NO_SLOWDOWN:
        notes.append("communication slows compute as it did on the profiled link")
    return [*notes, *_omissions(question, rows)]


def _omissions(question: Question, rows: list[Row]) -> list[str]:
    notes = []
    if question.compression < 1:
        notes.append("what compressing and expanding gradients costs is left out")
    if any(row.algorithm == "parameter-server" for row in rows):
        notes.append("what the root needs to add gradients up is left out")
    return notes
