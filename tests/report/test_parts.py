"""A step's parts: they exclude one another and add up, whatever medians are put into them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.analysis.foreign import profile_of_traces
from bucketlab.report.parts import REST, parts_of
from bucketlab.schema.profile import Breakdown
from tests.report import profiles

_TIMES = st.integers(0, 10**10)
_OWN_TRACES = Path(__file__).parents[2] / "traces" / "gloo-2ranks"


def _breakdown(**times: int) -> Breakdown:
    return Breakdown(**{**dict.fromkeys(Breakdown.__struct_fields__, 0), **times})


@given(st.builds(_breakdown, **dict.fromkeys(("compute_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns"), _TIMES)))
def test_a_step_without_length_has_no_parts(step: Breakdown) -> None:
    assert parts_of(step) == []


@given(
    st.builds(_breakdown, **dict.fromkeys(Breakdown.__struct_fields__, _TIMES)),
    st.integers(1, 10**10),
)
def test_parts_add_up_to_the_step_in_time_and_in_per_cent(medians: Breakdown, wall_ns: int) -> None:
    parts = parts_of(msgspec.structs.replace(medians, wall_ns=wall_ns))
    assert sum(one.ns for one in parts) == wall_ns
    assert sum(one.tenths for one in parts) == 1000
    assert all(abs(one.tenths - 1000 * one.ns / wall_ns) <= 1 for one in parts)
    assert len({one.name for one in parts}) == len(parts)


def test_copies_beside_kernels_count_once() -> None:
    step = _breakdown(wall_ns=100, compute_ns=60, exposed_ns=10, memory_ns=25, busy_ns=80, idle_ns=20)
    assert {one.name: one.ns for one in parts_of(step)} == {
        "compute alone": 60,
        "exposed": 10,
        "copies alone": 10,
        "idle": 20,
    }


def test_one_step_alone_has_no_rest() -> None:
    breakdown = profiles.exposed().breakdown
    assert breakdown is not None
    assert REST not in {one.name for one in parts_of(breakdown)}


def test_work_that_runs_on_into_the_next_step_is_the_rest() -> None:
    breakdown = profile_of_traces(_OWN_TRACES).breakdown
    assert breakdown is not None
    [rest] = [one for one in parts_of(breakdown) if one.name == REST]
    assert rest.ns == breakdown.wall_ns - breakdown.compute_ns - breakdown.exposed_ns - breakdown.idle_ns != 0
