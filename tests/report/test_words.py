"""Findings in words say what the figures say."""

import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.metrics import ECE
from calibrant.report.diagnosis import Bin
from calibrant.report.model import Model
from calibrant.report.render import diagnose
from calibrant.report.words import bin_sentence


def scaled(factor: float, *, seed: int, rows: int = 3000) -> Predictions:
    """Return predictions ``factor`` times as sharp as the truth."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(rows, 3, generator=generator) * 1.5
    return Predictions.from_logits(true * factor, torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0])


@pytest.mark.parametrize(("factor", "side"), [(3.0, "over-confident by"), (0.3, "under-confident by")])
def test_the_side_is_named_and_calibration_mends_it(factor: float, side: str) -> None:
    fit, judge = scaled(factor, seed=1), scaled(factor, seed=2)
    calibrator = TemperatureScaling().fit(fit.logits, fit.labels)
    words = diagnose(Model("m", judge, judge.calibrated_by(calibrator), calibrator), draws=100).words
    assert side in words[0]
    assert f"{100 * ECE()(judge):.2f} %" in words[1]
    assert "so the error is real" in words[1]
    assert "lowers it to" in words[2]
    assert "so no error is shown" in words[2]
    assert "falls from" in words[3]
    assert words[4] == "No decision changed."


def test_a_calibrated_model_is_not_accused() -> None:
    words = diagnose(Model("m", scaled(1.0, seed=3)), draws=100).words
    assert "so no error is shown" in words[1]


def test_a_calibrator_that_does_harm_is_told() -> None:
    good = scaled(1.0, seed=4)
    words = diagnose(Model("m", good, Predictions.from_logits(good.logits * 3, good.labels), "Sharpen"), draws=50).words
    assert "Sharpen does not lower it: it is now" in words[2]
    assert "does not fall" in words[3]


def test_changed_decisions_are_told() -> None:
    data = scaled(1.0, seed=5)
    flipped = Predictions.from_logits(data.logits.flip(1), data.labels)
    assert "Decisions changed: accuracy is now" in diagnose(Model("m", data, flipped, "Flip"), draws=0).words[-1]


def test_without_draws_no_level_is_claimed() -> None:
    assert "its null level was not computed" in diagnose(Model("m", scaled(1.0, seed=6)), draws=0).words[1]


def test_one_bin_in_words() -> None:
    found = Bin(low=0.8, high=0.9, count=1200, confidence=0.85, accuracy=0.7, expect_low=0.83, expect_high=0.87)
    assert bin_sentence(found) == (
        "Of the 1,200 rows between 0.80 and 0.90, the model is 85.0 % sure and right in 70.0 %: over-confident by 15.0 "
        "points, where 83.0 – 87.0 % would pass as calibrated."
    )
