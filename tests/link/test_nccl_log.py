"""What is read from NCCL's own logs.

The logs in `logs/` are written for these tests, of invented hosts, in the words of NCCL: each line is one of the
format strings that stand in libnccl.so.2 of the release in the file's name, as published in the wheels of
nvidia-nccl-cu12 on PyPI (2.17.1, 2.18.3, 2.19.3, 2.20.5, 2.21.5, 2.22.3, 2.24.3, 2.26.2, 2.27.5, 2.28.9; 2.23.4 and
2.25.1 were looked at too and have no format of their own). How real logs put them together was seen in

- connections with PCI bus ids ("0[7000]"), as until 2.17: src/transport/p2p.cc at 2.17.1, NVIDIA/Megatron-LM issue 516
- "[receive] via NET/Socket", plugins as IBext (2.18): NVIDIA/nccl issues 952, 958
- "NET/Plugin: Failed to find ..." and "Using non-device net plugin" (2.19.3): NVIDIA/nccl issue 1267
- SHM without a connection index, and NCCL_P2P_DISABLE told as NCCL_P2P_LEVEL: NVIDIA/nccl issues 1027, 1609,
  ParCIS/Chimera issue 2, rwth-i6/returnn issue 1469
- "Pattern 4 ... type NVL/PIX" and the topology, with NCCL_DEBUG_SUBSYS=GRAPH: NVIDIA/nccl issues 1189 (2.20), 1519,
  NVIDIA/nccl-tests issue 307
- "comm ... nRanks ... MNNVL 0", "collnet channels" (2.20 on): NVIDIA/nccl issue 1453
- the split off Init lines and their timings (2.21, 2.22): NVIDIA/nccl issues 1412, 1538, 1504
- adapters that 2.20 to 2.23 merged, in braces: src/transport/net_ib.cc of those releases
- NVLS, MNNVL fabric lines, IBext_v8 and SHARP (2.24.3): NVIDIA/nccl issue 1584; 2.25.1: issue 1637
- "-> Algo 1 proto 2 time" and "-> Algo RING proto LL channel": NVIDIA/nccl issue 1595, src/enqueue.cc at 2.24
- "/GDRDMA(PCI)/Shared" and the proxy's rank in parentheses (PXN), 2.26 on: src/transport/net.cc
- "Initialized NET plugin", "Assigned NET plugin" (2.27 on): NVIDIA/nccl issues 1804 (2.27.6), 1925 (2.28)
- times in front of warnings and the function behind file and line: src/debug.cc, NCCL user guide, "Logging"
- launchers' prefixes: NVIDIA/nccl issues 300 ("[1,0]<stdout>:"), 1029 (a pod's name), 302 ("[155] ")
"""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.link.nccl_log import (
    Used,
    check_link,
    debug_environment,
    explain,
    in_words,
    joined,
    logs_of_process,
    parse,
    read_logs,
    what_was_used,
)

LOGS = Path(__file__).parent / "logs"
FILES = sorted(LOGS.glob("*.log"))


def _logs(name):
    return read_logs([LOGS / f"{name}.log"])


def _paths(name):
    return {one.path: one.connections for one in what_was_used(_logs(name)).paths}


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("nvlink-2.17.1", {"nvlink": 4}),
        ("sockets-2.18.3", {"sockets": 4}),
        ("pcie-2.19.3", {"pcie": 2}),
        ("shared-memory-2.20.5", {"shared-memory": 2}),
        ("plugin-2.21.5", {"other network": 1}),
        ("merged-roce-2.22.3", {"roce": 2, "nvlink": 1, "infiniband": 1}),
        ("nvls-2.24.3", {"nvlink": 1}),
        ("infiniband-2.26.2", {"infiniband": 2, "in-network": 1}),
        ("sockets-2.27.5", {"sockets": 2, "nvlink": 2}),
        ("mnnvl-2.28.9", {"nvlink": 2}),
    ],
)
def test_the_path_of_every_connection_is_told(name, paths):
    assert _paths(name) == paths
    connections = (LOGS / f"{name}.log").read_text().count(" via ")
    assert sum(paths.values()) == connections


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_release_is_that_of_the_file(file):
    assert what_was_used(read_logs([file])).versions == [file.stem.rpartition("-")[2]]


def test_all_of_the_releases_from_2_17_to_2_28_have_a_log():
    assert {file.stem.rpartition("-")[2].rpartition(".")[0] for file in FILES} >= {
        "2.17", "2.18", "2.19", "2.20", "2.21", "2.22", "2.24", "2.26", "2.27", "2.28",
    }  # fmt: skip


def test_each_process_has_its_own_log_with_its_rank_and_device():
    logs = _logs("nvlink-2.17.1")
    told = [(log.host, log.pid, [(one.rank, one.ranks, one.cuda_device, one.bus_id) for one in log.communicators])
            for log in logs]  # fmt: skip
    assert told == [("amber-1", 4100, [(0, 2, 0, "7000")]), ("amber-1", 4101, [(1, 2, 1, "b000")])]
    assert all(one.complete for log in logs for one in log.communicators)


def test_a_communicator_that_never_came_up_is_not_complete():
    (log,) = _logs("sockets-2.27.5")
    assert [(one.ranks, one.complete) for one in log.communicators] == [(4, False)]


@pytest.mark.parametrize(
    ("name", "nodes"), [("merged-roce-2.22.3", 2), ("nvls-2.24.3", 1), ("mnnvl-2.28.9", 1), ("pcie-2.19.3", None)]
)
def test_the_number_of_nodes_is_known_where_nccl_tells_it(name, nodes):
    assert _logs(name)[0].communicators[0].nodes == nodes


def test_rings_and_trees_are_those_that_nccl_built():
    (log,) = _logs("merged-roce-2.22.3")
    assert log.rings == {0: [0, 1, 2, 3], 1: [0, 3, 2, 1]}
    first, second = _logs("nvlink-2.17.1")
    assert first.neighbours == {0: (1, 0, 1)}
    assert (first.trees[0].up, first.trees[0].down) == (None, [1])
    assert (second.trees[0].up, second.trees[0].down) == (0, [])
    assert _logs("nvls-2.24.3")[0].trees[1].down == [1, 2, 3]


def test_of_several_communicators_the_largest_ones_ring_is_kept():
    large, small = "h:1:2 [0] NCCL INFO Channel 00/02 : 0 1 2 3", "h:1:2 [0] NCCL INFO Channel 00/02 : 0 1"
    for text in (f"{large}\n{small}", f"{small}\n{large}"):
        assert parse(text, "x")[0].rings == {0: [0, 1, 2, 3]}


def test_adapters_are_known_also_when_sockets_are_listed_after_them():
    text = """h:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:192.0.2.1<0>
h:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.1<0>
h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"""
    assert [one.path for one in what_was_used(parse(text, "x")).paths] == ["roce"]


def test_channels_are_counted_with_and_without_a_count_for_collnet():
    assert [(log.channels, log.nvls_channels) for log in _logs("nvlink-2.17.1")] == [(2, 0), (2, 0)]
    assert [(log.channels, log.nvls_channels) for log in _logs("nvls-2.24.3")] == [(24, 16)]


@pytest.mark.parametrize(
    ("name", "supported"),
    [("nvls-2.24.3", True), ("mnnvl-2.28.9", True), ("sockets-2.18.3", False), ("pcie-2.19.3", None)],
)
def test_support_for_nvls_is_told(name, supported):
    assert _logs(name)[0].nvls_supported is supported


def test_merged_adapters_count_as_one_and_keep_the_numbering_right():
    (log,) = _logs("merged-roce-2.22.3")
    assert [(one.name, one.layer) for one in log.devices] == [("mlx5_0+mlx5_1", "RoCE"), ("mlx5_4", "IB")]
    assert [(one.path, one.gpu_direct) for one in log.connections if one.network == "IB"] == [
        ("roce", True),
        ("roce", True),
        ("infiniband", False),
    ]


def test_the_interface_that_sockets_took_is_named():
    used = what_was_used(_logs("sockets-2.27.5"))
    assert next(one.devices for one in used.paths if one.path == "sockets") == ["ib0"]


def test_algorithms_have_the_same_names_whether_logged_by_number_or_by_name():
    assert _logs("shared-memory-2.20.5")[0].choices == {"Ring/Simple": 1, "Tree/LL": 1}
    assert _logs("nvls-2.24.3")[0].choices == {"NVLS/Simple": 2, "Ring/LL": 1}


def test_warnings_are_kept_with_their_line_whatever_stands_before_them():
    (old,) = _logs("sockets-2.18.3")[0].warnings
    (timed,) = _logs("sockets-2.27.5")[0].warnings
    (with_function,) = _logs("mnnvl-2.28.9")[0].warnings
    assert old.text.startswith("NET/Socket : peer 198.51.100.6")
    assert timed.text.startswith("socketProgress: Connection closed")
    assert with_function.text.startswith("socketPollConnect: connect to")
    for line, name in ((old, "sockets-2.18.3"), (timed, "sockets-2.27.5"), (with_function, "mnnvl-2.28.9")):
        assert (LOGS / f"{name}.log").read_text().split("\n")[line.number - 1].endswith(line.text)


def test_infiniband_wanted_and_sockets_used_is_shown_with_the_line_and_the_cause():
    (found,) = check_link("infiniband", _logs("sockets-2.18.3"))
    assert (found.path, found.connections) == ("sockets", 4)
    assert str(found.line) == "sockets-2.18.3.log:13: Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"
    assert [line.text for line in found.reasons] == ["Failed to open libibverbs.so[.1]"]
    assert "sockets on 4 connections: sockets-2.18.3.log:13" in str(found)


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("nvlink", "nvlink-2.17.1"),
        ("nvlink", "nvls-2.24.3"),
        ("nvlink", "mnnvl-2.28.9"),
        ("pcie", "pcie-2.19.3"),
        ("shared-memory", "shared-memory-2.20.5"),
        ("infiniband", "infiniband-2.26.2"),
        ("ethernet", "sockets-2.18.3"),
    ],
)
def test_the_wanted_path_contradicts_nothing_and_every_other_wish_is_contradicted(wanted, name):
    logs = _logs(name)
    assert check_link(wanted, logs) == []
    for other in {"nvlink", "pcie", "shared-memory", "infiniband", "roce", "ethernet", "gloo"} - {wanted}:
        assert check_link(other, logs), other


def test_reductions_by_nvls_contradict_a_wish_for_another_path():
    text = "h:1:2 [0] NCCL INFO 8 coll channels, 0 collnet channels, 16 nvls channels, 8 p2p channels, 1 p2p channels"
    (found,) = check_link("shared-memory", parse(text, "x"))
    assert (found.path, found.line.text) == ("nvlink", text.partition("INFO ")[2])


def test_what_the_log_does_not_tell_apart_is_not_called_a_contradiction():
    logs = parse("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "x")
    assert [one.path for one in what_was_used(logs).paths] == ["p2p"]
    assert check_link("nvlink", logs) == check_link("pcie", logs) == []
    assert check_link("shared-memory", logs)


def test_a_pcie_hop_in_a_host_that_has_nvlink_too_is_not_taken_for_either():
    text = """h:1:2 [0] NCCL INFO === System : maxBw 20.0 totalBw 40.0 ===
h:1:2 [0] NCCL INFO               + NVL[40.0] - GPU/B000
h:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 10.000000/10.000000, type SYS/PIX, sameChannels 1
h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"""
    assert [one.path for one in what_was_used(parse(text, "x")).paths] == ["p2p"]


def test_a_wish_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="infinband"):
        check_link("infinband", [])


@pytest.mark.parametrize(
    "prefix", ["", "[1,0]<stdout>:", "worker-0: ", "[155] ", "[0] ", "2026-01-02T03:04:05Z ", "[2026-01-02 03:04:05] "]
)
def test_prefixes_of_launchers_and_times_change_nothing(prefix):
    for file in FILES:
        text = file.read_text()
        prefixed = "\n".join(prefix + line for line in text.split("\n"))
        assert parse(prefixed, file.name) == parse(text, file.name)


def test_lines_without_host_and_process_are_read_too():
    (log,) = parse("NCCL version 2.24.3+cuda12.2\n[0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "x")
    assert (log.version, [one.path for one in log.connections]) == ("2.24.3", ["shared-memory"])


def test_ranks_of_one_job_in_one_text_are_taken_apart_however_they_are_interleaved():
    lines = (LOGS / "nvlink-2.17.1.log").read_text().split("\n")
    by_process = sorted(lines, key=lambda line: ":4101:" in line)
    apart, mixed = parse("\n".join(by_process), "x"), parse("\n".join(lines), "x")
    assert [(log.pid, len(log.connections), log.rings, log.trees) for log in apart] == [
        (log.pid, len(log.connections), log.rings, log.trees) for log in mixed
    ]


def test_output_without_nccl_has_no_logs_and_no_paths():
    assert parse("epoch 1\nloss 0.3\nImportError: no NCCL here\n", "x") == []
    assert in_words(what_was_used([])) == "NCCL's log shows no connection between ranks"


def test_one_line_tells_a_whole_job():
    told = in_words(what_was_used(_logs("merged-roce-2.22.3")))
    assert told == (
        "NCCL 2.22.3, 4 ranks: RoCE (NET/IB, mlx5_0+mlx5_1, GPU Direct), NVLink (P2P/CUMEM), "
        "InfiniBand (NET/IB, mlx5_4, no GPU Direct); 2 channels, 2 rings"
    )
    told = in_words(what_was_used(_logs("nvls-2.24.3")))
    assert told.endswith("; 24 channels, 1 ring, 2 trees, 16 NVLS channels")


def test_what_ranks_tell_of_themselves_joins_to_what_all_logs_tell():
    logs = [log for file in FILES for log in read_logs([file])]
    sent = [msgspec.json.decode(msgspec.json.encode(what_was_used([log])), type=Used) for log in logs]
    assert joined(sent) == what_was_used(logs)


def test_a_wish_that_was_not_met_is_explained_with_lines_and_reasons():
    told = explain("infiniband", check_link("infiniband", _logs("sockets-2.18.3") + _logs("sockets-2.27.5")))
    assert told.split("\n") == [
        "the sweep asks for infiniband, and NCCL used another path:",
        "  sockets in 2 processes: sockets-2.18.3.log:13: Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
        "  NVLink: sockets-2.27.5.log:12: Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "  NCCL tells why: sockets-2.18.3.log:5: Failed to open libibverbs.so[.1]",
        "  NCCL tells why: sockets-2.27.5.log:2: NCCL_IB_DISABLE set by environment to 1.",
        "  NCCL tells why: sockets-2.27.5.log:3: Failed to initialize NET plugin IB",
    ]


def test_a_reason_that_is_told_of_every_pair_of_devices_is_explained_once():
    why = "Could not enable P2P between dev {}(=1{}000) and dev {}(=1{}000)"
    pairs = [why.format(a, a, b, b) for a in range(4) for b in range(4) if a != b]
    text = "\n".join(
        f"h:1:2 [0] NCCL INFO {line}" for line in [*pairs, "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"]
    )
    told = explain("nvlink", check_link("nvlink", parse(text, "x"))).split("\n")
    assert told[2:] == [f"  NCCL tells why: x:1: {pairs[0]}"]


def test_collectives_are_not_logged_one_by_one():
    subsystems = debug_environment(Path("/c"), {})["NCCL_DEBUG_SUBSYS"].split(",")
    assert not {"COLL", "TUNING", "ALL", "CALL"} & set(subsystems)
    assert {"INIT", "GRAPH"} <= set(subsystems)  # connections; what tells NVLink from PCIe


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"])
def test_a_log_that_the_user_asked_for_is_left_alone(name):
    assert debug_environment(Path("/c"), {name: "x"}) == {}


def test_a_process_finds_its_own_log_again(tmp_path):
    folder = tmp_path / "100%h"
    folder.mkdir()
    template = debug_environment(folder, {})["NCCL_DEBUG_FILE"]
    # As src/debug.cc expands it.
    parts = {"%%": "%", "%h": "amber-1", "%p": "41"}
    file = Path(re.sub("%[%hp]", lambda found: parts[found[0]], template))
    file.write_text((LOGS / "pcie-2.19.3.log").read_text())
    assert file.parent == folder
    assert [log.version for log in logs_of_process(folder, 41)] == ["2.19.3"]
    assert logs_of_process(folder, 1) == []


@given(st.text(), st.integers(0, 60), st.integers(0, 60))
def test_a_line_cut_anywhere_is_passed_over_or_read_but_never_fails(noise, start, length):
    text = (LOGS / "merged-roce-2.22.3.log").read_text()
    lines = [line[: start + length] + noise for line in text.split("\n")]
    what_was_used(parse("\n".join(lines), "x"))
