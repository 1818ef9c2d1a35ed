"""The command that starts a job: torchrun with the user's options, or the launcher that the user named."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bucketlab import units
from bucketlab.errors import BadInput

# torchrun's options that make sense in front of a script here, with what they are for; names as torchrun has them.
TORCHRUN_OPTIONS: Mapping[str, str] = {
    "nproc-per-node": "processes on this node: a number, gpu, cpu or auto  [default: one per GPU, or 2]",
    "nnodes": "nodes of the job, or MIN:MAX",
    "node-rank": "which of them this is",
    "rdzv-endpoint": "HOST:PORT where the nodes meet",
    "rdzv-backend": "how they meet, for example c10d",
    "rdzv-id": "id of the job at the meeting point",
    "rdzv-conf": "further settings of the meeting point, KEY=VALUE,...",
    "master-addr": "address of node 0, where there is no rdzv-endpoint",
    "master-port": "port of node 0, where there is no rdzv-endpoint",
    "local-addr": "address of this node",
    "max-restarts": "how often a failed job is started again",
    "log-dir": "folder for files of the ranks' output, with redirects or tee",
    "redirects": "output that goes into files: 1 stdout, 2 stderr, 3 both, or RANK:NUMBER,...",
    "tee": "output that goes into files too, and is shown with its rank in front",
    "local-ranks-filter": "ranks of this node whose output is shown: 0,1,...",
}
TORCHRUN_FLAGS: Mapping[str, str] = {
    "standalone": "one node, meeting point chosen by torchrun",
    "module": "the script is the name of a module, as with python -m",
    "no-python": "the script is a program of its own",
}
_MEETING = ("nnodes", "node-rank", "rdzv-endpoint", "rdzv-backend", "master-addr", "master-port")
# Options that may differ between the nodes of one job, and from one allocation of a cluster to the next.
_OF_THE_ALLOCATION = (
    *("node-rank", "rdzv-endpoint", "rdzv-id", "master-addr", "master-port", "local-addr"),
    *("log-dir", "redirects", "tee", "local-ranks-filter"),
)


@dataclass(frozen=True)
class Job:
    """What the user asked to be started."""

    target: tuple[str, ...]  # script and its arguments, or a whole command line
    own_launcher: bool = False  # the target stood after "--"
    options: tuple[tuple[str, str], ...] = ()  # of torchrun, without the dashes
    flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # all that stood between the command's name and the target

    @property
    def script(self) -> str:
        """What to call the job: the script, or the first Python file in a launcher's command line."""
        if not self.own_launcher:
            return self.target[0]
        return next((word for word in self.target if word.endswith(".py")), self.target[0])

    @property
    def name(self) -> str:
        """A short name for runs of it: the file's without its ending, or the last part of a module's."""
        return self.script.rpartition(".")[2] if "module" in self.flags else Path(self.script).stem

    @property
    def identity(self) -> list[str]:
        """Words that are the same on every node of a job, and again when a scheduler starts it on other nodes."""
        lasting = [f"--{name}={value}" for name, value in self.options if name not in _OF_THE_ALLOCATION]
        return [*self.target, *lasting, *self.flags]

    @property
    def may_hold_rank_0(self) -> bool:
        """False on a node of which it is known before the launch: torchrun's static rendezvous ranks by node."""
        options = dict(self.options)
        return options.get("rdzv-backend", "static") != "static" or options.get("node-rank", "0") == "0"


def launch_command(job: Job) -> list[str]:
    """The command line to run. Raises BadInput where it could not work."""
    if not job.target:
        raise BadInput(
            "no script was given. It stands after the options, and its own arguments after it: train.py [its arguments]"
        )
    if job.own_launcher:
        if shutil.which(job.target[0]) is None:
            raise BadInput(f"there is no program {job.target[0]!r} to launch with. Is it installed and on PATH?")
        return list(job.target)
    _check_script(job)
    _check_numbers(dict(job.options))
    options = dict(job.options)
    options.setdefault("nproc-per-node", str(_processes_here()))
    flags = list(job.flags)
    if "standalone" not in flags:
        alone = not any(name in options for name in _MEETING)
        _check_tasks_of_srun(alone)
        flags += ["standalone"] if alone else []
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--{flag}" for flag in flags),
        *(f"--{name}={value}" for name, value in options.items()),
        *job.target,
    ]


def _check_script(job: Job) -> None:
    script = job.target[0]
    if "module" in job.flags or "no-python" in job.flags:
        return
    if script.startswith("-"):
        raise BadInput(f"{script} is no option here. Launch options come before the script, its own after it.")
    if not Path(script).exists():
        raise BadInput(
            f"there is no script {script}. A launcher of your own goes after --, as in: -- accelerate launch ..."
        )
    if Path(script).is_dir():
        raise BadInput(f"{script} is a folder, not a script.")


def _check_numbers(options: Mapping[str, str]) -> None:
    forms = {
        "nproc-per-node": (r"[1-9]\d*|gpu|cpu|auto|xpu", "a number of processes, or gpu, cpu, auto"),
        "nnodes": (r"[1-9]\d*(:[1-9]\d*)?", "a number of nodes, or MIN:MAX"),
        "node-rank": (r"\d+", "a number from 0"),
        "master-port": (r"\d{1,5}", "a port number"),
        "max-restarts": (r"\d+", "a number"),
    }
    for name, (form, meaning) in forms.items():
        value = options.get(name)
        if value is not None and not re.fullmatch(form, value):
            raise BadInput(f"--{name} {value} does not say {meaning}.")


def _check_tasks_of_srun(alone: bool) -> None:
    """srun starts a command once for each task, and torchrun wants one on each node that knows of the others."""
    tasks, nodes = (int(os.environ.get(f"SLURM_STEP_NUM_{what}", "1")) for what in ("TASKS", "NODES"))
    if tasks > nodes:
        raise BadInput(
            f"srun started {tasks} of these commands on {units.counted(nodes, 'node')}, and each starts all "
            "ranks of its node: give srun --ntasks-per-node=1, or start ranks with it: bucketlab profile -- srun ..."
        )
    if tasks > 1 and alone:
        raise BadInput(
            f"srun started {tasks} of these commands, and nothing says how they meet: give each --nnodes, --node-rank, "
            "--master-addr and --master-port, or --standalone, which makes each a job of its own."
        )


def _processes_here() -> int:
    """One per GPU; two where there is none, the fewest that communicate."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return 2
    import torch

    return torch.cuda.device_count() or 2


def described(argv: Sequence[str]) -> str:
    """A command line short enough for a message."""
    text = " ".join(argv)
    return text if len(text) <= 80 else f"{text[:77]}..."


HIDDEN = "***"
_SECRET = re.compile(
    r"(?i)(?:^|[-_.])(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)(?:$|[-_.])"
)
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^/?#@:]*):[^/?#@]+(?=@)")


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command line as it may be stored: values of options whose name tells of a secret are hidden.

    Knows `--api-key VALUE`, `--api-key=VALUE`, `wandb.token=VALUE` and passwords as in `scheme://user:VALUE@host`.
    """
    shown: list[str] = []
    value_is_secret = False
    for word in words:
        if value_is_secret and not word.startswith("-"):
            shown.append(HIDDEN)
            value_is_secret = False
            continue
        name, equals, _ = word.partition("=")
        secret = _SECRET.search(name) is not None
        value_is_secret = secret and not equals and word.startswith("-")
        shown.append(f"{name}={HIDDEN}" if secret and equals else _PASSWORD_IN_URL.sub(rf"\1:{HIDDEN}", word))
    return shown
