"""Commands of several nodes that launch one job together: what they agree on, over a store of torch's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bucketlab.errors import BadInput, WorkFailed
from bucketlab.launch.command import Job
from bucketlab.launch.nodes import Nodes, _place, check, count_of, meeting
from tests.ports import free_port


def job(rank: int, port: int = 29500, **options: str) -> Job:
    given = {"nnodes": "2", "node-rank": str(rank), "rdzv-endpoint": f"127.0.0.1:{port}", **options}
    return Job(("train.py",), options=tuple(given.items()))


@pytest.mark.parametrize("leader", [0, 1])
def test_every_launch_is_heard_on_the_other_node_in_order_wherever_the_leader_is(leader: int) -> None:
    port = free_port()
    launches = [{}, {"A": "1"}, {}, {"A": "2", "B": "x y"}]

    def lead() -> None:
        with meeting(job(leader, port), 60) as nodes:
            for one in launches:
                nodes.tell(one)
            nodes.tell_end()

    def follow() -> list[dict[str, str]]:
        with meeting(job(1 - leader, port), 60) as nodes:
            return list(nodes.heard())

    with ThreadPoolExecutor(2) as threads:
        leading, following = threads.submit(lead), threads.submit(follow)
        assert following.result(60) == launches
        leading.result(60)


def test_a_leader_that_is_gone_is_told_from_one_that_takes_its_time() -> None:
    dist = pytest.importorskip("torch.distributed")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    nodes = Nodes(dist.TCPStore("127.0.0.1", store.port, is_master=False), 2, is_host=False)
    del store
    with pytest.raises(WorkFailed, match="the command that has rank 0 ended"):
        next(nodes.heard())


@pytest.mark.parametrize(
    ("options", "port"),
    [
        ({"rdzv-endpoint": "node0:29511"}, 29512),
        ({"rdzv-endpoint": "node0"}, 29401),
        ({"master-addr": "node0", "master-port": "29533"}, 29534),
        ({"master-addr": "node0"}, 29501),
    ],
)
def test_commands_meet_at_the_port_after_the_jobs_own(options: dict[str, str], port: int) -> None:
    assert _place({"node-rank": "1", **options}) == ("node0", port)


def test_options_that_do_not_say_where_to_meet_are_found_before_any_launch() -> None:
    check(Job(("train.py",)))
    check(job(1))
    with pytest.raises(BadInput, match="--node-rank"):
        check(Job(("train.py",), options=(("nnodes", "2"),)))
    with pytest.raises(BadInput, match="--rdzv-endpoint"):
        check(Job(("train.py",), options=(("nnodes", "2"), ("node-rank", "1"))))
    with pytest.raises(BadInput, match="number of nodes"):
        count_of(job(0, nnodes="1:4"))
