"""Profiles for tests: a small serial replay gives each one figures that agree with one another.

Nothing here is measured. A profile is made from a model's parameters, the phases of its step and a link.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bucketlab.schema.analysis import RankStragglers, Stragglers
from bucketlab.schema.profile import (
    Breakdown,
    Bucket,
    Gradient,
    Link,
    LinkPoint,
    Memory,
    Module,
    PredictedPoint,
    Prediction,
    Profile,
    RankSummary,
    StepTime,
)

MS = 1_000_000
MIB = 2**20


def gpt(layers: int = 12, width: int = 768) -> list[tuple[str, int]]:
    """Names and bytes of a GPT's parameters, in the order in which their gradients are ready."""
    parameters = [("lm_head.weight", 4 * 50304 * width), ("transformer.ln_f.weight", 4 * width)]
    for layer in reversed(range(layers)):
        at = f"transformer.h.{layer}"
        parameters += [
            (f"{at}.mlp.c_proj.weight", 16 * width * width),
            (f"{at}.mlp.c_fc.weight", 16 * width * width),
            (f"{at}.ln_2.weight", 4 * width),
            (f"{at}.attn.c_proj.weight", 4 * width * width),
            (f"{at}.attn.c_attn.weight", 12 * width * width),
            (f"{at}.ln_1.weight", 4 * width),
        ]
    return [
        *parameters,
        ("transformer.wpe.weight", 4 * 1024 * width),
        ("transformer.wte.weight", 4 * 50304 * width),
    ]


def overlapped(**changes: Any) -> Profile:
    """Most of communication is hidden; the last bucket sticks out a little."""
    return _make(bandwidth_gb_s=9.0, **changes)


def exposed(**changes: Any) -> Profile:
    """The link is slow enough that communication outlasts the backward pass."""
    return _make(bandwidth_gb_s=5.0, **changes)


def hidden(**changes: Any) -> Profile:
    """A link so fast that nothing of communication shows."""
    return _make(bandwidth_gb_s=400.0, latency_ns=20_000, **changes)


def input_bound(**changes: Any) -> Profile:
    return _make(bandwidth_gb_s=9.0, input_ms=180, **changes)


def straggler(late: int = 2, lag_ms: int = 40, **changes: Any) -> Profile:
    """Four ranks, of which one comes late to every step; what is exposed is mostly the wait for it."""
    made = _make(bandwidth_gb_s=60.0, ranks=4, wait_ms=lag_ms, **changes)
    made.stragglers = Stragglers(
        by_rank=[
            RankStragglers(
                rank=rank,
                arrival_lag_ns=lag_ms * MS if rank == late else rank * 100_000,
                wait_ns=0 if rank == late else lag_ms * MS - rank * 100_000,
                lag_p10_ns=(lag_ms - 2) * MS if rank == late else 0,
                lag_p90_ns=(lag_ms + 2) * MS if rank == late else 300_000,
            )
            for rank in range(4)
        ],
        verdict=f"rank {late} is late in 8 of 8 steps, by {lag_ms} ms",
    )
    return made


def one_rank(**changes: Any) -> Profile:
    return msgspec.structs.replace(
        _make(bandwidth_gb_s=400.0, ranks=1), link=None, prediction=None, stragglers=None, **changes
    )


def thousand_ranks(**changes: Any) -> Profile:
    made = _make(bandwidth_gb_s=60.0, ranks=1000, wait_ms=25, **changes)
    made.stragglers = Stragglers(
        by_rank=[
            RankStragglers(
                rank=rank,
                arrival_lag_ns=25 * MS if rank == 637 else (rank % 7) * 200_000,
                wait_ns=0 if rank == 637 else 25 * MS - (rank % 7) * 200_000,
                lag_p10_ns=24 * MS if rank == 637 else 0,
                lag_p90_ns=27 * MS if rank == 637 else 2 * MS,
            )
            for rank in range(1000)
        ],
        verdict="rank 637 is late in 8 of 8 steps, by 25 ms",
    )
    return made


def thousand_buckets(**changes: Any) -> Profile:
    return _make([(f"layers.{i}.weight", MIB) for i in reversed(range(1000))], cap_mb=1, bandwidth_gb_s=9.0, **changes)


def two_modules(second_cap_mb: float = 4.0, **changes: Any) -> Profile:
    """A GPT whose last layers are a DDP module of their own, with another capacity; buckets are those of one alone."""
    made = exposed()
    [whole], half = made.modules, len(made.gradients) // 2
    made.gradients = [msgspec.structs.replace(one, module=at // half % 2) for at, one in enumerate(made.gradients)]
    made.modules = [
        msgspec.structs.replace(whole, parameters=whole.parameters * 3 // 4),
        msgspec.structs.replace(
            whole,
            name="Head",
            parameters=whole.parameters // 4,
            bucket_cap_mb=second_cap_mb,
            first_bucket_mb=second_cap_mb,
            is_default=False,
        ),
    ]
    return msgspec.structs.replace(made, **changes)


def nothing() -> Profile:
    """The script ended before anything was measured."""
    return msgspec.structs.replace(
        overlapped(),
        step=None,
        breakdown=None,
        ranks=[],
        buckets=[],
        gradients=[],
        forward_ns=None,
        backward_ns=None,
        optimizer_ns=None,
        input_ns=None,
        link=None,
        stragglers=None,
        memory=None,
        prediction=None,
        missing=["the script ended after 3 steps, during warm-up: it needs 12; give it more data"],
    )


def _make(
    parameters: list[tuple[str, int]] | None = None,
    *,
    bandwidth_gb_s: float,
    latency_ns: int = 200_000,
    cap_mb: float = 25,
    ranks: int = 2,
    input_ms: int = 1,
    wait_ms: int = 0,
    forward_ms: int = 48,
    backward_ms: int = 96,
    optimizer_ms: int = 9,
    **changes: Any,
) -> Profile:
    parameters = parameters or gpt()
    forward_ns, backward_ns, optimizer_ns = (input_ms + forward_ms) * MS, backward_ms * MS, optimizer_ms * MS
    ready = _ready_times(parameters, forward_ns, backward_ns)

    def replay(cap: float) -> tuple[list[Bucket], int]:
        return _replay(parameters, ready, cap, bandwidth_gb_s, latency_ns, wait_ms * MS, ranks)

    buckets, communication_end_ns = replay(cap_mb)
    compute_end_ns = forward_ns + backward_ns
    wall_ns = max(compute_end_ns, communication_end_ns) + optimizer_ns
    communication_ns = sum((b.end_ns or 0) - (b.start_ns or 0) for b in buckets)
    overlap_ns = sum(b.overlap_ns or 0 for b in buckets)
    compute_ns = (forward_ms + backward_ms + optimizer_ms) * MS
    busy_ns = compute_ns + communication_ns - overlap_ns
    breakdown = Breakdown(
        wall_ns=wall_ns,
        communication_ns=communication_ns,
        compute_ns=compute_ns,
        memory_ns=0,
        overlap_ns=overlap_ns,
        exposed_ns=communication_ns - overlap_ns,
        busy_ns=busy_ns,
        idle_ns=wall_ns - busy_ns,
        input_ns=input_ms * MS,
        kernels=1842,
        collectives=len(buckets),
    )
    points = [
        PredictedPoint(bucket_cap_mb=cap, step_ns=(max(compute_end_ns, replay(cap)[1]) + optimizer_ns) * 98 // 100)
        for cap in (1, 2, 4, 8, 12, 16, 25, 32, 48, 64, 96, 128, 256, 600)
    ]
    total_bytes = sum(count for _, count in parameters)
    step_ns = wall_ns * 98 // 100
    made = Profile(
        run="2025-11-29T15-04-train",
        created="2025-11-29T15:04:05Z",
        script="train.py",
        command=["bucketlab", "profile", "train.py"],
        versions={"bucketlab": "0.1.0", "torch": "2.13.0"},
        world_size=ranks,
        nodes=max(1, ranks // 8),
        backend="nccl",
        device="NVIDIA H200",
        accumulation=1,
        modules=[
            Module(
                name="GPT",
                parameters=total_bytes // 4,
                bucket_cap_mb=cap_mb,
                first_bucket_mb=1,
                bucket_cap_mb_list=[],
                is_default=cap_mb == 25,
                gradient_as_bucket_view=True,
                find_unused_parameters=False,
                static_graph=False,
                communication_hook=None,
                compiled=False,
                bucket_bytes=[b.bytes for b in buckets],
            )
        ],
        optimizers=["AdamW"],
        step=StepTime(
            median_ns=step_ns,
            p10_ns=step_ns * 99 // 100,
            p90_ns=step_ns * 102 // 100,
            samples=[step_ns * (98 + i % 5) // 100 for i in range(40)],
            excluded=2,
        ),
        breakdown=breakdown,
        ranks=[
            RankSummary(
                rank=rank,
                host=f"node-{rank // 8}",
                device=f"cuda:{rank % 8}",
                step_median_ns=step_ns - rank % 7 * 50_000,
                breakdown=breakdown,
                peak_bytes=21 * 2**30,
            )
            for rank in range(ranks)
        ],
        buckets=buckets,
        gradients=[
            Gradient(module=0, name=name, bytes=count, dtype="float32", ready_ns=at)
            for (name, count), at in zip(parameters, ready, strict=True)
        ],
        forward_ns=forward_ns,
        backward_ns=wall_ns - forward_ns - optimizer_ns,
        optimizer_ns=optimizer_ns,
        input_ns=input_ms * MS,
        link=_link(bandwidth_gb_s, latency_ns, ranks),
        stragglers=Stragglers(
            by_rank=[
                RankStragglers(
                    rank=r,
                    arrival_lag_ns=r * 100_000,
                    wait_ns=100_000 - r * 100_000,
                    lag_p10_ns=0,
                    lag_p90_ns=200_000,
                )
                for r in range(min(ranks, 2))
            ],
            verdict="no rank is late by more than 0.1 ms",
        ),
        memory=Memory(
            parameters_bytes=total_bytes,
            gradients_bytes=total_bytes,
            bucket_buffers_bytes=total_bytes,
            saved_by_view_bytes=total_bytes,
            optimizer_bytes=2 * total_bytes,
            buffers_bytes=0,
            peak_bytes=21 * 2**30,
            capacity_bytes=139 * 2**30,
            largest_model_parameters=7_900_000_000,
        ),
        prediction=Prediction(
            points=points,
            best=min(points, key=lambda point: point.step_ns),
            current_step_ns=wall_ns * 98 // 100,
            floor_ns=(compute_end_ns + optimizer_ns) * 98 // 100,
        ),
        missing=[],
        notes=[],
        advice=[],
        seconds={"warm-up": 4.1, "timing": 9.0, "trace": 2.2, "link": 1.3},
    )
    return msgspec.structs.replace(made, **changes)


def _ready_times(parameters: list[tuple[str, int]], forward_ns: int, backward_ns: int) -> list[int]:
    """Gradients are ready in order, spread by the square root of their size."""
    weights = [count**0.5 for _, count in parameters]
    done, times = 0.0, []
    for weight in weights:
        done += weight
        times.append(forward_ns + round(backward_ns * done / sum(weights)))
    return times


def _replay(
    parameters: list[tuple[str, int]],
    ready: list[int],
    cap_mb: float,
    bandwidth_gb_s: float,
    latency_ns: int,
    wait_ns: int,
    ranks: int,
) -> tuple[list[Bucket], int]:
    """Buckets on a link that carries one at a time; `wait_ns` is added to the first, as a late rank would."""
    buckets: list[Bucket] = []
    names: list[str] = []
    size, free_ns, compute_end_ns = 0, 0, ready[-1]
    for at, (name, count) in enumerate(parameters):
        names.append(name)
        size += count
        if size < cap_mb * MIB and at < len(parameters) - 1:
            continue
        start_ns = max(ready[at], free_ns)
        last = at == len(parameters) - 1
        free_ns = start_ns + latency_ns + round(size / bandwidth_gb_s) + (wait_ns if last else 0)
        overlap_ns = max(0, min(free_ns, compute_end_ns) - start_ns)
        buckets.append(
            Bucket(
                module=0,
                index=len(buckets),
                parameters=names,
                bytes=size,
                ready_ns=ready[at],
                start_ns=start_ns,
                end_ns=free_ns,
                overlap_ns=overlap_ns,
                exposed_ns=free_ns - start_ns - overlap_ns,
                bus_gb_s=size / (free_ns - start_ns) * 2 * (ranks - 1) / ranks,
            )
        )
        names, size = [], 0
    return buckets, free_ns


def _link(bandwidth_gb_s: float, latency_ns: int, ranks: int) -> Link:
    points = []
    for exponent in range(10, 28, 2):
        ns = latency_ns + round(2**exponent / bandwidth_gb_s)
        algorithm = 2**exponent / ns
        points.append(
            LinkPoint(
                bytes=2**exponent,
                in_flight=1,
                ns=ns,
                p10_ns=ns * 97 // 100,
                p90_ns=ns * 106 // 100,
                repetitions=20,
                algorithm_gb_s=algorithm,
                bus_gb_s=algorithm * 2 * (ranks - 1) / ranks,
            )
        )
    return Link(
        kind="measured",
        what="nccl over NVLink",
        dtype="float32",
        ranks=ranks,
        points=points,
        concurrency=1,
        latency_ns=latency_ns,
        bandwidth_gb_s=bandwidth_gb_s,
        residual=0.042,
    )


EVERY = [
    overlapped,
    exposed,
    hidden,
    input_bound,
    straggler,
    one_rank,
    thousand_ranks,
    thousand_buckets,
    nothing,
]
