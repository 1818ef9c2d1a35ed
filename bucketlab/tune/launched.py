"""The launches of a search over environment variables, as Optuna stores them beside the study of buckets.

A study of its own, so that `optuna-dashboard` shows each group of variables as a trial; every launch is one of its
attributes. What a killed command had not finished, its launch, is all that is lost.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from bucketlab.errors import BadInput
from bucketlab.schema.tuning import Launched
from bucketlab.tune.groups import GroupSearch, distributions_of, params_of
from bucketlab.tune.records import create_quietly, open_storage, redacted, shown_url
from bucketlab.tune.words import spelt

_LAUNCH = "bucketlab:launch:"
SUFFIX = "-environment"


class LaunchRecords:
    """Of one study in one storage.

    Raises:
        BadInput: the storage cannot be used, or the study there searched other variables or values.
    """

    def __init__(self, url: str, study: str) -> None:
        self._url, self._name = url, f"{study}{SUFFIX}"
        self._storage = open_storage(url)
        self._study = create_quietly(storage=self._storage, study_name=self._name, load_if_exists=True)

    def launched(self) -> list[Launched]:
        """By all commands until now, the earliest first."""
        attributes = self._study.user_attrs
        return [msgspec.convert(attributes[key], Launched) for key in sorted(attributes) if key.startswith(_LAUNCH)]

    def note(self, search: GroupSearch) -> None:
        """The last launch, and a trial for each group that is measured now."""
        number = len(search.launched) - 1
        plain: Any = msgspec.to_builtins(search.launched[-1])
        self._study.set_user_attr(f"{_LAUNCH}{number:06d}", plain)
        self._add_trials(search)

    def close(self) -> None:
        self._storage.remove_session()

    def _add_trials(self, search: GroupSearch) -> None:
        from optuna.trial import TrialState, create_trial

        known = [trial.params for trial in self._study.get_trials(deepcopy=False)]
        wanted = distributions_of(search.choices)
        failures = {spelt(one.variables): one.failure for one in search.launched if one.failure is not None}
        gains = {spelt(group): gain for group, gain in search.gains(0)}
        try:
            for group in [one.variables for one in search.launched if one.variables]:
                params = params_of(group, search.choices)
                failure, gain = failures.get(spelt(group)), gains.get(spelt(group))
                if params in known or (failure is None and gain is None):
                    continue
                known.append(params)
                self._study.add_trial(
                    create_trial(
                        state=TrialState.FAIL if failure is not None else TrialState.COMPLETE,
                        value=None if failure is not None or gain is None else math.exp(-gain),
                        params=params,
                        distributions=wanted,
                        user_attrs={} if failure is None else {"failure": failure},
                    )
                )
        except ValueError as error:
            raise BadInput(
                f"study {self._name!r} in {shown_url(self._url)} searched other values "
                f"({redacted(str(error).splitlines()[0], self._url)}): take another --study"
            ) from None
