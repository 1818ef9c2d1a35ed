"""Which of several deaths is the cause: a rank whose peer died fails soon after, in the script's collective or ours."""

from __future__ import annotations

import signal

import pytest

from bucketlab.launch.command import Job
from bucketlab.launch.diagnose import launcher_was_killed, own_failure, why_it_failed
from bucketlab.launch.supervise import Outcome
from bucketlab.worker.progress import PHASES, Ending, Progress, RankExit

JOB = Job(("train.py",))
ARGV = ["torchrun", "train.py"]
LAUNCHER = 99
LOST = "RuntimeError: [../gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1"
IN_OURS = f"measuring failed ({LOST}); the script is not to blame"
IN_VAIN = "not every rank came to the same step within 120 s: do all of them train the same modules?"


def came(rank: int, phase: str = "tuning", steps: int = 90, pid: int | None = None) -> Progress:
    return Progress(pid or 100 + rank, rank, PHASES.index(phase), 3, 0, steps, 0)


def ending(rank: int, *, error: str | None = None, failure: str | None = None, at_ns: int = 0) -> Ending:
    told = Ending(pid=100 + rank, rank=rank, time_ns=at_ns, phase="tuning", steps=90, error=error, failure=failure)
    told.ddp_modules, told.stopped_by_us = 1, failure is not None
    return told


def outcome(
    *endings: Ending, exits: dict[int, int] | None = None, progress: list[Progress] | None = None, exit_code: int = 1
) -> Outcome:
    return Outcome(
        exit_code=exit_code,
        endings=list(endings),
        exits=[RankExit(rank=rank, pid=100 + rank, exit_code=code, time_s=0.0) for rank, code in (exits or {}).items()],
        progress=progress or [came(0), came(1)],
        launcher_pid=LAUNCHER,
    )


def why(one: Outcome, job: Job = JOB) -> str:
    return why_it_failed(one, job, ARGV, 60)


@pytest.mark.parametrize("witness", [{"error": LOST}, {"failure": IN_OURS}, {"failure": IN_VAIN}])
def test_a_rank_that_lost_another_is_never_the_cause(witness: dict[str, str]) -> None:
    other = ending(0, **witness)
    killed = outcome(other, exits={1: -signal.SIGKILL})
    assert "rank 1 of train.py was killed by SIGKILL" in why(killed) and "after step 90" in why(killed)
    raised = outcome(other, ending(1, error="ValueError: a bad sample", at_ns=1), exits={0: 1, 1: 1})
    assert "rank 1 of train.py failed after step 90 with ValueError: a bad sample" in why(raised)
    left = outcome(other, exit_code=0)
    assert "rank 1 left with exit code 0 after step 90" in why(left)
    for one in (killed, raised, left):
        assert own_failure(one) is None


def test_what_went_wrong_in_measuring_itself_comes_before_what_it_brought() -> None:
    own = ending(0, failure="cannot write x: No space left on device. Free some space or choose --out.")
    assert why(outcome(own, ending(1, failure=IN_OURS))) == own.failure
    assert own_failure(outcome(own)) == own.failure


def test_a_killed_launcher_is_named_and_not_a_rank_that_missed_its_store() -> None:
    killed = outcome(ending(0, failure="measuring failed (DistNetworkError: gone)"), exit_code=-signal.SIGKILL)
    assert launcher_was_killed(killed)
    assert "the launcher (torchrun train.py) was killed by SIGKILL" in why(killed)


def test_a_launcher_that_we_killed_or_that_is_a_rank_itself_was_not_killed_by_others() -> None:
    stalled = outcome(exit_code=-signal.SIGKILL)
    stalled.stalled = True
    assert not launcher_was_killed(stalled)
    assert not launcher_was_killed(outcome(progress=[came(0, pid=LAUNCHER), came(1)], exit_code=-signal.SIGSEGV))


def test_of_another_launcher_no_exit_code_is_claimed_to_be_known() -> None:
    told = why(outcome(ending(0, error=LOST)), Job(("mpirun", "train.py"), own_launcher=True))
    assert "rank 1 was gone after step 90" in told and "exit code" not in told


def test_a_rank_that_leaves_while_results_are_written_is_named_with_that() -> None:
    left = outcome(ending(1), progress=[came(0, "writing"), came(1, "done")], exit_code=0)
    assert "rank 0 left with exit code 0 after step 90, while results were written" in why(left)
    killed = outcome(exits={0: -signal.SIGKILL}, progress=[came(0, "writing"), came(1, "done")])
    assert "after step 90, while results were written" in why(killed)


def test_a_script_that_always_leaves_with_os_exit_is_not_taken_for_one_without_ddp() -> None:
    assert "left after 90 steps" in why(outcome(exit_code=0))
