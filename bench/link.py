"""The measured bandwidth of a link against its configured rate, on two hosts made of network namespaces.

    python -m bench.link            (root on Linux)

The rate that the kernel's token bucket is given counts whole Ethernet frames; what of it is left for data under TCP is
printed beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure, Skipped, Wanted
from bucketlab.link.testbed import INTERFACE, network, reason_unavailable

_ROOT = Path(__file__).parents[1]
_RATES_MBIT = (500, 1000, 2000, 4000)
_LAUNCHES = 3
_PAYLOAD = 8948 / 9014  # data of a full TCP segment with timestamps, of the jumbo frame that carries it


def figures(_: Wanted) -> list[Figure]:
    if (reason := reason_unavailable()) is not None:
        raise Skipped(f"no hosts to be had: {reason}")
    return [
        Figure(
            name=f"link at {rate_mbit:,} Mbit/s, fitted",
            value=statistics.median(fitted_mbit),
            unit="Mbit/s",
            ratio=statistics.median(fitted_mbit) / rate_mbit,
            over="the configured rate",
            better="more",
            samples=_LAUNCHES,
        )
        for rate_mbit, fitted_mbit in _fitted()
    ]


def main() -> None:
    if (reason := reason_unavailable()) is not None:
        sys.exit(f"no hosts to be had: {reason}")
    print(f"configured       of it data    fitted / configured in {_LAUNCHES} launches")
    for rate_mbit, fitted_mbit in _fitted():
        ratios = "  ".join(f"{one / rate_mbit:.3f}" for one in sorted(fitted_mbit))
        print(f"{rate_mbit:5} Mbit/s {rate_mbit * _PAYLOAD:7.0f} Mbit/s    {ratios}", flush=True)


def _fitted() -> Iterator[tuple[int, list[float]]]:
    """Each rate, with the fitted bandwidths of its launches; Mbit/s."""
    for rate_mbit in _RATES_MBIT:
        yield rate_mbit, [_measure(rate_mbit)["bandwidth_gb_s"] * 8000 for _ in range(_LAUNCHES)]


def _measure(rate_mbit: int) -> dict[str, float]:
    """Raises RuntimeError with what the nodes said where there are no figures."""
    with tempfile.TemporaryDirectory() as folder, network(2, mbit_per_s=rate_mbit) as hosts:
        nodes = []
        for index, host in enumerate(hosts):
            command = [
                *(sys.executable, "-m", "bucketlab", "link", "--json", "--seconds", "10", "--max-mb", "64"),
                *("--nnodes", "2", "--node-rank", str(index), "--nproc-per-node", "1"),
                *("--master-addr", hosts[0].address, "--master-port", "29500"),
            ]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONPATH": str(_ROOT)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            nodes.append(host.popen(command, cwd=folder, env=environment, **pipes))
        said = [node.communicate(timeout=400) for node in nodes]
    if not said[0][0]:
        told = [f"node {at}, exit code {node.returncode}: {said[at][1][-3000:]}" for at, node in enumerate(nodes)]
        raise RuntimeError("\n".join([f"no figures at {rate_mbit} Mbit/s", *told]))
    link: dict[str, float] = json.loads(said[0][0])
    return link


if __name__ == "__main__":
    main()
