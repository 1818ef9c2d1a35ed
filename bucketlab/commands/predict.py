"""`bucketlab predict`: the curve of a stored profile, what-ifs, and ranges from anyone's traces."""

from __future__ import annotations

from pathlib import Path

import click

from bucketlab.commands.common import json_option, print_json, runs_option
from bucketlab.errors import BadInput


@click.command()
@click.argument("run", required=False)
@runs_option
@click.option(
    "--link", metavar="NAME|FILE", help="What if the link were a sweep's, such as infiniband or infiniband:hdr."
)
@click.option("--ranks", metavar="N|N,N|N..N", help="What if there were so many ranks; 8..1024 is every doubling.")
@click.option("--ranks-per-node", type=click.IntRange(1), help="What if so many of them shared a node.")
@click.option(
    "--algorithm",
    multiple=True,
    help="ring, tree, two-level, two-level-tree, in-switch, parameter-server or all; repeatable.",
)
@click.option(
    "--compute-scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Compute takes so many times as long."
)
@click.option(
    "--bandwidth-scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    help="The link carries so many times the bytes in the same time; latencies stay.",
)
@click.option("--dtype", metavar="NAME", help="Gradients travel as bf16, fp16, ...")
@click.option("--accumulate", type=click.IntRange(1), help="Micro-batches a step.")
@click.option("--straggler", metavar="PART", help="One rank's compute is slower by this part, such as 5%.")
@json_option
def predict(
    run: str | None,
    out: Path,
    link: str | None,
    ranks: str | None,
    ranks_per_node: int | None,
    algorithm: tuple[str, ...],
    compute_scale: float,
    bandwidth_scale: float,
    dtype: str | None,
    accumulate: int | None,
    straggler: str | None,
    as_json: bool,
) -> None:
    """Step time against bucket size from a profiled RUN (the newest, a name or a folder), and what-ifs. No launch.

    A trace of another profiler, or a folder of them, is taken for RUN too: its answer is ranges.
    """
    from bucketlab.predict import predict as predicted
    from bucketlab.predict import unsayable
    from bucketlab.predict.whatif import ask
    from bucketlab.runs import find_run, is_trace, load_profile

    what_if = (link, ranks, ranks_per_node, *algorithm, dtype, accumulate, straggler)
    scaled = (compute_scale, bandwidth_scale) != (1.0, 1.0)
    asks_what_if = scaled or any(one is not None for one in what_if)
    if run is not None and is_trace(Path(run)):
        if asks_what_if:
            raise BadInput(f"{run} is a trace, and what-ifs need a profile: bucketlab profile train.py")
        _predict_from_trace(run, as_json)
        return
    profile = load_profile(find_run(run, out))
    if asks_what_if:
        answer = ask(
            profile,
            link=link,
            ranks=ranks,
            ranks_per_node=ranks_per_node,
            algorithms=algorithm,
            compute_scale=compute_scale,
            bandwidth_scale=bandwidth_scale,
            dtype=dtype,
            accumulate=accumulate,
            straggler=straggler,
        )
        if as_json:
            print_json(answer)
            return
        from rich.console import Console

        from bucketlab.report.whatif import print_whatif

        print_whatif(answer, Console())
        return
    prediction = predicted(profile)
    if prediction is None:
        raise BadInput("; ".join(unsayable(profile)) + ". Profile the script again, with all its phases.")
    if as_json:
        print_json(prediction)
        return
    from rich.console import Console

    from bucketlab.report.prediction import print_prediction

    print_prediction(prediction, profile.run, Console())


def _predict_from_trace(path: str, as_json: bool) -> None:
    from bucketlab.analysis.files import analyze_paths
    from bucketlab.predict.foreign import predict_trace

    made = predict_trace(analyze_paths([path]))
    if as_json:
        print_json(made)
        return
    from rich.console import Console

    from bucketlab.report.foreign import print_trace_prediction

    print_trace_prediction(made, Console())
