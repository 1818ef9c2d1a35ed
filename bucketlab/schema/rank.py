"""What each rank tells rank 0 at the end of a profiled run. Travels through the job's store, is kept in no file."""

from __future__ import annotations

import msgspec

from bucketlab.link.nccl_log import Contradiction, Used
from bucketlab.link.sweep import LinkModel
from bucketlab.schema.analysis import RankAnalysis
from bucketlab.schema.profile import Gradient, LinkPoint, Memory, Module


class TimedStep(msgspec.Struct, kw_only=True):
    """One step with no profiler attached, on this rank."""

    wall_ns: int
    input_ns: int | None  # from the step's start until the model was called
    forward_ns: int | None  # from the step's start to the start of the first backward that synchronises
    backward_ns: int | None  # to the end of the last one
    computed_ns: int | None = None  # of backward_ns, until its last gradient: told where ready times are taken
    rehearsed_ns: int | None = None  # of backward_ns, until rehearsed all-reduces were over
    regular: bool  # as the others: see `worker.usual`


class RehearsedSteps(msgspec.Struct, kw_only=True):
    """Steps of this rank beside whose backward pass another layout's buckets were reduced, of zeros."""

    cap_bytes: int
    bucket_bytes: list[int]  # in the order of launch
    steps: list[TimedStep]


class TopologySteps(msgspec.Struct, kw_only=True):
    """Steps of this rank with gradients reduced in one way, and the bytes that this rank exchanged in all of them."""

    name: str
    steps: list[TimedStep] = []
    reduced_bytes: int = 0  # gradients averaged; 0 for DDP's own all-reduce, of which nothing is counted
    sent_bytes: int = 0
    received_bytes: int = 0


class RankReport(msgspec.Struct, kw_only=True):
    """What one rank measured and found."""

    rank: int
    host: str
    device: str
    steps: list[TimedStep]
    held_back: list[TimedStep] = []  # steps that sent all buckets after their last gradient
    rehearsed: list[RehearsedSteps] = []
    analysis: RankAnalysis | None
    memory: Memory
    nccl: Used | None  # None: no log of NCCL's
    not_valid: str | None  # why an emulated link's figures mean nothing
    contradictions: list[Contradiction]  # where NCCL used another path than the sweep's
    missing: list[str]
    seconds: dict[str, float]
    topologies: list[TopologySteps] = []


class RunFacts(msgspec.Struct, kw_only=True):
    """What rank 0 alone contributes: the job as a whole, the same on every rank."""

    run: str
    created: str
    script: str
    command: list[str]
    versions: dict[str, str]
    world_size: int
    backend: str
    accumulation: int
    modules: list[Module]
    bucket_parameters: list[list[list[str]]]  # module -> bucket -> names of its parameters
    optimizers: list[str]
    gradients: list[Gradient]  # ready_ns here counts from the start of the first backward that synchronises
    link_points: list[LinkPoint]  # empty: not measured
    link_dtype: str
    emulated: LinkModel | None
    wanted_link: str  # kind that a sweep asked for, or ""
    missing: list[str]
    notes: list[str]
