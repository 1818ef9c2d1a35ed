"""`profile.json` (`bucketlab.profile/1`): all that one profiled run measured. Plain data, read and written by msgspec.

Times are integer nanoseconds. Those on the timeline of a step count from the step's start, which is the end of the
optimizer step before it. Everything here is measured, except `prediction`, which says so itself, and what comes of
an emulated link: then `kind` says that.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bucketlab.schema.analysis import Stragglers

SCHEMA = "bucketlab.profile/1"


class StepTime(msgspec.Struct, kw_only=True):
    """Time of a step with no profiler attached: of each step, the slowest rank's."""

    median_ns: int
    p10_ns: int
    p90_ns: int
    samples: list[int]
    excluded: int  # steps seen but not counted: skipped by a GradScaler, with a pause, other passes or another batch


class HeldBack(msgspec.Struct, kw_only=True):
    """Steps that sent nothing until their last gradient was there, and then all buckets: compute and the link apart.

    Medians over the steps, of each step the figure that decides it.
    """

    steps: int
    step_ns: int
    compute_ns: int  # until the slowest rank's last gradient
    compute_p10_ns: int
    compute_p90_ns: int
    communication_ns: int  # from there until the rank that came last had all buckets back
    optimizer_ns: int  # from there to the end of the step
    rest_ns: int | None = None  # of each step that is neither of the above two; None in profiles without it


class Rehearsal(msgspec.Struct, kw_only=True):
    """Steps that reduced zeros beside the backward pass, in the sizes of another capacity's buckets.

    Medians over the steps, of each step the figure that decides it. Times count from the step's start.
    """

    cap_bytes: int  # of every bucket
    bucket_bytes: list[int]  # in the order of launch
    steps: int
    compute_ns: int  # until the slowest rank's last gradient
    end_ns: int  # until the last all-reduce was over


class Breakdown(msgspec.Struct, kw_only=True):
    """One traced step, medians over the steps of the trace window (and over ranks, in the run's own breakdown)."""

    wall_ns: int
    communication_ns: int
    compute_ns: int
    memory_ns: int
    overlap_ns: int
    exposed_ns: int
    busy_ns: int
    idle_ns: int
    input_ns: int
    kernels: int
    collectives: int

    @property
    def overlap_ratio(self) -> float | None:
        """Part of communication that compute hides; None where there is no communication."""
        return self.overlap_ns / self.communication_ns if self.communication_ns else None


class Bucket(msgspec.Struct, kw_only=True):
    """One all-reduce of gradients. Index 0 is the first to be ready. Medians over the trace window of rank 0."""

    module: int  # index into Profile.modules
    index: int
    parameters: list[str]
    bytes: int
    ready_ns: int | None
    start_ns: int | None
    end_ns: int | None
    overlap_ns: int | None
    exposed_ns: int | None
    bus_gb_s: float | None
    last_ready_ns: int | None = None  # when the last rank had it ready, by rank 0's clock; None: not all ranks traced


class Gradient(msgspec.Struct, kw_only=True):
    """One parameter's gradient, in ready order; `ready_ns` is None where it could not be measured."""

    module: int
    name: str
    bytes: int
    dtype: str
    ready_ns: int | None  # of pure compute: measured while no communication ran
    declared: int | None = None  # position among the module's parameters as DDP lists them
    sparse: bool = False  # DDP gives it a bucket of its own


class Module(msgspec.Struct, kw_only=True):
    """One DistributedDataParallel module and the setting in force on it."""

    name: str  # class of the wrapped module
    parameters: int
    bucket_cap_mb: float
    first_bucket_mb: float
    bucket_cap_mb_list: list[float]
    is_default: bool  # the bucket setting is what DDP takes when it is told nothing
    gradient_as_bucket_view: bool
    find_unused_parameters: bool
    static_graph: bool
    communication_hook: str | None  # the script's own, by name
    compiled: bool
    bucket_bytes: list[int]  # as DDP built them, read back from it


class Current(msgspec.Struct, kw_only=True):
    """The bucket setting in force; of several modules, the largest's. `Profile.modules` has each."""

    bucket_cap_mb: float
    first_bucket_mb: float
    bucket_cap_mb_list: list[float]
    is_default: bool  # it is what DDP takes when it is told nothing


class LinkPoint(msgspec.Struct, kw_only=True):
    """All-reduces of one size, nccl-tests' terms: the slowest rank's time, algorithm and bus bandwidth."""

    bytes: int
    in_flight: int
    ns: int  # time per collective; with two in flight, half the time of the pair
    p10_ns: int
    p90_ns: int
    low_ns: int | None = None  # 95 % confidence interval of `ns`
    high_ns: int | None = None
    repetitions: int
    algorithm_gb_s: float
    bus_gb_s: float


class Link(msgspec.Struct, kw_only=True):
    """The path the job's all-reduces take, measured on its own process group."""

    kind: Literal["measured", "emulated"]
    what: str  # for example "gloo, 2 ranks within one host"
    dtype: str
    ranks: int
    points: list[LinkPoint]
    concurrency: int  # collectives that the backend moves at a time
    latency_ns: int  # of the fit latency + bytes / bandwidth
    bandwidth_gb_s: float  # of the same fit: bytes of the buffer per ns, not bus bandwidth
    residual: float  # root mean square of the fit's relative errors
    hosts: list[str] = []
    used: str = ""  # what NCCL's own log says that it used
    found: dict[str, list[str]] = {}  # host -> what joins ranks there, whether it was used or not


class RankVolume(msgspec.Struct, kw_only=True):
    """Payload of one rank in one step, bytes: as the exchange counted it, and as a formula has it."""

    rank: int
    sent_bytes: int
    received_bytes: int
    formula_sent_bytes: int
    formula_received_bytes: int


class Topology(msgspec.Struct, kw_only=True):
    """The job's own steps with its gradients reduced in one way, in turns with the others."""

    kind: Literal["measured"] = "measured"
    name: str  # "ddp" for DDP's own all-reduce, else as in `bucketlab predict --algorithm`
    step: StepTime
    volumes: list[RankVolume]  # by rank; empty for DDP's own, of which nothing is counted
    formula: str = ""  # its source


class Memory(msgspec.Struct, kw_only=True):
    """Bytes on one rank's device (on CPU: of its process)."""

    parameters_bytes: int
    gradients_bytes: int
    bucket_buffers_bytes: int
    saved_by_view_bytes: int  # what gradient_as_bucket_view saves, or would save
    optimizer_bytes: int
    buffers_bytes: int
    peak_bytes: int  # largest of any rank
    capacity_bytes: int  # of the device; on CPU the host's memory shared out over its ranks
    largest_model_parameters: int  # of this shape, at this batch, that still fits


class RankSummary(msgspec.Struct, kw_only=True):
    """What each rank tells rank 0."""

    rank: int
    host: str
    device: str
    step_median_ns: int | None
    breakdown: Breakdown | None
    peak_bytes: int


class PredictedPoint(msgspec.Struct, kw_only=True):
    """One layout of buckets. It is named by the capacity that makes it, of many that do the shortest number."""

    bucket_cap_mb: float
    step_ns: int
    first_bucket_mb: float | None = None  # where the first bucket's capacity is another: DDP's default
    bucket_cap_mb_list: list[float] = []
    low_ns: int | None = None  # about nine of ten measured medians should lie within low and high
    high_ns: int | None = None
    buckets: int = 0
    exposed_ns: int = 0


class PlannedBuckets(msgspec.Struct, kw_only=True):
    """The best consecutive buckets there are, for one dtype in one module."""

    bucket_bytes: list[int]
    bucket_cap_mb_list: list[float]  # with which DDP makes just these; empty where no list does
    step_ns: int
    mg_wfbp_step_ns: int  # with the buckets of MG-WFBP's merge rule, for comparison


class Prediction(msgspec.Struct, kw_only=True):
    """Step time against bucket size, replayed from the ready times and the link's curve. Predicted, not measured."""

    kind: Literal["predicted"] = "predicted"
    points: list[PredictedPoint]  # distinct layouts, by rising capacity
    best: PredictedPoint
    current_step_ns: int
    floor_ns: int
    current: PredictedPoint | None = None
    default: PredictedPoint | None = None  # DDP told nothing
    plan: PlannedBuckets | None = None
    slowed_compute: float = 0.0  # while communication runs, compute takes (1 + this) times as long; fitted
    slowed_communication: float = 0.0  # and communication, while compute runs
    error: float | None = None  # what the prediction misses the measured step of the current setting by, as a part
    notes: list[str] = []  # what the prediction leaves out, one line each


class Profile(msgspec.Struct, kw_only=True):
    """One profiled run. None, or an empty list, is what could not be measured; `missing` says why."""

    schema: str = SCHEMA
    kind: Literal["measured", "emulated"] = "measured"  # emulated: steps on a link that was not there
    run: str
    created: str  # ISO 8601, UTC
    script: str
    command: list[str]
    versions: dict[str, str]
    world_size: int
    nodes: int
    backend: str
    device: str
    accumulation: int  # backwards per step
    modules: list[Module]
    optimizers: list[str]
    step: StepTime | None
    breakdown: Breakdown | None
    ranks: list[RankSummary]
    buckets: list[Bucket]
    gradients: list[Gradient]
    forward_ns: int | None  # from the step's start to the start of its last backward
    backward_ns: int | None  # that backward, exposed communication included
    optimizer_ns: int | None  # from there to the end of the step
    rehearsals: list[Rehearsal] = []
    held_back: HeldBack | None = None
    input_ns: int | None  # of forward_ns, before the model was called: waiting for data
    link: Link | None
    stragglers: Stragglers | None
    memory: Memory | None
    prediction: Prediction | None
    missing: list[str]  # what was not measured and why, one line each
    notes: list[str]  # what the reader must know about the figures, one line each
    advice: list[str]  # what to do next, the most useful first
    seconds: dict[str, float]  # wall time of each phase of this run
    topologies: list[Topology] = []  # where they were compared
    current: Current | None = None  # None: of traces alone, or in files of before it was noted
