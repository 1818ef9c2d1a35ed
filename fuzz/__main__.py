"""`python -m fuzz TARGET [arguments of libFuzzer]`: until it finds something or is told to stop (-max_total_time=60).

Needs atheris, which counts the lines of ours that a file reaches, and keeps files that reach new ones.
"""

from __future__ import annotations

import importlib
import random
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

from fuzz.driver import CORPUS, TARGETS, attempt, with_something_odd

_DEFAULTS = ("-timeout=20", "-rss_limit_mb=3000", "-max_len=65536")
_STAYS_JSON = 0.7  # of mutations


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m fuzz {{{','.join(TARGETS)}}} [arguments of libFuzzer]")
    name = sys.argv[1]
    with atheris.instrument_imports(include=["bucketlab"]):
        target = importlib.import_module(f"fuzz.{name}")
        with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as scratch:
            grown, seeds, work = (Path(scratch, part) for part in ("grown", "seeds", "work"))
            for folder in (grown, seeds, work):
                folder.mkdir()
            for number, seed in enumerate(target.seeds()):
                (seeds / f"{number}").write_bytes(seed)
            kept = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
            arguments = [sys.argv[0], *_DEFAULTS, *sys.argv[2:], str(grown), str(seeds), *kept]
            atheris.Setup(arguments, lambda data: attempt(target.read, data, work), custom_mutator=mutated)
            atheris.Fuzz()


def mutated(data: bytes, most: int, seed: int) -> bytes:
    chance = random.Random(seed)
    changed = with_something_odd(data, chance) if chance.random() < _STAYS_JSON else None
    if changed is not None and len(changed) <= most:
        return changed
    return bytes(atheris.Mutate(data, most))


if __name__ == "__main__":
    main()
