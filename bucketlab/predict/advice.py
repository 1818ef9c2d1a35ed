"""What the user should do next, read off a profile and what is predicted of it: sentences, the most useful first.

One finding bounds the step: one rank, input, hidden communication, a late rank, or exposed communication.
Only that finding may speak about bucket sizes, so no two sentences contradict each other. The tests are
public (`is_input_bound`, `is_hidden`, `late_rank`, ...) because the report's headline has to agree with them.
"""

from __future__ import annotations

from statistics import median

from bucketlab.predict.forecast import deviation_of, unsayable
from bucketlab.predict.whatif import Question, what_if
from bucketlab.schema.analysis import RankStragglers
from bucketlab.schema.profile import Breakdown, Bucket, Link, Prediction, Profile
from bucketlab.units import duration, quantity, share, shown, size

# Step times of one setting differ by about this much from run to run: less cannot be won for sure.
NOISE_SHARE = 0.02
# Below a tenth of the step, loading data is rarely what a user should look at first.
INPUT_SHARE = 0.10
# From half on, waiting for a rank is the larger part of what is exposed; buckets only move the smaller one.
WAIT_SHARE = 0.5
# A rank is always late if even its tenth percentile of lag is half its median; else ranks take turns.
ALWAYS_LATE_SHARE = 0.5
# Loss reductions and buffer broadcasts add a few collectives to a step; from here on it is gradients.
SPARE_COLLECTIVES = 4
# In training, buckets that travel at less than half of what the link does alone are slowed by something.
SLOWED_SHARE = 0.5
# Predictions were within 4 % of measured steps where they worked; one this far off is no ground to stop looking.
UNTRUSTED_SHARE = 0.10
# Steps whose middle 80 % spread over more than this bury any effect of a few per cent.
UNEVEN_SHARE = 0.25
# A view saves a copy of the gradients; below this nobody runs out of memory for it.
WORTH_SAVING_BYTES = 16 * 2**20
# Beyond this part of the device, fragmentation and one longer batch end in "out of memory".
FULL_SHARE = 0.92


def advise(profile: Profile) -> list[str]:
    """What to do next, the most useful first; empty where the profile gives no ground for advice.

    Reads only the profile, and every gain it names is called predicted.
    """
    if profile.step is None and profile.breakdown is None:
        return []
    return [*_on_what_bounds_the_step(profile), *_on_memory(profile), *_on_unused_parameters(profile)]


def is_input_bound(profile: Profile) -> bool:
    """Waiting for data takes `INPUT_SHARE` of the step or more, and more than exposed communication does."""
    breakdown = profile.breakdown
    if breakdown is None:
        return False
    waiting_ns = input_wait_ns(profile)
    return waiting_ns >= INPUT_SHARE * breakdown.wall_ns and waiting_ns >= breakdown.exposed_ns


def input_wait_ns(profile: Profile) -> int:
    """Time of a traced step that is lost to loading data.

    A GPU works on while the host waits for the loader, so there only the idle part counts. On CPU, loading in
    the training process counts as compute, so there all of it does.
    """
    breakdown = profile.breakdown
    if breakdown is None:
        return 0
    return breakdown.input_ns if _on_cpu(profile) else min(breakdown.input_ns, breakdown.idle_ns)


def is_hidden(profile: Profile) -> bool:
    """There is communication, and less of it is exposed than could be told from noise."""
    breakdown = profile.breakdown
    if breakdown is None or breakdown.communication_ns == 0:
        return False
    return breakdown.exposed_ns < NOISE_SHARE * breakdown.wall_ns


def late_rank(profile: Profile) -> RankStragglers | None:
    """The rank that comes last to collectives, where waiting for it is most of the exposed communication."""
    breakdown, latest = profile.breakdown, _latest(profile)
    if breakdown is None or latest is None or breakdown.exposed_ns == 0 or is_hidden(profile):
        return None
    return latest if wait_for(latest, profile) >= WAIT_SHARE * breakdown.exposed_ns else None


def is_always_late(late: RankStragglers) -> bool:
    """The same rank is late in nearly every step; otherwise ranks take turns, and none of them is to blame."""
    return late.lag_p10_ns >= ALWAYS_LATE_SHARE * late.arrival_lag_ns


def buckets_matter(profile: Profile) -> bool:
    """Nothing speaks against a gain from other buckets: one rank, input, a late rank, or nothing exposed would.

    Without a trace nothing is known of what is exposed, and a prediction may stand for it.
    """
    breakdown = profile.breakdown
    if profile.world_size == 1 or breakdown is None:
        return profile.world_size > 1
    return (
        breakdown.communication_ns > 0
        and not is_input_bound(profile)
        and not is_hidden(profile)
        and late_rank(profile) is None
    )


def wait_for(late: RankStragglers, profile: Profile) -> float:
    """Median over the other ranks of how long each waits in a step, in ns."""
    ranks = profile.stragglers.by_rank if profile.stragglers else []
    return median([rank.wait_ns for rank in ranks if rank.rank != late.rank] or [0])


def noise(profile: Profile) -> float:
    """Part of the step by which two measurements of one setting may differ: two standard errors at least."""
    step = profile.step
    if step is None or not step.samples:
        return NOISE_SHARE
    return max(NOISE_SHARE, float(2 * deviation_of(step) / len(step.samples) ** 0.5))


def predicted_gain(prediction: Prediction) -> float:
    """Part of the step that the best size wins over the one in force, both of them predicted."""
    return 1 - prediction.best.step_ns / prediction.current_step_ns


def prediction_error(profile: Profile) -> float | None:
    """Part by which the prediction misses the one setting that was measured; None where either is missing."""
    if profile.step is None or profile.prediction is None:
        return None
    return profile.prediction.current_step_ns / profile.step.median_ns - 1


def _on_what_bounds_the_step(profile: Profile) -> list[str]:
    if profile.world_size == 1:
        return ["One rank exchanges gradients with nobody, so there is nothing to overlap: profile two or more."]
    breakdown = profile.breakdown
    if breakdown is None:
        return [_on_bucket_size(profile, "How much communication is exposed was not measured")]
    if is_input_bound(profile):
        return [_load_faster(profile, breakdown)]
    if breakdown.communication_ns == 0:
        return []
    if is_hidden(profile):
        return [_leave_alone(breakdown)]
    late = late_rank(profile)
    if late is not None:
        return [_look_at(profile, late)]
    exposed = share(breakdown.exposed_ns, breakdown.wall_ns)
    return [
        *_on_sending_twice(profile, breakdown),
        *_on_gloo_between_gpus(profile),
        _on_bucket_size(profile, f"{exposed} of the step is exposed communication"),
        *_on_what_cannot_hide(profile),
        *_on_slowed_buckets(profile),
        *_on_uneven_steps(profile),
    ]


def _load_faster(profile: Profile, breakdown: Breakdown) -> str:
    waiting = share(input_wait_ns(profile), breakdown.wall_ns)
    return (
        f"The job is bound by input: {waiting} of the step waits for data, and no bucket size changes that. "
        "Give the DataLoader more workers (num_workers, persistent_workers, prefetch_factor) or lighter "
        "transforms, then profile again."
    )


def _leave_alone(breakdown: Breakdown) -> str:
    return (
        "Leave the buckets alone: communication is hidden "
        f"({share(breakdown.exposed_ns, breakdown.wall_ns)} of the step is exposed), and another size could win no "
        "more than noise. Only faster compute makes this step faster."
    )


def _look_at(profile: Profile, late: RankStragglers) -> str:
    wait = duration(wait_for(late, profile))
    if not is_always_late(late):
        return (
            f"Ranks wait {wait} a step for each other and take turns at being late, so no bucket size helps: the work "
            "differs from batch to batch (even it out: batches of similar length, as many tokens on each rank), or "
            "other programs take turns at the machine."
        )
    where = next((f" ({shown(r.host)}, {shown(r.device)})" for r in profile.ranks if r.rank == late.rank), "")
    return (
        f"Look at rank {late.rank}{where}: the others wait {wait} a step for it, most of what is exposed, "
        "and no bucket size helps. Look for a slow or throttled device, a busy host, a larger share of the "
        "data, or work that this rank alone does (logging, checkpoints)."
    )


def _on_sending_twice(profile: Profile, breakdown: Breakdown) -> list[str]:
    """Accumulation without `no_sync()`, told by the count of collectives: only where one module trains."""
    backwards, buckets = profile.accumulation, len(profile.buckets)
    spare = breakdown.collectives - buckets
    if backwards < 2 or len(profile.modules) != 1 or spare < max(SPARE_COLLECTIVES, (backwards - 1) * buckets):
        return []
    return [
        f"Each of the {backwards} backwards of a step sends its gradients. Put all but the last under the "
        "module's `no_sync()`, and their sum is sent once a step."
    ]


def _on_gloo_between_gpus(profile: Profile) -> list[str]:
    if profile.backend != "gloo" or _on_cpu(profile):
        return []
    return ["Gradients leave the GPUs for gloo, through the host's memory: use nccl in init_process_group."]


def _on_bucket_size(profile: Profile, exposed: str) -> str:
    """Try, measure or leave; `exposed` says what is known of exposed communication."""
    hook = next((module.communication_hook for module in profile.modules if module.communication_hook), None)
    if hook is not None:
        return (
            f"{exposed}. The script's own communication hook ({shown(hook)}) decides what is sent, so times "
            "predicted from plain all-reduces need not hold: `bucketlab tune` measures what other sizes give."
        )
    prediction = profile.prediction
    if prediction is None:
        return f"{exposed}: `bucketlab tune` measures what other sizes make of that."
    gain, noise_share = predicted_gain(prediction), noise(profile)
    error = abs(prediction_error(profile) or 0)
    if gain <= noise_share and error > UNTRUSTED_SHARE:
        return (
            f"{exposed}. No size is predicted to win more than noise, but the prediction misses the step in force by "
            f"{share(error, 1)}: only `bucketlab tune`, which measures, can tell."
        )
    if gain <= noise_share:
        return (
            "Leave the buckets as they are: no size is predicted to win more than the noise of "
            f"{share(noise_share, 1)}. {exposed}."
        )
    size_mb = f"bucket_cap_mb={prediction.best.bucket_cap_mb:g}"
    if gain <= error:
        return (
            f"{size_mb} is predicted to be {share(gain, 1)} faster, but the prediction misses the step in "
            f"force by {share(error, 1)}: change nothing before `bucketlab tune` has measured it."
        )
    doubt = (
        " The spread of this profile could hide as much; the interval that it gives will tell."
        if _may_be_spread(prediction)
        else ""
    )
    return (
        f"Try {size_mb}: predicted {share(gain, 1)} faster (predicted, not measured); "
        f"`bucketlab tune` measures it against others.{doubt}"
    )


def _may_be_spread(prediction: Prediction) -> bool:
    """Whether the bands of the best size and of the setting in force overlap."""
    now, best = prediction.current, prediction.best
    return now is not None and now.low_ns is not None and best.high_ns is not None and best.high_ns > now.low_ns


def _on_what_cannot_hide(profile: Profile) -> list[str]:
    """The link needs longer for the gradients than the backward pass gives it: then less has to be sent."""
    ready_ns = [gradient.ready_ns for gradient in profile.gradients if gradient.ready_ns is not None]
    link, hook = profile.link, any(module.communication_hook for module in profile.modules)
    if link is None or link.bandwidth_gb_s <= 0 or hook or len(profile.modules) != 1 or len(ready_ns) < 2:
        return []
    window_ns = max(ready_ns) - min(ready_ns)
    least_ns = link.latency_ns + sum(bucket.bytes for bucket in profile.buckets) / link.bandwidth_gb_s
    if least_ns <= window_ns:
        return []
    bound = (
        f"Bound by the link: it alone needs {duration(least_ns)} for all gradients, and they become ready within "
        f"{duration(window_ns)}, so some communication stays exposed whatever the buckets."
    )
    if profile.prediction is None or unsayable(profile):
        return [f"{bound} Send less for the same work: a larger batch per rank, or accumulation under `no_sync()`."]
    gains = [f"other buckets can win {share(max(0.0, predicted_gain(profile.prediction)), 1)}"]
    if {gradient.dtype for gradient in profile.gradients} == {"float32"}:
        halved = _gain_if(profile, Question(compression=0.5))
        gains.append(f"gradients in 16 bits (torch's bf16_compress_hook) {share(halved, 1)}")
    twice = _gain_if(profile, Question(accumulation=2 * profile.accumulation))
    passes = f"{2 * profile.accumulation} backward passes"
    gains.append(f"accumulation over {passes} under `no_sync()` {share(twice, 1)} of the time per sample")
    return [f"{bound} Predicted, not measured: {', '.join(gains)}."]


def _gain_if(profile: Profile, question: Question) -> float:
    """Part of the time per sample that is won over the setting in force, with the best buckets, on the same link."""
    [before], [after] = what_if(profile, Question()).rows, what_if(profile, question).rows
    passes = (question.accumulation or profile.accumulation) / profile.accumulation
    return max(0.0, 1 - after.step_ns / passes / before.current_step_ns)


def _on_slowed_buckets(profile: Profile) -> list[str]:
    """Buckets that travel far slower than the link moved the same bytes while nothing else ran."""
    link = profile.link
    if link is None or link.bandwidth_gb_s <= 0 or any(m.communication_hook for m in profile.modules):
        return []
    latest = _latest(profile)
    travelling_ns = _travelling_ns(profile.buckets) - (wait_for(latest, profile) if latest else 0)
    alone_ns = sum(_alone_ns(bucket, link) for bucket in profile.buckets)
    if alone_ns == 0 or alone_ns >= SLOWED_SHARE * travelling_ns:
        return []
    remedy = (
        "leave cores to the communication threads, if compute has more threads than it needs"
        if _on_cpu(profile)
        else "look for other traffic on the link and for kernels that leave NCCL no room"
    )
    return [
        f"Buckets take {travelling_ns / alone_ns:.1f} times as long as the link needed for as many bytes "
        f"while nothing else ran: compute and communication slow each other; {remedy}."
    ]


def _on_uneven_steps(profile: Profile) -> list[str]:
    step = profile.step
    if step is None or step.p90_ns - step.p10_ns <= UNEVEN_SHARE * step.median_ns:
        return []
    return [
        f"Steps last from {duration(step.p10_ns)} (p10) to {duration(step.p90_ns)} (p90): compare settings "
        "over many steps, or profile with batches of one length."
    ]


def _on_memory(profile: Profile) -> list[str]:
    memory = profile.memory
    if memory is None:
        return []
    found = []
    lacks_view = any(not module.gradient_as_bucket_view for module in profile.modules)
    if lacks_view and memory.saved_by_view_bytes >= WORTH_SAVING_BYTES:
        found.append(
            "Pass gradient_as_bucket_view=True to DistributedDataParallel: it saves "
            f"{size(memory.saved_by_view_bytes)} on each rank, and a copy of every gradient in each step."
        )
    if memory.capacity_bytes and memory.peak_bytes >= FULL_SHARE * memory.capacity_bytes:
        full = share(memory.peak_bytes, memory.capacity_bytes)
        largest = quantity(memory.largest_model_parameters)
        found.append(
            f"Memory is {full} full at its peak, and DDP keeps a whole copy on every rank: beyond about "
            f"{largest} parameters of this shape, shard (FSDP, or ZeroRedundancyOptimizer for the "
            "optimizer's state alone)."
        )
    return found


def _on_unused_parameters(profile: Profile) -> list[str]:
    searching = [module for module in profile.modules if module.find_unused_parameters]
    if not searching:
        return []
    costs = "costs a walk over the autograd graph each step"
    if not all(module.static_graph for module in searching):
        costs += ", and DDP never rebuilds its buckets in the order in which gradients are ready"
    return [
        f"find_unused_parameters=True {costs}. Leave it out if every parameter gets a gradient; if the same "
        "ones never do, static_graph=True is cheaper."
    ]


def _latest(profile: Profile) -> RankStragglers | None:
    ranks = profile.stragglers.by_rank if profile.stragglers else []
    return max(ranks, key=lambda rank: rank.arrival_lag_ns) if len(ranks) > 1 else None


def _travelling_ns(buckets: list[Bucket]) -> int:
    """Time in which at least one bucket travels: gloo moves two at once, each at half the speed."""
    travelling_ns = until_ns = 0
    spans = [(b.start_ns, b.end_ns) for b in buckets if b.start_ns is not None and b.end_ns is not None]
    for start_ns, end_ns in sorted(spans):
        travelling_ns += max(0, end_ns - max(start_ns, until_ns))
        until_ns = max(until_ns, end_ns)
    return travelling_ns


def _alone_ns(bucket: Bucket, link: Link) -> float:
    return link.latency_ns + bucket.bytes / link.bandwidth_gb_s


def _on_cpu(profile: Profile) -> bool:
    return profile.device.lower().startswith("cpu")
