"""Code blocks of the documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "bench" / "README.md"]

_BLOCK = re.compile(r"^(?:<!-- (?P<mark>\w+) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:bucketlab|python -m bench)[^`\n]*)`")
# Programs whose command line goes on as long as a word is none of these.
_ENDS = {"&&", "|", ";", "||", ">", "2>"}


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    code: str
    mark: str | None  # of a comment before it: "run" to have it executed

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    """Of all pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            line = text[: match.start()].count("\n") + 1
            name = str(page.relative_to(ROOT))
            found.append(Block(name, line, match["language"], match["code"], match["mark"]))
    return found


def commands() -> list[tuple[str, list[str]]]:
    """Where each stands, and its words, of all `bucketlab ...` and `python -m bench...` in shell and YAML blocks."""
    found = []
    for block in blocks():
        if block.language in ("sh", "yaml"):
            code = re.sub(r"\n\s+--", " --", block.code)  # folded lines of YAML
            for line in code.replace("\\\n", " ").splitlines():
                found += [(f"{block}", words) for words in _commands_of(line)]
    return found


def inline_commands() -> list[tuple[str, list[str]]]:
    """Those that stand in running text, in backticks."""
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for match in _INLINE.finditer(text):
            found += [(str(page.relative_to(ROOT)), words) for words in _commands_of(match[1])]
    return found


def _commands_of(line: str) -> Iterator[list[str]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # prose, or one line of a longer quotation
        return
    for word in words:
        if " " in word and "bucketlab " in word:
            yield from _commands_of(word)
    at = 0
    while at < len(words):
        if words[at] == "bucketlab" or words[at : at + 2] == ["-m", "bench"] or _is_bench_module(words, at):
            end = next((i for i in range(at, len(words)) if words[i] in _ENDS), len(words))
            yield words[at:end]
            at = end
        at += 1


def _is_bench_module(words: list[str], at: int) -> bool:
    return words[at] == "-m" and at + 1 < len(words) and words[at + 1].startswith("bench.")
