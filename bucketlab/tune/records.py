"""The study as Optuna stores it: trials, rounds of the race, what failed. Chooses and compares nothing.

A job's steps must not wait for a disk or a database, so one thread of its own does all the writing, while the next
block trains; `Tuner` waits for a trial's record only before the trial's first step, when it has long been written.
What Optuna's interface offers for this is its storage: a study in the database is one that `optuna-dashboard` opens.

A trial is written three times: before its first step, so that a process that dies in it leaves a trace of what killed
it; once its steps are measured; and when its value is known, which takes one more block of the current setting. The
value is step time relative to that of the current setting.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import msgspec

from bucketlab.errors import BadInput
from bucketlab.schema.tuning import Candidate, JobIdentity
from bucketlab.tune.arms import Round
from bucketlab.tune.pairs import Times

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

METRIC = "step time / current setting's"
_PREFIX = "bucketlab:"
_CURRENT = "current"
_ROUND, _FAILED, _JOB = _PREFIX + "round:", _PREFIX + "failed:", _PREFIX + "job"
# A trial of another host that has run for so long has no one any more who runs it. Optuna notes local times, and clocks
# and time zones of hosts differ: an hour would not be told from a clock that is an hour off.
_ABANDONED = timedelta(days=1)
# Two processes that make the same new database get in each other's way once.
_TRIES = 5
_LOCK_SECONDS: float = 12  # Optuna tries to begin a trial five times, and the training waits
_LOCK_SECONDS_AT_FIRST: float = 3  # before anything runs; those who write hold the lock for milliseconds
# Tells a process from an earlier one with its number: numbers are given out again, after a container's restart at once.
_PROCESS = uuid.uuid4().hex[:8]

_LATER_SECONDS = 0.01  # about what happens between two blocks

T = TypeVar("T")


class TrialRecord(msgspec.Struct, kw_only=True):
    """What a trial's user attribute "bucketlab" holds."""

    candidate: Candidate
    bucket_bytes: list[int]  # by DDP's rule until it was measured, then as built
    owner: str
    step_ns: list[int] = []
    untouched_ns: list[int] = []  # of the same steps, forward pass and optimizer; empty: not known
    before_ns: list[int] = []  # steps of the current setting just before
    before_untouched_ns: list[int] = []
    failure: str | None = None
    lost: bool = False  # the process that ran it ended, for no reason that is known
    built_otherwise: bool = False
    is_current: bool = False  # the script's own setting


class RoundRecord(msgspec.Struct, kw_only=True):
    """Blocks of several settings that ran one after the other in random order; None is the current setting."""

    stage: str
    of: list[int]  # trials that take part in this stage
    tried: int  # trials that the study had
    planned: int  # rounds of this stage that were to be run
    step_ns: dict[str, list[int]]  # trial number, or "current"
    untouched_ns: dict[str, list[int]] = {}
    share: float = 0.0  # of the untouched work, taken off each step; see `pairs`
    owner: str = ""
    at: float  # seconds since 1970

    def round(self) -> Round | None:
        """As it was measured; None where the current setting's block failed."""
        times = {name: Times(step_ns, self.untouched_ns.get(name, [])) for name, step_ns in self.step_ns.items()}
        current = times.pop(_CURRENT, None)
        return None if current is None else Round(current, {int(name): one for name, one in times.items()})


def by_name(
    current: Times | None, others: dict[int, Times], values: Callable[[Times], Sequence[int]]
) -> dict[str, list[int]]:
    """Some values of each block of a round, as its record has them."""
    named = {str(number): list(values(one)) for number, one in others.items()}
    return named if current is None else {_CURRENT: list(values(current)), **named}


@dataclass(frozen=True)
class StoredTrial:
    """One trial as the storage has it."""

    number: int
    trial_id: int
    record: TrialRecord
    value: float | None
    running: bool
    begun: datetime | None


@dataclass(frozen=True)
class Stored:
    """All that a study knows."""

    trials: list[StoredTrial]
    rounds: list[RoundRecord]
    failed_later: dict[int, str]  # trials that were measured and then failed in the race


@dataclass(frozen=True)
class New:
    """A trial to write down."""

    record: TrialRecord
    params: dict[str, Any]  # and their distributions, as Optuna keeps them
    distributions: dict[str, BaseDistribution]


@dataclass(frozen=True)
class Created:
    """A trial that was just written down."""

    number: int
    trial_id: int
    others: list[StoredTrial]  # trials of other processes, where there are any


@dataclass
class Records:
    """One study in one storage. Methods return at once; what a future holds is there once it is written."""

    url: str | None  # None: in memory, gone with the process
    study: str
    owner: str = field(
        default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{_PROCESS}:{uuid.uuid4().hex[:8]}"
    )
    trouble: str | None = None  # why nothing is written any more; tuning goes on without
    _storage: BaseStorage | None = None
    _study_id: int = -1
    _last_number: int = -1
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "bucketlab-study"))

    def load(self, job: JobIdentity) -> Future[Stored]:
        """Opens the study, made anew where there is none. The future raises BadInput."""
        return self._submit(self._load, job)

    def also(self, work: Callable[[], T]) -> Future[T]:
        """Something else that the training need not wait for."""
        return self._submit(work)

    def create(self, choose: Callable[[], New | None]) -> Future[tuple[TrialRecord, Created] | None]:
        """Has the thread choose a trial and write it down; None where there is none to choose."""
        return self._later(lambda: self._create(choose))

    def measured(self, trial: Created, record: TrialRecord) -> None:
        self._write(lambda storage: storage.set_trial_user_attr(trial.trial_id, "bucketlab", _plain(record)))

    def complete(self, trial: Created, value: float) -> None:
        from optuna.trial import TrialState

        def work(storage: BaseStorage) -> None:
            storage.set_trial_state_values(trial.trial_id, TrialState.COMPLETE, [value])

        self._write(work)

    def fail(self, trial: Created, record: TrialRecord) -> None:
        self._write(lambda storage: _fail(storage, trial.trial_id, record))

    def failed_later(self, number: int, reason: str) -> None:
        self._write(lambda storage: storage.set_study_user_attr(self._study_id, f"{_FAILED}{number}", reason))

    def round(self, record: RoundRecord) -> Future[None]:
        key = f"{_ROUND}{uuid.uuid4().hex[:12]}"
        return self._write(lambda storage: storage.set_study_user_attr(self._study_id, key, _plain(record)))

    def flush(self) -> None:
        """Waits until all is written."""
        self._submit(lambda: None).result()

    def _later(self, work: Callable[[], T]) -> Future[T]:
        """In some milliseconds, where it writes to a disk or a database.

        Training waits until the next block is chosen and its buckets are made. Were the thread busy meanwhile, each
        turn of that could wait for the interpreter's lock, for 5 ms at a time.
        """

        def after_a_while() -> T:
            if self.url is not None:
                time.sleep(_LATER_SECONDS)
            return work()

        return self._submit(after_a_while)

    def _submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        try:
            return self._thread.submit(work, *arguments)
        except RuntimeError:  # the interpreter is shutting down, and has waited for the thread already
            done: Future[T] = Future()
            done.set_result(work(*arguments))
            return done

    def close(self) -> None:
        self._thread.shutdown()
        if self._storage is not None:
            self._storage.remove_session()

    # ---- in the thread ---------------------------------------------------------------------------------------

    def _write(self, work: Callable[[BaseStorage], None]) -> Future[None]:
        from optuna.exceptions import UpdateFinishedTrialError

        def guarded() -> None:
            if self.trouble is not None or self._storage is None:
                return
            try:
                work(self._storage)
            except UpdateFinishedTrialError:  # another process took this one for gone, and gave the trial its end
                return
            except Exception as error:  # whatever a database does, the training goes on
                self.trouble = f"the study could not be written to any more: {_reason(error, self.url)}"

        return self._later(guarded)

    def _load(self, job: JobIdentity) -> Stored:
        try:
            return self._read(job)
        except BadInput:
            raise
        except Exception as error:  # a database can be damaged in more ways than drivers have errors for
            raise BadInput(
                f"study {self.study!r} in {shown_url(self.url)} cannot be read: {_reason(error, self.url)}. "
                "Take another --study or --storage."
            ) from None

    def _read(self, job: JobIdentity) -> Stored:
        self._storage = open_storage(self.url, _LOCK_SECONDS)
        self._study_id = _study_id(self._storage, self.study, self.url)
        self._check_job(job)
        trials = self._trials()
        attributes = self._storage.get_study_user_attrs(self._study_id)
        rounds = [msgspec.convert(value, RoundRecord) for key, value in attributes.items() if key.startswith(_ROUND)]
        failed = {
            int(key.removeprefix(_FAILED)): str(why) for key, why in attributes.items() if key.startswith(_FAILED)
        }
        self._last_number = max((trial.number for trial in trials), default=-1)
        return Stored([self._settled(trial) for trial in trials], sorted(rounds, key=lambda one: one.at), failed)

    def _check_job(self, job: JobIdentity) -> None:
        assert self._storage is not None
        known = self._storage.get_study_user_attrs(self._study_id).get(_JOB)
        if known is None:
            self._storage.set_study_user_attr(self._study_id, _JOB, msgspec.to_builtins(job))
            return
        other = msgspec.convert(known, JobIdentity)
        if other == job:
            return
        what = "ranks" if other.gradients == job.gradients else "gradients"
        raise BadInput(
            f"study {self.study!r} in {shown_url(self.url)} is of a job with other {what}: "
            "take another name or storage for this one"
        )

    def _trials(self) -> list[StoredTrial]:
        assert self._storage is not None
        found = self._storage.get_all_trials(self._study_id, deepcopy=False)
        return [_stored(trial) for trial in found if "bucketlab" in trial.user_attrs]

    def _settled(self, trial: StoredTrial) -> StoredTrial:
        """A running trial whose process is gone gets its end: what was measured counts, the rest is lost."""
        assert self._storage is not None
        if not trial.running or not _is_abandoned(trial):
            return trial
        from optuna.trial import TrialState

        record = trial.record
        if record.step_ns and record.before_ns:
            value = median(record.step_ns) / median(record.before_ns)
            self._storage.set_trial_state_values(trial.trial_id, TrialState.COMPLETE, [value])
            return StoredTrial(trial.number, trial.trial_id, record, value, False, trial.begun)
        record.lost = True
        _fail(self._storage, trial.trial_id, record)
        return StoredTrial(trial.number, trial.trial_id, record, None, False, trial.begun)

    def _create(self, choose: Callable[[], New | None]) -> tuple[TrialRecord, Created] | None:
        new = choose()
        if new is None:
            return None
        if self.trouble is None:
            try:
                return new.record, self._create_stored(new.record, new.params, new.distributions)
            except Exception as error:  # as above
                self.trouble = f"the study could not be written to any more: {_reason(error, self.url)}"
        self._last_number += 1
        return new.record, Created(self._last_number, -1, [])

    def _create_stored(
        self, record: TrialRecord, params: dict[str, Any], distributions: dict[str, BaseDistribution]
    ) -> Created:
        from optuna.trial import TrialState, create_trial

        assert self._storage is not None
        template = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=distributions,
            user_attrs={"bucketlab": _plain(record)},
        )
        template.datetime_start = datetime.now()
        trial_id = self._storage.create_new_trial(self._study_id, template_trial=template)
        number = self._storage.get_trial_number_from_id(trial_id)
        alone = number == self._last_number + 1
        self._last_number = number if alone else -2  # from now on: others are there, look each time
        others = [] if alone else [one for one in self._trials() if one.record.owner != self.owner]
        return Created(number, trial_id, others)

    def _blame(self, storage: BaseStorage, number: int, reason: str) -> None:
        self._study_id = _study_id(storage, self.study, self.url)
        for trial in self._trials():
            if trial.number != number:
                continue
            if trial.running:
                trial.record.failure = reason
                _fail(storage, trial.trial_id, trial.record)
            else:
                storage.set_study_user_attr(self._study_id, f"{_FAILED}{number}", reason)


# ---- opening --------------------------------------------------------------------------------------------------


def open_storage(url: str | None, lock_seconds: float = _LOCK_SECONDS) -> BaseStorage:
    """Optuna's storage at a URL.

    Args:
        url: that Optuna takes; None: in memory.
        lock_seconds: how long to wait for others to let go of a database that is a file.

    Raises:
        BadInput: not a URL, no driver, no such server, no such folder; the password is never part of the message.
    """
    from optuna.storages import InMemoryStorage, RDBStorage

    if url is None:
        return InMemoryStorage()
    engine: dict[str, Any] = {"connect_args": {"timeout": lock_seconds}} if url.startswith("sqlite") else {}
    for tried in range(_TRIES):
        try:
            return RDBStorage(url, engine_kwargs=engine, skip_compatibility_check=False)
        except Exception as error:  # drivers and their errors differ by database
            collision = "already exists" in str(error) or "UNIQUE" in str(error) or "duplicate key" in str(error)
            if collision and tried < _TRIES - 1:
                time.sleep(0.1 * (tried + 1))
                continue
            reason = redacted(str(error).strip().splitlines()[0] if str(error) else type(error).__name__, url)
            raise BadInput(f"storage {shown_url(url)} cannot be opened: {reason}{_remedy(reason)}") from None
    raise AssertionError


def check_storage(url: str, study: str | None = None) -> None:
    """Opens it, reads what there is of the study, and closes it, before anything is launched.

    Raises:
        BadInput: as `open_storage`, or the study cannot be read.
    """
    storage = open_storage(url, _LOCK_SECONDS_AT_FIRST)
    try:
        found = [one for one in storage.get_all_studies() if one.study_name == study]
        for one in found:
            storage.get_all_trials(one._study_id, deepcopy=False)
    except Exception as error:  # likewise
        reason = _reason(error, url)
        raise BadInput(f"storage {shown_url(url)} cannot be read: {reason}{_remedy(reason)}") from None
    finally:
        storage.remove_session()


_REMEDIES = {
    "database is locked": "Another program holds it: close that, or take another --storage.",
    "malformed": "The file is damaged: move it away, or take another --storage.",
    "not a database": "Take another --storage.",
    "readonly": "Make it writable, or take another --storage.",
    "disk is full": "Free some space, or take another --storage.",
}


def _remedy(reason: str) -> str:
    return next((f". {remedy}" for words, remedy in _REMEDIES.items() if words in reason), "")


def blame(url: str, study: str, number: int, reason: str) -> None:
    """Marks the trial that a job died with as failed, for a reason that the launch knows: it is not tried again.

    Not for a job that was killed from outside: without this call its trial is taken for lost, and tried once more.

    Raises:
        BadInput: the storage cannot be opened, or not be written any more.
    """
    records = Records(url, study)
    storage = records._storage = open_storage(url, _LOCK_SECONDS)
    try:
        records._blame(storage, number, reason)
    except BadInput:
        raise
    except Exception as error:  # as of any database
        told = _reason(error, url)
        raise BadInput(f"storage {shown_url(url)} cannot be written: {told}{_remedy(told)}") from None
    finally:
        records.close()


def _study_id(storage: BaseStorage, study: str, url: str | None) -> int:
    from optuna.exceptions import StorageInternalError

    for tried in range(_TRIES):
        try:
            made = create_quietly(storage=storage, study_name=study, load_if_exists=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna calls the naming of a metric experimental
                made.set_metric_names([METRIC])
            return storage.get_study_id_from_name(study)
        except StorageInternalError as error:
            if tried == _TRIES - 1:
                raise BadInput(f"storage {shown_url(url)} cannot be used: {_reason(error, url)}") from None
            time.sleep(0.1 * (tried + 1))
    raise AssertionError


def create_quietly(**arguments: Any) -> Study:
    """`optuna.create_study` without its line on stderr, where the training's own output is."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(**arguments)
    finally:
        optuna.logging.set_verbosity(before)


def _reason(error: Exception, url: str | None) -> str:
    """One line; where Optuna tells little, what it was raised from tells more."""
    cause = error.__cause__
    if isinstance(error, ImportError) and isinstance(cause, ImportError) and cause.name:
        return f"its driver is missing: pip install {cause.name}"
    told = cause if isinstance(cause, Exception) else error
    return redacted((str(told).strip() or type(told).__name__).splitlines()[0], url)


# ---- URLs -----------------------------------------------------------------------------------------------------

_PASSWORD = re.compile(r"(?<=://)(?P<user>[^/?#]*?):(?P<password>.*)(?=@)")
_IN_QUERY = re.compile(r"(?i)([?&][^=&]*(?:password|passwd|pwd|secret|token|key)[^=&]*=)([^&]*)")


def shown_url(url: str | None) -> str:
    """A storage's URL as it may be printed: without its password."""
    if url is None:
        return "memory"
    return _IN_QUERY.sub(r"\1***", _PASSWORD.sub(r"\g<user>:***", url))


def redacted(text: str, url: str | None) -> str:
    """A message of a driver, which may well repeat the URL it was given, without the URL's password."""
    if url is None:
        return text
    secrets = [found["password"] for found in _PASSWORD.finditer(url)]
    secrets += [found[2] for found in _IN_QUERY.finditer(url)]
    text = text.replace(url, shown_url(url))
    for secret in sorted({*secrets, *map(unquote, secrets)}, key=len, reverse=True):
        if secret:
            text = text.replace(secret, "***")
    return text


# ---- small things ---------------------------------------------------------------------------------------------


def _plain(record: TrialRecord | RoundRecord) -> Any:
    return msgspec.to_builtins(record)


def _stored(trial: FrozenTrial) -> StoredTrial:
    from optuna.trial import TrialState

    record = msgspec.convert(trial.user_attrs["bucketlab"], TrialRecord)
    value = trial.value if trial.state == TrialState.COMPLETE else None
    running = trial.state in (TrialState.RUNNING, TrialState.WAITING)
    return StoredTrial(trial.number, trial._trial_id, record, value, running, trial.datetime_start)


def _fail(storage: BaseStorage, trial_id: int, record: TrialRecord) -> None:
    from optuna.trial import TrialState

    storage.set_trial_user_attr(trial_id, "bucketlab", _plain(record))
    if record.failure is not None:
        storage.set_trial_user_attr(trial_id, "failure", record.failure)
    storage.set_trial_state_values(trial_id, TrialState.FAIL)


def _is_abandoned(trial: StoredTrial) -> bool:
    host, pid, process, _ = trial.record.owner.split(":")
    if host != socket.gethostname():
        return trial.begun is None or datetime.now() - trial.begun > _ABANDONED
    if int(pid) == os.getpid():
        return process != _PROCESS
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
