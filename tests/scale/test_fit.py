"""A fit on files is the fit on the same rows in memory."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.draws import drawn
from tests.scale.conftest import MAKE, assert_same_fit, in_parts, overconfident, quietly

import calibrant
from calibrant import Predictions, calibrators, scale
from calibrant.calibrators import (
    AutoCalibrator,
    EnsembleTemperatureScaling,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
)
from calibrant.errors import CalibrantError, InputError, LeakError


@pytest.mark.parametrize("name", MAKE)
def test_the_answer_is_that_of_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "BATCH_ROWS", 60)  # several batches a row group
    data = overconfident(450, 5)
    streamed = quietly(lambda: MAKE[name]().fit(scale.batches(in_parts(data, tmp_path))))
    assert_same_fit(streamed, quietly(lambda: MAKE[name]().fit(data)), data.logits)
    with pytest.raises(LeakError):
        data.calibrated_by(streamed)


def test_an_automatic_choice_on_a_sample_is_that_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[AutoCalibrator.__module__], "_SAMPLE", 250)
    data = overconfident(2100, 4)
    make = lambda: AutoCalibrator(candidates=[TemperatureScaling(), VectorScaling(ridge=2.0)])  # noqa: E731
    streamed, memory = make().fit(scale.batches(in_parts(data, tmp_path))), make().fit(data)
    assert_same_fit(streamed, memory, data.logits)
    torch.testing.assert_close(streamed.weights, memory.weights, rtol=0, atol=1e-6)


def test_what_needs_all_rows_at_once_says_how_many_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = overconfident(700, 4)
    monkeypatch.setattr(calibrators.one_vs_rest, "_MAX_SCORES", 400)
    with pytest.raises(InputError, match=r"at most 100 rows of 4 classes for VennAbers.*got 700; fit on a random"):
        VennAbers().fit(scale.batches(in_parts(data, tmp_path)))
    assert VennAbers().fit(data).fitted  # rows in memory are there already


def test_weights_weigh_as_much_against_a_prior_as_in_memory(tmp_path: Path) -> None:
    logits, labels = drawn(240)
    weights = 0.5 + 7 * torch.rand(240, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Predictions.from_logits(logits, labels, weights=weights)
    calibrant.save_predictions(tmp_path / "rows.parquet", {"all": data})
    for make in (lambda: TemperatureScaling(prior=0.5), lambda: MatrixScaling(ridge=20.0)):
        streamed = make().fit(scale.batches(tmp_path / "rows.parquet"))
        torch.testing.assert_close(streamed(logits), make().fit(data)(logits), rtol=1e-9, atol=1e-9)


def test_bad_rows_and_missing_labels_have_their_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    calibrant.save_predictions(path, {"all": Predictions.from_logits(np.eye(3) * 2)})
    with pytest.raises(InputError, match="a label column to fit on"):
        EnsembleTemperatureScaling().fit(scale.batches(path))
    logits = torch.tensor([[1.0, 0.0, 2.0], [-math.inf, 0.0, 1.0]])
    calibrant.save_predictions(path, {"all": Predictions.from_logits(logits, [0, 0])})
    with pytest.raises(CalibrantError, match=r"row group 0: expected a probability above 0 .* for every label, got 0"):
        TemperatureScaling().fit(scale.batches(path))
