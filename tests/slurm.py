"""A Slurm cluster of its own on hosts made of network namespaces: one controller, a daemon on each host, no more.

    with cluster(2) as slurm:
        assert slurm.batch("job.sh", slurm.shared, ["--nodes=2"], {}) == "COMPLETED"

Hosts share the machine's files, as a cluster with a shared disk does, but for `slurm.local`, of which each host has its
own. Every host claims to have two cores, and a GPU that is none, so that scripts may ask for one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bucketlab.link.testbed import Host, network
from bucketlab.link.testbed import reason_unavailable as no_hosts

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_START_SECONDS = 120

_SLURM_CONF = """
ClusterName=test
SlurmctldHost={first.name}({first.address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=1000
JobRequeue=1
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
{nodes}PartitionName=all Nodes=ALL Default=YES
"""


def reason_unavailable() -> str | None:
    """Why no cluster can be made on this machine, in one line; None where one can."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"Slurm is not installed (no {', '.join(missing)}: packages slurm-wlm and munge)"
    return no_hosts()


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs."""

    hosts: list[Host]
    shared: Path  # the same folder on all hosts
    local: Path  # another folder on each host
    conf: Path

    def popen(self, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Starts a command of Slurm's on the first host."""
        return self.hosts[0].popen(
            command, env={**os.environ, "SLURM_CONF": str(self.conf), **(environment or {})}, **options
        )

    def run(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None, timeout: float = 200
    ) -> subprocess.CompletedProcess[str]:
        process = self.popen(command, environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        output, errors = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def batch(self, script: str, cwd: Path, options: Sequence[str], environment: Mapping[str, str]) -> str:
        """Submits a script and waits for its end, which `sbatch --wait` may take half a minute to notice.

        Returns what Slurm calls it, such as COMPLETED or FAILED.
        """
        submitted = self.run(["sbatch", "--parsable", *options, script], cwd, environment)
        assert submitted.returncode == 0, submitted.stderr
        number = submitted.stdout.strip()
        while self.run(["squeue", "--noheader", f"--jobs={number}"], cwd).stdout.strip():
            time.sleep(0.5)
        shown = self.run(["scontrol", "--oneliner", "show", "job", number], cwd).stdout
        return next(word for word in shown.split() if word.startswith("JobState=")).partition("=")[2]


@contextmanager
def cluster(count: int, *, mbit_per_s: int = 1000) -> Iterator[Cluster]:
    """Makes it, waits until its nodes are idle, and ends all its daemons on leaving."""
    with ExitStack() as stack:
        # Not under pytest's folder: munge wants a path that all may enter, and names of sockets are short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        folder.chmod(0o755)
        hosts = stack.enter_context(network(count, mbit_per_s=mbit_per_s))
        made = Cluster(hosts, folder / "shared", folder / "local", folder / "slurm.conf")
        for name in ("shared", "local", "state", *(f"local-{host.name}" for host in hosts)):
            (folder / name).mkdir()
        nodes = "".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=2 Gres=gpu:1\n" for host in hosts)
        made.conf.write_text(_SLURM_CONF.format(first=hosts[0], folder=folder, nodes=nodes))
        # A network namespace hides control groups: asked for none, slurmd does without any.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        _start_daemons(stack, folder, made)
        try:
            _wait_until_idle(made)
            yield made
        except BaseException:
            _show_logs(folder)
            raise


def _start_daemons(stack: ExitStack, folder: Path, made: Cluster) -> None:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
    options = [f"--{name}={folder / file}" for name, file in files.items()]
    log = stack.enter_context((folder / "daemons.log").open("w"))
    output: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
    munged = subprocess.Popen(["munged", "--foreground", "--force", f"--key-file={key}", *options], **output)
    stack.callback(_end, munged)
    controller = made.popen(["slurmctld", "-D", "-f", str(made.conf)], **output)
    stack.callback(_end, controller)
    for host in made.hosts:
        own = f'mount --bind "$0-{host.name}" "$0" && exec slurmd -D -f "$1"'
        command = ["unshare", "--mount", "sh", "-c", own, str(made.local), str(made.conf)]
        stack.callback(_end, host.popen(command, **output))


def _end(daemon: subprocess.Popen[Any]) -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _wait_until_idle(made: Cluster) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        told = made.run(["sinfo", "--noheader", "--format=%D %t"], cwd=made.shared).stdout.split()
        if told == [str(len(made.hosts)), "idle"]:
            return
        assert time.monotonic() < deadline, f"the nodes are not idle but: {told}"
        time.sleep(0.2)


def _show_logs(folder: Path) -> None:
    """For pytest, which prints it beside the failure."""
    for log in sorted(folder.glob("*.log")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")
