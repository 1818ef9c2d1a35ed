"""What can be said of looks without an eye: contrast, text that is cut or covered, print, motion, at many widths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bucketlab.comparing import compare_profiles
from bucketlab.predict import predict, unsayable
from bucketlab.report.html import write_report
from bucketlab.report.html.comparison import write_comparison
from bucketlab.schema.profile import Profile
from tests.browser import Browser
from tests.report import profiles
from tests.report.html.studies import study_of

_WIDTHS = (390, 820, 1280, 1440, 1920)
_CHECKS = (Path(__file__).parent / "looks.js").read_text()


def _with_prediction(profile: Profile) -> Profile:
    return profile if unsayable(profile) else msgspec.structs.replace(profile, prediction=predict(profile))


def _of_run(profile: Profile) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        made = _with_prediction(profile)
        return write_report(made, folder, study_of(made) if made.prediction else None)

    return write


def _of_two(a: Profile, b: Profile) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        first, second = _with_prediction(a), _with_prediction(b)
        write_comparison(compare_profiles(first, second), first, second, folder / "two.html")
        return folder / "two.html"

    return write


_PAGES: dict[str, Callable[[Path], Path]] = {
    "exposed": _of_run(profiles.exposed(advice=["Try it: `bucketlab tune` measures it."])),
    "hidden": _of_run(profiles.hidden()),
    "input-bound": _of_run(profiles.input_bound()),
    "straggler": _of_run(profiles.straggler()),
    "one rank": _of_run(profiles.one_rank()),
    "a thousand ranks": _of_run(profiles.thousand_ranks()),
    "a thousand buckets": _of_run(profiles.thousand_buckets()),
    "nothing": _of_run(profiles.nothing()),
    "two runs": _of_two(profiles.exposed(), profiles.overlapped()),
    "two jobs": _of_two(profiles.thousand_buckets(), profiles.straggler()),
    "a run and nothing": _of_two(profiles.nothing(), profiles.hidden()),
}


@pytest.fixture(params=list(_PAGES))
def page(request: pytest.FixtureRequest, chromium: Browser, tmp_path: Path) -> Browser:
    chromium.window(1280, 800)
    chromium.open(_PAGES[request.param](tmp_path).as_uri())
    assert chromium.complaints == []
    chromium.evaluate(_CHECKS)
    return chromium


def test_all_text_can_be_read_in_both_themes(page: Browser) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    low: dict[str, Any] = {}
    for theme in ("light", "dark"):
        page.theme(theme)
        page.drawn()
        low[theme] = page.evaluate("lowContrast()")
    page.theme("light")
    assert low == {"light": [], "dark": []}


def test_no_text_is_cut_or_covers_another_at_any_width(page: Browser) -> None:
    page.evaluate("noteCanvas()")
    wrong = {}
    for width in _WIDTHS:
        page.evaluate("window.writings.length = 0")
        page.window(width, 900)
        page.drawn()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "wider than the window"
        if found := page.evaluate("cutOrCovered()"):
            wrong[width] = found[:6]
    page.window(1280, 800)
    assert wrong == {}


def test_what_is_drawn_on_phases_can_be_read_and_fills_stand_out(chromium: Browser, tmp_path: Path) -> None:
    """The canvas takes its colours from the style sheet: text on them needs 4.5 to 1, shapes 3 to 1 (1.4.3, 1.4.11)."""
    chromium.open(_PAGES["exposed"](tmp_path).as_uri())
    names = [
        "on",
        "card",
        "ink",
        "dim",
        "forward",
        "backward",
        "optimizer",
        "input",
        "hidden",
        "exposed",
        "wait",
        "best",
    ]
    for theme in ("light", "dark"):
        chromium.theme(theme)
        colours = chromium.evaluate(
            f"Object.fromEntries({json.dumps(names)}.map((name) => {{ const one = document.createElement('i');"
            "one.style.color = `var(--${name})`; document.body.append(one); const seen = getComputedStyle(one).color;"
            "one.remove(); return [name, seen.match(/[0-9.]+/g).map(Number)]; }))"
        )
        for fill in ("forward", "backward", "optimizer", "input", "hidden", "exposed"):
            assert _contrast(colours["on"], colours[fill]) >= 4.5, (theme, fill)
            assert _contrast(colours["card"], colours[fill]) >= 3, (theme, fill)
        assert _contrast(colours["card"], colours["wait"]) >= 3
        for text in ("ink", "dim", "best"):
            assert _contrast(colours["card"], colours[text]) >= 4.5, (theme, text)
    chromium.theme("light")


def _contrast(one: list[float], other: list[float]) -> float:
    def luminance(colour: list[float]) -> float:
        parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_printed_page_is_light_and_hides_nothing_and_goes_back(chromium: Browser, tmp_path: Path) -> None:
    chromium.theme("dark")
    chromium.open(_PAGES["exposed"](tmp_path).as_uri())
    folded = "document.querySelectorAll('details:not([open])').length"
    ground = "getComputedStyle(document.body).backgroundColor"
    before = chromium.evaluate(folded), chromium.evaluate(ground)
    assert before[0] > 0
    chromium.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert chromium.evaluate(folded) == 0
    assert chromium.evaluate(ground) != before[1]
    chromium.evaluate("dispatchEvent(new Event('afterprint'))")
    assert (chromium.evaluate(folded), chromium.evaluate(ground)) == before
    chromium.theme("light")


def test_where_motion_is_not_wanted_the_sweep_goes_in_few_steps(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(_PAGES["exposed"](tmp_path).as_uri())
    # Ten frames a second, at times that are told: how many a browser really draws depends on the machine.
    chromium.evaluate(
        "window.swept = () => { const seen = new Set(), waiting = [], began = performance.now();"
        "window.requestAnimationFrame = (draw) => waiting.push(draw); document.getElementById('sweep').click();"
        "for (let at = 1; at <= 75; at += 1) { waiting.splice(0).forEach((draw) => draw(began + 100 * at));"
        "seen.add(document.getElementById('cap').value); } return seen.size; }"
    )
    seen = {}
    for wish in ("no-preference", "reduce"):
        chromium.media("prefers-reduced-motion", wish)
        seen[wish] = chromium.evaluate("swept()")
    assert seen["no-preference"] > 50
    assert seen["reduce"] <= 9
