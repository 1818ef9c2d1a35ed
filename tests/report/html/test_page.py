"""The page as a reader has it: a real browser opens the file, nothing else is asked for, and data stay data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bucketlab import units
from bucketlab.link.curve import LinkCurve
from bucketlab.predict import predict, unsayable
from bucketlab.report.html import write_report
from bucketlab.schema.profile import Profile
from bucketlab.schema.tuning import Tuning
from tests.browser import Browser
from tests.report import profiles
from tests.report.html.studies import study_of

_HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "]]><!--<script>",
    "\"'`${1}\\",
    "@@DATA@@",
    "[bold]red[/bold]\x1b[31m",
    "\u202egnp.exe\u2028\u2029",
    "__proto__",
    "..",
    "two\nlines",
    "very long " * 90 + "unbroken" * 90,
]


def _with_prediction(profile: Profile) -> Profile:
    return profile if unsayable(profile) else msgspec.structs.replace(profile, prediction=predict(profile))


def _hostile() -> Profile:
    made = profiles.exposed()
    names = [f"{_HOSTILE[at % len(_HOSTILE)]}{at}" for at in range(len(made.gradients))]
    renamed = {one.name: name for one, name in zip(made.gradients, names, strict=True)}
    everything = " ".join(_HOSTILE)
    made.gradients = [msgspec.structs.replace(one, name=renamed[one.name]) for one in made.gradients]
    made.buckets = [
        msgspec.structs.replace(one, parameters=[renamed[name] for name in one.parameters]) for one in made.buckets
    ]
    made.modules = [msgspec.structs.replace(made.modules[0], name=everything, communication_hook=everything)]
    made.ranks = [msgspec.structs.replace(one, host=everything, device=everything) for one in made.ranks]
    assert made.link is not None
    made.link = msgspec.structs.replace(made.link, what=everything, used=everything)
    for field in ("run", "script", "device", "backend"):
        setattr(made, field, everything)
    made.command, made.versions = _HOSTILE, {everything: everything}
    made.notes, made.missing, made.advice = _HOSTILE, _HOSTILE, [f"do `bucketlab {one}`" for one in _HOSTILE]
    return _with_prediction(made)


def _hostile_study(profile: Profile) -> Tuning:
    everything = " ".join(_HOSTILE)
    return study_of(profile, study=everything, reason=everything, interconnect=everything)


def _open(browser: Browser, profile: Profile, folder: Path, study: Tuning | None = None) -> None:
    browser.open(write_report(profile, folder, study).as_uri())


@pytest.mark.parametrize("make", profiles.EVERY)
def test_every_profile_opens_without_a_complaint_and_without_the_network(
    chromium: Browser, tmp_path: Path, make: Callable[[], Profile]
) -> None:
    _open(chromium, _with_prediction(make()), tmp_path)
    for theme in ("light", "dark"):
        chromium.theme(theme)
        for width in (1440, 820, 390):
            chromium.window(width, 900)
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width, "wider than the window"
    chromium.window(1366, 900)
    assert chromium.evaluate("document.querySelector('h1').textContent")
    assert chromium.complaints == []
    assert [address for address in chromium.requests if not address.startswith("file:")] == []
    assert len(chromium.requests) == 1


def test_names_from_data_show_as_text(chromium: Browser, tmp_path: Path) -> None:
    profile = _hostile()
    _open(chromium, profile, tmp_path, _hostile_study(profile))
    chromium.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    chromium.evaluate("document.getElementById('sweep').click()")
    assert chromium.complaints == []
    chromium.window(820, 900)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 820, "wider than the window"
    assert chromium.evaluate("window.hacked") is None
    assert chromium.evaluate("document.images.length") == 0
    assert chromium.evaluate("document.scripts.length") == 2
    shown = chromium.evaluate("document.getElementById('page').textContent")
    for name in _HOSTILE[:5]:
        assert name in shown
    run = chromium.evaluate("document.querySelector('.run').textContent")
    assert run == profile.run
    assert chromium.evaluate("JSON.parse(document.getElementById('data').textContent).profile.run") == profile.run


def test_the_file_itself_holds_no_markup_from_data(tmp_path: Path) -> None:
    html = write_report(_hostile(), tmp_path, _hostile_study(_hostile())).read_text(encoding="utf-8")
    assert html.count("<script") == 2
    assert html.count("</script") == 2
    assert "<img" not in html
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_no_script_but_the_pages_own_runs(chromium: Browser, tmp_path: Path) -> None:
    path = write_report(_with_prediction(profiles.exposed()), tmp_path)
    html = path.read_text(encoding="utf-8").replace("</body>", "<script>window.hacked = 1</script></body>")
    path.write_text(html, encoding="utf-8")
    chromium.open(path.as_uri())
    assert chromium.evaluate("window.hacked") is None
    assert chromium.evaluate("typeof window.bucketlab") == "object"


def test_a_model_of_a_thousand_gradients_stays_under_two_megabytes(tmp_path: Path) -> None:
    names = [f"model.decoder.layers.{at}.self_attention.query_key_value.dense.weight" for at in range(1000)]
    made = profiles.thousand_buckets()
    made.gradients = [msgspec.structs.replace(one, name=names[at]) for at, one in enumerate(made.gradients)]
    made.buckets = [msgspec.structs.replace(one, parameters=[names[at]]) for at, one in enumerate(made.buckets)]
    assert write_report(_with_prediction(made), tmp_path).stat().st_size < 2_000_000


def test_the_slider_replays_the_step(chromium: Browser, tmp_path: Path) -> None:
    _open(chromium, _with_prediction(profiles.exposed()), tmp_path)
    chromium.window(1366, 900)
    readout = "document.getElementById('readout').textContent"
    seen = set()
    for at in (50, 800, 950):
        chromium.evaluate(
            f"(() => {{ const one = document.getElementById('cap'); one.value = {at};"
            "one.dispatchEvent(new Event('input')); })()"
        )
        setting = chromium.evaluate("bucketlab.setting()")
        assert setting["showing"] == "predicted"
        asked = json.dumps({"caps_bytes": setting["caps_bytes"]})
        step_ns = chromium.evaluate(f"bucketlab.replay({asked}).step_ns")
        assert chromium.evaluate(readout).startswith(units.duration(step_ns))
        assert "predicted" in chromium.evaluate("document.getElementById('showing').textContent")
        seen.add(step_ns)
    assert len(seen) == 3


def test_measured_and_predicted_steps_carry_their_own_name(chromium: Browser, tmp_path: Path) -> None:
    profile = _with_prediction(profiles.exposed(kind="emulated"))
    _open(chromium, profile, tmp_path)
    showing = "document.getElementById('showing').textContent"
    assert chromium.evaluate(showing).startswith("emulated")
    assert profile.breakdown is not None
    traced = units.duration(profile.breakdown.wall_ns)
    assert chromium.evaluate("document.getElementById('readout').textContent").startswith(traced)
    chromium.evaluate("document.querySelector('[data-view=predicted]').click()")
    assert chromium.evaluate(showing).startswith("predicted")
    for name in ("curve", "ways"):
        assert chromium.evaluate(f"document.querySelector('#{name} .chip').textContent") == "predicted"


def test_predictions_of_another_release_are_made_anew_and_said_to_be(chromium: Browser, tmp_path: Path) -> None:
    profile = _with_prediction(profiles.exposed())
    assert profile.prediction is not None
    now_ns = profile.prediction.current_step_ns
    _open(chromium, profile, tmp_path)
    assert "another release" not in chromium.evaluate("document.getElementById('page').textContent")
    profile.prediction = msgspec.structs.replace(profile.prediction, current_step_ns=2 * now_ns)
    _open(chromium, profile, tmp_path)
    page = chromium.evaluate("document.getElementById('page').textContent")
    assert f"of another release of BucketLab ({units.duration(2 * now_ns)}" in page
    assert f"In force 25 MiB, {units.duration(now_ns)}" in page
    assert f"in force ({units.duration(now_ns)}" in chromium.evaluate("document.getElementById('curve').textContent")


def test_markers_set_the_default_the_best_and_the_planned_buckets(chromium: Browser, tmp_path: Path) -> None:
    profile = _with_prediction(profiles.thousand_buckets())
    prediction = profile.prediction
    assert prediction is not None
    assert prediction.default is not None
    assert prediction.plan is not None
    _open(chromium, profile, tmp_path)
    expected = {
        "default": prediction.default.step_ns,
        "current": prediction.current_step_ns,
        "best": prediction.best.step_ns,
        "planned": prediction.plan.step_ns,
    }
    for name, step_ns in expected.items():
        chromium.evaluate(f"document.querySelector('[data-preset={name}]').click()")
        text = chromium.evaluate("document.getElementById('readout').textContent")
        assert text.startswith(units.duration(step_ns)), name


def test_buckets_can_be_read_with_the_keyboard_and_with_the_mouse(chromium: Browser, tmp_path: Path) -> None:
    profile = profiles.exposed()
    _open(chromium, _with_prediction(profile), tmp_path)
    chromium.window(1366, 900)
    chromium.drawn()
    chromium.evaluate("document.querySelector('canvas').focus()")
    chromium.key("ArrowRight")
    chromium.key("ArrowRight")
    said = chromium.evaluate("document.getElementById('selected').textContent")
    bucket = profile.buckets[1]
    for fact in (
        "Bucket 1",
        units.size(bucket.bytes),
        units.duration(bucket.start_ns),
        units.duration(bucket.end_ns),
        bucket.parameters[0],
    ):
        assert fact in said
    for key in ("+", "-", "0", "Home", "End", "Escape"):
        chromium.key(key)
    assert "Hover" in chromium.evaluate("document.getElementById('selected').textContent")

    chromium.evaluate("document.querySelector('canvas').scrollIntoView({block: 'center'})")
    box = chromium.evaluate("document.querySelector('canvas').getBoundingClientRect().toJSON()")
    first = profile.buckets[0]
    assert first.start_ns is not None
    assert first.end_ns is not None
    x = box["left"] + chromium.evaluate(f"bucketlab.pixelOf({(first.start_ns + first.end_ns) / 2})")
    chromium.mouse("mouseMoved", x, box["top"] + 85)
    tip = chromium.wait_for(
        "(() => { const one = document.querySelector('.tip'); return one.hidden ? '' : one.textContent; })()"
    )
    assert tip.startswith("Bucket 0")
    assert units.rate(first.bus_gb_s) in tip


def test_every_control_can_be_reached_by_tab(chromium: Browser, tmp_path: Path) -> None:
    _open(chromium, _with_prediction(profiles.exposed()), tmp_path)
    chromium.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        chromium.key("Tab")
        reached.add(chromium.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"cap", "ranks", "bandwidth", "sweep", "CANVAS", "SUMMARY", "BUTTON"} <= reached


def test_the_page_writes_figures_as_the_terminal_does(chromium: Browser, tmp_path: Path) -> None:
    _open(chromium, profiles.nothing(), tmp_path)
    times = [0, 1, 999, 1000, 45_678, 9_994_999, 9_995_001, 123_456_789, 5 * 10**9, 130 * 10**9, -3_200_000]
    sizes = [0, 1023, 1024, 8 * 2**20, 147 * 2**20, 21 * 2**30, 5 * 2**40]
    rates = [0.0, 0.0012, 0.0996, 1.62, 9.996, 45.67, 391.4]
    parts = [(0, 5), (1, 3), (1, 2000), (1, 100000), (97, 100)]
    page = chromium.evaluate(
        f"[{times}.map(bucketlab.units.duration), {sizes}.map(bucketlab.units.size),"
        f" {rates}.map(bucketlab.units.rate), {json.dumps(parts)}.map(([a, b]) => bucketlab.units.share(a, b))]"
    )
    assert page[0] == [units.duration(one).replace("us", "µs") for one in times]
    assert page[1] == [units.size(one) for one in sizes]
    assert page[2] == [units.rate(one) for one in rates]
    assert page[3] == [units.share(*one) for one in parts]


def test_commands_have_a_button_that_copies_them(chromium: Browser, tmp_path: Path) -> None:
    _open(chromium, _with_prediction(profiles.exposed()), tmp_path)
    commands = chromium.evaluate("[...document.querySelectorAll('#commands code')].map((one) => one.textContent)")
    assert commands
    assert chromium.evaluate("document.querySelectorAll('#commands button.copy').length") == len(commands)
    assert any(one.startswith("bucketlab predict") for one in commands)
    chromium.allow_clipboard()
    chromium.evaluate("document.querySelector('#commands').scrollIntoView({block: 'center'})")
    box = chromium.evaluate("document.querySelector('#commands button.copy').getBoundingClientRect().toJSON()")
    chromium.evaluate(  # the button says for a moment only that it has copied
        "(() => { const one = document.querySelector('#commands button.copy'); window.said = [];"
        "new MutationObserver(() => window.said.push(one.textContent)).observe(one, {childList: true}); })()"
    )
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        chromium.mouse(kind, box["left"] + 5, box["top"] + 5)
    chromium.wait_for("window.said.includes('Copied')")
    assert chromium.evaluate("navigator.clipboard.readText()") == commands[0]


def test_all_that_the_terminal_says_is_on_the_page(chromium: Browser, tmp_path: Path) -> None:
    profile = _with_prediction(profiles.straggler(notes=["a note"], missing=["memory: no reason"]))
    profile.advice = ["Look at rank 2."]
    _open(chromium, profile, tmp_path)
    shown = chromium.evaluate("document.querySelector('#terminal pre').textContent")
    for title in ("Where a step goes", "Overlap", "Buckets", "Ranks", "Link", "Memory", "What to do next"):
        assert title in shown
    page = chromium.evaluate("document.getElementById('page').innerText")
    for line in ("a note", "memory: no reason", "Look at rank 2.", "rank 2 is late in 8 of 8 steps"):
        assert line in page


def test_a_poor_fit_of_the_link_is_doubted_as_on_the_terminal(chromium: Browser, tmp_path: Path) -> None:
    doubt = "Trust the times of each size"
    for residual, doubted in ((0.03, False), (0.4, True)):
        profile = profiles.exposed()
        assert profile.link is not None
        profile.link = msgspec.structs.replace(profile.link, residual=residual)
        _open(chromium, profile, tmp_path)
        assert (doubt in chromium.evaluate("document.querySelector('#link').innerText")) is doubted


def _one_layout() -> Profile:
    """Two modules of one parameter each: whatever the capacity, their buckets are the same."""
    made = profiles.two_modules()
    made.gradients = [next(one for one in made.gradients if one.module == number) for number in range(2)]
    return made


@pytest.mark.parametrize(("make", "place"), [(profiles.two_modules, "#curve"), (_one_layout, "#step")])
def test_what_predictions_leave_out_is_on_the_page_with_a_curve_and_without(
    chromium: Browser, tmp_path: Path, make: Callable[[], Profile], place: str
) -> None:
    _open(chromium, _with_prediction(make()), tmp_path)
    note = "predicted as if all modules shared one backward pass"
    assert note in chromium.evaluate(f"document.querySelector('{place}').innerText")
    assert note in chromium.evaluate("document.querySelector('#ways').textContent")


def test_the_parts_of_the_step_on_the_page_add_up_to_it(chromium: Browser, tmp_path: Path) -> None:
    profile = profiles.exposed()
    assert profile.breakdown is not None
    profile.breakdown = msgspec.structs.replace(profile.breakdown, idle_ns=9_000_000)  # as medians may have it
    _open(chromium, profile, tmp_path)
    legend = chromium.evaluate("document.querySelector('#answer .legend').innerText")
    assert "rest" in legend
    assert round(sum(float(one) for one in re.findall(r"(-?[\d.]+) %", legend)), 1) == 100.0


def test_the_setting_in_force_names_the_capacity_of_every_module(chromium: Browser, tmp_path: Path) -> None:
    _open(chromium, _with_prediction(profiles.two_modules(second_cap_mb=4)), tmp_path)
    preset = chromium.evaluate("document.querySelector('[data-preset=current]').textContent")
    assert "25 MiB, DDP's default (0 GPT); 4 MiB (1 Head)" in preset
    _open(chromium, _with_prediction(profiles.exposed()), tmp_path)
    assert "In force 25 MiB, " in chromium.evaluate("document.querySelector('[data-preset=current]').textContent")


def test_no_line_ends_between_a_figure_and_its_unit(chromium: Browser, tmp_path: Path) -> None:
    _open(chromium, _with_prediction(profiles.exposed()), tmp_path)
    figures = "[...document.querySelectorAll('#curve p .figure')]"
    assert len(chromium.evaluate(f"{figures}.map((one) => one.textContent)")) > 2
    for width in (390, 700, 1280):
        chromium.window(width, 800)
        assert chromium.evaluate(f"{figures}.every((one) => one.getClientRects().length === 1)")


def test_a_bandwidth_that_no_link_has_is_not_called_measured(chromium: Browser, tmp_path: Path) -> None:
    profile = profiles.exposed()
    assert profile.link is not None
    points = [msgspec.structs.replace(one, ns=300_000) for one in profile.link.points]
    fit = LinkCurve.fit(points)
    profile.link = msgspec.structs.replace(profile.link, points=points, bandwidth_gb_s=fit.bandwidth_gb_s)
    _open(chromium, _with_prediction(profile), tmp_path)
    assert chromium.evaluate("document.querySelector('output[for=bandwidth]').textContent") == "as measured"
    doubt = "All-reduces took no longer the larger they were"
    assert doubt in chromium.evaluate("document.querySelector('#link').innerText")
    assert doubt in " ".join(chromium.evaluate("document.querySelector('#terminal pre').textContent").split())
