"""What every calibrator shares: what it takes, what it returns in each precision and on each device, and what it refuses."""

import numpy as np
import pytest
import torch
from tests.draws import drawn
from tests.makers import OnMps, simulate_mps

from calibrant import Predictions
from calibrant._core.config import renewed
from calibrant.calibrators import (
    AutoCalibrator,
    Calibrator,
    Chain,
    GroupScaling,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.errors import InputError, UsageWarning
from calibrant.metrics import ECE


def test_predict_proba_takes_arrays_lists_tensors_and_one_row() -> None:
    z, y = drawn(300, spread=2, dtype=torch.float32)
    fitted = MatrixScaling().fit(z, y)
    expected = torch.softmax(fitted(z.double()), dim=1).numpy()
    for given in (z, z.numpy(), z.tolist(), z.double().numpy()):
        found = fitted.predict_proba(given)
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
    for row in (z[0], z[0].numpy(), z[0].tolist()):
        np.testing.assert_allclose(fitted.predict_proba(row), expected[:1], rtol=0, atol=1e-15)


def test_positions_of_images_are_rows() -> None:
    z, y = drawn(120, dtype=torch.float32)
    fitted, images = TemperatureScaling().fit(z, y), z.reshape(6, 4, 5, 4).movedim(3, 1)  # (N, K, H, W)
    answer = fitted(images)
    assert torch.equal(answer.movedim(1, 3).reshape(120, 4), fitted(z))
    np.testing.assert_allclose(fitted.predict_proba(images)[:, :, 1, 2], fitted.predict_proba(images[:, :, 1, 2]))
    with pytest.raises(InputError, match=r"Predictions\.from_logits"):
        TemperatureScaling().fit(images, y.reshape(6, 4, 5))


def test_many_rows_in_16_bits_are_calibrated_as_few_are() -> None:
    z, y = drawn(20_000, 10, dtype=torch.bfloat16)
    fitted = TemperatureScaling().fit(z, y)
    assert torch.equal(fitted(z), torch.cat([fitted(part) for part in z.split(1000)]))
    wide = z.float() / fitted.temperature
    assert torch.equal(fitted(z).argmax(dim=1), z.argmax(dim=1))
    # narrowed less each row's largest, rounded to 8 bits; a tie with it is broken by twice the dtype's epsilon, 2⁻⁶
    torch.testing.assert_close(fitted(z).float(), wide - wide.amax(dim=1, keepdim=True), rtol=2**-8, atol=2**-6)


def test_predict_proba_refuses_what_are_no_logits() -> None:
    fitted = TemperatureScaling().fit(*drawn(300, spread=2))
    for wrong, message in (
        (["a"] * 4, "a numeric tensor"),
        ([0.0, 1.0], "shape"),
        ([0.0, np.nan, 1.0, 2.0], "NaN"),
        ([[0.0, -np.inf, 1.0, 2.0], [-np.inf] * 4], "-inf in row 1"),
    ):
        with pytest.raises(InputError, match=message):
            fitted.predict_proba(wrong)


@pytest.mark.parametrize("calibrator", [AutoCalibrator(), PlattScaling()], ids=repr)
def test_labels_of_one_class_alone_are_warned_of(calibrator: Calibrator) -> None:
    z, y = drawn(60)
    with pytest.warns(UsageWarning, match="expected labels of several classes, got only class 2, so the fit takes"):
        renewed(calibrator).fit(z, y * 0 + 2)
    named = Predictions.from_logits(z, y * 0, class_names=["cat", "dog", "fox", "owl"])
    with pytest.warns(UsageWarning, match="got only class 'cat'"):
        renewed(calibrator).fit(named)


def test_only_the_ratios_of_weights_matter() -> None:
    z, y = drawn(60)
    w = 10 * torch.rand(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Predictions.from_logits(z, y, weights=w)
    expected = TemperatureScaling(prior=0.1).fit(z, y, weights=w / w.mean()).temperature
    for given in ((z, y, w), (z, y, w / 1000), (data, None, None)):
        fitted = TemperatureScaling(prior=0.1).fit(given[0], given[1], weights=given[2])
        assert fitted.temperature == pytest.approx(expected, rel=1e-9)


def test_labels_or_weights_beside_predictions_are_refused() -> None:
    z, y = drawn(100)
    for beside in ({"labels": y}, {"weights": torch.ones(100)}):
        with pytest.raises(InputError, match="predictions alone, got labels or weights as well"):
            TemperatureScaling().fit(Predictions.from_logits(z, y), **beside)


@pytest.mark.parametrize(
    ("stages", "got"),
    [
        ((), "none"),
        ((TemperatureScaling(), VectorScaling), "the class VectorScaling"),
        ((GroupScaling(),), "GroupScaling"),
    ],
)
def test_a_chain_takes_only_instances_that_need_logits(stages: tuple[Calibrator, ...], got: str) -> None:
    with pytest.raises(InputError, match=f"calibrators that need only logits, got {got}.* with instances"):
        Chain(*stages)


def test_a_device_without_float64_is_calibrated_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_mps(monkeypatch)
    logits, labels = drawn(60, dtype=torch.float32)
    there = OnMps(logits)
    fitted = VectorScaling().fit(there, labels).to("mps")
    assert isinstance(answer := fitted(there), OnMps)
    assert torch.equal(answer.cpu(), VectorScaling().fit(logits, labels)(logits))
    assert ECE()(Predictions.from_logits(there, labels)) == ECE()(Predictions.from_logits(logits, labels))
