"""Sweep files: what is shipped, what a file's mistakes are told as, and the model of a link that comes of it."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketlab.errors import BadInput
from bucketlab.link.bandwidth import bus_factor
from bucketlab.link.detect import Adapter, HostLinks
from bucketlab.link.nccl_log import check_link, parse
from bucketlab.link.sweep import (
    PINNING,
    LinkModel,
    Search,
    curve_of,
    environment_on,
    load_sweep,
    read_sweep,
    shipped_sweeps,
)

ROOT = Path(__file__).parents[2]
NAMES = ["ethernet", "gloo", "infiniband", "nvlink", "pcie", "roce", "shared-memory"]

GOOD = """name = "mine"
description = "a link of my own"

[environment]
NCCL_NET = "Socket"

[link]
kind = "ethernet"
ranks = 4
ranks_per_node = 2
latency_us = 20
bandwidth_gb_s = 1.25

[search]
bucket_cap_mb = { low = 1, high = 64 }
"""


@pytest.fixture
def read(tmp_path):
    def reader(text):
        file = tmp_path / "mine.toml"
        file.write_text(text)
        return read_sweep(file)

    return reader


@pytest.fixture
def mistakes(read):
    """line -> what is wrong there"""

    def finder(text):
        with pytest.raises(BadInput) as caught:
            read(text)
        told = [re.fullmatch(r".*mine\.toml:(\d+): (.*)", line) for line in str(caught.value).split("\n")]
        assert all(told)
        return {int(one[1]): one[2] for one in told}

    return finder


def _host(*adapters):
    return HostLinks(
        gpus=[],
        pairs=[],
        adapters=list(adapters),
        interfaces=[],
        shared_memory_bytes=None,
        shared_memory_free_bytes=None,
        unknown=[],
    )


def _adapter(device, layer, state="ACTIVE"):
    return Adapter(device=device, port=1, layer=layer, state=state, rate="")


def test_these_sweeps_are_shipped():
    assert sorted(shipped_sweeps()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_sweep_is_whole(name):
    sweep = load_sweep(name)
    assert sweep.name == sweep.link.kind == name
    assert set(sweep.environment) <= set(PINNING)
    assert all(figures.source for figures in sweep.presets.values())
    assert sweep.link.preset in sweep.presets
    curve = curve_of(sweep.link)
    assert 0 < curve.latency_ns < 1_000_000
    assert curve.bandwidth_gb_s > 0
    for preset in sweep.presets:
        other = load_sweep(f"{name}:{preset}").link
        assert (other.preset, other.bandwidth_gb_s) == (preset, sweep.presets[preset].bandwidth_gb_s)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_searched_that_changes_the_results_of_training(name):
    search = load_sweep(name).search
    assert not search.gradient_as_bucket_view
    assert not search.static_graph
    assert not search.compression


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"gloo"}))
def test_a_shipped_sweep_shuts_every_other_path_inside_a_host(name):
    """Of NCCL's transports inside a host, P2P, SHM and NET, one is open; it takes the first it can (transport.cc)."""
    environment = load_sweep(name).environment
    peer = environment.get("NCCL_P2P_DISABLE") != "1"
    shared = environment.get("NCCL_SHM_DISABLE") != "1"
    assert peer == (name in ("nvlink", "pcie"))
    assert shared == (name == "shared-memory")
    network = environment["NCCL_NET_DISABLE_INTRA"] == "0"
    assert peer + shared + network == 1
    if name in ("infiniband", "roce", "ethernet"):
        assert environment["NCCL_NET"] == ("Socket" if name == "ethernet" else "IB")
        assert environment["NCCL_NVLS_ENABLE"] == environment["NCCL_COLLNET_ENABLE"] == "0"


@pytest.mark.parametrize("name", NAMES)
def test_a_sweeps_kind_can_be_looked_for_in_a_log(name):
    log = parse("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0", "x")
    assert check_link(load_sweep(name).link.kind, log)


def test_sweeps_are_found_inside_a_wheel_too(tmp_path):
    """The package alone, with the sweeps where the wheel has them, and no checkout around it."""
    (tmp_path / "bucketlab").symlink_to(ROOT / "bucketlab")
    code = (
        "import bucketlab.link.sweep as s, pathlib, sys\n"
        "s.__file__ = sys.argv[1] + '/site/bucketlab/link/sweep.py'\n"
        "print(*s.shipped_sweeps())"
    )
    folder = tmp_path / "site/bucketlab/sweeps"
    folder.mkdir(parents=True)
    (folder / "only.toml").write_text(GOOD)
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert told.stdout.split() == ["only"]


def test_a_file_is_read(read):
    sweep = read(GOOD)
    assert sweep.environment == {"NCCL_NET": "Socket"}
    assert (sweep.link.ranks, sweep.link.ranks_per_node, sweep.link.latency_us) == (4, 2, 20.0)
    assert (sweep.search.bucket_cap_mb.low, sweep.search.bucket_cap_mb.high) == (1, 64)


def test_a_sweep_survives_json(read):
    sweep = read(GOOD)
    assert msgspec.json.decode(msgspec.json.encode(sweep), type=type(sweep)) == sweep


def test_without_a_search_table_the_default_space_is_searched(read):
    assert read(GOOD[: GOOD.index("[search]")]).search == Search()


def test_all_mistakes_are_told_in_one_go_each_with_its_line(mistakes):
    told = mistakes(
        """name = "mine"
descripton = "typo"

[environment]
NCCL_P2P_DISABEL = "1"
NCCL_NET = true

[link]
kind = "infinband"
ranks = 1
latency_ms = 3
bandwidth_gb_s = 0
overhead_us = "3 us"

[search]
bucket_cap_mb = { low = 25, high = 1 }
planned_list = "yes"
compression = ["fp8"]
"""
    )
    assert told == {
        1: "description is missing",
        2: "unknown key 'descripton': did you mean description?",
        5: "NCCL would pass over NCCL_P2P_DISABEL: did you mean NCCL_P2P_DISABLE?",
        6: 'NCCL_NET = true: must be a text such as "1"',
        9: 'kind = "infinband": no such value: did you mean infiniband?',
        10: "ranks = 1: must be a whole number from 2 on",
        11: "unknown key 'latency_ms': latency is given in microseconds, as latency_us",
        12: "bandwidth_gb_s = 0: must be a number above 0",
        13: 'overhead_us = "3 us": must be a number without quotes; its unit stands in the key',
        16: "bucket_cap_mb: low = 25 is above high = 1",
        17: 'planned_list = "yes": must be true or false',
        18: "compression = ['fp8']: no such value: did you mean fp16?",
    }


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("latency_ns", "latency_us"),
        ("latency_ms", "latency_us"),
        ("bandwidth_gbit_s", "bandwidth_gb_s"),
        ("bandwidth_gib_s", "bandwidth_gb_s"),
        ("overhead_s", "overhead_us"),
        ("within_latency_ns", "within_latency_us"),
    ],
)
def test_another_unit_is_told_as_that(mistakes, key, right):
    assert mistakes(GOOD.replace("latency_us = 20", f"latency_us = 20\n{key} = 3"))[12].endswith(f"as {right}")


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("ranks_per_node = 2", "ranks_per_node = 8", 10, "ranks_per_node = 8 is more than ranks = 4"),
        ("ranks_per_node = 2", "ranks_per_node = 3", 10, "not a multiple of ranks_per_node = 3"),
        ('kind = "ethernet"', 'kind = "nvlink"', 10, "nvlink joins ranks of one host"),
        ("ranks = 4", "ranks = 4.5", 9, "must be a whole number"),
        ("latency_us = 20", "latency_us = -1", 11, "must be a number from 0 on"),
        ("latency_us = 20", "latency_us = nan", 11, "must be a number from 0 on"),
        ("bandwidth_gb_s = 1.25", "bandwidth_gb_s = 1e9", 12, "must be at most 100,000; is it in another unit?"),
        ("bandwidth_gb_s = 1.25", "", 7, "link needs bandwidth_gb_s"),
        ("bandwidth_gb_s = 1.25", "bandwidth_gb_s = 1\nwithin_latency_us = 3", 7, "go together"),
        ("{ low = 1, high = 64 }", "{ low = 1, hihg = 64 }", 15, "unknown key 'hihg': did you mean high?"),
        ("{ low = 1, high = 64 }", "25", 15, "must be a table"),
        ('NCCL_NET = "Socket"', 'nccl_net = "Socket"', 5, "no name of an environment variable"),
        ('NCCL_NET = "Socket"', 'LD_PRELOAD = "x.so"', 5, "chooses code that is run"),
        ("[search]", '[search]\nnccl = { NCCL_TUNER_PLUGIN = ["x.so"] }', 15, "chooses code that is run"),
        ("[search]", "[serach]", 14, "did you mean search?"),
        ("ranks = 4", 'ranks = 4\npreset = "10gbe"', 10, "no preset is called '10gbe'"),
        ("[search]", "[link.presets.x]\nlatency_us = 1\nbandwidth_gb_s = 1\n[search]", 14, "needs a source"),
        ("[search]", '[search]\nnccl = { NCCL_ALGO = "Ring" }', 15, "each must be a list of texts"),
        ("[search]", '[search]\nnccl = { NCCL_MAX_NCHANELS = ["1"] }', 15, "did you mean NCCL_MAX_NCHANNELS?"),
    ],
)
def test_one_mistake_is_told_with_its_line(mistakes, old, new, line, what):
    assert old in GOOD
    told = mistakes(GOOD.replace(old, new, 1))
    assert what in told[line], told
    assert len(told) == 1


def test_text_that_is_no_toml_is_told_with_its_line(mistakes):
    assert mistakes(GOOD.replace("ranks = 4", "ranks = = 4")) == {9: "Invalid value, column 9"}
    assert list(mistakes(GOOD + "[link")) == [16]


def test_a_key_inside_a_long_text_is_not_taken_for_the_key(mistakes):
    text = GOOD.replace('"a link of my own"', '"""\na link\nlatency_us = 3\n"""').replace(
        "latency_us = 20", "latency_us = -20"
    )
    assert list(mistakes(text)) == [14]


def test_files_that_are_not_there_are_told_as_that(tmp_path):
    with pytest.raises(BadInput, match=r"did you mean infiniband\?"):
        load_sweep("infinband", folder=tmp_path)
    with pytest.raises(BadInput, match=r"no/such\.toml: no such file"):
        load_sweep("no/such.toml", folder=tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(BadInput, match="not UTF-8 text"):
        load_sweep(str(tmp_path / "latin.toml"))


def test_a_sweep_of_ones_own_goes_before_a_shipped_one_of_the_same_name(tmp_path):
    (tmp_path / "gloo.toml").write_text(GOOD)
    assert load_sweep("gloo", folder=tmp_path).name == "mine"
    assert load_sweep("gloo", folder=tmp_path / "none").name == "gloo"


def test_figures_beside_a_preset_go_before_it_unless_another_is_asked_for(read, tmp_path):
    text = GOOD.replace(
        "bandwidth_gb_s = 1.25",
        'preset = "slow"\n[link.presets.slow]\nlatency_us = 1\nbandwidth_gb_s = 2\nsource = "s"\n'
        '[link.presets.fast]\nlatency_us = 3\nbandwidth_gb_s = 4\nsource = "s"',
    )
    link = read(text).link
    assert (link.latency_us, link.bandwidth_gb_s, link.preset) == (20, 2, "slow")
    link = load_sweep(f"{tmp_path}/mine.toml:fast").link
    assert (link.latency_us, link.bandwidth_gb_s, link.preset) == (3, 4, "fast")


def test_adapters_of_the_sweeps_own_kind_are_pinned_by_name():
    host = _host(
        _adapter("mlx5_0", "InfiniBand"),
        _adapter("mlx5_1", "Ethernet"),
        _adapter("mlx5_2", "InfiniBand", "DOWN"),
        _adapter("mlx5_3", "InfiniBand"),
    )
    assert environment_on(load_sweep("infiniband"), host, {})["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_3:1"
    assert environment_on(load_sweep("roce"), host, {})["NCCL_IB_HCA"] == "=mlx5_1:1"
    assert "NCCL_IB_HCA" not in environment_on(load_sweep("ethernet"), host, {})
    assert "NCCL_IB_HCA" not in environment_on(load_sweep("infiniband"), _host(), {})


def test_what_the_user_set_stays():
    host = _host(_adapter("mlx5_0", "InfiniBand"))
    already = {"NCCL_IB_HCA": "mlx5_9", "NCCL_NET": "IBext"}
    assert not already.keys() & environment_on(load_sweep("infiniband"), host, already).keys()


def test_on_one_host_a_ring_has_2_n_minus_1_hops_and_its_bus_bandwidth_is_the_links():
    link = LinkModel(
        kind="nvlink", ranks=8, ranks_per_node=8, latency_us=3.4, overhead_us=8.4, bandwidth_gb_s=370.8
    )  # fmt: skip
    curve = curve_of(link)
    assert curve.latency_ns == pytest.approx((8.4 + 14 * 3.4) * 1000)
    assert curve.bandwidth_gb_s * bus_factor("allreduce", 8) == pytest.approx(370.8)


def test_between_hosts_only_two_hops_a_host_pay_the_network():
    """NCCL's own sum, src/graph/tuning.cc: (nsteps - nInterSteps) x intra + nInterSteps x inter, of 2 x hosts."""
    link = LinkModel(
        kind="infiniband",
        ranks=16,
        ranks_per_node=8,
        adapters=8,
        latency_us=14.0,
        bandwidth_gb_s=48.0,
        within_latency_us=3.4,
        within_bandwidth_gb_s=370.8,
    )
    curve = curve_of(link)
    assert curve.latency_ns == pytest.approx((26 * 3.4 + 4 * 14.0) * 1000)
    assert curve.bandwidth_gb_s * bus_factor("allreduce", 16) == pytest.approx(370.8)
    one_adapter = curve_of(msgspec.structs.replace(link, adapters=1))
    assert one_adapter.bandwidth_gb_s * bus_factor("allreduce", 16) == pytest.approx(48.0)


@given(
    nodes=st.integers(1, 64),
    per_node=st.integers(1, 16),
    latency_us=st.floats(0, 1000),
    bandwidth_gb_s=st.floats(0.01, 1000),
)
def test_more_hosts_never_make_the_model_faster(nodes, per_node, latency_us, bandwidth_gb_s):
    def time_ns(hosts):
        link = LinkModel(
            kind="infiniband",
            ranks=max(2, hosts * per_node),
            ranks_per_node=per_node,
            latency_us=latency_us,
            bandwidth_gb_s=bandwidth_gb_s,
            within_latency_us=0.0,
            within_bandwidth_gb_s=1e4,
        )
        return curve_of(link).time_ns([4096, 2**25])

    assert (time_ns(nodes + 1) >= time_ns(nodes) * (1 - 1e-9)).all()
