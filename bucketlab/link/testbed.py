"""Several hosts on one machine: Linux network namespaces joined by a bridge, each link of a chosen rate.

For tests and for `bucketlab link testbed`.

    with network(2, mbit_per_s=1000) as hosts:
        hosts[0].popen(["torchrun", "--nnodes", "2", "--rdzv-endpoint", f"{hosts[0].name}:29500", ...])

A host has its own name, its own loopback and one interface, `eth0`, whose rate holds in each direction. All else
(files, processes, cores) it shares with the machine. Needs root, iproute2 and a kernel that has bridges, veth and
tbf: `reason_unavailable()` says what is missing, for `pytest.skip`. No delay can be set: netem is rare in small
kernels.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERFACE = "eth0"
# Jumbo frames, as between the machines of a cluster: headers then take 1 % of the rate, not 4 %.
_MTU_BYTES = 9000
_FRAME_BYTES = _MTU_BYTES + 14
_BURST_US, _PEAK_US = 500, 144

# Waits until its standard input closes, which it does when the process at the other end is gone, however it ended.
# Then it removes the namespaces it was given, what still runs in them, and the interfaces with them.
CLEANER = """
cat > /dev/null
for namespace in "$@"; do
    ip netns pids "$namespace" | xargs -r kill -9
    ip netns delete "$namespace"
    rm -rf "/etc/netns/$namespace"
done
"""


@dataclass(frozen=True)
class Host:
    """One host of a `network`. `name` is its host name, and the other hosts can resolve it."""

    name: str
    address: str
    namespace: str

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a command on this host; options as those of `subprocess.Popen`. It ends with the network."""
        entry = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        return subprocess.Popen([*entry, "sh", "-c", 'hostname "$0" && exec "$@"', self.name, *command], **options)


@functools.cache
def reason_unavailable() -> str | None:
    """Why no network can be made on this machine, in one line; None where one can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"network namespaces need the command `{tool}` (packages iproute2 and util-linux)"
    try:
        with network(2, mbit_per_s=100) as hosts:
            hosts[0].popen(["true"]).wait(timeout=30)
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` does not work here: {error.stderr.strip()}"
    return None


@contextmanager
def network(count: int, *, mbit_per_s: int) -> Iterator[list[Host]]:
    """Makes `count` hosts joined by a switch, each link of `mbit_per_s` (10^6 bits per second) up and down.

    They are removed on leaving, and also when the calling process is killed.
    """
    prefix = f"bucketlab-{os.getpid()}-{next(_serial)}"
    switch = f"{prefix}-switch"
    hosts = [Host(f"host{i}", f"10.77.0.{i + 1}", f"{prefix}-{i}") for i in range(count)]
    namespaces = [switch, *(host.namespace for host in hosts)]
    cleaner = subprocess.Popen(
        ["sh", "-c", CLEANER, "cleaner", *namespaces],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is not for it
    )
    try:
        _build(hosts, switch, mbit_per_s)
        yield hosts
    finally:
        cleaner.communicate()
    left = existing_namespaces().intersection(namespaces)
    if left:
        raise RuntimeError(f"network namespaces are left behind: {', '.join(sorted(left))}")


def run_torchrun(target: Sequence[str], hosts: int, mbit_per_s: int, processes_per_host: int) -> int:
    """Runs one job across new hosts, gloo on their shaped links; the first exit code that is not 0, else 0.

    Args:
        target: a script and its arguments.
        hosts: how many, 2 or more.
        mbit_per_s: rate of each host's link in each direction.
        processes_per_host: ranks on each.
    """
    with network(hosts, mbit_per_s=mbit_per_s) as made:
        nodes = [
            host.popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={hosts}", f"--node-rank={index}"),
                    *(f"--nproc-per-node={processes_per_host}", f"--master-addr={made[0].address}", *target),
                ],
                env={**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE},
            )
            for index, host in enumerate(made)
        ]
        return next((code for code in [node.wait() for node in nodes] if code), 0)


def existing_namespaces() -> set[str]:
    """Names of all network namespaces of this machine."""
    folder = Path("/run/netns")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _build(hosts: list[Host], switch: str, mbit_per_s: int) -> None:
    names = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in hosts)
    _run(f"ip netns add {switch}")
    _run(f"ip -n {switch} link add bridge type bridge")
    _run(f"ip -n {switch} link set bridge up")
    for host in hosts:
        # The switch is a namespace too, so that removing namespaces removes everything.
        _run(f"ip netns add {host.namespace}")
        _run(f"ip link add {INTERFACE} netns {host.namespace} type veth peer name {host.name} netns {switch}")
        _run(f"ip -n {switch} link set {host.name} mtu {_MTU_BYTES} master bridge up")
        _run(f"ip -n {host.namespace} address add {host.address}/24 dev {INTERFACE}")
        _run(f"ip -n {host.namespace} link set {INTERFACE} mtu {_MTU_BYTES} up")
        _run(f"ip -n {host.namespace} link set lo up")
        _limit(host.namespace, INTERFACE, mbit_per_s)
        _limit(switch, host.name, mbit_per_s)
        # `ip netns exec` lays these files over /etc.
        etc = Path("/etc/netns", host.namespace)
        etc.mkdir(parents=True)
        (etc / "hosts").write_text(names)


def _limit(namespace: str, device: str, mbit_per_s: int) -> None:
    """Makes what `device` sends a serial line of this rate.

    A bucket of tokens fills while the line is idle and then lets as many bytes through for nothing, once per hop, so it
    must be small against the transfers of a job. It must also last until a late timer of the kernel wakes the queue,
    or the rate is never reached. Hence two: the rate is kept over half a millisecond, and within that nothing
    goes faster than a fifth above it.
    """
    burst_bytes = max(_FRAME_BYTES, mbit_per_s * _BURST_US // 8)
    peak_bytes = max(2 * _FRAME_BYTES, mbit_per_s * _PEAK_US // 8)
    _run(
        f"tc -n {namespace} qdisc add dev {device} root tbf rate {mbit_per_s}mbit burst {burst_bytes} "
        f"peakrate {mbit_per_s * 1200}kbit mtu {peak_bytes} latency 50ms"
    )


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


_serial = iter(range(sys.maxsize))
