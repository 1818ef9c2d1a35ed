"""The answer to a what-if as text: all of it predicted, no figure cut short, plain characters only."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bucketlab.link.algorithms import ALGORITHMS, Fabric, Wire
from bucketlab.predict.whatif import Question, WhatIf, what_if
from bucketlab.report.whatif import print_whatif
from tests.report import profiles

RANKS = [8 * 4**power for power in range(8)]


def printed(answer: WhatIf, width: int) -> str:
    text = io.StringIO()
    print_whatif(answer, Console(file=text, width=width))
    return text.getvalue()


def everything() -> WhatIf:
    fabric = Fabric(inside=Wire(3_400, 450), between=Wire(14_000, 50))
    question = Question(ranks=RANKS, ranks_per_node=8, algorithms=list(ALGORITHMS), fabric=fabric, link_name="mine")
    return what_if(profiles.exposed(), question)


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_every_row_and_finding_is_there_uncut_at_any_width(width: int) -> None:
    answer = everything()
    text = printed(answer, width)
    assert text.isascii()
    words = text.split()
    for row in answer.rows:
        assert words.count(f"{row.ranks:,}") >= len(ALGORITHMS)
        assert row.algorithm in words
    for line in [*answer.findings, *answer.notes]:
        assert line in " ".join(words)
    assert all(line == line.rstrip() for line in text.splitlines())


def test_every_block_says_that_it_is_predicted() -> None:
    text = printed(everything(), 100)
    blocks = text.strip().split("\n\n")
    assert [block.splitlines()[0].endswith("  predicted") for block in blocks] == [True, False, True, True, True]
    assert blocks[1].startswith("  ranks")  # the table, under the heading of all


def test_one_number_of_ranks_needs_no_plot() -> None:
    text = printed(what_if(profiles.exposed(), Question()), 100)
    assert "efficiency against ranks" not in text
    assert "nccl over NVLink, as measured" in text


def test_each_algorithm_stands_in_the_plot_where_its_efficiency_is() -> None:
    answer = everything()
    lines = printed(answer, 120).splitlines()
    plot = lines[lines.index("efficiency against ranks  predicted") + 1 :][:11]
    column = {ranks: plot_column for plot_column, ranks in enumerate(RANKS)}
    cells = (max(map(len, plot)) - 8) // len(RANKS)
    for row in answer.rows:
        line = plot[10 - round(row.efficiency * 10)].ljust(200)
        mark = line[8 + (column[row.ranks] + 1) * cells - 1]
        assert mark in {
            "*",
            {"two-level": "2", "two-level-tree": "T", "in-switch": "s"}.get(row.algorithm, row.algorithm[0]),
        }
