"""A calibrator of which only the map is written."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.draws import drawn
from torch import Tensor

import calibrant
from calibrant import Predictions
from calibrant.calibrators import ConvexCalibrator, TemperatureScaling
from calibrant.errors import InputError
from calibrant.scale import batches
from calibrant.testing import check_calibrator


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
    assert float(1 / fitted.theta[0]) == pytest.approx(TemperatureScaling().fit(logits, labels).temperature, rel=1e-3)
    assert repr(fitted) == f"Tempered(theta=[{float(fitted.theta[0]):.4g}])"


@pytest.mark.parametrize("classes", [4, 80])  # Newton's method, L-BFGS
def test_it_is_the_minimum_that_another_solver_finds(classes: int) -> None:
    logits, labels = drawn(600, classes)
    fitted = BiasCorrected(ridge=2.0).fit(logits, labels)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(x).requires_grad_()
        z = logits * theta[0] + theta[1:]
        value = torch.nn.functional.cross_entropy(z, labels, reduction="sum") + 2.0 * theta[1:].square().sum()
        value.backward()
        return float(value.detach()) / 600, theta.grad.numpy() / 600

    start = np.concatenate([[1.0], np.zeros(classes)])
    other = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-8}).x
    assert fitted.gradient < 1e-6
    torch.testing.assert_close(fitted.theta, torch.from_numpy(other), rtol=0, atol=1e-4)


@pytest.mark.parametrize("ridge", [0.0, 1.0])  # without one, a common part of all biases changes nothing
def test_files_give_the_parameters_of_memory(ridge: float, tmp_path: Path) -> None:
    logits, labels = drawn()[0].float(), drawn()[1]
    for name, rows in (("a", slice(0, 150)), ("b", slice(150, 400))):
        data = Predictions.from_logits(logits[rows], labels[rows])
        calibrant.save_predictions(tmp_path / f"{name}.parquet", {"all": data})
    whole = Predictions.from_logits(logits, labels)
    source = batches(tmp_path)
    first = BiasCorrected(ridge).fit(source)
    torch.testing.assert_close(first.theta, BiasCorrected(ridge).fit(whole).theta, rtol=0, atol=1e-9)
    assert float(first.theta[1:].mean()) == pytest.approx(0, abs=0.01)
    kept = first.theta.clone()
    torch.testing.assert_close(first.fit(source).theta, kept, rtol=0, atol=1e-9)  # it starts from its parameters


def test_the_contract_holds() -> None:
    check_calibrator(Tempered())


def test_an_optimum_at_infinity_ends_in_numbers() -> None:
    fitted = BiasCorrected().fit(torch.zeros(5, 2), [0, 0, 0, 0, 0])
    assert float(fitted(torch.zeros(1, 2)).softmax(dim=1)[0, 0]) > 0.999999
    assert fitted.gradient < 1e-9


def test_a_false_start_is_refused() -> None:
    logits, _ = drawn()
    for wrong in (torch.zeros(2, 2), torch.tensor([torch.nan]), [0.0], torch.zeros(0)):
        calibrator = Tempered()
        calibrator.start = lambda classes, wrong=wrong: wrong
        with pytest.raises(
            InputError, match=r"expected Tempered.start to return a finite tensor \(P,\), got .*; return"
        ):
            calibrator.fit(logits, logits.argmax(dim=1))
