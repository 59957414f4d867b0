"""Entries of the test vectors that are sentences, not numbers: each is a property, named as its entry is."""

import pytest
import torch
from tests.draws import drawn

from calibrant import Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import HistogramBinning, TemperatureScaling
from calibrant.metrics import ECE, Brier


def test_brier_range() -> None:
    z, y = drawn(600, seed=3)
    assert 0 <= Brier()(Predictions.from_logits(z, y)) <= 2
    assert Brier()(Predictions.from_probs([[1.0, 0.0]], [1])) == 2
    assert Brier()(Predictions.from_probs([[1.0, 0.0]], [0])) == 0


def test_ece_upper_bound_merge() -> None:
    data = Predictions.from_logits(*drawn(600, seed=3))
    whole = ECE(EqualWidth(1))(data)
    assert whole == pytest.approx(abs(float(data.confidence.mean() - data.correct.double().mean())), abs=1e-12)
    for bins in (3, 9, 27):
        finer = ECE(EqualWidth(bins))(data)
        assert whole <= finer + 1e-12
        whole = finer  # 3 divides 9 divides 27: each refines the one before


def test_hb_ece_on_fit_data() -> None:
    z, y = drawn(600, seed=3)
    for binning in (EqualWidth(15), EqualMass(15)):
        fitted = HistogramBinning(binning).fit(z, y)
        data = Predictions.from_logits(z, y).calibrated_by(fitted, allow_fit_rows=True)
        assert ECE(binning)(data) == pytest.approx(0, abs=1e-9)


def test_ts_invariants() -> None:
    z, y = drawn(600, seed=3)
    fitted = TemperatureScaling().fit(z, y)
    assert TemperatureScaling().fit(2.5 * z, y).temperature == pytest.approx(2.5 * fitted.temperature, rel=1e-6)
    shifted = z + torch.linspace(-5, 5, len(z), dtype=torch.float64)[:, None]
    torch.testing.assert_close(torch.softmax(fitted(shifted), dim=1), torch.softmax(fitted(z), dim=1))
    assert torch.equal(fitted(z).argsort(dim=1), z.argsort(dim=1))
