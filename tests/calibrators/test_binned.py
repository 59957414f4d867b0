"""Histogram binning, isotonic regression and Venn–Abers against scikit-learn and values by hand."""

import math

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.draws import drawn_events, of_log_odds
from torch import Tensor

from calibrant import Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import CentredIsotonic, HistogramBinning, IsotonicCalibration, VennAbers
from calibrant.errors import InputError, UsageWarning
from calibrant.metrics import ECE, Accuracy

isotonic = late("sklearn.isotonic")

F64 = torch.float64


def logits_of(confidence: float, classes: int = 3) -> list[float]:
    rest = (1 - confidence) / (classes - 1)
    return [math.log(confidence), *[math.log(rest)] * (classes - 1)]


def data() -> tuple[Tensor, Tensor]:
    rows = [logits_of(0.9)] * 4 + [logits_of(0.5)] * 4
    return torch.tensor(rows, dtype=F64) + 1.0, torch.tensor([0, 0, 0, 1, 0, 1, 2, 1])


def p_of(calibrator: torch.nn.Module, z: Tensor) -> np.ndarray:
    return torch.softmax(calibrator(z).double(), 1)[:, 1].numpy()


def test_a_bin_gives_its_accuracy_and_others_keep_proportions() -> None:
    logits, labels = data()
    answer = HistogramBinning(EqualWidth(5)).fit(logits, labels)(logits).softmax(dim=1)
    torch.testing.assert_close(answer[:, 0], torch.tensor([0.75] * 4 + [0.25] * 4, dtype=F64))
    logits[0, 2] -= 0.1  # still in the last bin
    answer = HistogramBinning(5).fit(*data())(logits).softmax(dim=1)
    assert float(answer[0, 0]) == pytest.approx(0.75)
    assert float(answer[0, 1] / answer[0, 2]) == pytest.approx(math.exp(0.1))
    torch.testing.assert_close(answer.sum(dim=1), torch.ones(8, dtype=F64))
    fresh = torch.tensor([logits_of(0.7)], dtype=F64)  # in a bin without fitting rows
    assert float(HistogramBinning(EqualWidth(10)).fit(*data())(fresh).softmax(dim=1)[0, 0]) == pytest.approx(0.7)


@pytest.mark.parametrize("binning", [EqualWidth(15), EqualMass(15), EqualMass(4)], ids=str)
def test_the_ece_of_the_fitting_rows_is_0_and_the_decision_stays(binning: EqualWidth | EqualMass) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, 4, generator=generator, dtype=F64)
    fitting = Predictions.from_logits(logits, torch.randint(4, (400,), generator=generator))
    calibrator = HistogramBinning(binning).fit(fitting.logits, fitting.labels)
    after = fitting.calibrated_by(calibrator, allow_fit_rows=True)
    assert ECE(EqualWidth(97))(after) < 1e-9  # accuracies are seldom k/97, and one at an edge is split by its rounding
    assert Accuracy()(after) == Accuracy()(fitting)
    assert torch.equal(after.predicted, fitting.predicted)
    assert not torch.equal(after.logits.argmax(dim=1), fitting.predicted)  # accuracy 1/4: by argmax it would move


def test_bins_of_equal_mass_have_the_edges_of_the_fitting_rows() -> None:
    logits = torch.tensor([logits_of(confidence) for confidence in (0.6, 0.7, 0.8, 0.9)], dtype=F64)
    fitted = HistogramBinning(EqualMass(2)).fit(logits, torch.tensor([1, 0, 0, 0]))
    assert fitted.confidences.tolist() == [0.5, 1.0]
    torch.testing.assert_close(fitted(logits).exp()[:, 0], torch.tensor([0.5, 0.5, 1.0, 1.0], dtype=F64))


def test_weights_count_and_are_refused_where_bins_depend_on_them() -> None:
    logits, labels = data()
    weight = torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 1])
    assert float(HistogramBinning(EqualWidth(10)).fit(logits, labels, weights=weight).confidences[8]) == 0.5
    with pytest.raises(InputError, match="no weights"):
        HistogramBinning(EqualMass(2)).fit(logits, labels, weights=weight)


def test_a_floor_keeps_the_log_loss_finite() -> None:
    logits, labels = data()
    with pytest.warns(UsageWarning, match="got only class 0"):
        assert bool(torch.isneginf(HistogramBinning(10).fit(logits, labels * 0)(logits)[:, 1]).all())
        floored = HistogramBinning(EqualWidth(10), floor=0.01).fit(logits, labels * 0)
    torch.testing.assert_close(floored(logits).softmax(dim=1)[:, 0], torch.full((8,), 0.99, dtype=F64))
    z, y, _ = drawn_events()
    assert p_of(IsotonicCalibration().fit(z, y), z).min() == pytest.approx(1 / 301 / 2)
    assert p_of(IsotonicCalibration(floor=0.0).fit(z, y), z).min() == 0
    assert p_of(IsotonicCalibration(floor=0.1).fit(z, y), z).max() == pytest.approx(0.95)


@pytest.mark.parametrize("ties", [False, True])
def test_isotonic_is_scikit_learns(ties: bool) -> None:
    z, y, s = drawn_events(ties=ties)
    peer = isotonic.IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(s.numpy(), y.numpy())
    fitted = IsotonicCalibration(floor=0.0).fit(z, y)
    for at in (z, of_log_odds(torch.linspace(-9, 9, 200, dtype=F64))):
        np.testing.assert_allclose(p_of(fitted, at), peer.predict(at[:, 1].numpy()), atol=1e-9)


def test_centred_isotonic_by_hand() -> None:
    # isotonic: 0 | 1/3 over s = 1, 2, 6 of weights 1, 2, 1 | 1; the pooled block is drawn to its mean s = 11/4
    z = of_log_odds(torch.tensor([0.0, 1.0, 2.0, 6.0, 7.0], dtype=F64))
    fitted = CentredIsotonic(floor=0.0).fit(z, [0, 1, 0, 0, 1], weights=[1.0, 1, 2, 1, 1])
    np.testing.assert_allclose(fitted.places, [[0, 2.75, 7]], atol=1e-12)
    at = of_log_odds(torch.tensor([-5.0, 1.375, 2.75, 4.875, 9.0], dtype=F64))
    np.testing.assert_allclose(p_of(fitted, at), [0, 1 / 8, 1 / 4, 5 / 8, 1], atol=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_venn_abers_is_two_isotonic_fits_for_every_row(ties: bool) -> None:
    z, y, s = drawn_events(60, ties=ties)
    fitted = VennAbers().fit(z, y)
    scores = s.numpy()
    places = np.r_[scores[:10], np.linspace(-7, 7, 31)]
    fresh = of_log_odds(torch.from_numpy(places))
    low, high = fitted.interval(fresh)
    for i, place in enumerate(places):
        for label, ours in ((0, low), (1, high)):
            peer = isotonic.IsotonicRegression().fit(np.r_[scores, place], np.r_[y.numpy(), label])
            assert float(ours[i, 1]) == pytest.approx(float(peer.predict([place])[0]), abs=1e-9)
    np.testing.assert_allclose(p_of(fitted, fresh), (high / (1 - low + high))[:, 1].numpy(), atol=1e-12)
    # the other class's interval is the complement
    torch.testing.assert_close(low.flip(1), 1 - high)
