"""Models and links for the tests of prediction, made up by hypothesis."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from bucketlab.link.curve import LinkCurve
from bucketlab.predict.replay import ModuleGradients, Slowdown, Timeline


@st.composite
def curves(draw: st.DrawFn, concurrency: int | None = None) -> LinkCurve:
    """Bent links: any never falling points, in any relation to the fit's latency."""
    sizes = np.cumsum(draw(st.lists(st.integers(1, 500), min_size=1, max_size=5)))
    times = 1 + np.cumsum(draw(st.lists(st.integers(0, 300), min_size=len(sizes), max_size=len(sizes))))
    at_a_time = draw(st.integers(1, 3)) if concurrency is None else concurrency
    return LinkCurve(
        bytes=sizes.astype(np.float64),
        ns=times.astype(np.float64),
        slope_ns=draw(st.floats(0, 3)),
        latency_ns=draw(st.integers(0, 200)),
        bandwidth_gb_s=1.0,
        residual=0.0,
        concurrency=at_a_time,
        pair_gain=draw(st.floats(1, 2)) if at_a_time > 1 else 1.0,
    )


slowdowns = st.builds(Slowdown, st.floats(0, 2), st.floats(0, 2))


@st.composite
def timelines(draw: st.DrawFn, most: int = 12, modules: int = 1, in_order: bool = False) -> Timeline:
    made = []
    for _ in range(modules):
        count = draw(st.integers(1, most))
        sizes = draw(st.lists(st.integers(1, 400), min_size=count, max_size=count))
        ready = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))
        made.append(
            ModuleGradients(sizes, [float(at) for at in (sorted(ready) if in_order else ready)], ["float32"] * count)
        )
    last = max(max(module.ready_ns) for module in made)
    return Timeline(made, last + draw(st.integers(0, 100)), draw(st.integers(0, 50)))


def partitions(count: int) -> list[list[tuple[int, int]]]:
    """All ways to cut so many gradients into consecutive buckets."""
    found = []
    for cuts in range(2 ** (count - 1)):
        edges = [0, *(i + 1 for i in range(count - 1) if cuts >> i & 1), count]
        found.append(list(pairwise(edges)))
    return found
