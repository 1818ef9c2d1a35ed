"""The tab in a real TensorBoard process, looked at with a real browser."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from bucketlab import units
from bucketlab.comparing import compare_profiles
from bucketlab.documents import write_json
from bucketlab.predict import predict
from bucketlab.schema.profile import Profile
from tests.browser import Browser
from tests.commands import bucketlab, last_line
from tests.report import profiles
from tests.report.html.studies import study_of
from tests.tensorboard.serving import tensorboard

# Defines `tab`, the document of the plugin's frame, wherever TensorBoard has put it.
_FIND_TAB = """
  const frames = (root) => [...root.querySelectorAll("*")].flatMap((one) => [
    ...(one.tagName === "IFRAME" ? [one] : []), ...(one.shadowRoot ? frames(one.shadowRoot) : []),
  ]);
  const tab = frames(document).map((one) => one.contentDocument).find((one) => one?.querySelector(".bar, .pane"));
"""


def _save(profile: Profile, folder: Path) -> Profile:
    folder.mkdir(parents=True)
    profile = msgspec.structs.replace(profile, run=folder.name, prediction=predict(profile))
    write_json(folder / "profile.json", profile)
    return profile


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    if not any(one.name == "bucketlab" for one in metadata.entry_points(group="tensorboard_plugins")):
        pytest.skip("bucketlab is not installed as a package, so TensorBoard cannot find its plugin: pip install -e .")


def _in_tab(browser: Browser, expression: str, seconds: float = 120) -> object:
    """The expression's value once it is truthy, `tab` being the document of the tab's frame."""
    return browser.wait_for(f"(() => {{ {_FIND_TAB} return tab && ({expression}); }})()", seconds)


def test_the_tab_shows_each_run_its_page_and_two_of_them(chromium: Browser, tmp_path: Path) -> None:
    logdir = tmp_path / "traces"
    before = _save(profiles.exposed(created="2025-01-01T00:00:00Z"), logdir / "before")
    hostile = "<img src=x onerror=top.hacked=1></script><script>top.hacked=1</script>"
    after = _save(profiles.overlapped(created="2025-01-02T00:00:00Z", script=hostile), logdir / "after <b>'\"")
    (logdir / "broken").mkdir()
    (logdir / "broken" / "profile.json").write_text("{")
    with tensorboard(logdir) as address:
        chromium.open(f"{address}/#bucketlab")
        text = str(_in_tab(chromium, "tab.querySelector('#list') && tab.body.innerText"))
        assert after.run in text
        assert hostile in text
        assert "broken" in text
        assert before.step is not None
        assert units.duration(before.step.median_ns) in text
        assert "is no bucketlab.profile/1 file" in text
        assert "bucketlab" in chromium.evaluate("document.body.innerText").lower()  # the tab's own name

        _in_tab(chromium, "tab.querySelector('[data-run=before]').click() || true")
        step = "tab.querySelector('iframe#report').contentWindow.bucketlab?.replay({}).step_ns"
        assert before.prediction is not None
        assert round(float(str(_in_tab(chromium, step)))) == before.prediction.current_step_ns
        headline = "tab.querySelector('iframe#report').contentDocument.querySelector('h1').textContent"
        assert str(_in_tab(chromium, headline)).startswith("Step ")

        _in_tab(chromium, "tab.querySelector('[data-view=compare]').click() || true")
        page = "tab.querySelector('iframe#comparison').contentDocument?"
        verdict = _in_tab(chromium, f"{page}.querySelector('#verdict')?.textContent")
        assert verdict == compare_profiles(before, after).verdict
        assert hostile in str(_in_tab(chromium, f"{page}.querySelector('#jobs').textContent"))
        assert _in_tab(chromium, f"{page}.querySelectorAll('#timelines canvas').length") == 2
        assert chromium.evaluate("window.hacked") is None


def test_a_study_under_or_beside_the_log_folder_is_drawn_on_the_page_of_its_job(
    chromium: Browser, tmp_path: Path
) -> None:
    logdir = tmp_path / "job" / "traces"
    profile = _save(profiles.exposed(), logdir / "one")
    other = _save(profiles.thousand_buckets(), logdir / "other")
    for name, study in (("beside", study_of(profile)), ("../traces/under", study_of(other, study="under"))):
        (tmp_path / "job" / "sweeps" / name).mkdir(parents=True)
        write_json(tmp_path / "job" / "sweeps" / name / "result.json", study)
    with tensorboard(logdir) as address:
        for run, study_name, trial in (("one", "train", "160 ms, measured"), ("other", "under", "160 ms, measured")):
            chromium.open(f"{address}/data/plugin/bucketlab/report?run={run}")
            assert trial in chromium.wait_for("document.querySelector('#curve circle.trial')?.textContent")
            assert study_name in chromium.evaluate("document.querySelector('#curve .legend').textContent")
            assert "+25.0 % steps per second" in chromium.evaluate("document.querySelector('#study').textContent")


@pytest.mark.parametrize("there", [True, False])
def test_a_log_folder_without_runs_says_how_to_make_one(chromium: Browser, tmp_path: Path, there: bool) -> None:
    logdir = tmp_path / "traces"
    logdir.mkdir()
    with tensorboard(logdir) as address:
        if not there:
            logdir.rmdir()
        chromium.open(f"{address}/#bucketlab")
        text = str(_in_tab(chromium, "tab.querySelector('#nothing') && tab.body.innerText"))
    assert "bucketlab profile" in text


def test_view_prints_its_address_and_says_when_the_port_is_taken(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    with tensorboard(tmp_path / "traces") as address:
        port = address.rpartition(":")[2]
        assert address == f"http://127.0.0.1:{port}"
        done = bucketlab("view", "--port", port, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert last_line(done) == f"bucketlab: port {port} is taken. Choose another with --port; 0 takes any that is free."
    done = bucketlab("view", "--host", "no.such.host.invalid", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot serve at no.such.host.invalid" in last_line(done)


def test_no_name_in_a_request_leads_out_of_the_log_folder(tmp_path: Path) -> None:
    from tensorboard.plugins.base_plugin import TBContext
    from werkzeug.test import Client

    from bucketlab.tensorboard.plugin import BucketLabPlugin

    _save(profiles.exposed(), tmp_path / "secret")
    _save(profiles.exposed(), tmp_path / "logs" / "run")
    apps = BucketLabPlugin(TBContext(logdir=str(tmp_path / "logs"))).get_plugin_apps()
    report = Client(apps["/report"])
    comparison = Client(apps["/comparison"])
    assert report.get("/?run=run").status_code == 200
    assert comparison.get("/?a=run&b=run").status_code == 200
    for name in ("../secret", str(tmp_path / "secret"), "run/../../secret", "", "."):
        assert report.get("/", query_string={"run": name}).status_code == 404
        assert comparison.get("/", query_string={"a": "run", "b": name}).status_code == 404
