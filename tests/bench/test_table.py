"""The table of benchmarks: what is compared, what is told, and that no benchmark is left out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench import __main__ as command
from bench.figures import Figure, Results, Section, Skipped, Wanted, as_markdown, slower

ROOT = Path(__file__).parents[2]
# Parts of others: they make no figures of their own.
_PARTS = {"__main__", "figures", "launching", "large", "cases"}

ratios = st.floats(0.01, 1000)


def table(**ratio_of: float) -> Results:
    """One benchmark with a figure for each name."""
    figures = [Figure(name=name, value=1.0, unit="s", ratio=ratio, over="x") for name, ratio in ratio_of.items()]
    return Results(sections={"one": section(figures)})


def section(figures: list[Figure], skipped: str | None = None) -> Section:
    return Section(
        created="", machine="", versions={"python": "3"}, load=0, seconds=1, figures=figures, skipped=skipped
    )


@given(ratios)
def test_a_ratio_a_quarter_worse_is_told_and_a_tenth_worse_is_not(ratio: float) -> None:
    assert len(slower(table(a=1.25 * ratio), table(a=ratio))) == 1
    assert not slower(table(a=1.1 * ratio), table(a=ratio))
    assert not slower(table(a=0.5 * ratio), table(a=ratio))


def test_where_more_is_better_less_is_slower() -> None:
    now, before = table(a=7.0), table(a=10.0)
    for one in (now, before):
        one.sections["one"].figures[0].better = "more"
    assert slower(now, before)
    assert not slower(before, now)


def test_absolute_times_of_two_machines_are_never_compared() -> None:
    now, before = table(a=1.0), table(a=1.0)
    now.sections["one"].figures[0].value = 100.0
    assert not slower(now, before)


def test_what_only_one_table_has_is_not_slower() -> None:
    assert not slower(table(a=9.0), table(b=1.0))
    assert not slower(Results(sections={"other": section([])}), table(a=1.0))
    other = table(a=9.0)
    other.sections["one"].figures[0].over = "y"
    assert not slower(other, table(a=1.0))


def test_a_skipped_benchmark_says_why_in_the_table() -> None:
    assert "no GPU here" in as_markdown(Results(sections={"gpu": section([], skipped="no GPU here")}))


def test_every_benchmark_of_the_folder_is_in_the_one_command() -> None:
    modules = {path.stem for path in (ROOT / "bench").glob("*.py")}
    assert modules - _PARTS == set(command.BENCHMARKS)
    for name in command.BENCHMARKS:
        assert callable(command.figures_of(name))


def test_a_run_replaces_its_own_benchmark_of_the_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures(_: Wanted) -> list[Figure]:
        return [Figure(name="new", value=3.0, unit="s", ratio=3.0, over="x")]

    out = tmp_path / "table.json"
    kept = section([Figure(name="kept", value=1.0, unit="s")])
    out.write_bytes(msgspec.json.encode(Results(sections={"traces": kept, "gpu": kept})))
    monkeypatch.setattr(command, "figures_of", lambda _: figures)
    done = CliRunner().invoke(command.main, ["--only", "gpu", "--out", str(out)])
    assert done.exit_code == 0, done.output
    stored = msgspec.json.decode(out.read_bytes(), type=Results)
    assert stored.sections["traces"] == kept
    assert [one.name for one in stored.sections["gpu"].figures] == ["new"]
    assert out.with_suffix(".md").read_text() == as_markdown(stored)


def test_rows_that_a_text_quotes_are_renewed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "README.md"
    text.write_text("# A\n\n| | | ratio |\n|---|---|---|\n| a | 9 s | old |\n| b | 2 s | of another |\n\na | b\n")
    monkeypatch.setattr(command, "figures_of", lambda _: lambda _: table(a=1.5).sections["one"].figures)
    done = CliRunner().invoke(command.main, ["--only", "gpu", "--quote", str(text)])
    assert done.exit_code == 0, done.output
    row = "| a | 1.00 s | 1.50 times x | measured, 1 |"
    assert text.read_text() == (f"# A\n\n| | | ratio |\n|---|---|---|\n{row}\n| b | 2 s | of another |\n\na | b\n")


def test_a_slower_ratio_is_a_warning_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tmp_path / "before.json"
    before.write_bytes(msgspec.json.encode(Results(sections={"gpu": table(a=1.0).sections["one"]})))
    monkeypatch.setattr(command, "figures_of", lambda _: lambda _: table(a=1.5).sections["one"].figures)
    done = CliRunner().invoke(command.main, ["--only", "gpu", "--against", str(before)])
    assert done.exit_code == 0
    assert "warning: slower" in done.output and "gpu, a: 1.50 times x, was 1.00" in done.output


def test_what_cannot_run_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def figures(_: Wanted) -> list[Figure]:
        raise Skipped("no hosts to be had")

    monkeypatch.setattr(command, "figures_of", lambda _: figures)
    done = CliRunner().invoke(command.main, ["--only", "link"])
    assert done.exit_code == 0
    assert "Skipped: no hosts to be had" in done.output


def test_a_benchmark_that_fails_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def figures_of(name: str) -> Callable[[Wanted], list[Figure]]:
        def fails(_: Wanted) -> list[Figure]:
            raise ValueError("the link is gone\nand more")

        return fails if name == "link" else lambda _: table(a=1.0).sections["one"].figures

    out = tmp_path / "table.json"
    monkeypatch.setattr(command, "figures_of", figures_of)
    done = CliRunner().invoke(command.main, ["--only", "link", "--only", "gpu", "--out", str(out)])
    assert done.exit_code == 1
    assert "Failed: ValueError: the link is gone (" in out.with_suffix(".md").read_text()
    assert msgspec.json.decode(out.read_bytes(), type=Results).sections["gpu"].figures


@pytest.mark.parametrize("text", [None, b"[]", b'{"schema": "other/1", "sections": {}}'])
def test_a_file_that_is_no_table_is_told_in_one_line(text: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    if text is not None:
        path.write_bytes(text)
    done = CliRunner().invoke(command.main, ["--only", "gpu", "--against", str(path)])
    assert done.exit_code != 0
    assert str(path) in str(done.exception)
