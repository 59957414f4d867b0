"""What every calibrator shares: what it takes, what it refuses, and one of which only a convex map is written."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.draws import drawn
from torch import Tensor

from calibrant import Predictions
from calibrant.calibrators import ConvexCalibrator, MatrixScaling, TemperatureScaling, VectorScaling
from calibrant.calibrators.convex import convex_fit
from calibrant.errors import FitError, InputError, NotFittedError
from calibrant.metrics import ECE
from calibrant.testing import check_calibrator


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


def test_many_rows_in_16_bits_are_calibrated_as_few_are() -> None:
    z, y = drawn(20_000, 10, dtype=torch.bfloat16)
    fitted = TemperatureScaling().fit(z, y)
    assert torch.equal(fitted(z), torch.cat([fitted(part) for part in z.split(1000)]))
    wide = z.float() / fitted.temperature
    assert torch.equal(fitted(z).argmax(dim=1), z.argmax(dim=1))
    # narrowed less each row's largest, rounded to 8 bits; a tie with it is broken by twice the dtype's epsilon, 2⁻⁶
    torch.testing.assert_close(fitted(z).float(), wide - wide.amax(dim=1, keepdim=True), rtol=2**-8, atol=2**-6)


def test_predict_proba_refuses_what_are_no_logits() -> None:
    z, y = drawn(300, spread=2, dtype=torch.float32)
    with pytest.raises(NotFittedError):
        TemperatureScaling().predict_proba(z)
    fitted = TemperatureScaling().fit(z, y)
    for wrong, message in (
        (["a"] * 4, "a numeric tensor"),
        ([0.0, 1.0], "shape"),
        ([0.0, np.nan, 1.0, 2.0], "NaN"),
        ([[0.0, -np.inf, 1.0, 2.0], [-np.inf] * 4], "a row of −inf"),
    ):
        with pytest.raises(InputError, match=message):
            fitted.predict_proba(wrong)


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


class BiasCorrected(ConvexCalibrator):
    """softmax(z / T + b), with a ridge on b."""

    def __init__(self, ridge: float = 0.0) -> None:
        super().__init__()
        self.ridge = ridge

    @staticmethod
    def mapped(logits: Tensor, theta: Tensor) -> Tensor:
        return logits * theta[0] + theta[1:]

    def start(self, classes: int) -> Tensor:
        return torch.cat([torch.ones(1), torch.zeros(classes)])

    def penalty(self, theta: Tensor) -> Tensor:
        return self.ridge * theta[1:].square().sum()


class Tempered(ConvexCalibrator):
    """softmax(z / T)."""

    @staticmethod
    def mapped(logits: Tensor, theta: Tensor) -> Tensor:
        return logits * theta

    def start(self, classes: int) -> Tensor:
        return torch.ones(1)


def test_biases_of_equal_logits_are_the_log_frequencies() -> None:
    fitted = BiasCorrected().fit(torch.zeros(8, 2), [0, 0, 0, 0, 0, 0, 1, 1])
    torch.testing.assert_close(fitted(torch.zeros(1, 2)).softmax(dim=1), torch.tensor([[0.75, 0.25]]))
    assert fitted.gradient < 1e-9


def test_one_parameter_is_temperature_scaling() -> None:
    logits, labels = drawn()
    fitted = Tempered().fit(logits, labels)
    assert float(1 / fitted.theta[0]) == pytest.approx(TemperatureScaling().fit(logits, labels).temperature, rel=1e-6)
    assert repr(fitted) == f"Tempered(theta=[{float(fitted.theta[0]):.4g}])"
    check_calibrator(Tempered())


@pytest.mark.parametrize("classes", [4, 80])  # with the Hessian, and with its products
def test_a_convex_map_ends_at_the_minimum_that_another_solver_finds(classes: int) -> None:
    logits, labels = drawn(600, classes)
    weights = torch.rand(600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = weights / weights.mean()
    fitted = BiasCorrected(ridge=2.0).fit(logits, labels, weights=weights)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(x).requires_grad_()
        losses = torch.nn.functional.cross_entropy(logits * theta[0] + theta[1:], labels, reduction="none")
        value = (weights @ losses + 2.0 * theta[1:].square().sum()) / 600
        value.backward()
        return float(value.detach()), theta.grad.numpy()

    start = np.concatenate([[1.0], np.zeros(classes)])
    other = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-8}).x
    assert fitted.gradient < 1e-6
    torch.testing.assert_close(fitted.theta, torch.from_numpy(other), rtol=0, atol=1e-4)


def test_a_search_that_ends_on_a_slope_is_an_error() -> None:
    with pytest.raises(FitError, match="a gradient below 1e-06 at the optimum"):
        convex_fit(lambda theta: theta.sum(), torch.zeros(2, dtype=torch.float64))


class OnMps(Tensor):
    """A tensor that says it lies on the device mps, which has no float64."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps")

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.as_subclass(Tensor)

    def double(self) -> Tensor:  # type: ignore[override]
        raise TypeError("mps has no float64")


def test_logits_of_a_device_without_float64_are_calibrated_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Tensor.to

    def to(tensor: Tensor, *where: Any, **options: Any) -> Tensor:
        if where and str(where[0]) == "mps":
            assert tensor.dtype != torch.float64
            return tensor.as_subclass(OnMps)
        return moved(tensor, *where, **options)

    monkeypatch.setattr(Tensor, "to", to)
    logits, labels = drawn(60, dtype=torch.float32)
    there = OnMps(logits)
    fitted = VectorScaling().fit(there, labels).to("mps")
    assert isinstance(answer := fitted(there), OnMps)
    assert torch.equal(answer.cpu(), VectorScaling().fit(logits, labels)(logits))
    assert ECE()(Predictions.from_logits(there, labels)) == ECE()(Predictions.from_logits(logits, labels))
