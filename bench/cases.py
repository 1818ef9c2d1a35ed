"""Figures of whole jobs on real links, made by `bench.prediction` and `bench.tuning`. Measures through them alone.

One transformer on two links for predictions, and on one for a study, which takes some minutes; with `--all-cases`
every model on every link that those modules know.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bench import prediction, tuning
from bench.figures import Figure, Skipped, Wanted
from bucketlab.link.testbed import reason_unavailable

_PREDICTION_RATES_MBIT = (1000, 4000)
_TUNING_RATES_MBIT = (1000,)
_MODELS = ("transformer",)

T = TypeVar("T")


def prediction_figures(wanted: Wanted) -> list[Figure]:
    """Mean and worst error over all layouts, and what training with the predicted best costs over the measured one."""
    if wanted.measured and (cases := _decoded(wanted.measured / "prediction", prediction.Case)):
        return prediction_figures_of(cases)
    _need_hosts()
    rates = prediction.RATES_MBIT if wanted.all_cases else _PREDICTION_RATES_MBIT
    models = prediction.MODELS if wanted.all_cases else _MODELS
    with tempfile.TemporaryDirectory() as folder:
        prediction.measure(Path(folder), list(rates), list(models))
        cases = _decoded(Path(folder), prediction.Case)
    return prediction_figures_of(cases)


def prediction_figures_of(cases: Sequence[prediction.Case]) -> list[Figure]:
    scored = [prediction.score(case) for case in cases]
    errors = [abs(error) for one in scored for error in one.errors]
    costs = [one.cost for one in scored]
    of = f"{len(cases)} jobs"
    return [
        Figure(name=f"mean error, {of}", value=100 * statistics.mean(errors), unit="%", samples=len(errors)),
        Figure(name=f"worst error, {of}", value=100 * max(errors), unit="%", samples=len(errors)),
        Figure(
            name=f"step with the predicted best, {of}",
            value=1 + statistics.mean(costs),
            unit="",
            ratio=1 + statistics.mean(costs),
            over="the step with the measured best",
            samples=len(costs),
        ),
    ]


def tuning_figures(wanted: Wanted) -> list[Figure]:
    """What a study of 40 trials found and took, over a grid of all layouts and over 40 launches of the script."""
    if wanted.measured and (cases := _decoded(wanted.measured / "tuning", tuning.Case)):
        return tuning_figures_of(cases)
    _need_hosts()
    rates = tuning.RATES_MBIT if wanted.all_cases else _TUNING_RATES_MBIT
    models = tuning.MODELS if wanted.all_cases else _MODELS
    with tempfile.TemporaryDirectory() as folder:
        tuning.measure(Path(folder), list(rates), list(models), predicted=True)
        cases = _decoded(Path(folder), tuning.Case)
    return tuning_figures_of(cases)


def tuning_figures_of(cases: Sequence[tuning.Case]) -> list[Figure]:
    known = [case for case in cases if tuning.is_known(case)]
    losses = [tuning.loss(case)[0] for case in known]
    of = f"{len(cases)} studies" if len(cases) > 1 else "one study"
    shares = [case.tuning_seconds / (case.launch_seconds * tuning.LAUNCHES) for case in cases]
    found = [steps for case in known if (steps := tuning.found_after(case)) is not None]
    figures = [
        Figure(
            name=f"wall time, {of}",
            value=statistics.median(case.tuning_seconds for case in cases),
            unit="s",
            ratio=statistics.median(shares),
            over=f"{tuning.LAUNCHES} launches that make as many steps",
            samples=len(cases),
        ),
        Figure(
            name=f"the study's own work, {of}",
            value=100 * statistics.median(case.tuning.own_share or 0 for case in cases),
            unit="%",
            samples=len(cases),
        ),
    ]
    if not known:
        return figures
    figures[:0] = [
        Figure(
            name=f"step with the setting found, {of}",
            value=1 + statistics.median(losses),
            unit="",
            ratio=1 + statistics.median(losses),
            over="the step with the grid's best",
            samples=len(known),
        ),
        Figure(
            name=f"within 1 % of the best, {of}",
            value=100 * statistics.mean(one <= 0.01 for one in losses),
            unit="%",
            samples=len(known),
        ),
    ]
    if found:
        name = f"steps until within 1 % of the best, {of}"
        figures.append(Figure(name=name, value=statistics.median(found), unit="steps", samples=len(found)))
    return figures


def _need_hosts() -> None:
    if (reason := reason_unavailable()) is not None:
        raise Skipped(f"no hosts to be had: {reason}")


def _decoded(folder: Path, kind: type[T]) -> list[T]:
    return [msgspec.json.decode(path.read_bytes(), type=kind) for path in sorted(folder.glob("*/case.json"))]
