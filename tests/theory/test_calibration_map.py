"""The calibration map of any score: it is focal_map for the focal score, and what Lagrange's condition says for others."""

import math

import pytest
import torch
from tests.theory.scores_for_tests import IN_RANGE, InverseScore, OwnFocalScore, QuadraticScore

from calibrant.errors import InputError, RangeError
from calibrant.losses import FocalLoss
from calibrant.scores import FocalScore, InverseFocalScore, LogScore, TrueClassScore
from calibrant.theory import (
    calibration_map,
    detached_fixed_point,
    focal_map,
    inverse_calibration_map,
    minimiser,
    proper_part,
)


def log_probs(rows: int = 20, classes: int = 5, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(classes)
    return torch.log_softmax(torch.randn(rows, classes, dtype=torch.float64, generator=generator) * scale, dim=1)


def truth(eta: float) -> torch.Tensor:
    return torch.tensor([[eta, 1 - eta]], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("score", "gamma"), [(OwnFocalScore(), 2.0), *((FocalScore(gamma), gamma) for gamma in (-0.5, 0.0, 0.5, 3.0))]
)
def test_it_is_the_focal_map_for_the_focal_score(score: TrueClassScore, gamma: float) -> None:
    rows = torch.cat([log_probs(), torch.log_softmax(torch.tensor([[100.0, 0, 0, 0, 0]]).double(), dim=1)])
    torch.testing.assert_close(calibration_map(score, rows), focal_map(rows, gamma), atol=1e-10, rtol=0)
    assert inverse_calibration_map(score, rows.float()).dtype == torch.float32


def test_hand_computed() -> None:
    # φ = 1/p: −1/φ′ = p², so (0.8, 0.2) maps to (0.64, 0.04)/0.68
    p = calibration_map(InverseScore(), torch.tensor([[0.8, 0.2]], dtype=torch.float64).log()).exp()
    torch.testing.assert_close(p, torch.tensor([[0.64, 0.04]], dtype=torch.float64) / 0.68, atol=1e-15, rtol=0)


@pytest.mark.parametrize("score", IN_RANGE, ids=repr)
def test_differentiable_and_keeps_zeros(score) -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: calibration_map(score, torch.log_softmax(z, 1)), (logits,))
    zeros = torch.tensor([[0.0, -math.inf, -math.inf], [math.log(0.5), -math.inf, math.log(0.5)]])
    torch.testing.assert_close(calibration_map(score, zeros).exp(), zeros.exp(), atol=1e-6, rtol=0)


def test_what_is_no_log_probability_is_refused() -> None:
    for rows in ([[2.0, 1.0]], [[math.nan, 1.0]]):
        with pytest.raises(InputError, match=r"sum of 1.*log_softmax"):
            calibration_map(FocalScore(1.0), torch.tensor(rows))


@pytest.mark.parametrize("gamma", [1.5, 2.0, 3.5])
def test_outside_the_convex_range_it_still_leads_from_a_minimiser_to_the_truth(gamma: float) -> None:
    score, eta = InverseFocalScore(gamma), log_probs(rows=6, classes=3)
    torch.testing.assert_close(calibration_map(score, minimiser(score, eta).log_probs), eta, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (InverseFocalScore(3.6), "does not decrease"),
        (QuadraticScore(), "stays finite"),
    ],
)
def test_a_score_without_a_map_is_refused(score, reason: str) -> None:
    with pytest.raises(RangeError, match=reason):
        calibration_map(score, log_probs())


STORED = [  # of two classes: the vector, the score, what finds the answer, the tolerance
    *[(f"binary_focal_minimiser_eta{eta}_gamma{gamma}", FocalScore(gamma), inverse_calibration_map, 2e-8)
      for eta, gamma in ((0.8, 1), (0.8, 2), (0.8, 3), (0.8, 5), (0.6, 3))],
    ("inverse_focal_minimiser_eta0.8_gamma1", InverseFocalScore(1.0), inverse_calibration_map, 1e-6),
    ("detached_focal_fixed_point_eta0.8_gamma3", FocalScore(3.0), detached_fixed_point, 1e-9),
    ("inverse_focal_detached_fixed_point_eta0.8_gamma2", InverseFocalScore(2.0), detached_fixed_point, 1e-6),
    ("inverse_focal_detached_fixed_point_eta0.6_gamma2", InverseFocalScore(2.0), detached_fixed_point, 1e-6),
]  # fmt: skip


@pytest.mark.parametrize(("name", "score", "function", "tolerance"), STORED)
def test_stored_minimisers_and_fixed_points(vectors, name: str, score, function, tolerance: float) -> None:
    case = vectors[name]
    found = function(score, truth(case["inputs"]["eta"])).exp()[0, 0].item()
    assert found == pytest.approx(case["expected"]["q_star"], abs=tolerance)


@pytest.mark.parametrize("gamma", [1, 3])
def test_stored_minimiser_and_risk_of_three_classes(vectors, gamma: int) -> None:
    case, score = vectors[f"focal_map_inverse_K3_gamma{gamma}"], FocalScore(gamma)
    eta = torch.tensor([case["inputs"]["p"]], dtype=torch.float64)
    q = inverse_calibration_map(score, eta.log()).exp()
    torch.testing.assert_close(q, torch.tensor([case["expected"]["q"]], dtype=torch.float64), atol=1e-8, rtol=0)
    assert float((eta * proper_part(score, eta.log())).sum()) == pytest.approx(case["expected"]["risk"], abs=1e-8)


@pytest.mark.parametrize("score", IN_RANGE, ids=repr)
def test_round_trip_at_every_margin(score: TrueClassScore) -> None:
    for classes in [2, 3, 50]:
        generator = torch.Generator().manual_seed(classes)
        logits = torch.randn(12, classes, dtype=torch.float64, generator=generator) * 3
        logits[:, 0] += torch.tensor([0.0, 5.0, 30.0, 100.0], dtype=torch.float64).repeat(3)
        log_eta = torch.log_softmax(logits, dim=1)
        log_q = inverse_calibration_map(score, log_eta)
        torch.testing.assert_close(
            torch.logsumexp(log_q, dim=1), torch.zeros(12, dtype=torch.float64), atol=1e-13, rtol=0
        )
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


def test_outside_the_range_it_is_refused_naming_the_range() -> None:
    half = torch.full((1, 2), math.log(0.5))
    with pytest.raises(RangeError, match=r"φ decreasing and strictly convex.*InverseFocalScore.*not strictly convex"):
        inverse_calibration_map(InverseFocalScore(2.0), half)


def test_binary_vector(vectors) -> None:
    case = vectors["proper_part_p0.95_gamma3"]
    p = torch.tensor([[0.95, 0.05]], dtype=torch.float64)
    expected = torch.tensor([[case["expected"]["L_star_y1"], case["expected"]["L_star_y0"]]], dtype=torch.float64)
    torch.testing.assert_close(proper_part(FocalScore(3.0), p.log()), expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("score", IN_RANGE, ids=repr)
@pytest.mark.parametrize("classes", [2, 7, 50])
def test_the_expected_loss_is_stationary_and_least_at_the_truth(score: TrueClassScore, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    eta = torch.distributions.Dirichlet(torch.ones(classes, dtype=torch.float64))
    torch.manual_seed(classes)
    truth = eta.sample((20,))
    logits = truth.log().requires_grad_(True)
    risk = (truth * proper_part(score, torch.log_softmax(logits, dim=1))).sum(dim=1)
    (grad,) = torch.autograd.grad(risk.sum(), logits)
    assert float(grad.abs().max()) < 1e-12 * (1 + float(risk.detach().abs().max()))
    for scale in (1e-2, 1.0):
        moved = torch.log_softmax(
            truth.log() + scale * torch.randn(20, classes, dtype=torch.float64, generator=generator), dim=1
        )
        assert bool(((truth * proper_part(score, moved)).sum(dim=1) > risk.detach()).all())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_in_two_classes_it_is_temperature_scaling_with_gamma_plus_1(gamma: float) -> None:
    s = torch.linspace(-100, 100, 41, dtype=torch.float64)
    log_eta = torch.log_softmax(torch.stack([s, torch.zeros_like(s)], dim=1), dim=1)
    found = detached_fixed_point(FocalScore(gamma), log_eta)
    torch.testing.assert_close(found, torch.log_softmax(log_eta / (gamma + 1), dim=1), atol=1e-12, rtol=1e-12)
    certain = torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    assert detached_fixed_point(FocalScore(gamma), certain).exp().tolist() == [[1.0, 0.0]]


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


@pytest.mark.parametrize("score", [FocalScore(0.5), FocalScore(3.0), FocalScore(-0.5), LogScore()], ids=repr)
@pytest.mark.parametrize("mapping", [calibration_map, inverse_calibration_map])
def test_excluded_classes_change_nothing(mapping, score) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.log_softmax(torch.randn(20, 4, generator=generator, dtype=torch.float64), dim=1)
    wider = torch.cat([torch.full((20, 2), -math.inf, dtype=torch.float64), rows], dim=1)
    found = mapping(score, wider)
    assert torch.isneginf(found[:, :2]).all()
    assert torch.allclose(found[:, 2:], mapping(score, rows), rtol=1e-12)
