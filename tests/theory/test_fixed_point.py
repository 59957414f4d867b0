"""The detached-weight objective ends where it should."""

import pytest
import torch

from calibrant.errors import RangeError
from calibrant.losses import FocalLoss
from calibrant.scores import FocalScore, InverseFocalScore
from calibrant.theory import detached_fixed_point


def truth(eta: float) -> torch.Tensor:
    return torch.tensor([[eta, 1 - eta]], dtype=torch.float64).log()


def test_vector_of_the_focal_score(vectors) -> None:
    expected = vectors["detached_focal_fixed_point_eta0.8_gamma3"]["expected"]["q_star"]
    assert detached_fixed_point(FocalScore(3.0), truth(0.8)).exp()[0, 0].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("eta", ["0.8", "0.6"])
def test_vectors_of_the_inverse_focal_score(vectors, eta: str) -> None:
    expected = vectors[f"inverse_focal_detached_fixed_point_eta{eta}_gamma2"]["expected"]["q_star"]
    found = detached_fixed_point(InverseFocalScore(2.0), truth(float(eta))).exp()[0, 0].item()
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_in_two_classes_it_is_temperature_scaling_with_gamma_plus_1(gamma: float) -> None:
    s = torch.linspace(-100, 100, 41, dtype=torch.float64)
    log_eta = torch.log_softmax(torch.stack([s, torch.zeros_like(s)], dim=1), dim=1)
    found = detached_fixed_point(FocalScore(gamma), log_eta)
    torch.testing.assert_close(found, torch.log_softmax(log_eta / (gamma + 1), dim=1), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_detached_loss_has_no_gradient_there(classes: int) -> None:
    torch.manual_seed(classes)
    eta = torch.distributions.Dirichlet(torch.ones(classes, dtype=torch.float64)).sample((8,))
    logits = detached_fixed_point(FocalScore(2.0), eta.log()).requires_grad_(True)
    loss = FocalLoss(2.0, detach_weight=True, reduction="none")
    risk = sum(eta[:, j] * loss(logits, torch.full((8,), j)) for j in range(classes))
    (grad,) = torch.autograd.grad(risk.sum(), logits)
    assert float(grad.abs().max()) < 1e-12


def test_where_there_are_several_it_is_refused() -> None:
    with pytest.raises(RangeError, match="detached fixed point"):
        detached_fixed_point(InverseFocalScore(2.5), truth(0.5))
