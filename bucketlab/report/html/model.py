"""What the page needs besides `profile.json`: the step's timeline and the link's curve, as the replay takes them.

The page replays steps itself while a slider moves. Its replay (`replay.js`) is that of `bucketlab.predict.replay`,
line by line, on these very numbers; nothing is fitted or estimated in the page.
"""

from __future__ import annotations

import msgspec

from bucketlab.errors import BadInput
from bucketlab.link.algorithms import ALGORITHMS
from bucketlab.predict.assignment import DEFAULT_CAP_BYTES, DEFAULT_FIRST_BYTES, caps_of
from bucketlab.predict.forecast import Forecast, timeline_of, unsayable
from bucketlab.predict.replay import ModuleGradients, Timeline
from bucketlab.predict.whatif import Row, ask
from bucketlab.schema.profile import Gradient, Profile

_MOST_RANKS = 1024


class ModuleModel(msgspec.Struct, kw_only=True):
    """Gradients of one DDP module in the order in which they go into buckets; columns of one length."""

    bytes: list[int]
    ready_ns: list[float]
    kinds: list[int]  # equal where dtypes are; -1: sparse, and alone in its bucket
    gradient: list[int]  # position in Profile.gradients
    rebuilt: bool
    caps_bytes: list[int]  # of the setting in force


class CurveModel(msgspec.Struct, kw_only=True):
    """`LinkCurve`, its arrays as lists."""

    bytes: list[float]
    ns: list[float]
    slope_ns: float
    latency_ns: int
    bandwidth_gb_s: float
    concurrency: int
    pair_gain: float
    ranks: int  # that it was measured with


class ReplayModel(msgspec.Struct, kw_only=True):
    """All that the replay takes."""

    modules: list[ModuleModel]
    compute_end_ns: float
    optimizer_ns: float
    input_ns: float
    forward_ns: float
    curve: CurveModel
    slowed_compute: float
    slowed_communication: float
    default_caps_bytes: list[int]


class Scaling(msgspec.Struct, kw_only=True):
    """Every way to add up gradients, over the number of ranks. Predicted."""

    ranks_per_node: int
    rows: list[Row]
    findings: list[str]
    notes: list[str]
    what: dict[str, str]  # name -> one line for people


def _kinds(gradients: ModuleGradients, numbers: dict[str, int]) -> list[int]:
    sparse = gradients.sparse or [False] * len(gradients.kinds)
    return [-1 if alone else numbers[kind] for kind, alone in zip(gradients.kinds, sparse, strict=True)]


def replay_model(profile: Profile) -> ReplayModel | None:
    """None where `bucketlab.predict.unsayable` has something to say about the profile."""
    if unsayable(profile):
        return None
    assert profile.link is not None
    assert profile.forward_ns is not None
    forecast = Forecast.of(profile)
    timeline, curve, slowdown = forecast.timeline, forecast.curve, forecast.slowdown
    pace = _pace(profile, timeline)
    kinds = {dtype: number for number, dtype in enumerate(sorted({one.dtype for one in profile.gradients}))}
    places = _places(profile)
    return ReplayModel(
        modules=[
            ModuleModel(
                bytes=gradients.bytes,
                ready_ns=gradients.ready_ns,
                kinds=_kinds(gradients, kinds),
                gradient=places[number],
                rebuilt=gradients.rebuilt,
                caps_bytes=caps_of(profile.modules[number]),
            )
            for number, gradients in enumerate(timeline.modules)
        ],
        compute_end_ns=timeline.compute_end_ns,
        optimizer_ns=timeline.optimizer_ns,
        input_ns=pace * (profile.input_ns or 0),
        forward_ns=pace * profile.forward_ns,
        curve=CurveModel(
            bytes=curve.bytes.tolist(),
            ns=curve.ns.tolist(),
            slope_ns=curve.slope_ns,
            latency_ns=curve.latency_ns,
            bandwidth_gb_s=curve.bandwidth_gb_s,
            concurrency=curve.concurrency,
            pair_gain=curve.pair_gain,
            ranks=profile.link.ranks,
        ),
        slowed_compute=slowdown.compute,
        slowed_communication=slowdown.communication,
        default_caps_bytes=[DEFAULT_FIRST_BYTES, DEFAULT_CAP_BYTES],
    )


def scaling(profile: Profile) -> Scaling | None:
    """What-ifs of every algorithm at 2 to 1024 ranks; None where the profile does not allow them."""
    try:
        answer = ask(profile, ranks=f"2..{max(_MOST_RANKS, profile.world_size)}", algorithms=("all",))
    except BadInput:
        return None
    return Scaling(
        ranks_per_node=answer.ranks_per_node,
        rows=answer.rows,
        findings=answer.findings,
        notes=answer.notes,
        what={name: algorithm.what for name, algorithm in ALGORITHMS.items()},
    )


def _places(profile: Profile) -> list[list[int]]:
    """Of each module, where in `Profile.gradients` the gradients of its timeline stand.

    `timeline_of` sorts profiles' gradients; sorted by it once more, each of them with its own position as its name
    would be, they tell their places.
    """
    numbered = msgspec.structs.replace(profile, gradients=[_numbered(at, g) for at, g in enumerate(profile.gradients)])
    return [[int(kind) for kind in module.kinds] for module in timeline_of(numbered).modules]


def _numbered(at: int, gradient: Gradient) -> Gradient:
    return msgspec.structs.replace(gradient, dtype=str(at))


def _pace(profile: Profile, timeline: Timeline) -> float:
    """Over which the timeline stretches what `Profile` says of gradients, so that the forward pass ends where it does.

    Where no steps with their communication held back were measured, it stretches nothing.
    """
    last_ns = max((one.ready_ns for one in profile.gradients if one.ready_ns is not None), default=0)
    return timeline.compute_end_ns / last_ns if profile.held_back is not None and last_ns else 1.0
