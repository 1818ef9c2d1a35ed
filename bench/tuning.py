"""What tuning finds and costs, on links of several rates between two hosts made of network namespaces.

    python -m bench.tuning measure FOLDER [--mbit-per-s 1000 4000] [--models transformer convnet wide] [--no-prediction]
    python -m bench.tuning report FOLDER

Needs root on Linux. One job runs under `bucketlab run --autotune --trials 40`; then the same processes train on with
every layout that the study tried, in place, in rounds, each in another order. A layout leaves once it is worse than
the best by more than 1 % and two standard errors; the one that the study recommends stays. That goes on until each
difference of those that stay is known to a standard error of 0.3 %, or the time is up. This is the grid which the
setting found is held against: the tuner's own samples say nothing about how good its choice was. Nor does a grid that
the time allowed only a few rounds: of many layouts its best is the luckiest.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.prediction import STEADY_HEAP, job_of
from bucketlab.link.testbed import INTERFACE, network, reason_unavailable
from bucketlab.schema.tuning import Candidate, Tuning
from bucketlab.tune.files import RESULT
from bucketlab.tune.pairs import Times, center_of, deviation_of, log_gain, share_of

_ROOT = Path(__file__).parents[1]
RATES_MBIT = (1000, 4000)
MODELS = ("transformer", "convnet", "wide")
SMALL = tuple(f"small-{one}" for one in MODELS)  # of a sixth, whose steps are so short that a grid gets many rounds
_TRIALS = 40
_SETTLING_STEPS, _TIMED_STEPS, _TIMED_STEPS_OF_FEW = 3, 4, 12
_ALL_ROUNDS = 3
_FEW = 12  # layouts, or fewer
_NEAR = 0.01
_CLEARLY = 2.0  # standard errors
_KNOWN = 0.003
_GRID_SECONDS = 300
_FEWEST_ROUNDS = 6  # of the grid, for a best to speak of
LAUNCHES = 40


class Arm(msgspec.Struct, kw_only=True):
    """One layout of the grid."""

    candidate: Candidate
    bucket_bytes: list[int]
    step_ns: list[list[int]] = []  # of each round, each timed step's slowest rank
    untouched_ns: list[list[int]] = []  # of the same steps, what was not the backward pass

    def blocks(self) -> list[Times]:
        untouched = self.untouched_ns or [[]] * len(self.step_ns)
        return [Times(*one) for one in zip(self.step_ns, untouched, strict=True)]


class Case(msgspec.Struct, kw_only=True):
    """One model on one link."""

    model: str
    mbit_per_s: int
    predicted: bool
    tuning: Tuning
    tuning_seconds: float  # of the launch, until the setting was found
    launch_seconds: float  # of one launch of the script that makes a fortieth of the study's steps
    grid: list[Arm]
    search_seconds: float | None = None  # of the launch, until the last trial was measured
    search_launch_seconds: float | None = None  # of one launch that makes one trial's share of the steps until then

    def search_steps(self) -> int:
        return max((one.after_steps or 0 for one in self.tuning.trials), default=0)


# ---- measuring --------------------------------------------------------------------------------------------------


def measure(folder: Path, rates: list[int], models: list[str], predicted: bool, seconds: int = _GRID_SECONDS) -> None:
    if (reason := reason_unavailable()) is not None:
        sys.exit(f"no hosts to be had: {reason}")
    folder.mkdir(parents=True, exist_ok=True)
    for rate in rates:
        for model in models:
            name = f"{model}-{rate}" + ("" if predicted else "-no-prediction")
            _run(folder / name, model, rate, predicted, seconds)
            print(_line(_case(folder / name)), flush=True)


def _run(folder: Path, model: str, rate_mbit: int, predicted: bool, seconds: int) -> None:
    folder.mkdir()
    script = ["-m", "bench.tuning", "train", str(folder.resolve()), "--models", model, "--grid-seconds", str(seconds)]
    options = ["--trials", str(_TRIALS), "--study", "bench", *([] if predicted else ["--no-prediction"])]
    with network(2, mbit_per_s=rate_mbit) as hosts:
        began = time.time()
        autotune = ["bucketlab", "run", "--autotune", *options]
        _launch(folder, hosts, lambda host: [*autotune, "--out", str(folder / host)], script)
        study = folder / hosts[0].name / "bench"
        tuning = msgspec.json.decode((study / RESULT).read_bytes(), type=Tuning)
        case = Case(
            model=model,
            mbit_per_s=rate_mbit,
            predicted=predicted,
            tuning=tuning,
            tuning_seconds=(study / RESULT).stat().st_mtime - began,
            launch_seconds=0.0,
            grid=msgspec.json.decode((folder / "grid.json").read_bytes(), type=list[Arm]),
            search_seconds=_last_trial_at(study / "study.db") - began,
        )

        def launch_of(steps: int) -> float:
            launched = time.time()
            _launch(folder, hosts, lambda host: ["torch.distributed.run"], [*script, "--steps", str(max(1, steps))])
            return time.time() - launched

        case.launch_seconds = launch_of(tuning.steps // LAUNCHES)
        case.search_launch_seconds = launch_of(case.search_steps() // len(tuning.trials))
    (folder / "case.json").write_bytes(msgspec.json.encode(case))


def _last_trial_at(database: Path) -> float:
    """Seconds since the epoch at which the last trial was complete."""
    import optuna

    study = optuna.load_study(study_name=None, storage=f"sqlite:///{database}")
    return max(trial.datetime_complete.timestamp() for trial in study.trials if trial.datetime_complete)


def _launch(folder: Path, hosts: Any, command: Any, script: list[str]) -> None:
    nodes = []
    for index, host in enumerate(hosts):
        argv = [
            *(sys.executable, "-m", *command(host.name)),
            *("--nnodes", "2", "--node-rank", str(index), "--nproc-per-node", "1"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:29500", "--rdzv-id", "bench"),
            *script,
        ]
        threads = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}
        environment = {**os.environ, **STEADY_HEAP, **threads}
        log = (folder / f"{host.name}.log").open("a")
        nodes.append(host.popen(argv, env=environment, stdout=log, stderr=subprocess.STDOUT))
    codes = [node.wait(timeout=1800) for node in nodes]
    if any(codes):
        sys.exit(f"a launch failed; see {folder}")


def train(folder: Path, name: str, steps: int | None, seconds: int) -> None:
    """What each rank does: a plain training script; once it has been tuned, the grid."""
    import torch
    import torch.distributed as dist

    from bucketlab.worker.setting import InPlace

    dist.init_process_group("gloo")
    model, step = job_of(name)
    if steps is not None:
        for _ in range(steps):
            step()
        dist.destroy_process_group()
        return

    def rank_0(value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    while not rank_0(bool(_results(folder))):
        for _ in range(10):
            step()
    settings = InPlace([model])
    arms: list[Arm] = rank_0(_arms(folder) if dist.get_rank() == 0 else None)
    chosen = rank_0(_index_of_chosen(arms, _tuning(folder)) if dist.get_rank() == 0 else None)
    order = random.Random(name)
    staying = list(range(len(arms)))
    began = time.monotonic()
    while not rank_0(time.monotonic() - began > seconds):
        if len(arms[chosen].step_ns) >= _ALL_ROUNDS:
            grid = _Grid(arms, chosen)
            staying = rank_0(grid.near())
            if len(arms[chosen].step_ns) >= _FEWEST_ROUNDS and rank_0(grid.is_known()):
                break
        timed_steps = _TIMED_STEPS_OF_FEW if len(staying) <= _FEW else _TIMED_STEPS
        in_turn = [arms[one] for one in staying]
        order.shuffle(in_turn)
        for arm in in_turn:
            settings.apply(arm.candidate)
            for _ in range(_SETTLING_STEPS):
                step()
            walls, untouched = [], []
            for _ in range(timed_steps):
                began_ns = time.perf_counter_ns()
                untouched.append(step())
                walls.append(time.perf_counter_ns() - began_ns)
            slowest = torch.tensor([walls, untouched])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            for values, of_block in zip((arm.step_ns, arm.untouched_ns), slowest.tolist(), strict=True):
                values.append(of_block)
    if dist.get_rank() == 0:
        (folder / "grid.json").write_bytes(msgspec.json.encode(arms))
    dist.barrier()
    dist.destroy_process_group()


def _results(folder: Path) -> list[Path]:
    return list(folder.glob(f"*/bench/{RESULT}"))


def _tuning(folder: Path) -> Tuning:
    return msgspec.json.decode(_results(folder)[0].read_bytes(), type=Tuning)


def _arms(folder: Path) -> list[Arm]:
    """Each layout that the study tried, once."""
    arms: dict[tuple[int, ...], Arm] = {}
    for trial in _tuning(folder).trials:
        assert trial.setting is not None
        if trial.state == "complete":
            # The current setting in words of its own, too: what is in force by now may be what the study found.
            arm = Arm(candidate=trial.setting.candidate(), bucket_bytes=trial.bucket_bytes)
            arms.setdefault(tuple(trial.bucket_bytes), arm)
    return list(arms.values())


def _index_of_chosen(arms: list[Arm], tuning: Tuning) -> int:
    chosen = tuning.best if tuning.significant else tuning.baseline
    return next(number for number, one in enumerate(arms) if one.bucket_bytes == chosen.bucket_bytes)


class _Grid:
    """What the rounds so far say; all differences with one share of the untouched work, see `bucketlab.tune.pairs`."""

    def __init__(self, arms: list[Arm], chosen: int) -> None:
        self.arms, self.chosen = arms, chosen
        self._blocks = [arm.blocks() for arm in arms]
        self._share = share_of(self._blocks)
        self.rounds = len(self._blocks[chosen])
        self._still = [one for one, blocks in enumerate(self._blocks) if len(blocks) == self.rounds]
        self.best = self._best(range(self.rounds))
        # A layout's own few differences may happen to lie close together.
        spread = [deviation_of(self._all(one, chosen)) for one in range(len(arms)) if one != chosen]
        self._usual = statistics.median(spread) if spread else 0.0

    def _best(self, rounds: Sequence[int]) -> int:
        """Of the arms that are still there."""
        return min(self._still, key=lambda one: center_of(self._differences(one, self.chosen, rounds)))

    def _differences(self, arm: int, other: int, rounds: Iterable[int]) -> list[float]:
        """In each of these rounds that both ran.

        A layout that left does not come back, so a list's index is the round, and what slowed all of a round drops out.
        """
        one, two = self._blocks[arm], self._blocks[other]
        both = min(len(one), len(two))
        return [log_gain([one[at]], two[at], self._share) for at in rounds if at < both]

    def longer(self, arm: int, other: int) -> tuple[float, float]:
        """By which part a step of one arm is longer, and the standard error of that."""
        of_rounds = self._all(arm, other)
        deviation = 0.0 if arm == other else max(self._usual, deviation_of(of_rounds))
        return center_of(of_rounds), deviation / math.sqrt(max(1, len(of_rounds) - 1))

    def _all(self, arm: int, other: int) -> list[float]:
        return self._differences(arm, other, range(self.rounds))

    def near(self) -> list[int]:
        """Which arms stay."""
        stay = []
        for one in self._still:
            longer, error = self.longer(one, self.best)
            if one == self.chosen or longer - _CLEARLY * error <= _NEAR:
                stay.append(one)
        return stay

    def is_known(self) -> bool:
        return all(self.longer(one, self.chosen)[1] <= _KNOWN for one in self.near())

    def loss(self) -> tuple[float, float]:
        """By which part the chosen arm's step is longer than the best one's, and the standard error of that.

        The best of one half of the rounds is held against it in the other half, and the other way round: in the rounds
        that made it the best of many it was lucky, too. There must be two of them.
        """
        even, odd = range(0, self.rounds, 2), range(1, self.rounds, 2)
        found = [(self._best(even), odd), (self._best(odd), even)]
        longer = [center_of(self._differences(self.chosen, best, judged_in)) for best, judged_in in found]
        return statistics.mean(longer), max(self.longer(self.chosen, best)[1] for best, _ in found)


# ---- reporting --------------------------------------------------------------------------------------------------


def report(folder: Path) -> None:
    cases = [_case(path.parent) for path in sorted(folder.glob("*/case.json"))]
    if not cases:
        sys.exit(f"{folder} holds no case.json: measure first")
    for case in cases:
        print(_line(case))
    within = [loss(case)[0] <= _NEAR for case in cases if is_known(case)]
    print(f"within 1 % of the grid's best: {sum(within)} of {len(within)} studies")


def _case(folder: Path) -> Case:
    return msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)


def is_known(case: Case) -> bool:
    """Whether the grid can tell how near to the best of it the recommended setting is."""
    return len(case.grid[_index_of_chosen(case.grid, case.tuning)].step_ns) >= _FEWEST_ROUNDS


def loss(case: Case) -> tuple[float, float]:
    """By how much a step takes longer with the recommended setting than with the grid's best, and its error."""
    longer, error = _grid(case).loss()
    return math.expm1(longer), error


def found_after(case: Case) -> int | None:
    """Training steps until a layout within 1 % of the grid's best was first measured."""
    grid = _grid(case)
    near = [arm.bucket_bytes for one, arm in enumerate(case.grid) if grid.longer(one, grid.best)[0] <= _NEAR]
    steps = [one.after_steps for one in case.tuning.trials if one.bucket_bytes in near and one.after_steps is not None]
    return min(steps, default=None)


def _grid(case: Case) -> _Grid:
    return _Grid(case.grid, _index_of_chosen(case.grid, case.tuning))


def _line(case: Case) -> str:
    tuning = case.tuning
    chosen = tuning.best if tuning.significant else tuning.baseline
    rounds = sorted(len(one.step_ns) for one in case.grid)
    speedup = (
        ""
        if tuning.speedup is None or tuning.ci95 is None
        else (f"{tuning.speedup:+.1%} [{tuning.ci95[0]:+.1%}, {tuning.ci95[1]:+.1%}]")
    )
    longer, error = loss(case)
    near = (
        f"{longer:.1%} (standard error {error:.1%}) from the best of {len(case.grid)} layouts"
        if is_known(case)
        else f"how near to the best of {len(case.grid)} layouts is not known"
    )
    found = f"such a setting first tried after {found_after(case)} steps; " if is_known(case) else ""
    launches = case.launch_seconds * LAUNCHES
    search = ""
    if case.search_seconds is not None and case.search_launch_seconds is not None:
        of_trials = case.search_launch_seconds * len(tuning.trials)
        search = (
            f"{len(tuning.trials)} trials in {case.search_steps()} steps, {case.search_seconds:.0f} s against "
            f"{of_trials:.0f} s of as many launches ({case.search_seconds / of_trials:.2f}); in all "
        )
    return (
        f"{case.model} at {case.mbit_per_s} Mbit/s{'' if case.predicted else ', no prediction'}: "
        f"{'takes' if tuning.significant else 'keeps'} {chosen.bucket_cap_mb or chosen.bucket_cap_mb_list} MiB, "
        f"measured {speedup}; {near} ({rounds[0]} to {rounds[-1]} rounds); {found}{search}"
        f"{tuning.steps} steps, {case.tuning_seconds:.0f} s against {launches:.0f} s of {LAUNCHES} launches "
        f"({case.tuning_seconds / launches:.2f}); own work {tuning.own_share or 0:.1%} of the time"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["measure", "report", "train"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mbit-per-s", type=int, nargs="+", default=RATES_MBIT)
    parser.add_argument("--models", nargs="+", choices=(*MODELS, *SMALL), default=MODELS)
    parser.add_argument("--no-prediction", action="store_true")
    parser.add_argument("--grid-seconds", type=int, default=_GRID_SECONDS, help="for every layout again, at most")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    match options.action:
        case "measure":
            measure(options.folder, options.mbit_per_s, options.models, not options.no_prediction, options.grid_seconds)
        case "report":
            report(options.folder)
        case _:
            train(options.folder, options.models[0], options.steps, options.grid_seconds)


if __name__ == "__main__":
    main()
