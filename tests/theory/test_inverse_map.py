"""The inverse calibration map: vectors, round trips at every margin, zeros, gradients, refusals."""

import math

import pytest
import torch
from tests.theory.scores_for_tests import IN_RANGE

from calibrant.errors import RangeError
from calibrant.scores import FocalScore, InverseFocalScore, TrueClassScore
from calibrant.theory import calibration_map, inverse_calibration_map

MINIMISERS = [
    "binary_focal_minimiser_eta0.8_gamma1",
    "binary_focal_minimiser_eta0.8_gamma2",
    "binary_focal_minimiser_eta0.8_gamma3",
    "binary_focal_minimiser_eta0.8_gamma5",
    "binary_focal_minimiser_eta0.6_gamma3",
]


@pytest.mark.parametrize("name", MINIMISERS)
def test_binary_minimisers(vectors, name: str) -> None:
    case = vectors[name]
    eta = case["inputs"]["eta"]
    q = inverse_calibration_map(FocalScore(case["inputs"]["gamma"]), torch.tensor([[eta, 1 - eta]]).double().log())
    assert q.exp()[0, 0].item() == pytest.approx(case["expected"]["q_star"], abs=2e-8)


def test_inverse_focal_minimiser_inside_its_range(vectors) -> None:
    case = vectors["inverse_focal_minimiser_eta0.8_gamma1"]
    eta = torch.tensor([[0.8, 0.2]], dtype=torch.float64)
    q = inverse_calibration_map(InverseFocalScore(1.0), eta.log()).exp()
    assert q[0, 0].item() == pytest.approx(case["expected"]["q_star"], abs=1e-6)


@pytest.mark.parametrize("name", ["focal_map_inverse_K3_gamma1", "focal_map_inverse_K3_gamma3"])
def test_three_classes(vectors, name: str) -> None:
    case = vectors[name]
    score = FocalScore(case["inputs"]["gamma"])
    eta = torch.tensor([case["inputs"]["p"]], dtype=torch.float64)
    q = inverse_calibration_map(score, eta.log()).exp()
    torch.testing.assert_close(q, torch.tensor([case["expected"]["q"]], dtype=torch.float64), atol=1e-8, rtol=0)


@pytest.mark.parametrize("score", IN_RANGE, ids=repr)
@pytest.mark.parametrize("classes", [2, 3, 50])
def test_round_trip_at_every_margin(score: TrueClassScore, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(12, classes, dtype=torch.float64, generator=generator) * 3
    logits[:, 0] += torch.tensor([0.0, 5.0, 30.0, 100.0], dtype=torch.float64).repeat(3)
    log_eta = torch.log_softmax(logits, dim=1)
    log_q = inverse_calibration_map(score, log_eta)
    torch.testing.assert_close(torch.logsumexp(log_q, dim=1), torch.zeros(12, dtype=torch.float64), atol=1e-13, rtol=0)
    torch.testing.assert_close(calibration_map(score, log_q), log_eta, atol=1e-10, rtol=0)


@pytest.mark.parametrize("gamma", [-0.999, -0.9, -0.5, -0.05, 0.01, 40.0])
def test_round_trip_of_focal_at_the_ends_of_its_range(gamma: float) -> None:
    logits = torch.randn(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7)) * 4
    log_q = torch.log_softmax(logits, dim=1)
    log_eta = calibration_map(FocalScore(gamma), log_q)
    torch.testing.assert_close(inverse_calibration_map(FocalScore(gamma), log_eta), log_q, atol=1e-10, rtol=0)


def test_zeros_and_certainty() -> None:
    eta = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.7, 0.0, 0.3]], dtype=torch.float64)
    for gamma in (-0.5, 0.0, 2.0):
        q = inverse_calibration_map(FocalScore(gamma), eta.log()).exp()
        assert torch.equal(q == 0, eta == 0)
        assert torch.equal(q[0], eta[0])
        torch.testing.assert_close(q[1], eta[1], atol=1e-15, rtol=0)
        pair = inverse_calibration_map(FocalScore(gamma), eta[2:, [0, 2]].log()).exp()
        torch.testing.assert_close(q[2:, [0, 2]], pair, atol=1e-14, rtol=0)


@pytest.mark.parametrize("score", [FocalScore(2.0), FocalScore(-0.5), IN_RANGE[-2]], ids=repr)
def test_gradient_by_implicit_differentiation(score: TrueClassScore) -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: inverse_calibration_map(score, torch.log_softmax(z, 1)), (logits,))


def test_gradient_is_finite_where_the_row_is_saturated() -> None:
    logits = torch.tensor([[100.0, 0.0, -50.0], [0.0, -math.inf, 3.0]], dtype=torch.float64, requires_grad=True)
    for gamma in (-0.9, 0.5, 5.0):
        log_q = inverse_calibration_map(FocalScore(gamma), torch.log_softmax(logits, dim=1))
        (grad,) = torch.autograd.grad(log_q[torch.isfinite(log_q)].sum(), logits)
        assert bool(torch.isfinite(grad).all())


def test_float32_in_float32_out() -> None:
    eta = torch.tensor([[0.8, 0.2]])
    q = inverse_calibration_map(FocalScore(2.0), eta.log())
    assert q.dtype == torch.float32
    assert q.exp()[0, 0].item() == pytest.approx(0.6266148, abs=1e-6)


def test_outside_the_range_it_is_refused_naming_the_range() -> None:
    half = torch.full((1, 2), math.log(0.5))
    with pytest.raises(RangeError, match=r"φ decreasing and strictly convex.*InverseFocalScore.*not strictly convex"):
        inverse_calibration_map(InverseFocalScore(2.0), half)
