"""The functions of ``calibrant.functional`` against the classes that compute the same, and against formulas written out."""

import math
from typing import Any

import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant import Predictions, functional, losses, metrics
from calibrant.calibrators import FocalCalibration, TemperatureScaling
from calibrant.errors import InputError

# the class, the arguments that the function has by default, and others
LOSSES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "focal_loss": (losses.FocalLoss, {"gamma": 2.0}, {"gamma": 3.0, "detach_weight": True}),
    "inverse_focal_loss": (losses.InverseFocalLoss, {"gamma": 1.0}, {"gamma": 2.0, "detach_weight": True}),
    "brier_loss": (losses.BrierLoss, {}, {}),
    "label_smoothing_loss": (losses.LabelSmoothingLoss, {"smoothing": 0.1}, {"smoothing": 0.2, "spread": "others"}),
}
METRICS = {name: getattr(metrics, name.upper())() for name in ("nll", "ece", "ace")} | {
    "accuracy": metrics.Accuracy(),
    "brier": metrics.Brier(),
}


def sample(rows: int) -> tuple[Tensor, Tensor]:
    """Return logits (N, 4) and labels (N,), one in four of them 2, which some tests ignore."""
    return 2 * torch.randn(rows, 4, generator=torch.Generator().manual_seed(0)), torch.arange(rows).remainder(4)


def test_every_loss_and_metric_of_the_namespace_is_compared() -> None:
    assert set(functional.__all__) == {*LOSSES, *METRICS, "temperature_scale", "focal_calibration_map"}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_module(name: str) -> None:
    (logits, labels), (make, defaults, others) = sample(12), LOSSES[name]
    weighted = {"reduction": "sum", "weight": torch.tensor([1.0, 0.0, 2.5, 0.3])}
    for given in ({}, {"reduction": "none"}, others, {**others, **weighted}, {**others, "ignore_index": 2}):
        leaf = logits.clone().requires_grad_()
        value, expected = getattr(functional, name)(leaf, labels, **given), make(**defaults | given)(leaf, labels)
        assert torch.equal(value, expected)
        assert torch.equal(*(torch.autograd.grad(one.sum(), leaf)[0] for one in (value, expected)))


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_the_class(name: str) -> None:
    logits, labels = sample(50)
    data, found = Predictions.from_logits(logits, labels), getattr(functional, name)(logits, labels)
    assert (found.dtype, float(found)) == (torch.float64, METRICS[name](data))
    assert float(functional.ece(logits, labels, bins=3)) == metrics.ECE(3)(data)


def test_scores_against_target_probabilities() -> None:
    logits, targets = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log(), torch.tensor([[0.6, 0.4], [1.0, 0.0]])
    expected = -(0.6 * math.log(0.8) + 0.4 * math.log(0.2) + math.log(0.5)) / 2
    assert float(functional.nll(logits, targets)) == pytest.approx(expected, rel=1e-6)
    assert float(functional.brier(logits, targets)) == pytest.approx((2 * 0.2**2 + 2 * 0.5**2) / 2, rel=1e-6)
    for score in (functional.nll, functional.brier):
        assert score(logits.requires_grad_(), targets).requires_grad is False
        with pytest.raises(InputError, match="sum to 1"):
            score(logits, targets * 2)


def test_temperature_scale_is_what_temperature_scaling_applies() -> None:
    logits, labels = drawn(200, 4)
    fitted = TemperatureScaling().fit(logits, labels)
    assert torch.allclose(functional.temperature_scale(logits, fitted.temperature), fitted(logits), rtol=1e-6)
    each = torch.tensor([1.0, 2.0, 4.0, 8.0])
    assert torch.equal(functional.temperature_scale(logits, each), logits / each)
    temperature = torch.tensor(2.0, requires_grad=True)
    functional.temperature_scale(torch.tensor([[2.0, 0.0]]), temperature).sum().backward()
    assert temperature.grad.item() == pytest.approx(-0.5)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 3.0])
def test_the_focal_map_is_what_focal_calibration_applies(gamma: float) -> None:
    logits, labels = sample(40)
    found = functional.focal_calibration_map(logits, gamma)
    assert torch.allclose(found.exp(), FocalCalibration(gamma).fit(logits, labels)(logits).softmax(dim=1), atol=1e-6)
