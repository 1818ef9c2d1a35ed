"""The API reference is built, and what is public is documented."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import bucketlab

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "bucketlab").rglob("*.py"))
PUBLIC = {"bucketlab": bucketlab.__all__, "bucketlab.predict": ["predict", "unsayable"]}


def test_importing_bucketlab_gives_its_list_of_names_and_nothing_by_accident() -> None:
    program = (
        "import sys, bucketlab\n"
        "assert dir(bucketlab) == sorted(bucketlab.__all__), dir(bucketlab)\n"
        "heavy = {'torch', 'numpy', 'optuna', 'click', 'rich', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from bucketlab import *\n"
        "found = {name for name in globals() if not name.startswith('__')} - {'sys', 'bucketlab', 'heavy'}\n"
        "assert found | {'__version__'} == set(bucketlab.__all__), found\n"
        "heavy = {'torch', 'optuna', 'click', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "bucketlab" / "py.typed").is_file()


@pytest.mark.parametrize(("module", "names"), PUBLIC.items())
def test_every_public_name_says_what_it_is_for(module: str, names: list[str]) -> None:
    for name in names:
        one = getattr(importlib.import_module(module), name)
        assert isinstance(one, str) or (one.__doc__ and len(one.__doc__) > 20), name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_begins_with_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), "no docstring"


def test_the_reference_is_built_with_every_module_in_it(tmp_path: Path) -> None:
    pytest.importorskip("pdoc")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "reference.py"), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == str(tmp_path / "index.html")
    page = (tmp_path / "bucketlab.html").read_text(encoding="utf-8")
    for name in bucketlab.__all__:
        assert f'id="{name}"' in page, name
    for module in ("predict/replay", "link/algorithms", "schema/profile", "worker/session", "trace/kineto"):
        assert (tmp_path / "bucketlab" / f"{module}.html").is_file()
