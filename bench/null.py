"""How often tuning recommends a change where buckets cannot matter: real training steps, one rank, many short studies.

    python -m bench.null measure FOLDER --runs 20 [--placebo]
    python -m bench.null report FOLDER

One rank exchanges gradients with nobody, so that other buckets save no communication; what they cost this process,
a call for each and copies, is still there, and may be a true difference. With --placebo a block only seems to get other
buckets: DDP builds a new reducer with the same ones, and any change that is recommended is a false one. Studies add up
in the folder, so a longer answer is another run.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.figures import Figure, Wanted
from bucketlab.predict.replay import ModuleGradients
from bucketlab.schema.tuning import CURRENT, DDPS_DEFAULT
from bucketlab.tune import JobFacts, Tuner

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.parallel import DistributedDataParallel

_TRIALS = 4
_WIDTH, _LAYERS, _BATCH = 512, 8, 64
_STATED = 0.05
_SOME, _MANY = 10, 100  # half a minute each
_STUDIES = "studies.jsonl"


class NullStudy(msgspec.Struct, kw_only=True):
    placebo: bool
    significant: bool
    speedup: float | None
    ci95: tuple[float, float] | None
    rounds: int
    steps: int
    seconds: float
    load: float  # of the machine, average over a minute at its end


def figures(wanted: Wanted) -> list[Figure]:
    """Of studies with the same buckets under other names, in a process of their own."""
    runs = _MANY if wanted.all_cases else _SOME
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.null", "measure", folder, "--runs", str(runs), "--placebo"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        studies = _read(Path(folder))
    wrong = 100 * sum(one.significant for one in studies) / len(studies)
    name = f"studies that recommend a change where nothing differs; stated: {_STATED:.0%}"
    return [Figure(name=name, value=wrong, unit="%", samples=runs)]


def measure(folder: Path, runs: int, placebo: bool) -> None:
    import torch
    import torch.distributed as dist

    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, step = _job()
    for _ in range(20):
        step()
    with (folder / _STUDIES).open("ab") as file:
        for number in range(runs):
            study = _studied(model, step, placebo)
            file.write(msgspec.json.encode(study) + b"\n")
            file.flush()
            print(f"{number + 1} of {runs}: {_told(study)}", flush=True)
    dist.destroy_process_group()


def _job() -> tuple[DistributedDataParallel, Callable[[], int]]:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    layers = [one for _ in range(_LAYERS) for one in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(_BATCH, _WIDTH)

    def step() -> int:
        """Returns the nanoseconds outside of the backward pass."""
        optimizer.zero_grad()
        began_ns = time.perf_counter_ns()
        loss = model(inputs).square().mean()
        backward_ns = time.perf_counter_ns()
        loss.backward()
        done_ns = time.perf_counter_ns()
        optimizer.step()
        return backward_ns - began_ns + time.perf_counter_ns() - done_ns

    return model, step


def _studied(model: DistributedDataParallel, step: Callable[[], int], placebo: bool) -> NullStudy:
    from bucketlab.link.sweep import Search
    from bucketlab.worker import ddp
    from bucketlab.worker.setting import InPlace

    settings = InPlace([model])
    tuner = Tuner(_facts(model), Search(), None, "null", _TRIALS)
    began, last = time.monotonic(), CURRENT
    while (block := tuner.next_block()) is not None:
        if not placebo:
            settings.apply(block.candidate)
        elif block.candidate != last:
            ddp.change_capacities(model, ddp.capacities(model))
        last = block.candidate
        for _ in range(block.settle_steps):
            step()
        walls, untouched = [], []
        for _ in range(block.steps):
            began_ns = time.perf_counter_ns()
            untouched.append(step())
            walls.append(time.perf_counter_ns() - began_ns)
        tuner.tell(block, walls, [] if placebo else settings.bucket_bytes(), untouched_ns=untouched)
    result = tuner.result()
    tuner.close()
    settings.apply(CURRENT)
    return NullStudy(
        placebo=placebo,
        significant=result.significant,
        speedup=result.speedup,
        ci95=result.ci95,
        rounds=result.rounds,
        steps=result.steps,
        seconds=time.monotonic() - began,
        load=os.getloadavg()[0],
    )


def _facts(model: DistributedDataParallel) -> JobFacts:
    from bucketlab.worker import ddp

    named = ddp.named_parameters(model)
    built = ddp.layout(model)
    sizes = [one.numel() * one.element_size() for _, one in named]
    order = [index for bucket in built for index in bucket]
    ready_ns = [float(at) for at in range(len(order))]
    return JobFacts(
        modules=[ModuleGradients([sizes[index] for index in order], ready_ns, ["float32"] * len(order))],
        current=DDPS_DEFAULT,
        current_is_default=True,
        current_bucket_bytes=tuple(sum(sizes[index] for index in bucket) for bucket in built),
        world_size=1,
        lists=ddp.takes_lists(),
    )


def report(folder: Path) -> None:
    studies = _read(folder)
    for placebo in (True, False):
        some = [one for one in studies if one.placebo == placebo]
        if some:
            wrong = sum(one.significant for one in some)
            what = "with the same buckets under other names" if placebo else "with other buckets, one rank"
            most = _upper_bound(wrong, len(some))
            seconds = sum(one.seconds for one in some)
            print(
                f"{len(some)} studies {what}: {wrong} recommend a change (95 % certain: at most {most:.0%}; "
                f"stated: {_STATED:.0%}); {seconds:.0f} s"
            )


def _read(folder: Path) -> list[NullStudy]:
    path = folder / _STUDIES
    if not path.is_file():
        sys.exit(f"{folder} holds no {_STUDIES}: measure first")
    return [msgspec.json.decode(line, type=NullStudy) for line in path.read_bytes().splitlines()]


def _upper_bound(wrong: int, runs: int) -> float:
    """Of the rate, one-sided at 95 % (Clopper and Pearson 1934)."""
    low, high = wrong / runs, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        at_most = sum(math.comb(runs, k) * middle**k * (1 - middle) ** (runs - k) for k in range(wrong + 1))
        low, high = (middle, high) if at_most > 0.05 else (low, middle)
    return high


def _told(study: NullStudy) -> str:
    interval = f" [{study.ci95[0]:+.2%}, {study.ci95[1]:+.2%}]" if study.ci95 else ""
    speedup = "" if study.speedup is None else f"{study.speedup:+.2%}"
    what = "CHANGES" if study.significant else "keeps"
    cost = f"{study.rounds} rounds, {study.steps} steps, {study.seconds:.0f} s, load {study.load:.1f}"
    return f"{what} {speedup}{interval}, {cost}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["measure", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--placebo", action="store_true")
    options = parser.parse_args()
    if options.action == "measure":
        measure(options.folder, options.runs, options.placebo)
    report(options.folder)


if __name__ == "__main__":
    main()
