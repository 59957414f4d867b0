"""Histogram binning of the top label."""

import math

import pytest
import torch

from calibrant import Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import HistogramBinning
from calibrant.errors import InputError
from calibrant.metrics import ECE, Accuracy


def logits_of(confidence: float, classes: int = 3) -> list[float]:
    rest = (1 - confidence) / (classes - 1)
    return [math.log(confidence), *[math.log(rest)] * (classes - 1)]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    rows = [logits_of(0.9)] * 4 + [logits_of(0.5)] * 4
    return torch.tensor(rows, dtype=torch.float64) + 1.0, torch.tensor([0, 0, 0, 1, 0, 1, 2, 1])


def test_a_bin_gives_its_accuracy_and_the_others_keep_their_proportions() -> None:
    logits, labels = data()
    answer = HistogramBinning(EqualWidth(5)).fit(logits, labels)(logits).softmax(dim=1)
    torch.testing.assert_close(answer[:, 0], torch.tensor([0.75] * 4 + [0.25] * 4, dtype=torch.float64))
    logits[0, 2] -= 0.1  # still in the last bin
    answer = HistogramBinning(EqualWidth(5)).fit(*data())(logits).softmax(dim=1)
    assert float(answer[0, 0]) == pytest.approx(0.75)
    assert float(answer[0, 1] / answer[0, 2]) == pytest.approx(math.exp(0.1))
    torch.testing.assert_close(answer.sum(dim=1), torch.ones(8, dtype=torch.float64))


@pytest.mark.parametrize("binning", [EqualWidth(15), EqualMass(15), EqualMass(4)], ids=str)
def test_the_ece_on_the_fitting_data_is_zero_and_the_decision_stays(binning: EqualWidth | EqualMass) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, 4, generator=generator, dtype=torch.float64)
    fitting = Predictions.from_logits(logits, torch.randint(4, (400,), generator=generator))
    calibrator = HistogramBinning(binning).fit(fitting.logits, fitting.labels)
    after = fitting.calibrated_by(calibrator, allow_fit_rows=True)
    assert ECE(EqualWidth(97))(after) < 1e-9  # accuracies are seldom k/97, and one at an edge is split by its rounding
    assert Accuracy()(after) == Accuracy()(fitting)
    assert torch.equal(after.predicted, fitting.predicted)
    assert not torch.equal(after.logits.argmax(dim=1), fitting.predicted)  # accuracy 1/4: by argmax it would move


@pytest.mark.parametrize(("empty", "expected"), [("identity", 0.7), ("midpoint", 0.65), ("nearest", 0.25)])
def test_an_empty_bin_does_what_was_asked(empty: str, expected: float) -> None:
    calibrator = HistogramBinning(EqualWidth(10), empty=empty).fit(*data())
    fresh = torch.tensor([logits_of(0.7)], dtype=torch.float64)
    assert float(calibrator(fresh).softmax(dim=1)[0, 0]) == pytest.approx(expected)


def test_weights_count_and_are_refused_where_bins_depend_on_them() -> None:
    logits, labels = data()
    weight = torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 1])
    assert float(HistogramBinning(EqualWidth(10)).fit(logits, labels, weights=weight).confidences[8]) == 0.5
    with pytest.raises(InputError, match="no weights"):
        HistogramBinning(EqualMass(2)).fit(logits, labels, weights=weight)


def test_the_floor_keeps_the_log_loss_finite() -> None:
    logits, labels = data()
    sure = HistogramBinning(EqualWidth(10)).fit(logits, labels * 0)
    assert bool(torch.isneginf(sure(logits)[:, 1]).all())
    floored = HistogramBinning(EqualWidth(10), floor=0.01).fit(logits, labels * 0)
    torch.testing.assert_close(floored(logits).softmax(dim=1)[:, 0], torch.full((8,), 0.99, dtype=torch.float64))
