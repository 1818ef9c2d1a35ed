"""The hosts that other tests run on are what they say: separate, joined at the rate asked for, gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bucketlab.link.testbed import INTERFACE, existing_namespaces, network, reason_unavailable
from tests.commands import bucketlab, last_line, start

pytestmark = pytest.mark.skipif(reason_unavailable() is not None, reason=f"no hosts to be had: {reason_unavailable()}")

ALL_REDUCE = """
import json, os, socket, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
gradients = torch.full((int(sys.argv[1]) // 4,), float(dist.get_rank() + 1))
dist.all_reduce(torch.ones(1))
began = time.perf_counter()
dist.all_reduce(gradients)
ended = time.perf_counter()
json.dump(
    {"began": began, "ended": ended, "sum": gradients.mean().item(), "host": socket.gethostname()},
    open(os.path.join(sys.argv[2], f"rank{dist.get_rank()}.json"), "w"),
)
dist.barrier()
dist.destroy_process_group()
time.sleep(0.1)
"""


def test_all_reduce_between_two_hosts_goes_at_the_rate_of_their_link(tmp_path: Path) -> None:
    (tmp_path / "all_reduce.py").write_text(ALL_REDUCE)
    size_bytes, mbit_per_s = 2 * 2**20, 20  # so slow that a busy machine is none in comparison
    with network(2, mbit_per_s=mbit_per_s) as hosts:
        nodes = [
            host.popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)),
                    *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:29500"),
                    *("all_reduce.py", str(size_bytes), str(tmp_path)),
                ],
                cwd=tmp_path,
                env={**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"},
            )
            for node, host in enumerate(hosts)
        ]
        assert [node.wait(timeout=120) for node in nodes] == [0, 0]

    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert {rank["host"] for rank in ranks} == {"host0", "host1"}
    assert [rank["sum"] for rank in ranks] == [3.0, 3.0]
    # Each of two ranks sends and receives all bytes once; they have one clock. The link may be used badly, but never
    # beyond its rate (but for what its token bucket lets through at once, which the fifth left out covers).
    least_s = size_bytes * 8 / (mbit_per_s * 1e6)
    began, ended = [rank["began"] for rank in ranks], [rank["ended"] for rank in ranks]
    assert max(ended) - min(began) > 0.8 * least_s
    assert max(ended) - max(began) < 10 * least_s


def test_a_link_that_was_idle_lets_no_transfer_through_at_once() -> None:
    mbit_per_s = 100
    with network(2, mbit_per_s=mbit_per_s) as hosts:
        receiver = hosts[0].popen([sys.executable, "-c", ACKNOWLEDGE, hosts[0].name], stdout=subprocess.PIPE, text=True)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        sender = hosts[1].popen([sys.executable, "-c", SEND_AFTER_A_REST, hosts[0].name], stdout=subprocess.PIPE)
        fastest_s = json.loads(sender.communicate(timeout=60)[0])
    for size_bytes, seconds in fastest_s.items():
        # Two queues on the way, each of which may hold back a frame less. Other work can only make it longer.
        assert seconds >= (int(size_bytes) - 2 * 9014) * 8 / (mbit_per_s * 1e6)


ACKNOWLEDGE = """
import socket, struct, sys
listener = socket.create_server((sys.argv[1], 29501))
print("listening", flush=True)
stream = listener.accept()[0].makefile("rwb")
while header := stream.read(8):
    stream.read(struct.unpack("q", header)[0])
    stream.write(b"x")
    stream.flush()
"""
SEND_AFTER_A_REST = """
import json, socket, struct, sys, time
connection = socket.create_connection((sys.argv[1], 29501))
fastest = {}
for size in (2**15, 2**16, 2**17, 2**18, 2**19):
    message = struct.pack("q", size) + bytes(size)
    fastest[size] = float("inf")
    for _ in range(5):
        time.sleep(0.05)
        began = time.perf_counter()
        connection.sendall(message)
        connection.recv(1)
        fastest[size] = min(fastest[size], time.perf_counter() - began)
print(json.dumps(fastest))
"""


def test_every_host_reaches_every_other_by_name() -> None:
    with network(3, mbit_per_s=1000) as hosts:
        for host in hosts:
            for other in hosts:
                listener = other.popen([sys.executable, "-c", LISTEN, other.name], stdout=subprocess.PIPE, text=True)
                assert listener.stdout is not None
                assert listener.stdout.readline() == "listening\n"
                talker = host.popen([sys.executable, "-c", TALK, other.name])
                assert listener.communicate(timeout=30)[0] == f"hello from {host.name}\n"
                assert talker.wait(timeout=30) == 0


LISTEN = """
import socket, sys
listener = socket.create_server((sys.argv[1], 29501))
print("listening", flush=True)
print(listener.accept()[0].makefile().read())
"""
TALK = """
import socket, sys
talker = socket.create_connection((sys.argv[1], 29501))
talker.sendall(f"hello from {socket.gethostname()}".encode())
"""


def test_hosts_and_what_runs_on_them_are_gone_afterwards() -> None:
    with network(2, mbit_per_s=1000) as hosts:
        namespaces = {host.namespace for host in hosts}
        assert namespaces <= existing_namespaces()
        sleeper = hosts[1].popen(["sh", "-c", "echo there; exec sleep 1000"], stdout=subprocess.PIPE)
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"there\n"
    assert not namespaces & existing_namespaces()
    assert sleeper.wait(timeout=30) == -signal.SIGKILL
    assert not any(Path("/etc/netns", namespace).exists() for namespace in namespaces)


def test_hosts_are_gone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), network(2, mbit_per_s=1000) as hosts:
        namespaces = {host.namespace for host in hosts}
        raise ZeroDivisionError
    assert not namespaces & existing_namespaces()


def test_killed_process_leaves_no_hosts_behind() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert holder.stdout is not None
    namespaces = set(holder.stdout.readline().split())
    assert len(namespaces) == 2
    assert namespaces <= existing_namespaces()

    holder.kill()
    holder.wait()
    deadline = time.monotonic() + 120
    while namespaces & existing_namespaces() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not namespaces & existing_namespaces()


HOLD = """
import subprocess, time
from bucketlab.link.testbed import network
with network(2, mbit_per_s=1000) as hosts:
    sleeper = hosts[0].popen(["sh", "-c", "echo there; exec sleep 1000"], stdout=subprocess.PIPE)
    sleeper.stdout.readline()
    print(*(host.namespace for host in hosts), flush=True)
    time.sleep(1000)
"""


def test_the_command_runs_a_script_across_the_hosts_and_leaves_none_behind(tmp_path: Path) -> None:
    (tmp_path / "all_reduce.py").write_text(ALL_REDUCE)
    words = ["link", "testbed", "--hosts", "3", "--mbit-per-s", "500", "all_reduce.py", str(2**20), str(tmp_path)]
    command = start(*words, cwd=tmp_path)
    _, errors = command.communicate(timeout=200)
    assert command.returncode == 0, errors[-2000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    assert [rank["host"] for rank in ranks] == ["host0", "host1", "host2"]
    assert all(rank["sum"] == 6 for rank in ranks)
    assert not [one for one in existing_namespaces() if one.startswith(f"bucketlab-{command.pid}-")]


def test_the_command_wants_a_script_that_exists(tmp_path: Path) -> None:
    done = bucketlab("link", "testbed", "absent.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "absent.py" in last_line(done)
