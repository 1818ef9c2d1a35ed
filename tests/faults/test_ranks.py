"""A rank dies or hangs, in each phase of `profile` and `tune`, in ways that processes really do."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from bucketlab.worker.progress import PHASES
from tests.commands import SCRIPTS, last_line
from tests.faults.injecting import Injection, begun, wait_until

FAULTY = SCRIPTS / "faulty.py"
LONG = {"STEPS": "100000"}
NO_RUN = "exit code 1; the last line names {}; no run is left"
AT_ONCE = "exit code 1; the last line names rank and signal; nothing is launched again"


@dataclass(frozen=True)
class Case:
    fault: str  # for the script
    phase: str  # in which it must have met it
    words: tuple[str, ...]  # of the last line


def case(what: str, names: str, fault: str, phase: str, words: tuple[str, ...]) -> object:
    mark = pytest.mark.fault("ranks", f"{what}, {phase}", command="profile", outcome=NO_RUN.format(names))
    return pytest.param(Case(fault, phase, words), id=fault, marks=mark)


WHO = "rank, signal and step"
OOM = ("rank 1", "smaller batch")
LEFT = "the rank that left, its step and the remedy"


@pytest.mark.parametrize(
    "met",
    [
        case("kill -9", WHO, "killed@3", "warm-up", ("rank 1", "SIGKILL", "after step")),
        case("`sys.exit(0)` too early", LEFT, "exits@15", "timing", ("rank 1 came to", "number of steps")),
        case("segmentation fault", WHO, "segfault@30", "tracing", ("rank 1", "SIGSEGV", "after step")),
        case("out of memory", "rank, cause and remedy", "memory@38", "ready times", OOM),
        case("`os._exit(0)`", LEFT, "leaves@60", "more timing", ("rank 1 left with exit code 0",)),
    ],
)
def test_a_rank_that_ends_too_early_is_named_and_no_run_is_left(met: Case, tmp_path: Path) -> None:
    job = begun("profile", "--steps", "60", FAULTY, cwd=tmp_path, environment={"FAULT": met.fault})
    assert _phase_at_the_end(job) == met.phase
    done = job.ended()
    assert done.returncode == 1
    for word in met.words:
        assert word in last_line(done), done.stderr[-3000:]
    assert not any(tmp_path.glob("traces/*"))


def _phase_at_the_end(job: Injection) -> str:
    wait_until(lambda: bool(job.look()) and job.process.poll() is not None)
    return PHASES[job.last[1].phase]


@pytest.mark.fault("ranks", "kill -9, link", command="profile", outcome=NO_RUN.format(WHO))
def test_a_rank_killed_while_the_link_is_measured_is_named(tmp_path: Path) -> None:
    job = begun("profile", SCRIPTS / "plain.py", cwd=tmp_path, environment=LONG)
    os.kill(job.wait_for("link")[1].pid, signal.SIGKILL)
    done = job.ended()
    assert done.returncode == 1
    assert "rank 1" in last_line(done) and "SIGKILL" in last_line(done)
    assert not any(tmp_path.glob("traces/*"))


@pytest.mark.fault("ranks", "segmentation fault, link", command="tune", outcome=AT_ONCE)
def test_a_rank_killed_before_the_first_trial_ends_the_study_at_once(tmp_path: Path) -> None:
    job = begun("tune", "--trials", "2", SCRIPTS / "plain.py", cwd=tmp_path, environment=LONG)
    os.kill(job.wait_for("link")[1].pid, signal.SIGSEGV)
    done = job.ended()
    assert done.returncode == 1
    assert "rank 1" in last_line(done) and "SIGSEGV" in last_line(done)
    assert "launched again" not in done.stderr


@pytest.mark.fault(
    "ranks",
    "a collective hangs in the search, at the same step in two launches",
    command="tune",
    outcome="exit code 1 after the second launch, with the stack of each rank; what was measured is kept",
)
@pytest.mark.long
def test_a_hang_at_the_same_step_in_two_launches_is_the_scripts(tmp_path: Path) -> None:
    environment = {**LONG, "FAULT": "hangs@90"}
    job = begun("tune", "--timeout", "3", "--trials", "9", FAULTY, cwd=tmp_path, environment=environment)
    done = job.ended()
    assert done.returncode == 1
    assert "made no step for 3 s" in last_line(done)
    assert "in two launches at the same step" in last_line(done)
    assert done.stderr.count("launched again") == 1
    assert "--- rank 1 ---" in done.stderr
