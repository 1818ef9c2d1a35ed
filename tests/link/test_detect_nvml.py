"""What NVML tells of GPUs and the links between them.

A stand-in answers for GPUs that are not here; constants, errors and names are those of nvidia-ml-py itself.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from bucketlab.link import detect
from bucketlab.link.detect import in_words

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


class Nvml:
    """NVML of a host with these GPUs: dicts of name, links (ends by link number, "switch" or a GPU's index)."""

    def __init__(self, gpus, level=30, access=0):
        self._gpus = gpus
        self._level = level
        self._access = access

    def __getattr__(self, name):
        if name.startswith("nvml"):
            raise AssertionError(f"{name} is asked and not answered here")
        return getattr(pynvml, name)

    def nvmlDeviceGetCount(self):
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return self._gpus[handle]["name"]

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"00000000:{0x17 + handle:02X}:00.0")

    def nvmlDeviceGetNvLinkState(self, handle, link):
        links = self._gpus[handle].get("links")
        if links is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if link >= len(links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return pynvml.NVML_FEATURE_DISABLED if links[link] is None else pynvml.NVML_FEATURE_ENABLED

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        to_switch = self._gpus[handle]["links"][link] == "switch"
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if to_switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        end = self._gpus[handle]["links"][link]
        return SimpleNamespace(busId="00000000:C0:00.0") if end == "switch" else self.nvmlDeviceGetPciInfo(end)

    def nvmlDeviceGetNvLinkVersion(self, handle, link):
        return self._gpus[handle]["version"]

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert fields == [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
        speed = self._gpus[handle].get("speed")
        status = pynvml.NVML_SUCCESS if speed else pynvml.NVML_ERROR_NOT_SUPPORTED
        return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=speed or 0))]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):
        return self._gpus[handle].get("pcie", 5)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):
        return 16

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return self._level

    def nvmlDeviceGetP2PStatus(self, one, other, capability):
        assert capability == 0
        return self._access


def _links(nvml):
    gpus, pairs = detect.gpus_of_nvml(nvml)
    return detect.HostLinks(
        gpus=gpus,
        pairs=pairs,
        adapters=[],
        interfaces=[],
        shared_memory_bytes=None,
        shared_memory_free_bytes=None,
        unknown=[],
    )


def test_gpus_behind_a_switch_have_all_their_links_to_each_other():
    gpu = {"name": "NVIDIA H100", "links": ["switch"] * 18, "version": pynvml.NVML_NVLINK_VERSION_4_0, "speed": 26562}
    found = _links(Nvml([gpu] * 8))
    assert {(one.nvlinks, one.nvlink_version, one.nvlink_to, one.nvlink_gb_s) for one in found.gpus} == {
        (18, "4.0", "switch", 478.1)
    }
    assert len(found.pairs) == 28
    assert {pair.nvlinks for pair in found.pairs} == {18}
    assert dict(in_words(found))["GPUs"] == (
        "8 x NVIDIA H100, NVLink 4.0 x 18 to a switch, 478.1 GB/s each way, PCIe 5.0 x16"
    )


def test_links_between_bridged_pairs_are_counted_by_their_other_end_and_the_other_pairs_named():
    card = {"name": "RTX A6000", "version": pynvml.NVML_NVLINK_VERSION_3_1, "pcie": 4}
    gpus = [card | {"links": [end] * 4} for end in (1, 0, 3, 2)]
    found = _links(Nvml(gpus, level=pynvml.NVML_TOPOLOGY_SYSTEM, access=pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED))
    assert {(pair.first, pair.second): pair.nvlinks for pair in found.pairs} == {
        (0, 1): 4, (0, 2): 0, (0, 3): 0, (1, 2): 0, (1, 3): 0, (2, 3): 4,
    }  # fmt: skip
    told = dict(in_words(found))["GPUs"]
    assert told.startswith("4 x RTX A6000, NVLink 3.1 x 4, PCIe 4.0 x16")
    assert "4 over different NUMA nodes; 4 pairs without peer access, which go through shared memory" in told


def test_a_link_that_is_down_does_not_count():
    gpu = {"name": "V100", "links": [1, None, 1], "version": pynvml.NVML_NVLINK_VERSION_2_0}
    other = gpu | {"links": [0, None, 0]}
    found = _links(Nvml([gpu, other]))
    assert [one.nvlinks for one in found.gpus] == [2, 2]
    assert found.pairs[0].nvlinks == 2


def test_gpus_without_nvlink_have_none_which_is_known():
    found = _links(Nvml([{"name": "T4", "pcie": 3}] * 2, level=pynvml.NVML_TOPOLOGY_SINGLE))
    assert [one.nvlinks for one in found.gpus] == [0, 0]
    assert found.pairs[0].nvlinks == 0
    assert dict(in_words(found))["GPUs"] == (
        "2 x T4, no NVLink, PCIe 3.0 x16; pairs without NVLink: 1 over one PCIe switch"
    )


def test_what_nvml_refuses_is_unknown_and_the_rest_is_told():
    class Refusing(Nvml):
        def nvmlDeviceGetNvLinkState(self, handle, link):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)

        def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        def nvmlDeviceGetP2PStatus(self, one, other, capability):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    found = _links(Refusing([{"name": b"A10"}] * 2))
    assert [(one.name, one.nvlinks) for one in found.gpus] == [("A10", None)] * 2
    assert (found.pairs[0].nvlinks, found.pairs[0].peer_access) == (None, None)


def test_every_name_that_is_asked_of_nvml_exists_there():
    source = Path(detect.__file__).read_text()
    names = set(re.findall(r"nvml\.([nN][vV]\w+)", source))
    assert len(names) > 15
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_bus_ids_are_written_as_sysfs_writes_them():
    assert detect._bus_id(SimpleNamespace(busId=b"00000000:3B:00.0")) == "0000:3b:00.0"
    assert detect._bus_id(SimpleNamespace(busId="0000:3b:00.0")) == "0000:3b:00.0"
