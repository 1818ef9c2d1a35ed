"""Stored files are data: of one version, never code, and whatever they hold stays a value."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bucketlab.analysis.files import analyze_paths
from bucketlab.errors import BadInput
from bucketlab.runs import PROFILE, RUN, load_card, load_profile
from bucketlab.tune.files import RESULT, load_result
from fuzz import profile, result, run_card, summary
from tests.commands import ROOT

READERS: dict[str, tuple[str, Callable[[Path], object], bytes]] = {
    "bucketlab.profile": (PROFILE, lambda path: load_profile(path.parent), profile.seeds()[1]),
    "bucketlab.run": (RUN, lambda path: load_card(path.parent), run_card.seeds()[0]),
    "bucketlab.tuning": (RESULT, lambda path: load_result(path.parent), result.seeds()[0]),
    "bucketlab.analysis": ("rank0.0.summary.json", lambda path: analyze_paths([path]), summary.seeds()[0]),
}


@pytest.mark.fault(
    "files",
    "a file of ours of an older or newer schema",
    command="all",
    outcome="exit code 2; the line says which schema it has and which this release reads",
)
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("kind", READERS)
def test_another_version_is_refused_with_a_sentence(kind: str, version: int, tmp_path: Path) -> None:
    name, read, whole = READERS[kind]
    document = msgspec.json.decode(whole)
    assert document["schema"] == f"{kind}/1"
    read(_written(tmp_path / name, document))
    nothing: dict[str, object] = {}
    for other in (document, nothing):  # with the fields of this version, and without any of them
        with pytest.raises(BadInput) as caught:
            read(_written(tmp_path / name, {"schema": f"{kind}/{version}", **_without_schema(other)}))
        assert f"{kind}/{version}" in str(caught.value)
        assert f"this release reads {kind}/1" in str(caught.value)


def _without_schema(document: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if name != "schema"}


def _written(path: Path, document: object) -> Path:
    path.write_bytes(msgspec.json.encode(document))
    return path


# Between a command and processes that it forked itself; see the file.
PICKLES_TO_ITSELF = {"bucketlab/trace/sections.py"}


def test_nothing_that_reads_a_file_can_run_what_is_in_it() -> None:
    found = []
    for path in sorted((ROOT / "bucketlab").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                if {"pickle", "marshal", "shelve", "dill", "yaml", "runpy"} & {one.split(".")[0] for one in modules}:
                    found.append(name)
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("eval", "exec", "compile", "__import__", "torch.load", "numpy.load", "np.load"):
                    found.append(f"{name}: {called}")
    assert set(found) == PICKLES_TO_ITSELF
