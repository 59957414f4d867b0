"""The functions of ``calibrant.functional`` against the modules that compute the same, and against formulas written out."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant import functional, losses
from calibrant.calibrators import FocalCalibration, TemperatureScaling
from calibrant.errors import InputError

LOSSES: dict[str, tuple[Callable[..., losses.Loss], list[dict[str, Any]]]] = {
    "focal_loss": (losses.FocalLoss, [{"gamma": 0.5}, {"gamma": 3.0, "detach_weight": True}]),
    "inverse_focal_loss": (losses.InverseFocalLoss, [{"gamma": 1.0}, {"gamma": 2.0, "detach_weight": True}]),
    "brier_loss": (losses.BrierLoss, [{}]),
    "label_smoothing_loss": (losses.LabelSmoothingLoss, [{"smoothing": 0.1}, {"smoothing": 0.2, "spread": "others"}]),
}
CASES = [(name, own) for name, (_, cases) in LOSSES.items() for own in cases]


def sample(*shape: int) -> tuple[Tensor, Tensor]:
    """Return logits (N, K) and labels (N,), one in four of them 2, which some tests ignore."""
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.randn(shape, generator=generator), torch.arange(shape[0]).remainder(4)


def gradient(call: Callable[[Tensor], Tensor], logits: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = call(leaf)
    value.sum().backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def test_every_loss_of_the_namespace_is_compared() -> None:
    assert {name for name in functional.__all__ if name.endswith("_loss")} == set(LOSSES)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 0.0, 2.5, 0.3])], ids=["plain", "weighted"])
@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize(("name", "own"), CASES, ids=str)
def test_it_is_the_module(
    name: str, own: dict[str, Any], reduction: str, weight: Tensor | None, ignore_index: int
) -> None:
    logits, labels = sample(12, 4)
    common = {"reduction": reduction, "weight": weight, "ignore_index": ignore_index}
    module = LOSSES[name][0](**own, **common)
    soft = [torch.softmax(logits.flip(0), dim=1)] if weight is None and name != "inverse_focal_loss" else []
    for targets in [labels, *soft]:
        found = gradient(lambda z, y=targets: getattr(functional, name)(z, y, **own, **common), logits)
        right = gradient(lambda z, y=targets: module(z, y), logits)
        assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))


def test_scores_against_target_probabilities() -> None:
    logits, targets = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log(), torch.tensor([[0.6, 0.4], [1.0, 0.0]])
    expected = -(0.6 * math.log(0.8) + 0.4 * math.log(0.2) + math.log(0.5)) / 2
    assert float(functional.nll(logits, targets)) == pytest.approx(expected, rel=1e-6)
    assert float(functional.brier(logits, targets)) == pytest.approx((2 * 0.2**2 + 2 * 0.5**2) / 2, rel=1e-6)
    labels = torch.tensor([0, 1])
    for score in (functional.nll, functional.brier):
        assert float(score(logits, torch.eye(2)[labels])) == pytest.approx(float(score(logits, labels)), rel=1e-6)
        assert score(logits.requires_grad_(), targets).requires_grad is False
        with pytest.raises(InputError, match="sum to 1"):
            score(logits, targets * 2)


def test_their_own_defaults() -> None:
    given = sample(8, 4)
    assert torch.equal(functional.focal_loss(*given), losses.FocalLoss(2.0)(*given))
    assert torch.equal(functional.inverse_focal_loss(*given), losses.InverseFocalLoss(1.0)(*given))
    assert torch.equal(functional.label_smoothing_loss(*given), losses.LabelSmoothingLoss(0.1)(*given))


def test_temperature_scale_is_what_temperature_scaling_applies() -> None:
    logits, _ = sample(200, 4)
    labels = torch.multinomial(torch.softmax(logits / 2, dim=1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    fitted = TemperatureScaling().fit(logits, labels)
    assert torch.allclose(functional.temperature_scale(logits, fitted.temperature), fitted(logits), rtol=1e-6)
    each = torch.tensor([1.0, 2.0, 4.0, 8.0])
    assert torch.equal(functional.temperature_scale(logits, each), logits / each)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 3.0])
def test_the_focal_map_is_what_focal_calibration_applies(gamma: float) -> None:
    logits, labels = sample(40, 4)
    fitted = FocalCalibration(gamma).fit(logits, labels)
    found = functional.focal_calibration_map(logits, gamma)
    assert torch.allclose(torch.softmax(found, dim=1), torch.softmax(fitted(logits), dim=1), atol=1e-6)


def test_a_temperature_may_be_trained() -> None:
    temperature = torch.tensor(2.0, requires_grad=True)
    functional.temperature_scale(torch.tensor([[2.0, 0.0]]), temperature).sum().backward()
    assert temperature.grad.item() == pytest.approx(-0.5)
