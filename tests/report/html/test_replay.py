"""The page's replay, in a real browser, gives the numbers of `bucketlab.predict`.

The page and Python compute with the same doubles in the same order. Unrounded times may differ by what the order of a
few sums leaves open: less than a thousandth of a nanosecond.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bucketlab.link.curve import LinkCurve
from bucketlab.predict import predict
from bucketlab.predict.assignment import MIB
from bucketlab.predict.forecast import Forecast
from bucketlab.predict.replay import Replay, replay
from bucketlab.predict.whatif import Question, what_if
from bucketlab.report.html import write_report
from bucketlab.schema.profile import Gradient, HeldBack, LinkPoint, PredictedPoint, Profile
from tests.browser import Browser
from tests.report import profiles

_CAPS_MB = (0.001, 0.01, 0.1, 0.5, 1.0, 1.7, 3.0, 4.0, 7.5, 12.0, 16.0, 25.0, 33.3, 64.0, 128.0, 600.0)
_ROUNDING_NS = 1e-3


def _two_at_a_time(profile: Profile) -> Profile:
    """Its link moves two all-reduces at once, a third faster than one after the other, as gloo does."""
    assert profile.link is not None
    pairs = [
        msgspec.structs.replace(one, in_flight=2, ns=one.ns * 7 // 10) for one in profile.link.points if one.bytes < MIB
    ]
    pairs += [
        msgspec.structs.replace(one, in_flight=2, ns=one.ns * 3 // 4) for one in profile.link.points if one.bytes >= MIB
    ]
    return msgspec.structs.replace(
        profile, link=msgspec.structs.replace(profile.link, points=profile.link.points + pairs)
    )


def _bent(profile: Profile) -> Profile:
    """Its link's points lie off the fit, and one size was faster than a smaller one."""
    assert profile.link is not None
    points: list[LinkPoint] = [
        msgspec.structs.replace(one, ns=one.ns * (90 + 37 * at % 60) // 100)
        for at, one in enumerate(profile.link.points)
    ]
    return msgspec.structs.replace(profile, link=msgspec.structs.replace(profile.link, points=points))


def _mixed(profile: Profile) -> Profile:
    """Gradients of two dtypes, some of no bytes, two modules, and one parameter that gets no gradient."""
    gradients: list[Gradient] = [
        msgspec.structs.replace(
            one,
            dtype="bfloat16" if at % 3 == 1 else "float32",
            bytes=0 if at == 5 else one.bytes,
            module=at % 2,
            ready_ns=None if at == 9 else one.ready_ns,
            declared=len(profile.gradients) - at,
        )
        for at, one in enumerate(profile.gradients)
    ]
    second = msgspec.structs.replace(profile.modules[0], name="Head", find_unused_parameters=True, bucket_cap_mb=5.0)
    return msgspec.structs.replace(profile, gradients=gradients, modules=[*profile.modules, second])


_PROFILES = {
    "exposed": lambda: profiles.exposed(),
    "hidden": lambda: profiles.hidden(),
    "two at a time": lambda: _two_at_a_time(profiles.exposed()),
    "bent link": lambda: _bent(profiles.overlapped()),
    "mixed": lambda: _mixed(_two_at_a_time(profiles.exposed())),
    "mixed, one at a time": lambda: _mixed(_bent(profiles.exposed())),
    "a thousand buckets": lambda: profiles.thousand_buckets(),
    "each slows the other": lambda: _slowed(profiles.exposed()),
    "each slows the other, two at a time": lambda: _slowed(_two_at_a_time(profiles.exposed())),
    "communication held back": lambda: _held_back(_two_at_a_time(profiles.exposed())),
    "a torch before lists": lambda: _older(profiles.exposed()),
}


def _slowed(profile: Profile) -> Profile:
    """Its steps took a quarter longer than compute and the link alone explain."""
    assert profile.step is not None
    profile.step = msgspec.structs.replace(profile.step, median_ns=profile.step.median_ns * 5 // 4)
    slowdown = Forecast.of(profile).slowdown
    assert slowdown.compute > 0.01
    assert slowdown.communication > 0.01
    return profile


def _held_back(profile: Profile) -> Profile:
    """Compute and the link were measured apart, and neither is as the gradients and the curve alone tell."""
    apart = HeldBack(
        steps=5,
        step_ns=320_000_000,
        compute_ns=160_000_000,
        compute_p10_ns=150_000_000,
        compute_p90_ns=170_000_000,
        communication_ns=150_000_000,
        optimizer_ns=9_000_000,
    )
    return msgspec.structs.replace(profile, held_back=apart)


def _older(profile: Profile) -> Profile:
    return msgspec.structs.replace(profile, versions={"torch": "2.9.1+cu128"})


@pytest.fixture(params=list(_PROFILES))
def opened(request: pytest.FixtureRequest, chromium: Browser, tmp_path: Path) -> tuple[Browser, Profile]:
    profile = _PROFILES[request.param]()
    profile = msgspec.structs.replace(profile, prediction=predict(profile))
    chromium.open(write_report(profile, tmp_path).as_uri())
    assert chromium.complaints == []
    return chromium, profile


def _in_page(browser: Browser, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return json.loads(browser.evaluate(f"JSON.stringify({json.dumps(asked)}.map((one) => bucketlab.replay(one)))"))


def _assert_same(page: dict[str, Any], python: Replay) -> None:
    buckets = page["buckets"]
    assert [one["bytes"] for one in buckets] == python.bytes
    assert [one["members"] for one in buckets] == python.members
    assert [one["module"] for one in buckets] == python.module
    for column in ("ready_ns", "start_ns", "end_ns", "exposed_ns"):
        apart = np.abs(np.array([one[column] for one in buckets]) - getattr(python, column))
        assert apart.max() < _ROUNDING_NS, column
    for figure in ("step_ns", "compute_end_ns", "communication_ns", "overlap_ns"):
        assert page[figure] == pytest.approx(getattr(python, figure), rel=0, abs=_ROUNDING_NS), figure


def _parts(profile: Profile) -> tuple[Any, LinkCurve, Any]:
    forecast = Forecast.of(profile)
    return forecast.timeline, forecast.curve, forecast.slowdown


def test_every_bucket_size_gives_the_step_that_python_gives(opened: tuple[Browser, Profile]) -> None:
    browser, profile = opened
    timeline, curve, slowdown = _parts(profile)
    caps = [[int(first * cap * MIB), int(cap * MIB)] for cap in _CAPS_MB for first in (1, 0.25)]
    pages = _in_page(browser, [{"caps_bytes": one} for one in caps])
    for caps_bytes, page in zip(caps, pages, strict=True):
        layouts = [module.buckets(caps_bytes) for module in timeline.modules]
        _assert_same(page, replay(timeline, layouts, curve, slowdown))


def test_every_point_of_the_prediction_is_met_to_the_nanosecond(opened: tuple[Browser, Profile]) -> None:
    browser, profile = opened
    prediction = profile.prediction
    assert prediction is not None
    assert prediction.current is not None
    explicit = [one for one in prediction.points if one.first_bucket_mb is None and one != prediction.current]
    assert len(explicit) > 3
    steps = browser.evaluate(
        f"{json.dumps([one.bucket_cap_mb for one in explicit])}"
        ".map((mb) => bucketlab.replay({caps_bytes: bucketlab.capsOf(mb)}).step_ns)"
    )
    assert [round(step) for step in steps] == [one.step_ns for one in explicit]
    assert round(browser.evaluate("bucketlab.replay({}).step_ns")) == prediction.current_step_ns
    default: PredictedPoint | None = prediction.default
    assert default is not None
    caps = [int((default.first_bucket_mb or 0) * MIB), int(default.bucket_cap_mb * MIB)]
    assert round(_in_page(browser, [{"caps_bytes": caps}])[0]["step_ns"]) == default.step_ns
    if prediction.plan is not None:
        assert (
            round(_in_page(browser, [{"sizes": prediction.plan.bucket_bytes}])[0]["step_ns"]) == prediction.plan.step_ns
        )


def test_other_numbers_of_ranks_give_the_steps_of_predict(opened: tuple[Browser, Profile]) -> None:
    browser, profile = opened
    ranks = [2, 3, 4, 8, 64, 1000]
    rows = what_if(profile, Question(ranks=ranks)).rows
    pages = _in_page(browser, [{"ranks": one} for one in ranks])
    assert [round(page["step_ns"]) for page in pages] == [row.current_step_ns for row in rows]


@pytest.mark.parametrize("factor", [1 / 16, 0.5, 3.7, 40.0])
def test_the_bandwidth_slider_gives_the_steps_of_predict(opened: tuple[Browser, Profile], factor: float) -> None:
    browser, profile = opened
    ranks = [2, 3, 16, 1000]
    rows = what_if(profile, Question(ranks=ranks, bandwidth_scale=factor)).rows
    in_force = _in_page(browser, [{"ranks": one, "bandwidth": factor} for one in ranks])
    assert [round(page["step_ns"]) for page in in_force] == [row.current_step_ns for row in rows]
    others = [row for row in rows if row.step_ns != row.current_step_ns]
    best = [
        browser.evaluate(
            f"bucketlab.replay({{ranks: {row.ranks}, bandwidth: {factor},"
            f" caps_bytes: bucketlab.capsOf({row.bucket_cap_mb})}}).step_ns"
        )
        for row in others
    ]
    assert [round(step_ns) for step_ns in best] == [row.step_ns for row in others]
