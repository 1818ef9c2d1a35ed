"""The page of two runs: their timelines, parts and curves together, in a real browser; data stay data."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bucketlab.comparing import compare_profiles
from bucketlab.predict import predict, unsayable
from bucketlab.report.compare import figure_cells
from bucketlab.report.html.comparison import write_comparison
from bucketlab.schema.comparison import Comparison
from bucketlab.schema.profile import Profile
from tests.browser import Browser
from tests.report import profiles

_HOSTILE = (
    "unbroken" * 60
    + "two\nlines</script><img src=x onerror=window.hacked=1>[bold]x[/bold]\x1b[31m\u202egnp.exe\u2028 '\"`${1}"
)


def _open(browser: Browser, a: Profile, b: Profile, folder: Path) -> Comparison:
    first, second = (one if unsayable(one) else msgspec.structs.replace(one, prediction=predict(one)) for one in (a, b))
    comparison = compare_profiles(first, second)
    write_comparison(comparison, first, second, folder / "two.html")
    browser.window(1366, 900)
    browser.open((folder / "two.html").as_uri())
    assert browser.complaints == []
    assert len(browser.requests) == 1
    return comparison


def test_every_figure_stands_as_the_terminal_has_it(chromium: Browser, tmp_path: Path) -> None:
    comparison = _open(chromium, profiles.exposed(), profiles.overlapped(), tmp_path)
    assert chromium.evaluate("document.querySelector('#verdict').textContent") == comparison.verdict
    rows = chromium.evaluate(
        "[...document.querySelectorAll('#figures tbody tr')].map((row) => [...row.cells].slice(0, 5)"
        ".map((one) => one.textContent))"
    )
    assert rows == [[one.name, *figure_cells(one)] for one in comparison.figures]
    assert chromium.evaluate("document.querySelectorAll('#buckets tbody tr').length") == len(comparison.buckets)


def test_parts_of_both_steps_are_drawn_on_one_scale(chromium: Browser, tmp_path: Path) -> None:
    a, b = profiles.exposed(), profiles.overlapped()
    _open(chromium, a, b, tmp_path)
    widths = chromium.evaluate(
        "[...document.querySelectorAll('#bars .bar')].map((one) => one.getBoundingClientRect().width)"
    )
    assert a.breakdown is not None
    assert b.breakdown is not None
    assert widths[0] / widths[1] == pytest.approx(a.breakdown.wall_ns / b.breakdown.wall_ns, rel=0.02)


def test_one_timeline_stands_above_the_other_and_they_zoom_together(chromium: Browser, tmp_path: Path) -> None:
    a, b = profiles.exposed(), profiles.overlapped()
    _open(chromium, a, b, tmp_path)
    moment = "['A', 'B'].map((one) => bucketlab.pixelOf(one, 100e6))"
    before = chromium.evaluate(moment)
    assert before[0] == before[1]
    chromium.evaluate("document.getElementById('step-B').focus()")
    chromium.key("+")
    after = chromium.evaluate(moment)
    assert after[0] == after[1] != before[0]
    chromium.key("ArrowRight")
    assert "Bucket 0" in chromium.evaluate("document.getElementById('selected-B').textContent")
    assert chromium.evaluate("document.getElementById('selected-A').textContent") == ""


def test_both_curves_and_both_runs_steps_are_in_one_chart(chromium: Browser, tmp_path: Path) -> None:
    _open(chromium, profiles.exposed(), profiles.overlapped(), tmp_path)
    for chart in ("curves", "samples"):
        chromium.wait_for(
            f"document.querySelectorAll('#{chart} svg path.line-A, #{chart} svg path.line-B').length === 2"
        )
    assert chromium.evaluate("document.querySelector('#curves .chip').textContent") == "predicted"


def test_another_job_is_said_in_the_verdict_and_gets_no_buckets(chromium: Browser, tmp_path: Path) -> None:
    _open(chromium, profiles.thousand_buckets(), profiles.straggler(), tmp_path)
    assert "no verdict on speed" in chromium.evaluate("document.querySelector('#verdict').textContent")
    assert "not the same job" in chromium.evaluate("document.querySelector('#jobs').textContent")
    assert chromium.evaluate("document.querySelector('#buckets')") is None


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_without_measurements_leaves_the_other_to_be_seen(chromium: Browser, tmp_path: Path, which: int) -> None:
    pair = [profiles.exposed(), profiles.exposed()]
    pair[which] = profiles.nothing()
    _open(chromium, pair[0], pair[1], tmp_path)
    assert chromium.evaluate("document.querySelectorAll('canvas').length") == 1


def test_names_from_data_show_as_text(chromium: Browser, tmp_path: Path) -> None:
    def hostile(profile: Profile) -> Profile:
        profile.run = profile.script = profile.device = profile.backend = _HOSTILE
        profile.versions = {_HOSTILE: "1"}
        profile.buckets = [msgspec.structs.replace(one, parameters=[_HOSTILE]) for one in profile.buckets]
        profile.ranks = [msgspec.structs.replace(one, host=_HOSTILE) for one in profile.ranks]
        return profile

    _open(chromium, hostile(profiles.exposed()), profiles.overlapped(), tmp_path)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 1366, "wider than the window"
    assert chromium.evaluate("window.hacked") is None
    assert chromium.evaluate("document.images.length") == 0
    assert chromium.evaluate("document.scripts.length") == 2
    assert _HOSTILE in chromium.evaluate("document.querySelector('.side').textContent")
    html = (tmp_path / "two.html").read_text(encoding="utf-8")
    assert html.count("</script") == 2
    assert "<img" not in html


def test_a_thousand_gradients_stay_under_two_megabytes(tmp_path: Path) -> None:
    a, b = profiles.thousand_buckets(), profiles.thousand_buckets()
    write_comparison(compare_profiles(a, b), a, b, tmp_path / "two.html")
    assert (tmp_path / "two.html").stat().st_size < 2_000_000
