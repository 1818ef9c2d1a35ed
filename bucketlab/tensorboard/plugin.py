"""TensorBoard's tab `BucketLab`: lists the runs under the log folder, shows the page of each, and compares two.

Found through the entry point `tensorboard_plugins`. Serves only what `bucketlab.report.html` and `bucketlab.comparing`
make of a run's own files; a name in a request is looked up among the runs that were found, and never used as a path.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug.wrappers import Request, Response

from bucketlab import units
from bucketlab.errors import BucketlabError
from bucketlab.runs import PROFILE, load_profile
from bucketlab.settings import capacities_in_force
from bucketlab.tune.files import RESULT

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

    from bucketlab.report.html import Page

_DEEPEST = 3  # folders below the log folder
_MOST_FOLDERS = 5000  # looked into: a log folder may be someone's whole disk
_FRESH_SECONDS = 5.0  # TensorBoard asks every plugin again and again whether it has something to show

_App = Callable[[dict[str, Any], "StartResponse"], Iterable[bytes]]


class RunRow(msgspec.Struct, kw_only=True):
    """One run in the list, its figures as the terminal writes them."""

    name: str  # its folder, from the log folder on
    created: str = ""
    script: str = ""
    kind: str = ""
    world_size: int | None = None
    setting: str = ""
    step: str = units.NOTHING
    exposed: str = units.NOTHING
    overlap_ratio: str = units.NOTHING
    problem: str | None = None  # why its profile cannot be read


class RunList(msgspec.Struct, kw_only=True):
    """All runs under the log folder, the newest first."""

    runs: list[RunRow]
    message: str  # what to do where there is none


class BucketLabPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The tab."""

    plugin_name = "bucketlab"

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._logdir = context.logdir
        self._lock = threading.Lock()
        self._seen = (-_FRESH_SECONDS, _Found())

    def get_plugin_apps(self) -> dict[str, _App]:
        return {
            "/index.js": _app(self._script),
            "/runs": _app(self._runs),
            "/report": _app(self._report),
            "/comparison": _app(self._comparison),
        }

    def is_active(self) -> bool:
        return bool(self._found().runs)

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="BucketLab", disable_reload=True)

    # ---- what is there ------------------------------------------------------------------------------------------

    def _found(self) -> _Found:
        with self._lock:
            at, found = self._seen
            if time.monotonic() - at >= _FRESH_SECONDS:
                found = _find(Path(self._logdir)) if self._logdir else _Found()
                self._seen = (time.monotonic(), found)
            return found

    def _list(self) -> RunList:
        rows = [_row(name, folder) for name, folder in sorted(self._found().runs.items())]
        rows.sort(key=lambda row: row.created, reverse=True)
        return RunList(runs=rows, message="" if rows else self._nothing())

    def _nothing(self) -> str:
        if not self._logdir:
            return "TensorBoard was started without --logdir, so there is no folder to look for runs in."
        if not Path(self._logdir).is_dir():
            return f"There is no folder {self._logdir}. Make a run: bucketlab profile train.py"
        return f"No profiled run in {self._logdir}. Make one: bucketlab profile --out {self._logdir} train.py"

    # ---- what is served -----------------------------------------------------------------------------------------

    def _script(self, request: Request) -> Response:
        script = resources.files(__package__).joinpath("index.js").read_bytes()
        return _answer(request, script, "text/javascript")

    def _runs(self, request: Request) -> Response:
        return _json(request, self._list())

    def _report(self, request: Request) -> Response:
        from bucketlab.report.html import render
        from bucketlab.reporting import newest_study, results_near

        found = self._asked(request, "run")
        if isinstance(found, str):
            return _text(request, found)
        try:
            profile = load_profile(found)
            study, remark = newest_study(profile, [*self._found().results, *results_near(Path(self._logdir))])
            return _page(request, render(profile, found, study, remark))
        except BucketlabError as error:
            return _text(request, str(error))

    def _comparison(self, request: Request) -> Response:
        from bucketlab.comparing import compare
        from bucketlab.report.html.comparison import render_comparison

        a, b = self._asked(request, "a"), self._asked(request, "b")
        for one in (a, b):
            if isinstance(one, str):
                return _text(request, one)
        assert isinstance(a, Path)
        assert isinstance(b, Path)
        try:
            return _page(request, render_comparison(compare(a, b), load_profile(a), load_profile(b)))
        except BucketlabError as error:
            return _text(request, str(error))

    def _asked(self, request: Request, argument: str) -> Path | str:
        """The folder of the run that the request names, or why there is none."""
        name = request.args.get(argument, "")
        folder = self._found().runs.get(name)
        return folder or f"there is no run {name!r} in the log folder (any more)"


@dataclass
class _Found:
    """What lies under a log folder."""

    runs: dict[str, Path] = field(default_factory=dict)  # folders by name
    results: list[Path] = field(default_factory=list)  # of studies


def _find(logdir: Path) -> _Found:
    found = _Found()
    for looked, (folder, below, files) in enumerate(os.walk(logdir), 1):
        path = Path(folder)
        if PROFILE in files:
            found.runs[str(path.relative_to(logdir)) if path != logdir else path.resolve().name] = path
        if RESULT in files:
            found.results.append(path / RESULT)
        if looked >= _MOST_FOLDERS:
            break
        if len(path.relative_to(logdir).parts) >= _DEEPEST:
            below.clear()
        below[:] = [one for one in below if not one.startswith(".")]
    return found


def _row(name: str, folder: Path) -> RunRow:
    try:
        profile = load_profile(folder)
    except BucketlabError as error:
        return RunRow(name=name, problem=str(error))
    breakdown = profile.breakdown
    return RunRow(
        name=name,
        created=profile.created,
        script=profile.script,
        kind=profile.kind,
        world_size=profile.world_size,
        setting=capacities_in_force(profile.modules),
        step=units.duration(profile.step.median_ns if profile.step else None),
        exposed=units.duration(breakdown.exposed_ns if breakdown else None),
        overlap_ratio=units.share(breakdown.overlap_ratio if breakdown else None, 1),
    )


def _app(serve: Callable[[Request], Response]) -> _App:
    """What answers requests, as TensorBoard's server calls it."""
    return Request.application(serve)


def _answer(request: Request, content: str | bytes, kind: str, **how: Any) -> Response:
    response: Response = http_util.Respond(request, content, kind, **how)
    return response


def _json(request: Request, value: object) -> Response:
    return _answer(request, msgspec.json.encode(value), "application/json")


def _page(request: Request, page: Page) -> Response:
    return _answer(request, page.html, "text/html", csp_scripts_sha256s=[page.script_sha256])


def _text(request: Request, message: str) -> Response:
    return _answer(request, message, "text/plain", code=404)
