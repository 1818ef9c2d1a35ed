"""A link that is not there, under a real job: buckets are reduced as ever, and arrive when the modelled link says.

A communication hook averages and all-reduces each bucket with DDP's own arithmetic, so the training computes what it
computes without. The bucket is handed to DDP no earlier than the modelled link would have moved it: its transfer
begins when the last rank's bucket is ready and the link is free, and runs beside the backward pass. What follows
from it is emulated, never measured, and where the real reduction is the slower one it is not valid: `Emulated` says so.

On CPU one thread of its own, which sleeps, completes the buckets; the ranks must be processes of one machine
(`bucketlab.worker.board`). On a GPU a side stream is held, not the host; that part (`_StreamLink`) has not run on a GPU
yet. Only the all-reduces of gradients are emulated: broadcasts of buffers and the map of unused parameters take the
real link.
"""

# No postponed annotations in this file: DDP looks at those of a communication hook.
import ctypes
import functools
import itertools
import queue
import statistics
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from bucketlab.errors import WorkFailed
from bucketlab.link.curve import LinkCurve
from bucketlab.worker import ddp
from bucketlab.worker.averaging import Averaging
from bucketlab.worker.board import Board

_Outcome = torch.futures.Future[torch.Tensor | Exception]

_TOLERANCE = 0.03  # of the modelled time
_LATE_STEPS = 0.05  # so few do not move a median
_JUDGED_FROM_NS = 1_000_000  # shorter transfers are emulated too, less exactly
_KEPT = 10_000  # newest transfers, for medians
_MOST_LATE_NS = 60_000  # that a sleep is taken to end late
_NOTHING_NS = 0.5  # what rounding leaves of a difference between times since boot
_SLEEPS_REMEMBERED = 15
_BACKWARDS_UNTIL_LAYOUT = 4  # of a new reducer; with a static graph, one fewer without
_PR_SET_TIMERSLACK = 29  # prctl(2)


class Emulated(msgspec.Struct, kw_only=True):
    """What an emulated link did, on this rank, since it was installed or last `reset`."""

    kind: Literal["emulated"] = "emulated"
    latency_ns: int  # of the modelled link's fit latency + bytes / bandwidth
    bandwidth_gb_s: float  # of the same fit: bytes of the buffer per ns
    concurrency: int
    transfers: int
    steps: int  # backward passes that sent buckets; the first one of a static graph is counted with the second
    late_steps: int  # their last reduction ended later than modelled, by more than 3 % of their transfers' time
    worst_excess_ns: int  # of a step: by how much the real reduction ended later than modelled
    median_error: float | None  # how late completions came, over the modelled time; transfers of 1 ms and more

    @property
    def valid(self) -> bool:
        """Whether step times under this link mean anything."""
        return self.steps > 0 and self.late_steps <= _LATE_STEPS * self.steps

    @property
    def why_not_valid(self) -> str | None:
        """One line for the user, or None."""
        if self.valid:
            return None
        if self.steps == 0:
            return "no bucket went over the emulated link"
        return (
            f"the real link was slower than the emulated one in {self.late_steps} of {self.steps} steps, "
            f"by up to {self.worst_excess_ns / 1e6:.1f} ms"
        )


@dataclass(slots=True, eq=False)
class _Step:
    """What one backward pass of one module sends."""

    sent: int = 0
    all_sent: bool = False
    completed: int = 0
    modelled_ns: float = 0.0  # transfers one after the other
    end_ns: float = 0.0  # of all that was sent, modelled; on a GPU times count from here
    reduced_ns: float = 0.0  # of all that was sent, really


@dataclass(slots=True, eq=False)
class Transfer:
    """One bucket on the emulated link; None is "not yet". Times are of `time.perf_counter_ns`."""

    number: int
    bytes: int
    step: _Step
    ready_ns: int  # on this rank
    arrived_ns: int | None = None  # ready on all ranks
    reduced_ns: int | None = None  # the real reduction was over
    start_ns: float | None = None  # modelled
    end_ns: float | None = None
    completed_ns: int | None = None  # handed to DDP


class ModelledLink:
    """The link alone, driven by the time it is told. Moves `concurrency` transfers at a time, in order of arrival.

    As in `bucketlab.predict.replay`: each first spends its latency, beside others, then moves its bytes; those that
    move bytes share the link evenly, and two or more of them move `pair_gain` times what one alone does.
    """

    def __init__(self, curve: LinkCurve, concurrency: int) -> None:
        self._curve = curve
        self._concurrency = concurrency
        self._now = 0.0  # of the last arrival or change
        self._waiting: deque[_Moving] = deque()
        self._moving: list[_Moving] = []

    def arrive(self, transfer: Transfer) -> list[Transfer]:
        """A transfer is ready on all ranks since `arrived_ns`.

        The link is told of arrivals in their order but a little late, when it has gone on already. With one transfer
        at a time that changes nothing; with several, it then counts from where the link has got to.

        Returns:
            Transfers that ended before it came, with `start_ns` and `end_ns`.
        """
        assert transfer.arrived_ns is not None
        ended = self.advance(transfer.arrived_ns)
        # Its time is worked out now: when its turn comes, the one before it is to be completed first.
        self._waiting.append(self._moving_of(transfer))
        if transfer.arrived_ns > self._now:
            self._move_on(transfer.arrived_ns - self._now)
        self._start_waiting()
        return ended

    def next_change_ns(self) -> float | None:
        """When something ends next if nothing arrives; None when the link stands idle."""
        if not self._moving:
            return None
        share = self._share()
        return self._now + min(one.latency_ns if one.latency_ns > 0 else one.bytes_ns / share for one in self._moving)

    def advance(self, to_ns: float) -> list[Transfer]:
        """Transfers that have ended by then, in order of their ends."""
        ended: list[Transfer] = []
        while (change_ns := self.next_change_ns()) is not None and change_ns <= to_ns:
            self._move_on(change_ns - self._now)
            for one in self._moving:
                if one.is_over:
                    one.transfer.end_ns = self._now
                    ended.append(one.transfer)
            self._moving = [one for one in self._moving if not one.is_over]
            self._start_waiting()
        return ended

    def _start_waiting(self) -> None:
        while self._waiting and len(self._moving) < self._concurrency:
            one = self._waiting.popleft()
            one.transfer.start_ns = self._now
            self._moving.append(one)

    def _moving_of(self, transfer: Transfer) -> "_Moving":
        alone_ns = float(self._curve.time_ns(transfer.bytes))
        latency_ns = min(alone_ns, self._curve.latency_ns) if self._concurrency > 1 else 0.0
        return _Moving(transfer, latency_ns, alone_ns - latency_ns)

    def _move_on(self, ahead_ns: float) -> None:
        share = self._share()
        for one in self._moving:
            if one.latency_ns > 0:
                left_ns = one.latency_ns - ahead_ns
                one.latency_ns = left_ns if left_ns > _NOTHING_NS else 0.0
            else:
                one.bytes_ns -= ahead_ns * share
        self._now += ahead_ns

    def _share(self) -> float:
        sharing = sum(one.latency_ns <= 0 for one in self._moving)
        return 1.0 if sharing < 2 else self._curve.pair_gain / sharing


@dataclass(slots=True, eq=False)
class _Moving:
    transfer: Transfer
    latency_ns: float  # left
    bytes_ns: float  # left, if it were alone

    @property
    def is_over(self) -> bool:
        return self.latency_ns <= 0 and self.bytes_ns <= _NOTHING_NS


class Emulation:
    """Puts an emulated link under DDP modules; several modules share it.

    Every rank must install, attach and remove at the same step.

    Args:
        curve: time of one all-reduce alone on the modelled link.
        concurrency: transfers that it moves at a time; on a GPU only 1, as NCCL does.
    """

    def __init__(self, curve: LinkCurve, concurrency: int = 1) -> None:
        self._curve = curve
        self._concurrency = concurrency
        self._tally = _Tally()
        self._links: dict[torch.device, _Link] = {}
        self._senders: weakref.WeakKeyDictionary[DistributedDataParallel, _Sender] = weakref.WeakKeyDictionary()

    def install(self, module: DistributedDataParallel) -> None:
        """Between two steps; the buckets stay as they are.

        Before the first step or after the fourth: in between DDP changes its buckets and does not tell yet.

        Raises:
            WorkFailed: the module must be left alone; `why_not` tells the reason beforehand.
        """
        reason = self.why_not(module)
        if reason is not None:
            raise WorkFailed(f"no link can be emulated under {type(module.module).__name__}: {reason}")
        buckets = self._layout(module)
        ddp.put_in_new_reducer(module, buckets)
        self.attach(module, buckets)

    def why_not(self, module: DistributedDataParallel) -> str | None:
        """Why no link can be emulated under this module, or None."""
        hook = ddp.hook_of(module)
        if hook is not None and module not in self._senders:
            return f"the script registered its own communication hook, {hook}"
        if self._concurrency > 1 and next(module.parameters()).device.type == "cuda":
            return "on a GPU the emulated link moves one transfer at a time"
        return ddp.why_not_rebuildable(module)

    def attach(self, module: DistributedDataParallel, buckets: ddp.Layout) -> None:
        """Puts the link under a reducer that was just made, with these buckets, and has no communication hook."""
        before = self._senders.pop(module, None)
        if before is not None:
            before.close()
        device = next(module.parameters()).device
        if device not in self._links:
            self._links[device] = self._new_link(device)
        sender = _Sender(module, buckets, self._links[device], _board_for(module.process_group, device))
        module.register_comm_hook(sender, _send)
        module._comm_hooks.clear()  # what `register_comm_hook` remembers outlives the reducer
        self._senders[module] = sender

    def remove(self) -> None:
        """Between two steps: gives each module a reducer without the link, with the same buckets."""
        for module, sender in list(self._senders.items()):
            sender.close()
            ddp.put_in_new_reducer(module, self._layout(module))
        self._senders.clear()
        for link in self._links.values():
            link.stop()
        self._links.clear()

    def _layout(self, module: DistributedDataParallel) -> ddp.Layout:
        """The buckets in force. For its first few backward passes a new reducer tells those that DDP begins with."""
        sender = self._senders.get(module)
        if sender is not None and sender.backwards < _BACKWARDS_UNTIL_LAYOUT:
            return sender.buckets
        return ddp.layout(module)

    def reset(self) -> None:
        """Between two steps: counts anew from here."""
        for link in self._links.values():
            link.settle()
        self._tally.clear()

    def report(self) -> Emulated:
        """Between two steps: what the link did."""
        for link in self._links.values():
            link.settle()
        return self._tally.report(self._curve, self._concurrency)

    def newest_transfers(self) -> list[Transfer]:
        """On CPU, the newest completed transfers, in order of completion; none on a GPU."""
        return list(self._tally.newest)

    def _new_link(self, device: torch.device) -> "_Link":
        if device.type == "cuda":
            return _StreamLink(self._curve, device, self._tally)
        return _HostLink(ModelledLink(self._curve, self._concurrency), self._tally)


def _send(sender: "_Sender", bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return sender.send(bucket)


class _Sender:
    """One module's side of the link. Holds no reference to the module, whose reducer holds this."""

    def __init__(
        self, module: DistributedDataParallel, buckets: ddp.Layout, link: "_Link", board: Board | None
    ) -> None:
        self.buckets = buckets
        self.backwards = 0
        self.group: dist.ProcessGroup = module.process_group
        self.ranks = dist.get_world_size(self.group)
        self.board = board
        self._link = link
        self._averaging = Averaging(module, self.ranks)
        self._step = _Step()

    def send(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        step = self._step
        step.sent += 1
        if bucket.is_last():  # which a static graph's first backward says of none
            step.all_sent = True
            self._step = _Step()
            self.backwards += 1
        return self._link.send(bucket, self, step)

    def average(self, bucket: GradBucket) -> None:
        self._averaging.average(bucket)

    def close(self) -> None:
        self._averaging.close()


# Kept as long as the job's own group, so that the ranks meet once.
_boards: weakref.WeakKeyDictionary[dist.ProcessGroup, Board] = weakref.WeakKeyDictionary()


def _board_for(group: dist.ProcessGroup, device: torch.device) -> Board | None:
    if device.type == "cuda" or dist.get_world_size(group) == 1:
        return None
    if group not in _boards:
        _boards[group] = Board.of(group)
    return _boards[group]


class _Link(Protocol):
    """Moves buckets on one kind of device."""

    def send(self, bucket: GradBucket, sender: _Sender, step: _Step) -> torch.futures.Future[torch.Tensor]: ...

    def settle(self) -> None:
        """Waits until all that was sent is counted."""
        ...

    def stop(self) -> None: ...


class _HostLink:
    """On CPU: the backward thread sends, the backend's threads tell what is over, and one thread completes.

    That thread alone drives the link; whatever it knows came through its inbox, or stands on the ranks' board. A bucket
    is ready on all ranks at the greatest of their times. Where there is one rank, there is no board and no reduction.
    """

    def __init__(self, link: ModelledLink, tally: "_Tally") -> None:
        self._link = link
        self._tally = tally
        self._numbers = itertools.count()
        # Not a SimpleQueue: its `get` waits for ever where a short timeout is over before it looks (CPython 3.11).
        self._inbox: queue.Queue[Callable[[], None] | None] = queue.Queue()
        # In the order of sending, which is that of arrival: each with what tells when it was ready everywhere.
        self._arriving: deque[tuple[Transfer, Callable[[], int | None]]] = deque()
        self._open: dict[int, tuple[_Outcome, torch.Tensor]] = {}  # number of a transfer -> what DDP waits for
        self._sleep = Lateness()
        self._thread = threading.Thread(target=self._run, name="bucketlab-emulated-link", daemon=True)
        self._thread.start()

    def send(self, bucket: GradBucket, sender: _Sender, step: _Step) -> torch.futures.Future[torch.Tensor]:
        ready_ns = time.perf_counter_ns()
        buffer = bucket.buffer()
        outcome: _Outcome = torch.futures.Future()
        transfer = Transfer(next(self._numbers), buffer.nbytes, step, ready_ns)
        self._open[transfer.number] = outcome, buffer
        if sender.board is None:
            transfer.reduced_ns = ready_ns
            self._arriving.append((transfer, lambda: ready_ns))
            self._inbox.put(self._admit)
            return outcome.then(_value)
        slot = sender.board.write(ready_ns)
        transfer.ready_ns = slot.ready_ns
        sender.average(bucket)
        self._arriving.append((transfer, functools.partial(sender.board.latest, slot)))
        # The group's own method: `dist.all_reduce` takes 17 µs longer, in the backward thread.
        reduction = sender.group.allreduce([buffer])
        reduction.get_future().add_done_callback(functools.partial(self._over, transfer))
        return outcome.then(_value)

    def settle(self) -> None:
        return  # a transfer is counted before DDP gets it

    def stop(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _over(self, transfer: Transfer, done: torch.futures.Future[Any]) -> None:
        """In a thread of the backend, or in the backward thread if it was over already."""
        now_ns = time.perf_counter_ns()
        try:
            done.value()
        except Exception as error:
            self._inbox.put(functools.partial(self._failed, transfer, error))
        else:
            self._inbox.put(functools.partial(self._reduced, transfer, now_ns))

    # ---- the link's own thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        _sharpen_sleep()
        while (message := self._next_message()) is not None:
            try:
                message()
            except Exception as error:  # the script must not wait for ever for what will not come
                for number in list(self._open):
                    self._open.pop(number)[0].set_result(error)

    def _next_message(self) -> Callable[[], None] | None:
        """What to do next: what a message asks for, or to go on with the link when something on it ends first."""
        change_ns = self._link.next_change_ns()
        if change_ns is None:
            return self._inbox.get()
        wake_ns = change_ns - self._sleep.late_ns
        left_ns = wake_ns - time.perf_counter_ns()
        if left_ns > 0:
            try:
                return self._inbox.get(timeout=left_ns / 1e9)
            except queue.Empty:
                self._sleep.learn(time.perf_counter_ns() - wake_ns)
        while time.perf_counter_ns() < change_ns:
            time.sleep(0)  # lets the backward thread have the interpreter's lock, which a plain loop would not
        return self._advance

    def _advance(self) -> None:
        now_ns = time.perf_counter_ns()
        self._admit()  # what arrived before something ended may have slowed it
        self._complete(self._link.advance(now_ns))

    def _reduced(self, transfer: Transfer, now_ns: int) -> None:
        transfer.reduced_ns = now_ns
        self._admit()
        self._complete([transfer])

    def _failed(self, transfer: Transfer, error: Exception) -> None:
        if transfer.number in self._open:
            outcome, _ = self._open.pop(transfer.number)
            outcome.set_result(error)

    def _admit(self) -> None:
        """Lets those in that have arrived, as far as is known by now."""
        while self._arriving:
            transfer, latest = self._arriving[0]
            if transfer.number in self._open:  # has not failed
                transfer.arrived_ns = latest()
                if transfer.arrived_ns is None:
                    return
                self._complete(self._link.arrive(transfer))
            self._arriving.popleft()

    def _complete(self, transfers: list[Transfer]) -> None:
        """Hands to DDP those that are over on both links, the modelled and the real one."""
        for transfer in transfers:
            start_ns, end_ns, reduced_ns = transfer.start_ns, transfer.end_ns, transfer.reduced_ns
            if start_ns is None or end_ns is None or reduced_ns is None or transfer.number not in self._open:
                continue
            outcome, buffer = self._open.pop(transfer.number)
            transfer.completed_ns = time.perf_counter_ns()
            step = transfer.step
            step.end_ns = max(step.end_ns, end_ns)
            step.reduced_ns = max(step.reduced_ns, reduced_ns)
            self._tally.newest.append(transfer)
            error_ns = transfer.completed_ns - max(end_ns, reduced_ns)
            self._tally.count(step, modelled_ns=end_ns - start_ns, error_ns=error_ns)
            outcome.set_result(buffer)


def _value(outcome: _Outcome) -> torch.Tensor:
    """An error raised in here is one that DDP raises in the backward pass."""
    value = outcome.value()
    if isinstance(value, Exception):
        raise value
    return value


class Lateness:
    """How late a sleep ends, by the newest ones: as much as the rest is to be spun away.

    A core that idles takes tens of microseconds to wake up, one that works a few; and there the spinning is at the
    expense of the work.
    """

    def __init__(self) -> None:
        self._newest_ns: deque[float] = deque([_MOST_LATE_NS], maxlen=_SLEEPS_REMEMBERED)

    @property
    def late_ns(self) -> float:
        return statistics.median(self._newest_ns)

    def learn(self, late_ns: float) -> None:
        """By how much a sleep ended too late. Once in a while a thread waits for a core, which tells nothing."""
        self._newest_ns.append(min(late_ns, _MOST_LATE_NS))


def _sharpen_sleep() -> None:
    """Linux lets a thread's sleep end up to 50 µs late, to save power, unless the thread asks for better."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


class _StreamLink:
    """On a GPU: a stream of its own waits for all ranks, sleeps through the transfer, and waits for the bucket.

    Never run on a GPU yet. The spinning kernel counts cycles of a clock whose rate changes with load, so the rate is
    taken anew from how long past sleeps really took.
    """

    def __init__(self, curve: LinkCurve, device: torch.device, tally: "_Tally") -> None:
        self._curve = curve
        self._device = device
        self._tally = tally
        self._stream = torch.cuda.Stream(device, priority=-1)  # compute must not keep the one block waiting
        self._flag = torch.zeros(1, device=device)
        self._held: deque[_Held] = deque()
        self._rate = SleepRate(self._cycles_per_ns())

    def send(self, bucket: GradBucket, sender: _Sender, step: _Step) -> torch.futures.Future[torch.Tensor]:
        self._count(until=lambda held: bool(held.completed.query()))
        buffer = bucket.buffer()
        modelled_ns = float(self._curve.time_ns(buffer.nbytes))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[self._device])
        ready = torch.cuda.current_stream(self._device).record_event()
        works: list[dist.Work | None] = []
        if sender.ranks > 1:
            # NCCL's stream runs them in turn: the first is over when all ranks are here.
            works.append(dist.all_reduce(self._flag, group=sender.group, async_op=True))
            sender.average(bucket)
            works.append(dist.all_reduce(buffer, group=sender.group, async_op=True))
        held = _Held(step, modelled_ns, self._rate.cycles(modelled_ns))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            for work in works[:1]:
                assert work is not None
                work.wait()
            held.began.record()
            ddp.hold_stream(held.cycles)
            held.slept.record()
            for work in works[1:]:
                assert work is not None
                work.wait()
            held.completed.record()
            future.set_result(buffer)
        self._held.append(held)
        return future

    def settle(self) -> None:
        self._stream.synchronize()
        self._count(until=lambda _: True)

    def stop(self) -> None:
        self.settle()

    def _count(self, until: Callable[["_Held"], bool]) -> None:
        while self._held and until(self._held[0]):
            held = self._held.popleft()
            slept_ns = held.began.elapsed_time(held.slept) * 1e6
            self._rate.learn(held.cycles, slept_ns)
            # They go one after the other: what they are late by adds up.
            held.step.reduced_ns += held.slept.elapsed_time(held.completed) * 1e6
            self._tally.count(held.step, modelled_ns=held.modelled_ns, error_ns=abs(slept_ns - held.modelled_ns))

    def _cycles_per_ns(self) -> float:
        cycles = 20_000_000
        held = _Held(_Step(), 0.0, cycles)
        with torch.cuda.stream(self._stream):
            ddp.hold_stream(cycles)  # the clock speeds up under load
            held.began.record()
            ddp.hold_stream(cycles)
            held.slept.record()
        self._stream.synchronize()
        return cycles / (float(held.began.elapsed_time(held.slept)) * 1e6)


@dataclass(slots=True, eq=False)
class _Held:
    """One transfer on the stream."""

    step: _Step
    modelled_ns: float
    cycles: int
    began: torch.cuda.Event = field(default_factory=_timing_event)
    slept: torch.cuda.Event = field(default_factory=_timing_event)
    completed: torch.cuda.Event = field(default_factory=_timing_event)


class SleepRate:
    """Cycles that make a sleep of a wanted time, by the newest sleeps.

    Args:
        cycles_per_ns: what to begin with.
    """

    def __init__(self, cycles_per_ns: float) -> None:
        self._newest = deque([cycles_per_ns], maxlen=_SLEEPS_REMEMBERED)

    def cycles(self, wanted_ns: float) -> int:
        return round(wanted_ns * statistics.median(self._newest))

    def learn(self, cycles: int, took_ns: float) -> None:
        """Short sleeps tell of the launch more than of the clock, and teach nothing."""
        if took_ns >= _JUDGED_FROM_NS:
            self._newest.append(cycles / took_ns)


class _Tally:
    """Counts of what went over the link; filled by the link's thread, read by the training's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self.newest: deque[Transfer] = deque(maxlen=_KEPT)
            self._errors: deque[float] = deque(maxlen=_KEPT)
            self._transfers = self._steps = self._late_steps = 0
            self._worst_excess_ns = 0.0

    def count(self, step: _Step, *, modelled_ns: float, error_ns: float) -> None:
        """One transfer, before DDP gets it.

        Args:
            step: the one it belongs to; counted with its last transfer.
            modelled_ns: time on the modelled link.
            error_ns: by how much the bucket came later than it should, the real reduction considered.
        """
        with self._lock:
            self._transfers += 1
            if modelled_ns >= _JUDGED_FROM_NS:
                self._errors.append(error_ns / modelled_ns)
            step.modelled_ns += modelled_ns
            step.completed += 1
            if step.all_sent and step.completed == step.sent:
                self._count_step(step.reduced_ns - step.end_ns, step.modelled_ns)

    def _count_step(self, excess_ns: float, modelled_ns: float) -> None:
        self._steps += 1
        self._late_steps += excess_ns > _TOLERANCE * modelled_ns
        self._worst_excess_ns = max(self._worst_excess_ns, excess_ns)

    def report(self, curve: LinkCurve, concurrency: int) -> Emulated:
        with self._lock:
            return Emulated(
                latency_ns=curve.latency_ns,
                bandwidth_gb_s=curve.bandwidth_gb_s,
                concurrency=concurrency,
                transfers=self._transfers,
                steps=self._steps,
                late_steps=self._late_steps,
                worst_excess_ns=round(self._worst_excess_ns),
                median_error=statistics.median(self._errors) if self._errors else None,
            )
