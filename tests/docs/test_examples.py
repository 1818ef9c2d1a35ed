"""The examples of README and docs: those marked are run, and of all others the commands and options must exist."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bench.__main__ import main as bench
from bench.figures import as_markdown, load
from bucketlab.cli import cli
from bucketlab.commands import link
from bucketlab.commands.common import LaunchCommand
from bucketlab.link.sweep import read_sweep
from bucketlab.trace.classify import Rules
from tests.docs.blocks import PAGES, ROOT, Block, blocks, commands, inline_commands

RUN = [block for block in blocks() if block.mark == "run"]


def parse(words: list[str]) -> None:
    """As click would, up to the point at which the command would do something."""
    if words[0] == "-m":
        _parse_bench(words)
        return
    if len(words) == 1:
        return
    name, *rest = words[1:]
    if name.startswith("-"):
        cli.make_context("bucketlab", [name], resilient_parsing=True)
        return
    context = click.Context(cli, info_name="bucketlab")
    command = cli.get_command(context, name)
    assert command is not None, f"there is no command {name}"
    if name == "link" and rest[:1] == ["testbed"]:
        command, rest = link.testbed, rest[1:]
    if {"--help", "-h"} & set(rest[:1]):
        return
    made = command.make_context(name, rest, parent=context)
    if isinstance(command, LaunchCommand) and made.params["target"]:
        assert not made.params["target"][0].startswith("-"), f"{made.params['target'][0]} is no option of {name}"


def _parse_bench(words: list[str]) -> None:
    module = words[1]
    if module == "bench":
        bench.make_context("bench", words[2:], resilient_parsing="--help" in words)
        return
    assert importlib.util.find_spec(module) is not None, f"there is no {module}"


def test_the_pages_hold_examples() -> None:
    assert len(commands()) > 20
    assert len(RUN) >= 3


@pytest.mark.parametrize(("place", "words"), commands(), ids=lambda one: one if isinstance(one, str) else None)
def test_a_command_in_a_block_exists_with_its_options(place: str, words: list[str]) -> None:
    parse(words)


@pytest.mark.parametrize(("place", "words"), inline_commands(), ids=lambda one: one if isinstance(one, str) else None)
def test_a_command_in_the_text_exists_with_its_options(place: str, words: list[str]) -> None:
    if any(word.isupper() or "..." in word for word in words):
        words = [word for word in words[:2] if not word.isupper()]  # a form, not an example
    with contextlib.suppress(click.MissingParameter):  # "`bucketlab compare`" names the command
        parse(words)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout as a reader has it, whose files the examples may add to."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("bucketlab", "bench", "sweeps", "docs"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "traces" / "gloo-2ranks", folder / "traces" / "gloo-2ranks")
    return folder


@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_marked_example_runs(block: Block, place: Path) -> None:
    shell = ["bash", "-euo", "pipefail", "-c", 'bucketlab() { "$PYTHON" -m bucketlab "$@"; }\n' + block.code]
    command = shell if block.language == "sh" else [sys.executable, "-c", block.code]
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{block}:\n{done.stderr[-2000:]}"
    assert done.stdout.strip()


@pytest.mark.parametrize("block", [one for one in blocks() if one.language == "toml"], ids=str)
def test_a_file_on_a_page_can_be_read(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text(block.code, encoding="utf-8")
    assert Rules.from_toml(file) if "[kernels]" in block.code else read_sweep(file)


def test_links_between_pages_lead_somewhere() -> None:
    missing = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            if "://" not in target and not (there.exists() and (not anchor or anchor in _anchors(there))):
                missing.append(f"{page.relative_to(ROOT)} -> {target}#{anchor}")
    assert not missing


def _anchors(page: Path) -> list[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]


def test_figures_in_the_readme_are_rows_of_the_stored_table() -> None:
    results = load(ROOT / "bench" / "results.json")
    assert (ROOT / "bench" / "results.md").read_text(encoding="utf-8") == as_markdown(results)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = [line for line in readme.partition("## Figures")[2].partition("\n## ")[0].splitlines() if line[:2] == "| "]
    rows = as_markdown(results).splitlines()
    assert len(quoted) > 5
    assert not [line for line in quoted if line not in rows]
