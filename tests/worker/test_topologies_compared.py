"""Ring and parameter server on a script's own model: volumes are the formulas', and the weights what they would be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from bucketlab.schema.profile import Profile, Topology
from bucketlab.worker.comparison import TOPOLOGIES, turns, why_not_compared
from tests.commands import SCRIPTS, bucketlab, last_line, profiled, torchrun
from tests.profile.conftest import dumped

NAMES = ["ddp", "ring", "parameter-server"]


def compared(script: str, ranks: int, folder: Path) -> Profile:
    options = ["--compare-topologies", "--keep-running", "--steps", "20", "--link-seconds", "0.5"]
    where = ["--nproc-per-node", str(ranks), "--out", str(folder / "traces")]
    return profiled(SCRIPTS / script, *options, *where, cwd=SCRIPTS, environment={"DUMP": str(folder), "STEPS": "140"})


def plain(script: str, ranks: int, folder: Path) -> dict[str, str]:
    folder.mkdir()
    torchrun(SCRIPTS / script, ranks=ranks, cwd=SCRIPTS, environment={"DUMP": str(folder), "STEPS": "140"})
    return dumped(folder)


def check_volumes(topology: Topology, ranks: int, gradient_bytes: int) -> None:
    """Each formula as the literature has it, written out here again."""
    ring = 2 * (ranks - 1) / ranks * gradient_bytes
    root = (ranks - 1) * gradient_bytes
    assert [one.rank for one in topology.volumes] == list(range(ranks))
    for one in topology.volumes:
        expected = ring if topology.name == "ring" else root if one.rank == 0 else gradient_bytes
        assert one.formula_sent_bytes == one.formula_received_bytes == round(expected)
        # The ring's parts differ by an element where a buffer cannot be cut evenly.
        uneven = 2 * ranks * 4 * 10 if topology.name == "ring" else 0
        assert one.sent_bytes == pytest.approx(expected, abs=uneven)
        assert one.received_bytes == pytest.approx(expected, abs=uneven)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_both_are_timed_and_counted_beside_ddp_and_leave_the_weights_as_they_are(ranks: int, tmp_path: Path) -> None:
    measured = tmp_path / "measured"
    measured.mkdir()
    profile = compared("plain.py", ranks, measured)
    assert [one.name for one in profile.topologies] == NAMES
    gradient_bytes = sum(one.bytes for one in profile.gradients)
    for one in profile.topologies:
        assert len(one.step.samples) + one.step.excluded == 20
        assert one.kind == "measured"
    assert profile.topologies[0].volumes == []
    for one in profile.topologies[1:]:
        check_volumes(one, ranks, gradient_bytes)
    assert not profile.missing
    assert len({json.loads(one)["sha256"] for one in dumped(measured).values()}) == 1  # all ranks hold the same weights
    losses = json.loads(dumped(measured)["rank0.json"])["losses"]
    expected = json.loads(plain("plain.py", ranks, tmp_path / "plain")["rank0.json"])["losses"]
    # Two numbers have the same sum in either order; of four the rounding differs.
    assert losses == (expected if ranks == 2 else pytest.approx(expected, rel=1e-4))


def test_two_modules_that_train_in_turns_are_compared_too(tmp_path: Path) -> None:
    measured = tmp_path / "measured"
    measured.mkdir()
    profile = compared("gan.py", 2, measured)
    assert [one.name for one in profile.topologies] == NAMES
    ring, root = profile.topologies[1:]
    for one in ring.volumes + root.volumes:
        assert one.received_bytes == one.formula_received_bytes > 0
    assert dumped(measured) == plain("gan.py", 2, tmp_path / "plain")


def test_a_hook_of_the_scripts_own_is_left_alone_and_said_so(tmp_path: Path) -> None:
    profile = compared("own_hook.py", 2, tmp_path)
    assert profile.topologies == []
    assert any(line.startswith("topologies: the script registered its own") for line in profile.missing)


def test_a_link_that_is_not_there_has_no_topologies(tmp_path: Path) -> None:
    done = bucketlab("profile", "--emulate", "ethernet", "--compare-topologies", SCRIPTS / "plain.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "--emulate" in last_line(done)


def test_gradients_that_are_not_on_the_cpu_are_refused_with_what_to_do_instead() -> None:
    reason = why_not_compared([nn.Linear(1, 1, device="meta")])  # type: ignore[list-item]  # no GPU is needed to ask
    assert reason is not None
    assert "this job's are on meta" in reason
    assert "bucketlab predict --algorithm" in reason


def test_no_topology_is_always_first() -> None:
    rounds = [turns(3)[start : start + len(TOPOLOGIES)] for start in range(0, 9, 3)]
    assert all(sorted(one) == sorted(NAMES) for one in rounds)
    assert len({one[0] for one in rounds}) == 3
