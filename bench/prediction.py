"""Predicted against measured step times, on links of several rates between two hosts made of network namespaces.

    python -m bench.prediction measure FOLDER [--mbit-per-s 500 1000 2000 4000] [--models transformer convnet wide]
    python -m bench.prediction report FOLDER

Needs root on Linux. For each link and model one job runs under `bucketlab profile --keep-running`, as a user would
profile it; then the same processes train on with one bucket capacity after the other, in place, in rounds, each in
another order, so that what drifts drifts for all. `report` predicts from the stored profile anew, which takes a moment:
the profile knows nothing of what was measured after it.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from bucketlab.link.testbed import INTERFACE, network, reason_unavailable
from bucketlab.predict.assignment import MIB
from bucketlab.predict.forecast import Forecast
from bucketlab.schema.profile import PredictedPoint, Profile

_ROOT = Path(__file__).parents[1]
RATES_MBIT = (500, 1000, 2000, 4000)
MODELS = ("transformer", "convnet", "wide")
_CAPS_MB = (1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 50.0, 100.0)
_DEFAULT_MB = (1.0, 25.0)  # what was profiled, first bucket and others: measured again, it tells drift from error
_TRIED_MB = (*((cap_mb, cap_mb) for cap_mb in _CAPS_MB), _DEFAULT_MB)
_ROUNDS = 3
_SETTLING_STEPS = 3  # of a new reducer
_TIMED_STEPS = 5
# glibc gives freed memory back, or not, by what happens to lie at the heap's top; it is then faulted in anew in each
# step. On two cores that decided over 12 % of a step, and changed between the profile and the rounds.
STEADY_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
_BETWEEN_LOOKS, _MOST_LOOKS = 10, 40  # steps between two looks whether the profile is there
_APART = 0.03  # medians that differ by more have an order that a prediction must have too
_LINK_BOUND = 0.5  # part of the measured step that is exposed communication


class Setting(msgspec.Struct, kw_only=True):
    """One layout of buckets, named by the smallest capacity tried that makes it."""

    cap_mb: float
    first_mb: float | None = None  # where the first bucket's is another
    bucket_bytes: list[int]
    step_ns: list[int]  # of each timed step, the slowest rank's


class Case(msgspec.Struct, kw_only=True):
    """One model on one link."""

    model: str
    mbit_per_s: int
    settings: list[Setting]
    profile: Profile


# ---- measuring --------------------------------------------------------------------------------------------------


def measure(folder: Path, rates: list[int], models: list[str]) -> None:
    if (reason := reason_unavailable()) is not None:
        sys.exit(f"no hosts to be had: {reason}")
    folder.mkdir(parents=True, exist_ok=True)
    for rate in rates:
        for model in models:
            began = time.monotonic()
            _run(folder / f"{model}-{rate}", model, rate)
            print(f"{model} at {rate} Mbit/s: {time.monotonic() - began:.0f} s", flush=True)


def _run(folder: Path, model: str, rate_mbit: int) -> None:
    folder.mkdir()
    with network(2, mbit_per_s=rate_mbit) as hosts:
        nodes = []
        for index, host in enumerate(hosts):
            command = [
                *(sys.executable, "-m", "bucketlab", "profile", "--keep-running", "--out", str(folder / host.name)),
                *("--nnodes", "2", "--node-rank", str(index), "--nproc-per-node", "1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:29500", "--rdzv-id", "bench"),
                *("-m", "bench.prediction", "train", str(folder.resolve()), "--models", model),
            ]
            environment = {
                **os.environ,
                **STEADY_HEAP,
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(_ROOT),
            }
            log = (folder / f"{host.name}.log").open("w")
            nodes.append(host.popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        codes = [node.wait(timeout=900) for node in nodes]
    if any(codes):
        sys.exit(f"{model} at {rate_mbit} Mbit/s failed; see {folder}")
    settings = msgspec.json.decode((folder / "settings.json").read_bytes(), type=list[Setting])
    [profile] = _profiles(folder)
    case = Case(
        model=model,
        mbit_per_s=rate_mbit,
        settings=settings,
        profile=msgspec.json.decode(profile.read_bytes(), type=Profile),
    )
    (folder / "case.json").write_bytes(msgspec.json.encode(case))


def _profiles(folder: Path) -> list[Path]:
    return list(folder.glob("*/*/profile.json"))


def train(folder: Path, name: str) -> None:
    """What each rank does: a plain training script until it has been profiled, then rounds over capacities."""
    import torch
    import torch.distributed as dist

    from bucketlab.worker import ddp

    dist.init_process_group("gloo")
    model, step = job_of(name)

    def somebody_sees_the_profile() -> bool:
        seen = torch.tensor([float(bool(_profiles(folder)))])
        dist.all_reduce(seen)
        return bool(seen)

    for _ in range(_MOST_LOOKS):
        if somebody_sees_the_profile():
            break
        for _ in range(_BETWEEN_LOOKS):
            step()
    else:
        sys.exit("no profile was written")
    order = random.Random(name)
    settings: dict[tuple[int, ...], Setting] = {}
    for number in range(_ROUNDS):
        caps = [(one.first_mb or one.cap_mb, one.cap_mb) for one in settings.values()] or list(_TRIED_MB)
        if number:
            order.shuffle(caps)
        for first_mb, cap_mb in caps:
            key: tuple[int, ...] = ()
            ddp.change_capacities(model, ddp.Capacities(cap=int(cap_mb * MIB), first=int(first_mb * MIB)))
            walls: list[int] = []
            for count in range(_SETTLING_STEPS + _TIMED_STEPS):
                buckets = tuple(_bucket_bytes(model)) if count == _SETTLING_STEPS else ()
                if buckets and number == 0 and buckets in settings:
                    break  # another capacity has made the same buckets
                began_ns = time.perf_counter_ns()
                step()
                if count >= _SETTLING_STEPS:
                    walls.append(time.perf_counter_ns() - began_ns)
                    key = buckets or key
            if walls:
                slowest = torch.tensor(walls)
                dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
                own_mb = first_mb if first_mb != cap_mb else None
                empty = Setting(cap_mb=cap_mb, first_mb=own_mb, bucket_bytes=list(key), step_ns=[])
                settings.setdefault(key, empty).step_ns += slowest.tolist()
    if dist.get_rank() == 0:
        (folder / "settings.json").write_bytes(msgspec.json.encode(list(settings.values())))
    dist.barrier()
    dist.destroy_process_group()


def job_of(name: str) -> tuple[Any, Callable[[], int]]:  # torch is imported by ranks alone
    """A model under DDP, and what trains it for a step: it returns the nanoseconds outside of the backward pass."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    network, inputs, targets = _network(name)
    model = DistributedDataParallel(network, gradient_as_bucket_view=name == "convnet")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> int:
        began_ns = time.perf_counter_ns()
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        backward_ns = time.perf_counter_ns()
        loss.backward()
        done_ns = time.perf_counter_ns()
        optimizer.step()
        optimizer.zero_grad()
        return backward_ns - began_ns + time.perf_counter_ns() - done_ns

    return model, step


def _network(name: str) -> Any:
    import torch

    from bucketlab.examples.models import ConvNet, Transformer, Wide

    match name:
        case "transformer":  # 41 MiB of gradients
            ids = torch.randint(8192, (4, 65))
            network = Transformer(vocab=8192, sequence=64, width=320, heads=4, layers=4, tied=False)
            return network, ids[:, :-1], ids[:, 1:]
        case "convnet":  # 43 MiB, in many tensors
            images = torch.randn(4, 3, 32, 32), torch.randint(100, (4,))
            return ConvNet(classes=100, pixels=32, width=64, layers=2, bottleneck=False), *images
        case "small-transformer":  # 6.6 MiB
            ids = torch.randint(2048, (2, 33))
            network = Transformer(vocab=2048, sequence=32, width=128, heads=4, layers=6, tied=False)
            return network, ids[:, :-1], ids[:, 1:]
        case "small-convnet":  # 6.1 MiB
            images = torch.randn(4, 3, 16, 16), torch.randint(100, (4,))
            return ConvNet(classes=100, pixels=16, width=24, layers=2, bottleneck=False), *images
        case "small-wide":  # 6.2 MiB, of which the last layer has 4.9
            ids = torch.randint(8000, (2, 17))
            return Wide(vocab=4000, width=80), ids[:, :-1] % 4000, ids[:, 1:] % 4000
        case _:  # 48 MiB, of which the last layer, which is ready first, has 31
            ids = torch.randint(32000, (4, 17))
            return Wide(vocab=16000, width=128), ids[:, :-1] % 16000, ids[:, 1:] % 16000


def _bucket_bytes(model: Any) -> list[int]:
    from bucketlab.worker import ddp

    sizes = [parameter.nbytes for _, parameter in ddp.named_parameters(model)]
    return [sum(sizes[one] for one in bucket) for bucket in ddp.layout(model)]


# ---- reporting --------------------------------------------------------------------------------------------------


def report(folder: Path) -> None:
    cases = [msgspec.json.decode(path.read_bytes(), type=Case) for path in sorted(folder.glob("*/case.json"))]
    if not cases:
        sys.exit(f"{folder} holds no case.json: measure first")
    scored = [score(case) for case in sorted(cases, key=lambda one: (one.model, one.mbit_per_s))]
    print("model        Mbit/s  error   bias    worst   measured best  predicted best  costs   pairs wrong  in band")
    for one in scored:
        print(one.line())
    for rate in sorted({one.case.mbit_per_s for one in scored}):
        _say(f"{rate} Mbit/s", [one for one in scored if one.case.mbit_per_s == rate])
    _say("bound by the link", [one for one in scored if one.link_bound])
    _say("all", scored)


def _say(name: str, scored: list[Score]) -> None:
    if not scored:
        return
    errors = [abs(error) for one in scored for error in one.errors]
    inside = [hit for one in scored for hit in one.inside]
    pairs, wrong = sum(one.pairs for one in scored), sum(one.wrong for one in scored)
    print(
        f"{name}: mean error {statistics.mean(errors):.1%} of {len(errors)} settings, worst {max(errors):.1%}, "
        f"the predicted best costs {max(one.cost for one in scored):.1%} at most, "
        f"{statistics.mean(one.cost for one in scored):.1%} on average; {wrong} of {pairs} pairs in the wrong order; "
        f"{statistics.mean(inside):.0%} of medians within their band"
    )


class Score:
    """What the prediction of one case was worth; parts of the measured step."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.forecast = Forecast.of(case.profile)
        self.points: list[PredictedPoint] = [self.forecast.at(one.cap_mb, one.first_mb) for one in case.settings]
        self.medians = [statistics.median(one.step_ns) for one in case.settings]
        pairs = list(zip(self.points, self.medians, strict=True))
        self.errors = [point.step_ns / median - 1 for point, median in pairs]
        self.inside = [(point.low_ns or 0) <= median <= (point.high_ns or 0) for point, median in pairs]
        chosen = min(range(len(pairs)), key=lambda one: self.points[one].step_ns)
        self.chosen_mb, self.best_mb = case.settings[chosen].cap_mb, case.settings[self._best()].cap_mb
        self.cost = self.medians[chosen] / min(self.medians) - 1
        apart = [(a, b) for a, b in combinations(pairs, 2) if abs(a[1] / b[1] - 1) > _APART]
        self.pairs = len(apart)
        self.wrong = sum((a[0].step_ns < b[0].step_ns) != (a[1] < b[1]) for a, b in apart)
        exposed = statistics.median(point.exposed_ns / point.step_ns for point in self.points)
        self.link_bound = exposed > _LINK_BOUND

    def _best(self) -> int:
        return min(range(len(self.medians)), key=lambda one: self.medians[one])

    def line(self) -> str:
        mean = statistics.mean(abs(error) for error in self.errors)
        return (
            f"{self.case.model:12} {self.case.mbit_per_s:6}  {mean:6.1%}  {statistics.mean(self.errors):+6.1%}  "
            f"{max(map(abs, self.errors)):6.1%}  {self.best_mb:13g}  {self.chosen_mb:14g}  {self.cost:6.1%}  "
            f"{self.wrong:3} of {self.pairs:3}   {statistics.mean(self.inside):7.0%}"
        )


def score(case: Case) -> Score:
    return Score(case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["measure", "report", "train"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mbit-per-s", type=int, nargs="+", default=RATES_MBIT)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    options = parser.parse_args()
    match options.action:
        case "measure":
            measure(options.folder, options.mbit_per_s, options.models)
        case "report":
            report(options.folder)
        case _:
            train(options.folder, options.models[0])


if __name__ == "__main__":
    main()
