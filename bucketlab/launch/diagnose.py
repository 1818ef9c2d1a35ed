"""Why a job gave nothing to report: one line for the user, made of what was seen of its processes."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from bucketlab.launch.command import Job, described
from bucketlab.launch.supervise import Outcome
from bucketlab.worker.progress import NOT_EVERY_RANK_CAME, PHASES, Ending, Progress, RankExit

_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError", "CUDA out of memory", "can't allocate memory")
_PORT_IN_USE = ("EADDRINUSE", "Address already in use", "address already in use")
# A rank whose peer died fails in its collective soon after, the script's or ours, or waits for it in vain; that is a
# consequence, not the cause.
_OF_A_LOST_PEER = (
    "DistBackendError",
    "Connection closed by peer",
    "Connection reset by peer",
    "DistNetworkError",
    NOT_EVERY_RANK_CAME,
)

_DOING = {"link": "the link was measured", "writing": "results were written"}  # what is ours, by phase


def why_it_failed(outcome: Outcome, job: Job, argv: Sequence[str], timeout_seconds: float) -> str:
    """One line: what happened, where, and what to do."""
    if outcome.interrupted:
        return f"interrupted: {job.script} was stopped."
    ours = own_failure(outcome)
    if ours:
        return ours
    if outcome.stalled:
        return _stall(outcome, job, timeout_seconds)
    return (
        _script_error(outcome, job)
        or _launcher_killed(outcome, argv)
        or _rank_exit(silent_exits(outcome), outcome, job)
        or _lost_rank(outcome, job)
        or _rank_exit(outcome.exits, outcome, job)
        or _nothing_to_measure(outcome, job, argv)
    )


def own_failure(outcome: Outcome) -> str | None:
    """Why measuring failed, where that was not because another rank was gone; another launch would meet it again."""
    return next((one.failure for one in outcome.endings if one.failure and not lost_a_peer(one)), None)


def script_error(outcome: Outcome) -> Ending | None:
    """The rank whose exception came first, of those that failed for a reason of their own."""
    return next((one for one in outcome.endings if one.error and not _has(one.error, _OF_A_LOST_PEER)), None)


def silent_exits(outcome: Outcome) -> list[RankExit]:
    """Ranks that failed without an exception of their own; torchrun's SIGTERM to the rest is no cause."""
    spoke = {one.rank for one in outcome.endings if one.error}
    return [one for one in outcome.exits if one.rank not in spoke and one.exit_code != -signal.SIGTERM]


def launcher_was_killed(outcome: Outcome) -> bool:
    """Whether the launcher itself died of a signal that is not ours, and is no rank; ranks and buckets are innocent."""
    ours = outcome.interrupted or outcome.stalled or outcome.stopped
    is_rank = outcome.launcher_pid in {one.pid for one in outcome.progress if one.rank >= 0}
    return outcome.exit_code < 0 and not ours and not is_rank


def lost_a_peer(one: Ending) -> bool:
    """Whether measuring failed in this rank because another was gone."""
    return _has(one.failure, _OF_A_LOST_PEER)


def _stall(outcome: Outcome, job: Job, timeout_seconds: float) -> str:
    steps = min((one.steps for one in outcome.progress if one.rank >= 0), default=0)
    where = f"after step {steps}" if steps else "before its first step"
    return (
        f"{job.script} made no step for {timeout_seconds:g} s {where} and was stopped; "
        f"the stack of each rank is above. {_why_it_may_wait(outcome, job)}"
    )


def _why_it_may_wait(outcome: Outcome, job: Job) -> str:
    early = _left_early(outcome, job)
    if early is not None:
        return f"{early[0].upper()}{early[1:]}: the others wait for it. Give all ranks the same number of steps."
    elsewhere = dict(job.options).get("nnodes", "1") != "1"
    see = " See whether the nodes still reach each other, and what the others' output says." if elsewhere else ""
    return f"If its steps are that slow, raise --timeout.{see}"


def _script_error(outcome: Outcome, job: Job) -> str | None:
    first = script_error(outcome)
    return None if first is None else _failed_with(first, job)


def _failed_with(first: Ending, job: Job) -> str:
    assert first.error is not None
    if _has(first.error, _PORT_IN_USE):
        return f"the port that {job.script} meets at is in use ({_short(first.error)}). Choose another --master-port."
    who = f"rank {first.rank} of {job.script}" if first.rank >= 0 else job.script
    return f"{who} failed {_when(first)} with {_short(first.error)}; its traceback is above.{_remedy(first.error)}"


def _launcher_killed(outcome: Outcome, argv: Sequence[str]) -> str | None:
    if not launcher_was_killed(outcome):
        return None
    return f"the launcher ({described(argv)}) {_manner(outcome.exit_code)}; the ranks that it left were stopped."


def _rank_exit(exits: Sequence[RankExit], outcome: Outcome, job: Job) -> str | None:
    if not exits:
        return None
    first = min(exits, key=lambda one: one.time_s)
    last = next((one for one in outcome.progress if one.rank == first.rank), None)
    when = f" after step {last.steps}{_while_ours(last)}" if last is not None else ""
    who = f"rank {first.rank} of {job.script}"
    return f"{who} {_manner(first.exit_code)}{when}, without a Python exception; the others were stopped."


def _lost_rank(outcome: Outcome, job: Job) -> str | None:
    """Of ranks that only know that another is gone: which one that is, as far as can be told."""
    witness = next((one for one in outcome.endings if one.error or one.failure), None)
    silent = _silent(outcome)
    if silent is not None and _while_ours(silent):
        return f"{job.script}: {_left_silently(silent, job)}."
    if witness is None:
        return None
    early = _left_early(outcome, job)
    if early is not None:
        return f"{job.script}: {early}, while others trained on. Give all ranks the same number of steps."
    return witness.failure or _failed_with(witness, job)


def _left_early(outcome: Outcome, job: Job) -> str | None:
    """The rank that ended as if all was well, before the others missed it; torchrun calls exit code 0 a success."""
    missed_ns = min((one.time_ns for one in outcome.endings if one.error or one.failure), default=None)
    for one in outcome.endings:
        before = missed_ns is None or one.time_ns < missed_ns
        if one.error is None and one.failure is None and one.ddp_modules and not one.stopped_by_us and before:
            return f"rank {one.rank} came to the end of its script {_when(one)}"
    silent = _silent(outcome)
    return None if silent is None else _left_silently(silent, job)


def _silent(outcome: Outcome) -> Progress | None:
    """The one rank that has left no word of its end, where it is only one."""
    told = {one.pid for one in outcome.endings} | {one.pid for one in outcome.exits}
    silent = [one for one in outcome.progress if one.rank >= 0 and one.pid not in told]
    # One that torchrun stopped has said nothing either; it is named only if it alone is missing.
    return silent[0] if len(silent) == 1 and not outcome.stalled else None


def _left_silently(silent: Progress, job: Job) -> str:
    when = f"after step {silent.steps}{_while_ours(silent)}"
    if job.own_launcher:  # which may have told its exit code, or not
        return f"rank {silent.rank} was gone {when}, without a word"
    return f"rank {silent.rank} left with exit code 0 {when}, as os._exit(0) does"


def _while_ours(last: Progress) -> str:
    doing = _DOING.get(PHASES[last.phase])
    return f", while {doing}" if doing else ""


def _manner(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    hint = " (often the system's out-of-memory killer)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _nothing_to_measure(outcome: Outcome, job: Job, argv: Sequence[str]) -> str:
    if outcome.exit_code:
        return f"{described(argv)} {_manner(outcome.exit_code)}; what it printed is above."
    trained = [one for one in outcome.endings if one.ddp_modules or one.optimizer_steps or one.saw]
    silent = max((one.steps for one in outcome.progress), default=0)
    if not trained and silent:
        return (
            f"{job.script} left after {silent} steps, as os._exit(0) does, before they could be reported. Train longer."
        )
    if not trained:
        return (
            f"{job.script} ended without training anything that bucketlab could see: "
            "no DistributedDataParallel was built. Interpreters started with -I or -E cannot be followed."
        )
    if not any(one.ddp_modules for one in trained):
        seen = sorted({name for one in trained for name in one.saw})
        instead = f"it uses {' and '.join(seen)}" if seen else "it trains a plain model"
        return (
            f"{job.script} never built a DistributedDataParallel module: {instead}. "
            "Wrap the model in torch.nn.parallel.DistributedDataParallel to have buckets to look at."
        )
    if not any(one.optimizer_steps for one in trained):
        return f"{job.script} built a DistributedDataParallel module, but no optimizer ever stepped its parameters."
    most = max(one.steps for one in trained)
    return f"{job.script} ended after {most} steps, before any could be timed. Train for 10 steps or more."


def _when(ending: Ending) -> str:
    return f"after step {ending.steps}" if ending.steps else "before its first step"


def _remedy(error: str) -> str:
    return " It is out of memory: try a smaller batch." if _has(error, _OUT_OF_MEMORY) else ""


def _short(error: str) -> str:
    return error if len(error) <= 160 else f"{error[:157]}..."


def _has(text: str | None, words: Sequence[str]) -> bool:
    return text is not None and any(word in text for word in words)
