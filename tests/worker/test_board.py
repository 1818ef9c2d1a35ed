"""What ranks write down in shared memory, each reads as the others meant it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.worker.board import SLOTS, Board, Slot


def boards(ranks: int) -> list[Board]:
    times = np.zeros((ranks, SLOTS), dtype=np.int64)
    return [Board(times, rank) for rank in range(ranks)]


@given(st.lists(st.integers(2, 2**62), min_size=1, max_size=5))
def test_a_bucket_is_ready_when_the_last_rank_has_written_and_not_before(times_ns: list[int]) -> None:
    every = boards(len(times_ns))
    slots: list[Slot] = []
    for board, ready_ns in zip(every, times_ns, strict=True):
        assert all(board.latest(slot) is None for slot in slots)
        slots.append(board.write(ready_ns))
    for board, slot in zip(every, slots, strict=True):
        assert board.latest(slot) == max(one.ready_ns for one in slots)
    assert [slot.ready_ns // 2 for slot in slots] == [ready_ns // 2 for ready_ns in times_ns]


def test_a_slot_of_the_lap_before_is_not_taken_for_this_ones() -> None:
    ahead, behind = boards(2)
    for number in range(3 * SLOTS):
        slot = ahead.write(10**12 + number)
        assert behind.latest(slot) is None
        assert ahead.latest(slot) is None
        assert behind.write(5).number == number
        assert ahead.latest(slot) == slot.ready_ns
