"""What joins the ranks of a host, from sysfs trees that these tests make."""

from pathlib import Path

import pytest

from bucketlab.link import detect
from bucketlab.link.detect import find_links, in_words


def _tree(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def _port(device, layer, rate, state="4: ACTIVE", port=1):
    folder = f"class/infiniband/{device}/ports/{port}"
    return {f"{folder}/link_layer": layer, f"{folder}/rate": rate, f"{folder}/state": state}


def _interface(name, **files):
    base = {"type": "1", "operstate": "up", "mtu": "1500"}
    return {f"class/net/{name}/{key.replace('__', '/')}": text for key, text in (base | files).items()}


@pytest.fixture
def no_nvml(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)


def test_infiniband_and_roce_are_told_apart_by_their_link_layer(tmp_path, no_nvml):
    sys = _tree(
        tmp_path,
        _port("mlx5_0", "InfiniBand", "400 Gb/sec (4X NDR)")
        | _port("mlx5_3", "Ethernet", "25 Gb/sec (1X EDR)", state="1: DOWN")
        | {"class/infiniband/mlx5_3/device/net/ens5/mtu": "9000"},
    )
    infiniband, roce = find_links(sys).adapters
    assert (infiniband.device, infiniband.layer, infiniband.rate, infiniband.active) == (
        "mlx5_0", "InfiniBand", "400 Gb/sec (4X NDR)", True,
    )  # fmt: skip
    assert (roce.layer, roce.rate, roce.active, roce.interfaces) == (
        "Ethernet", "25 Gb/sec (1X EDR)", False, ["ens5"],
    )  # fmt: skip


def test_adapters_come_in_the_order_of_their_numbers(tmp_path, no_nvml):
    files = {}
    for number in (10, 2, 0):
        files |= _port(f"mlx5_{number}", "InfiniBand", "200 Gb/sec (4X HDR)")
    assert [one.device for one in find_links(_tree(tmp_path, files)).adapters] == ["mlx5_0", "mlx5_2", "mlx5_10"]


def test_interfaces_have_speed_kind_and_members(tmp_path, no_nvml):
    sys = _tree(
        tmp_path,
        _interface("eth0", speed="25000", device__vendor="0x15b3")
        | _interface("eth1", speed="-1", device__vendor="0x1af4")
        | _interface("lo", type="772")
        | _interface("ib0", type="32", speed="200000", device__vendor="0x15b3")
        | _interface("bond0", speed="50000", bonding__slaves="eth0 eth1")
        | _interface("veth9", speed="10000")
        | _interface("wlan0", device__vendor="0x8086", wireless__x="", operstate="down"),
    )
    found = {one.name: one for one in find_links(sys).interfaces}
    assert {name: one.kind for name, one in found.items()} == {
        "eth0": "ethernet",
        "eth1": "ethernet",
        "lo": "loopback",
        "ib0": "ip over infiniband",
        "bond0": "ethernet",
        "veth9": "ethernet",
        "wlan0": "wireless",
    }
    assert (found["eth0"].speed_gbit_s, found["eth1"].speed_gbit_s, found["lo"].speed_gbit_s) == (25, None, None)
    assert found["bond0"].members == ["eth0", "eth1"]
    assert [name for name, one in found.items() if one.physical] == ["eth0", "eth1", "ib0", "wlan0"]
    assert not found["wlan0"].up
    assert {"bond0", "eth0"} <= dict(in_words(find_links(sys))).keys()
    assert not {"lo", "veth9"} & dict(in_words(find_links(sys))).keys()


def test_a_host_without_any_of_it_has_nothing_and_nothing_is_unknown(tmp_path, no_nvml):
    found = find_links(tmp_path, shared_memory=tmp_path / "none")
    assert (found.gpus, found.adapters, found.interfaces, found.unknown) == ([], [], [], [])
    assert in_words(found) == []


def test_this_host_can_be_looked_at():
    found = find_links()
    assert any(one.kind == "loopback" for one in found.interfaces)
    assert (found.shared_memory_bytes is not None) == Path("/dev/shm").is_dir()


def test_without_nvml_gpus_are_found_on_the_bus_and_nvlink_is_unknown_not_absent(tmp_path, no_nvml):
    bus = "bus/pci/devices"
    sys = _tree(
        tmp_path,
        {
            f"{bus}/0000:17:00.0/vendor": "0x10de",
            f"{bus}/0000:17:00.0/class": "0x030200",
            f"{bus}/0000:17:00.0/max_link_speed": "16.0 GT/s PCIe",
            f"{bus}/0000:17:00.0/max_link_width": "16",
            f"{bus}/0000:18:00.0/vendor": "0x10de",
            f"{bus}/0000:18:00.0/class": "0x068000",  # an NVSwitch
            f"{bus}/0000:19:00.0/vendor": "0x15b3",
            f"{bus}/0000:19:00.0/class": "0x020700",
        },
    )
    found = find_links(sys)
    (gpu,) = found.gpus
    assert (gpu.bus_id, gpu.nvlinks, gpu.pcie_generation, gpu.pcie_lanes) == ("0000:17:00.0", None, 4, 16)
    assert len(found.unknown) == 1
    assert 'pip install "bucketlab[gpu]"' in found.unknown[0]


@pytest.mark.parametrize(
    ("speed", "generation"),
    [("2.5 GT/s PCIe", 1), ("8 GT/s", 3), ("8.0 GT/s PCIe", 3), ("32.0 GT/s PCIe", 5), ("Unknown", None), (None, None)],
)
def test_the_generation_of_pcie_is_read_from_the_speed_of_a_lane(speed, generation):
    assert detect._generation(speed) == generation
