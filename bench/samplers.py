"""Optuna's samplers, each tuning the same simulated jobs: how soon the best buckets are found, and what asking costs.

    python -m bench.samplers [--runs 3] [--out samplers.json]

The jobs are three models on three links, bound by compute and by the link, with the noise of a machine that is used by
others too (`tests/tune/simulated.py`); nobody has predicted anything for them. How soon the best is found counts only
jobs whose current setting, DDP's default, is more than 1 % from it. Samplers that need SciPy, which
BucketLab does not, are left out where it is missing, and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from bench.figures import Figure, Wanted
from bucketlab.tune.proposals import Proposals
from tests.tune.simulated import MILD, SHARED, SimulatedJob, found_after, loss, noisy, simulated_jobs, tuned

Make = Callable[[int], optuna.samplers.BaseSampler]
SAMPLERS: dict[str, Make] = {
    "TPE": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=8),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "quasi-random": lambda seed: optuna.samplers.QMCSampler(seed=seed, scramble=True),
    "GP": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=8),
}
_NEED_SCIPY = ("quasi-random", "GP")


def figures(_: Wanted) -> list[Figure]:
    """Of the sampler that `bucketlab tune` uses, over drawing capacities at random."""
    _quiet()
    runs = 2
    tpe, drawn = (_compare(SAMPLERS[name], SHARED, runs) for name in ("TPE", "random"))
    samples = runs * len(simulated_jobs())
    return [
        Figure(
            name="steps until within 1 % of the best, shared machine",
            value=tpe["found_steps_median"],
            unit="steps",
            kind="simulated",
            ratio=tpe["found_steps_median"] / drawn["found_steps_median"],
            over="drawn at random",
            samples=samples,
        ),
        Figure(
            name="studies that end within 1 % of the best, shared machine",
            value=100 * tpe["within_1_percent"],
            unit="%",
            kind="simulated",
            ratio=tpe["within_1_percent"] / drawn["within_1_percent"],
            over="drawn at random",
            better="more",
            samples=samples,
        ),
        Figure(
            name="steps of a study, shared machine",
            value=tpe["steps_of_a_study"],
            unit="steps",
            kind="simulated",
            samples=samples,
        ),
        Figure(name="one proposal", value=tpe["ms_per_proposal"], unit="ms", samples=samples),
    ]


def _quiet() -> None:
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="studies of each job, with other noise each")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    arguments = parser.parse_args()
    _quiet()
    rows = []
    for noise_name, noise in (("mild", MILD), ("shared", SHARED)):
        for name, make in SAMPLERS.items():
            if name in _NEED_SCIPY and importlib.util.find_spec("scipy") is None:
                print(f"{name}: left out, SciPy is not installed")
                continue
            rows.append({"noise": noise_name, "sampler": name, **_compare(make, noise, arguments.runs)})
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _compare(make: Make, noise: Any, runs: int) -> dict[str, float]:
    found, losses, steps = [], [], []
    asking = _Stopwatch()
    for number, quiet in enumerate(simulated_jobs()):
        best_ns = quiet.best_ns()
        for run in range(runs):
            job = noisy(quiet, noise, 100 * number + run)
            with asking:
                result = tuned(job, run, sampler=make(run))
            if loss(job, result.baseline, best_ns) > 0.01:
                found.append(found_after(job, result, best_ns))
            losses.append(_loss(job, result, best_ns))
            steps.append(result.steps)
    return {
        "found_steps_median": float(np.median(found)),
        "found_steps_p90": float(np.quantile(found, 0.9)),
        "within_1_percent": round(float(np.mean(np.array(losses) <= 0.01)), 3),
        "ms_per_proposal": round(asking.ms_per_call, 2),
        "steps_of_a_study": float(np.median(steps)),
    }


def _loss(job: SimulatedJob, result: Any, best_ns: float) -> float:
    return loss(job, result.best if result.significant else result.baseline, best_ns)


class _Stopwatch:
    """Times what `Proposals` takes to choose, inside the studies that run within it."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def __enter__(self) -> None:
        self._next, self._learn = Proposals.next, Proposals.learn
        Proposals.next = self._timed(Proposals.next, 1)  # type: ignore[method-assign]
        Proposals.learn = self._timed(Proposals.learn, 0)  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        Proposals.next, Proposals.learn = self._next, self._learn  # type: ignore[method-assign]

    def _timed(self, function: Callable[..., Any], counts: int) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - begin
                self.calls += counts

        return timed

    @property
    def ms_per_call(self) -> float:
        return 1000 * self.seconds / max(1, self.calls)


if __name__ == "__main__":
    main()
