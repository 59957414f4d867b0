"""The options that losses take from their base."""

import copy
import inspect
import pickle
from typing import Any, Unpack

import pytest
import torch
from torch import Tensor

from calibrant import calibrators, losses
from calibrant.losses.loss import LossOptions

# wrong calls are what is tested here, so mypy must not see the signatures
LOSSES: Any = losses
CALIBRATORS: Any = calibrators
Z, Y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


class Hinge(losses.RowLoss):
    def __init__(self, margin: float = 1.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.margin = margin

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (self.margin - logits.gather(1, labels[:, None])[:, 0]).clamp_min(0)


def test_a_signature_names_every_option_with_the_default_of_the_base() -> None:
    parameters = inspect.signature(Hinge).parameters
    assert list(parameters) == ["margin", "reduction", "weight", "ignore_index"]
    assert [one.default for one in parameters.values()] == [1.0, "mean", None, -100]
    assert parameters["weight"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "base" in inspect.signature(losses.MMCELoss).parameters


def test_options_reach_the_base_and_survive_copies() -> None:
    made = Hinge(2.0, reduction="sum", ignore_index=1)
    assert repr(made) == "Hinge(margin=2.0, reduction='sum', ignore_index=1)"
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(losses.FocalLoss(2.0, reduction="sum")))):
        assert again.reduction == "sum"


def test_a_call_that_does_not_fit_is_a_type_error() -> None:
    for call in (
        lambda: LOSSES.FocalLoss(),
        lambda: LOSSES.FocalLoss(1.0, gamma=2.0),
        lambda: LOSSES.FocalLoss(1.0)(Z),
        lambda: CALIBRATORS.TemperatureScaling(zzz=1),
        lambda: CALIBRATORS.TemperatureScaling().fit(Z, Y, weight=Y),
    ):
        with pytest.raises(TypeError):
            call()


def test_a_type_error_inside_a_call_that_fits_is_left_as_it_is() -> None:
    class Broken(losses.RowLoss):
        def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        Broken()(Z, Y)


def test_assigning_gamma_takes_effect() -> None:
    z, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 4
    for make in (
        losses.FocalLoss,
        losses.InverseFocalLoss,
        losses.FocalCalibrationLoss,
        losses.DualFocalLoss,
        losses.BSCELoss,
    ):
        loss = make(2.0)
        loss.gamma = 3.0
        assert float(loss(z, y)) == float(make(3.0)(z, y)) != float(make(2.0)(z, y)), make


def test_an_expanded_gradient_is_not_written_to() -> None:
    class Sum(losses.RowLoss):
        def rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return logits.sum(dim=1)

    z, y = torch.randn(1000, 100, generator=torch.Generator().manual_seed(0)).requires_grad_(), torch.arange(1000) % 100
    loss = losses.EntropyRegularizedLoss(0.1, base=Sum())
    loss(z, y).backward()
    plain = z.detach().double().requires_grad_()
    loss(plain, y).backward()
    assert torch.allclose(z.grad.double(), plain.grad, atol=1e-7)
