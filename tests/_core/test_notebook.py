"""What objects show in notebooks."""

import html
from typing import Any

import torch

from calibrant import Predictions
from calibrant.calibrators import AutoCalibrator, TemperatureScaling
from calibrant.evaluate import panel
from calibrant.metrics import ECE, Accuracy


def test_an_object_shows_its_text_escaped() -> None:
    hostile = "<script>x</script>"
    data = Predictions.from_logits(torch.eye(2) * 3, [0, 0], features={hostile: [1, 2]})
    auto = AutoCalibrator(candidates=[TemperatureScaling()]).fit(data.logits, data.labels)
    things: list[tuple[Any, str]] = [
        (data, "2 rows"),
        (auto, "uses 1.00 Identity"),
        (auto.evidence, "abstained"),
        (panel(data, metrics=[Accuracy(), ECE()]), "Accuracy(): 0.5"),
    ]
    for thing, expected in things:
        text = thing._repr_html_()
        assert expected in html.unescape(text)
        assert "<script" not in text
