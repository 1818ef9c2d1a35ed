"""Ring against parameter server, measured on real links and predicted: why nn.DataParallel lost.

    python -m bench.topologies [--ranks 2 4 8] [--mbit-per-s 200] [--mebibytes 8] [--repetitions 5]

Each rank is a host of its own (a network namespace, needs root) with one link of the given rate, and all-reduces
through gloo. Volume is counted by the exchange itself and, apart from it, by the host's network interface (what comes
in: a sender's counter also has what it repeats after a full queue has dropped it). Predictions
come from the formulas of bucketlab.link.algorithms and one hop measured between two of the hosts. A step is forward and
backward pass of a perceptron whose gradients have the given size, under DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.figures import Figure, Skipped, Wanted
from bucketlab.link.algorithms import PARAMETER_SERVER, RING, Algorithm, Fabric, Wire
from bucketlab.link.testbed import INTERFACE, Host, network, reason_unavailable

ALGORITHMS = (RING, PARAMETER_SERVER)
ROOT = Path(__file__).parents[1]
PORT = 29541
TIMEOUT_S = 280
PING_BYTES, BULK_BYTES = 8, 4 * 2**20


@dataclass
class Exchanged:
    """What one algorithm did on one rank. Times are this rank's."""

    sent_bytes: int  # payload of one all-reduce of all gradients, as the exchange counts it
    received_bytes: int
    interface_sent_bytes: float | None  # the same on the wire, headers and repeats included; None on loopback
    interface_received_bytes: float | None
    transfer_ns: list[int]  # of one all-reduce of all gradients, and nothing else
    step_ns: list[int]  # forward and backward pass under DDP with this hook
    gradient_error: float  # largest difference from DDP's own gradients, as a part of the largest gradient


@dataclass
class RankResult:
    gradient_bytes: int
    by_algorithm: dict[str, Exchanged] = field(default_factory=dict)
    ddp_step_ns: list[int] = field(default_factory=list)
    latency_ns: float = 0.0  # of the hop between ranks 0 and 1; on rank 0
    bandwidth_gb_s: float = 0.0


def measure(ranks: int, *, mbit_per_s: int | None, mebibytes: float, repetitions: int) -> list[RankResult]:
    """Runs both topologies on so many ranks.

    Args:
        ranks: processes; hosts too, with a rate.
        mbit_per_s: of each host's link; None for all ranks on this host, without namespaces.
        mebibytes: of gradients.
        repetitions: of each timed part.

    Returns:
        One result per rank.

    Raises:
        RuntimeError: a rank failed; its output is in the message.
    """
    arguments = [sys.executable, "-m", "bench.topologies", "--worker", str(mebibytes), str(repetitions)]
    with nullcontext() if mbit_per_s is None else network(ranks, mbit_per_s=mbit_per_s) as hosts:
        workers = [_start(arguments, rank, ranks, hosts) for rank in range(ranks)]
        try:
            outputs = [worker.communicate(timeout=TIMEOUT_S) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    try:
        return [_result(json.loads(output.splitlines()[-1])) for output, _ in outputs]
    except (IndexError, ValueError):
        raise RuntimeError("\n".join(errors[-2000:] for _, errors in outputs)) from None


def _start(arguments: list[str], rank: int, ranks: int, hosts: list[Host] | None) -> subprocess.Popen[Any]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": hosts[0].address if hosts else "127.0.0.1",
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE if hosts else "lo",
        "OMP_NUM_THREADS": "1",
    }
    options: dict[str, Any] = {
        "cwd": ROOT,
        "env": environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    return hosts[rank].popen(arguments, **options) if hosts else subprocess.Popen(arguments, **options)


def _result(document: dict[str, Any]) -> RankResult:
    by_algorithm = {name: Exchanged(**one) for name, one in document.pop("by_algorithm").items()}
    return RankResult(by_algorithm=by_algorithm, **document)


def slowest_ns(results: Sequence[RankResult], samples: Callable[[RankResult], list[int]]) -> float:
    """Median over repetitions of the slowest rank's time."""
    return float(statistics.median(max(times) for times in zip(*(samples(one) for one in results), strict=True)))


# ---- inside each rank -------------------------------------------------------------------------------------------


def work(mebibytes: float, repetitions: int) -> RankResult:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from bucketlab.worker.topologies import Reducer, reduce_bucket, ring_all_reduce, through_the_root

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    width = 256
    layers = max(1, round(mebibytes * 2**20 / 4 / (width * width + width)))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    inputs = torch.randn(8, width, generator=torch.Generator().manual_seed(dist.get_rank()))

    def step(module: nn.Module) -> None:
        module.zero_grad()
        module(inputs).square().mean().backward()

    def timed(action: Callable[[], object]) -> list[int]:
        samples = []
        for _ in range(repetitions):
            dist.barrier()
            began_ns = time.perf_counter_ns()
            action()
            samples.append(time.perf_counter_ns() - began_ns)
        return samples

    plain = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1)
    step(plain)
    step(plain)  # in the buckets that are rebuilt after the first
    expected = torch.cat([one.grad.flatten() for one in plain.parameters() if one.grad is not None])
    result = RankResult(gradient_bytes=expected.nbytes, ddp_step_ns=timed(lambda: step(plain)))
    for algorithm, exchange in zip(ALGORITHMS, (ring_all_reduce, through_the_root), strict=True):
        reducer = Reducer(exchange, dist.new_group())
        hooked = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1)
        hooked.register_comm_hook(reducer, reduce_bucket)
        step(hooked)
        step(hooked)
        found = torch.cat([one.grad.flatten() for one in hooked.parameters() if one.grad is not None])
        error = float((found - expected).abs().max() / expected.abs().max())
        step_ns = timed(lambda module=hooked: step(module))  # type: ignore[misc]
        before, counted = _interface_bytes(), (reducer.traffic.sent_bytes, reducer.traffic.received_bytes)
        buffer = expected.clone()
        transfer_ns = timed(lambda reducer=reducer, buffer=buffer: reducer.average(buffer))  # type: ignore[misc]
        dist.barrier()
        after = _interface_bytes()
        on_wire = [
            None if b is None or a is None else (a - b) / repetitions for b, a in zip(before, after, strict=True)
        ]
        result.by_algorithm[algorithm.name] = Exchanged(
            sent_bytes=(reducer.traffic.sent_bytes - counted[0]) // repetitions,
            received_bytes=(reducer.traffic.received_bytes - counted[1]) // repetitions,
            interface_sent_bytes=on_wire[0],
            interface_received_bytes=on_wire[1],
            transfer_ns=transfer_ns,
            step_ns=step_ns,
            gradient_error=error,
        )
        reducer.close()
    result.latency_ns, result.bandwidth_gb_s = _hop(repetitions)
    dist.barrier()
    return result


def _interface_bytes() -> tuple[int | None, int | None]:
    folder = Path("/sys/class/net", INTERFACE, "statistics")
    if os.environ["GLOO_SOCKET_IFNAME"] != INTERFACE:
        return None, None
    return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())


def _hop(repetitions: int) -> tuple[float, float]:
    """Latency in ns and bandwidth of a message from rank 0 to rank 1, from how long it takes to come back."""
    import torch
    import torch.distributed as dist

    def there_and_back_ns(size_bytes: int, times: int) -> float:
        message = torch.zeros(size_bytes, dtype=torch.uint8)
        samples = []
        for _ in range(times):
            began_ns = time.perf_counter_ns()
            if dist.get_rank() == 0:
                dist.send(message, 1)
                dist.recv(message, 1)
            else:
                dist.recv(message, 0)
                dist.send(message, 0)
            samples.append(time.perf_counter_ns() - began_ns)
        return statistics.median(samples)

    dist.barrier()
    if dist.get_rank() > 1:
        return 0.0, 0.0
    latency_ns = there_and_back_ns(PING_BYTES, 100) / 2
    bulk_ns = there_and_back_ns(BULK_BYTES, repetitions) / 2
    return latency_ns, BULK_BYTES / (bulk_ns - latency_ns)


def _run_worker(mebibytes: float, repetitions: int) -> None:
    import torch.distributed as dist

    print(json.dumps(asdict(work(mebibytes, repetitions))), flush=True)
    dist.destroy_process_group()
    # torch 2.13 may abort in gloo's threads while the interpreter shuts down; the result is already out.
    sys.stderr.flush()
    os._exit(0)


def figures(_: Wanted) -> list[Figure]:
    """Each algorithm's all-reduce of 8 MiB over hosts of 200 Mbit/s: measured over predicted from one measured hop."""
    if (reason := reason_unavailable()) is not None:
        raise Skipped(f"no hosts to be had: {reason}")
    repetitions = 5
    found = []
    for ranks in (2, 4):
        results = measure(ranks, mbit_per_s=200, mebibytes=8, repetitions=repetitions)
        fabric = Fabric.flat(Wire(results[0].latency_ns, results[0].bandwidth_gb_s))
        for one in ALGORITHMS:
            measured_ns = _transfer_ns(results, one)
            predicted_ns = float(one.time_ns(results[0].gradient_bytes, ranks, 1, fabric))
            found.append(
                Figure(
                    name=f"{one.name}, {ranks} ranks",
                    value=measured_ns / 1e6,
                    unit="ms",
                    ratio=measured_ns / predicted_ns,
                    over="its prediction",
                    samples=repetitions,
                )
            )
    return found


# ---- the table --------------------------------------------------------------------------------------------------


def rows(results: list[RankResult]) -> list[list[str]]:
    """One row per algorithm, measured beside predicted."""
    ranks, size = len(results), results[0].gradient_bytes
    fabric = Fabric.flat(Wire(results[0].latency_ns, results[0].bandwidth_gb_s))
    transfers = {one.name: _transfer_ns(results, one) for one in ALGORITHMS}
    steps = {one.name: slowest_ns(results, lambda r, n=one.name: r.by_algorithm[n].step_ns) for one in ALGORITHMS}  # type: ignore[misc]
    table = []
    for one in ALGORITHMS:
        root = results[0].by_algorithm[one.name]
        volume = one.volume(size, ranks, 1)
        predicted_ns = float(one.time_ns(size, ranks, 1, fabric))
        table.append(
            [
                str(ranks),
                one.name,
                f"{float(volume.root_received) / 2**20:.2f}",
                f"{root.received_bytes / 2**20:.2f}",
                "-" if root.interface_received_bytes is None else f"{root.interface_received_bytes / 2**20:.2f}",
                f"{predicted_ns / 1e6:.1f}",
                f"{transfers[one.name] / 1e6:.1f}",
                f"{transfers[one.name] / predicted_ns:.2f}",
                f"{transfers[one.name] / transfers[RING.name]:.2f}",
                f"{steps[one.name] / 1e6:.1f}",
                f"{steps[one.name] / steps[RING.name]:.2f}",
                f"{slowest_ns(results, lambda r: r.ddp_step_ns) / 1e6:.1f}",
            ]
        )
    return table


def _transfer_ns(results: list[RankResult], algorithm: Algorithm) -> float:
    return slowest_ns(results, lambda one: one.by_algorithm[algorithm.name].transfer_ns)


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--mbit-per-s", type=int, default=200, help="of each host's link")
    parser.add_argument("--mebibytes", type=float, default=8, help="of gradients")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    missing = reason_unavailable()
    if missing:
        sys.exit(f"no hosts to be had: {missing}")
    headings = ["ranks", "algorithm", "root receives MiB predicted", "counted", "interface", "transfer ms predicted"]
    headings += ["measured", "meas./pred.", "to ring", "step ms measured", "to ring", "DDP's own"]
    table = Table(*headings, title=f"{options.mebibytes:g} MiB of gradients, {options.mbit_per_s} Mbit/s per host")
    for ranks in options.ranks:
        results = measure(
            ranks,
            mbit_per_s=options.mbit_per_s,
            mebibytes=options.mebibytes,
            repetitions=options.repetitions,
        )
        hop = results[0]
        print(
            f"{ranks} ranks: one hop measured at {hop.latency_ns / 1e3:.0f} us and {hop.bandwidth_gb_s:.4f} GB/s; "
            f"gradients differ from DDP's by at most "
            f"{max(e.gradient_error for one in results for e in one.by_algorithm.values()):.1e} of the largest",
            flush=True,
        )
        for row in rows(results):
            table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        _run_worker(float(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
