"""What fuzzing and tests share: what counts as a find, and mutations that keep JSON being JSON.

A target is a file that says how to read some bytes (`read`) and what whole files look like (`seeds`). `read` may end
with an error of ours, whose text must be a line or few; anything else is a find. Finds are kept in `corpus/<target>/`,
which `tests/faults/test_fuzz.py` reads on every run of the tests, without atheris.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bucketlab.errors import BucketlabError

Read = Callable[[bytes, Path], None]

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "fuzz" / "corpus"
TARGETS = sorted({path.stem for path in (ROOT / "fuzz").glob("*.py")} - {"driver", "__main__"})
_ODD: tuple[Any, ...] = (None, True, 0, -1, 1, 2**31, 2**63, -(2**63), 10**40, 0.0, -0.5, 1e308, "", "\u202e", [], {})
_MOST_LINES, _LONGEST_LINE = 30, 1000


def attempt(read: Read, data: bytes, folder: Path) -> str | None:
    """Reads; the message of an error of ours, None where there was none."""
    try:
        read(data, folder)
    except BucketlabError as error:
        message = str(error)
        assert message.strip(), "an error without a word"
        lines = message.splitlines()
        assert len(lines) <= _MOST_LINES, f"{len(lines)} lines"
        assert all(len(line) <= _LONGEST_LINE for line in lines), f"a line of {max(map(len, lines))} characters"
        return message
    return None


def with_something_odd(data: bytes, chance: random.Random) -> bytes | None:
    """The same JSON document with one of its values changed, doubled or gone; None where it is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(document, []))
    if not places:
        return None
    holder, key = chance.choice(places)
    action = chance.randrange(4)
    if action == 0:
        holder.pop(key)
    elif action == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif action == 2:
        other, of_it = chance.choice(places)
        holder[key] = other[of_it]
    else:
        holder[key] = chance.choice(_ODD)
    try:
        return json.dumps(document).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # put into itself
        return None


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in list(parts):
        found.append((value, key))
        _places(one, found)
    return found
