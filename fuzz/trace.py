"""Traces of torch.profiler: read, analysed, printed, predicted from."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from bucketlab.analysis.files import analyze_paths
from bucketlab.errors import BadInput
from bucketlab.predict.foreign import predict_trace
from bucketlab.report.analysis import print_analysis, write_csv
from fuzz.driver import ROOT

_RECORDED = ROOT / "traces" / "gloo-2ranks"
_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def read(data: bytes, folder: Path) -> None:
    file = folder / "rank0.1.pt.trace.json"
    file.write_bytes(data)
    analysis = analyze_paths([file])
    console = Console(file=io.StringIO(), width=100)
    print_analysis(analysis, console)
    write_csv(analysis, io.StringIO())
    try:
        predict_trace(analysis)
    except BadInput:
        return  # most traces have no buckets to predict from


def seeds() -> list[bytes]:
    """A small job on a GPU, and the beginning of a recorded one as it lies there: packed."""
    return [json.dumps(_small()).encode(), (_RECORDED / _first()).read_bytes()[:30_000]]


def _first() -> str:
    return sorted(path.name for path in _RECORDED.glob("*.gz"))[0]


def _small() -> dict[str, object]:
    def event(category: str, name: str, ts: float, dur: float, **args: object) -> dict[str, object]:
        on_gpu = category in ("kernel", "gpu_memcpy")
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "ts": ts,
            "dur": dur,
            "pid": 0,
            "tid": 7 * on_gpu,
            "args": args,
        }

    events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": "stream 7"}}]
    for step in range(2):
        at = 1000.0 * step
        said = {"Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Float", "Group size": 2, "Rank": 0}
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 900),
            event("cuda_runtime", "cudaLaunchKernel", at + 10, 5, correlation=10 * step + 1),
            event("kernel", "sgemm", at + 100, 300, correlation=10 * step + 1, device=0, stream=7),
            event("cuda_runtime", "cudaLaunchKernel", at + 20, 5, correlation=10 * step + 2),
            event("kernel", _KERNEL, at + 300, 400, correlation=10 * step + 2, device=0, stream=9, **said),
            event("gpu_memcpy", "Memcpy HtoD", at + 5, 20, correlation=10 * step + 3, device=0, stream=7, bytes=4096),
        ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "traceEvents": events,
    }
