"""A training run with a stored setting: looks once whether the job is the one that it was found for, and lets it train.

The setting itself went into DDP's constructor (`bootstrap`); nothing is measured here.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from bucketlab import units
from bucketlab.link.measured import path_name
from bucketlab.saying import say
from bucketlab.schema.tuning import CURRENT, JobIdentity
from bucketlab.tune.space import identity_of
from bucketlab.worker import ddp
from bucketlab.worker.session import Flow, Session
from bucketlab.worker.setting import InPlace

if TYPE_CHECKING:
    from bucketlab.worker.config import Setting
    from bucketlab.worker.observe import Observer

_STEPS_UNTIL_LAYOUT = 5  # after which DDP tells the buckets that it trains with


class ApplySession(Session):
    """What one process does in a run with a stored setting."""

    def __init__(self, observer: Observer) -> None:
        assert observer.config.setting is not None
        self.setting: Setting = observer.config.setting
        super().__init__(observer)

    def flow(self) -> Flow:
        yield
        self.exchange.join_host(socket.gethostname())
        for _ in range(1, _STEPS_UNTIL_LAYOUT):
            yield
        if self.rank != 0:
            return
        self.modules = self.observer.trained_modules()
        built = InPlace(self.modules).bucket_bytes()
        for line in self._what_differs(built):
            say(line)
        if self.setting.candidate == CURRENT:
            study = self.setting.study
            say(f"trains with the script's own buckets, than which study {study} found nothing surely faster.")
        else:
            variables = (f"{name}={value}" for name, value in self.setting.variables.items())
            what = ", ".join([units.counted(len(built), "bucket"), *variables])
            say(f"trains with {what}, the setting of study {self.setting.study}.")

    def _what_differs(self, built: list[int]) -> list[str]:
        """Where this job is another one than the setting was found for."""
        found = self.setting.job
        if found is None:
            return []
        now = self._identity()
        study = self.setting.study
        differs = []
        if now.gradients != found.gradients:
            differs.append(
                f"warning: the model has other gradients ({now.gradient_bytes / 2**20:.1f} MiB) than the one that "
                f"study {study} tuned ({found.gradient_bytes / 2**20:.1f} MiB). Tune this one."
            )
        elif sorted(built) != sorted(self.setting.bucket_bytes):
            differs.append(f"warning: DDP built other buckets than in study {study}. Tune again with this torch.")
        if now.world_size != found.world_size:
            differs.append(
                f"warning: {now.world_size} ranks train here, study {study} had {found.world_size}. Tune with these."
            )
        differs += [
            f"warning: {name} is {os.environ.get(name, 'not set')} in the ranks, study {study} had {value}: the script "
            "or its launcher sees to that."
            for name, value in self.setting.variables.items()
            if os.environ.get(name) != value
        ]
        link = path_name(self.backend, found.world_size, self.exchange.hosts())
        if self.setting.interconnect and link != self.setting.interconnect:
            differs.append(f"warning: the link is another one, {link}; study {study} had {self.setting.interconnect}.")
        return differs

    def _identity(self) -> JobIdentity:
        gradients = [
            (number, parameter.nbytes, str(parameter.dtype).removeprefix("torch."))
            for number, module in enumerate(self.modules)
            for _, parameter in ddp.named_parameters(module)
        ]
        return identity_of(gradients, self.world_size)

    def script_ends(self) -> None:
        """Nothing is missing when a training run ends."""
        self._flow = None
