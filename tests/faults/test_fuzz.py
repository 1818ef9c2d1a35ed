"""Every file that is read may hold anything: there is a result, or an error of ours in a line. See fuzz/driver.py."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.driver import CORPUS, TARGETS, attempt, with_something_odd

JSON = [name for name in TARGETS if name not in ("sweep", "nccl_log")]
ANYTHING = "exit code 2 and one line that names file and cause, or a result; bounded time and memory"
COMMANDS = {
    "trace": "analyze",
    "summary": "analyze",
    "profile": "report",
    "run_card": "tune",
    "result": "tune",
    "sweep": "tune",
    "nccl_log": "profile",
}
in_a_folder = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def each(names: list[str], what: str) -> pytest.MarkDecorator:
    marked = [
        pytest.param(
            name,
            marks=pytest.mark.fault(
                "files", f"{what}: {name.replace('_', ' ')}", command=COMMANDS[name], outcome=ANYTHING
            ),
        )
        for name in names
    ]
    return pytest.mark.parametrize("name", marked)


@pytest.mark.parametrize("name", TARGETS)
def test_a_whole_file_is_read(name: str, tmp_path: Path) -> None:
    target = importlib.import_module(f"fuzz.{name}")
    assert attempt(target.read, target.seeds()[0], tmp_path) is None or name == "profile"  # it holds nothing


@pytest.mark.parametrize("name", TARGETS)
def test_what_fuzzing_found_stays_mended(name: str, tmp_path: Path) -> None:
    target = importlib.import_module(f"fuzz.{name}")
    for find in sorted((CORPUS / name).glob("*")):
        attempt(target.read, find.read_bytes(), tmp_path)


@each(JSON, "a value that is odd, doubled or gone")
@in_a_folder
@given(number=st.integers(0, 10), seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4))
def test_an_odd_value_anywhere_gives_a_result_or_one_line(
    name: str, number: int, seeds: list[int], tmp_path: Path
) -> None:
    target = importlib.import_module(f"fuzz.{name}")
    whole = [one for one in target.seeds() if one.startswith(b"{")]
    data = whole[number % len(whole)]
    for seed in seeds:
        data = with_something_odd(data, random.Random(seed)) or data
    attempt(target.read, data, tmp_path)


@each(TARGETS, "bytes changed, cut off or put in")
@in_a_folder
@given(
    number=st.integers(0, 10),
    at=st.floats(0, 1),
    put=st.binary(max_size=8),
    gone=st.integers(0, 64),
    cut=st.booleans(),
)
def test_changed_bytes_give_a_result_or_one_line(
    name: str, number: int, at: float, put: bytes, gone: int, cut: bool, tmp_path: Path
) -> None:
    target = importlib.import_module(f"fuzz.{name}")
    whole = target.seeds()
    data = whole[number % len(whole)]
    place = int(at * len(data))
    attempt(target.read, data[:place] + put + (b"" if cut else data[place + gone :]), tmp_path)
