"""The exchanges inside a DDP job: their averages are DDP's, and their volume is the formula's, by two counts."""

from __future__ import annotations

import pytest

from bench import topologies
from bench.topologies import ALGORITHMS, RankResult, measure
from bucketlab.link.testbed import reason_unavailable
from tests.ports import free_port

needs_hosts = pytest.mark.skipif(reason_unavailable() is not None, reason=f"no hosts to be had: {reason_unavailable()}")
MIB = 2**20


def check_gradients(results: list[RankResult]) -> None:
    for result in results:
        for exchanged in result.by_algorithm.values():
            assert exchanged.gradient_error < 1e-6


def check_volume(results: list[RankResult]) -> None:
    ranks, size = len(results), results[0].gradient_bytes
    for algorithm in ALGORITHMS:
        volume = algorithm.volume(size, ranks, 1)
        # The ring's parts differ by an element where the buffer cannot be cut evenly.
        uneven = 2 * ranks * 4
        for rank, result in enumerate(results):
            exchanged = result.by_algorithm[algorithm.name]
            sent, received = (volume.sent, volume.received) if rank else (volume.root_sent, volume.root_received)
            assert exchanged.sent_bytes == pytest.approx(float(sent), abs=uneven)
            assert exchanged.received_bytes == pytest.approx(float(received), abs=uneven)


def test_three_ranks_on_one_host_average_as_ddp_does_and_send_what_the_formulas_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topologies, "PORT", free_port())  # the benchmark's own is one and the same
    results = measure(3, mbit_per_s=None, mebibytes=1, repetitions=2)
    check_gradients(results)
    check_volume(results)


@needs_hosts
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_hosts_send_over_their_links_what_the_formulas_say(ranks: int) -> None:
    results = measure(ranks, mbit_per_s=400, mebibytes=2, repetitions=2)
    check_gradients(results)
    check_volume(results)
    for result in results:
        for exchanged in result.by_algorithm.values():
            assert exchanged.interface_sent_bytes is not None and exchanged.interface_received_bytes is not None
            # Headers, acknowledgements of what goes the other way, and barriers are on the wire too. Of what a host
            # sends, a full queue on the way drops some, and it is sent again.
            overhead = 0.05 * (exchanged.sent_bytes + exchanged.received_bytes) + 64 * 1024
            assert 0 <= exchanged.interface_received_bytes - exchanged.received_bytes <= overhead
            assert exchanged.interface_sent_bytes >= exchanged.sent_bytes
