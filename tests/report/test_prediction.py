"""The predicted curve on the terminal says what it is, which size is best, and how sure it is."""

from __future__ import annotations

import io

from rich.console import Console

from bucketlab.predict import predict
from bucketlab.report.prediction import print_prediction
from tests.report import profiles


def printed(width: int = 80) -> str:
    prediction = predict(profiles.exposed())
    assert prediction is not None
    console = Console(file=io.StringIO(), width=width)
    print_prediction(prediction, "[bold]run", console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_it_is_called_predicted_and_names_the_best_setting() -> None:
    prediction = predict(profiles.exposed())
    assert prediction is not None
    text = " ".join(printed().split())
    assert "predicted, not measured" in text
    assert f"bucket_cap_mb={prediction.best.bucket_cap_mb:g}" in text
    assert "No bucketing, however clever, gets below" in text


def test_names_are_data_and_nothing_is_cut_short() -> None:
    assert "[bold]run" in printed()
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed(80)
