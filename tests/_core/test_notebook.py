"""What objects show in notebooks: their text, escaped."""

import html

import torch

from calibrant import Predictions
from calibrant.calibrators import AutoCalibrator, TemperatureScaling
from calibrant.evaluate import panel


def test_an_object_shows_its_text_escaped() -> None:
    data = Predictions.from_logits(torch.eye(2) * 3, [1, 0], features={"<script>x</script>": [1, 2]})
    auto = AutoCalibrator(candidates=[TemperatureScaling()]).fit(data.logits, data.labels)
    for thing, expected in ((data, "2 rows"), (auto.evidence, "abstained"), (panel(data), "Accuracy(): 0")):
        assert expected in html.unescape(thing._repr_html_())
        assert "<script" not in thing._repr_html_()
