"""The command line as a user meets it: quick, clean on stdout, one line for what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bucketlab.cli import cli
from tests.commands import ROOT, bucketlab, last_line

GLOO = ROOT / "traces" / "gloo-2ranks"


@pytest.mark.parametrize("words", [["--help"], ["analyze", "--help"], ["analyze", str(GLOO), "--json"]])
def test_help_and_analyze_never_import_torch(words: list[str]) -> None:
    program = (
        f"import sys\nfrom bucketlab.cli import main\nsys.argv[1:] = {words!r}\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules and 'optuna' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(tmp_path: Path) -> None:
    done = bucketlab("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in ("profile", "analyze", "link", "doctor", "view"):
        assert f"  {command} " in done.stdout


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_takes_json(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert any("--json" in one.opts for one in command.params)


def test_analyze_prints_one_document_and_nothing_else(tmp_path: Path) -> None:
    done = bucketlab("analyze", GLOO, "--json", cwd=tmp_path)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["schema"] == "bucketlab.analysis/1"
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]


def test_analyze_merges_summaries_made_elsewhere(tmp_path: Path) -> None:
    for rank in ("rank0", "rank1"):
        (trace,) = GLOO.glob(f"{rank}.*")
        done = bucketlab("analyze", trace, "--summaries", tmp_path / "all", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        for written in (tmp_path / "all").glob("rank*.0.summary.json"):
            written.rename(tmp_path / "all" / f"{rank}.json")
    together = json.loads(bucketlab("analyze", tmp_path / "all", "--json", cwd=tmp_path).stdout)
    directly = json.loads(bucketlab("analyze", GLOO, "--json", cwd=tmp_path).stdout)
    assert together["stragglers"] == directly["stragglers"]
    assert [rank["total"] for rank in together["ranks"]] == [rank["total"] for rank in directly["ranks"]]


def test_analyze_keeps_runs_in_different_folders_apart(tmp_path: Path) -> None:
    for run in ("first", "second"):
        shutil.copytree(GLOO, tmp_path / run)
    done = bucketlab("analyze", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    once = bucketlab("analyze", GLOO, cwd=tmp_path).stdout
    assert "first" in done.stdout and "second" in done.stdout
    assert done.stdout.count("ProfilerStep#") == 2 * once.count("ProfilerStep#")
    assert "more than once" not in done.stdout + done.stderr


def test_analyze_prints_rows_for_spreadsheets(tmp_path: Path) -> None:
    done = bucketlab("analyze", GLOO, "--csv", cwd=tmp_path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["analyze"], "no trace was given"),
        (["analyze", "absent.json"], "absent.json"),
        (["analyze", "."], "no traces in this folder"),
        (["no-such-command"], "no-such-command"),
        (["view", "--out", "absent"], "there is no folder absent"),
        (["analyze", "--collectives", "absent.toml", str(GLOO)], "absent.toml"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = bucketlab(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert words in last_line(done)


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m bucketlab analyze {GLOO} --json | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""


def test_doctor_finds_this_installation_fit_for_work(tmp_path: Path) -> None:
    done = bucketlab("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)
    assert any("torch" in str(check) for check in checks)
