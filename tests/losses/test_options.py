"""The options that losses take from their base, and the sentences for calls that do not fit a signature."""

import copy
import inspect
import pickle
from typing import Any, Unpack

import pytest
import torch
from torch import Tensor

from calibrant import calibrators, losses
from calibrant.errors import InputError
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LOSSES.FocalLoss(), "got no gamma; pass gamma"),
        (lambda: LOSSES.FocalLoss(1.0, False, "sum"), "got 3 arguments without a name; pass the others by name"),
        (lambda: LOSSES.FocalLoss(1.0, gamma=2.0), "got an argument twice; pass it once"),
        (lambda: LOSSES.FocalLoss(1.0)(Z), r"got no labels; call it as loss\(logits, labels\)"),
        (lambda: CALIBRATORS.TemperatureScaling(zzz=1), "got the argument zzz; name one of these"),
        (lambda: CALIBRATORS.TemperatureScaling().fit(Z, Y, weights=Y), "the argument is called sample_weight"),
        (lambda: CALIBRATORS.Identity().fit(Z, Y)(Z, Y, Y), "3 arguments without a name; call it as calibrator"),
    ],
)
def test_a_call_that_does_not_fit_is_one_sentence_with_the_right_call(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]


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
