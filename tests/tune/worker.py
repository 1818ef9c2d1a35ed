"""A simulated job in a process of its own, tuned on a study that others share: `python -m tests.tune.worker URL ...`.

With `--steps-on-request` each block begins with a line on stdout and waits for a line on stdin, so that whoever kills
it knows in which block. The line is the trial's number, or "current".
"""

from __future__ import annotations

import argparse
import sys

from tests.tune.simulated import LINKS, MILD, SimulatedJob, convolutional, train, tuner_of


def job(seed: int) -> SimulatedJob:
    return SimulatedJob.of(convolutional(), LINKS["gloo-4gbit"], 1.0, MILD, seed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("storage")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps-on-request", action="store_true")
    arguments = parser.parse_args()
    simulated = job(arguments.seed)
    tuner = tuner_of(simulated, arguments.seed, storage=arguments.storage, trials=arguments.trials)
    while (block := tuner.next_block()) is not None:
        if arguments.steps_on_request:
            print("current" if block.number is None else block.number, tuner.phase.replace(" ", "-"), flush=True)
            sys.stdin.readline()
        train(tuner, simulated, block)
    print("done", flush=True)
    tuner.close()


if __name__ == "__main__":
    main()
