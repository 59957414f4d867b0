"""The calibration map of any score and its inverse: Lagrange's condition, round trips, implicit gradients, fixed points."""

import math

import pytest
import torch
from tests.theory.scores_for_tests import IN_RANGE, InverseScore, OwnFocalScore, QuadraticScore

from calibrant.errors import InputError, RangeError
from calibrant.scores import FocalScore, InverseFocalScore, TrueClassScore
from calibrant.theory import calibration_map, focal_map, inverse_calibration_map, minimiser, proper_part


def random_log_probs(rows: int = 20, classes: int = 5, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(classes)
    return torch.log_softmax(torch.randn(rows, classes, dtype=torch.float64, generator=generator) * scale, dim=1)


@pytest.mark.parametrize(("score", "gamma"), [(OwnFocalScore(), 2.0), (FocalScore(-0.5), -0.5), (FocalScore(3.0), 3.0)])
def test_of_the_focal_score_it_is_the_focal_map(score: TrueClassScore, gamma: float) -> None:
    rows = torch.cat([random_log_probs(), torch.log_softmax(torch.tensor([[100.0, 0, 0, 0, 0]]).double(), dim=1)])
    torch.testing.assert_close(calibration_map(score, rows), focal_map(rows, gamma), atol=1e-10, rtol=0)
    assert inverse_calibration_map(score, rows.float()).dtype == torch.float32


def test_of_the_inverse_score_by_hand() -> None:
    # φ = 1/p: −1/φ′ = p², so (0.8, 0.2) maps to (0.64, 0.04)/0.68
    p = calibration_map(InverseScore(), torch.tensor([[0.8, 0.2]], dtype=torch.float64).log()).exp()
    torch.testing.assert_close(p, torch.tensor([[0.64, 0.04]], dtype=torch.float64) / 0.68, atol=1e-15, rtol=0)


@pytest.mark.parametrize("score", [FocalScore(2.0), FocalScore(-0.5), OwnFocalScore()], ids=repr)
@pytest.mark.parametrize("mapping", [calibration_map, inverse_calibration_map])
def test_maps_are_differentiable(mapping, score: TrueClassScore) -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: mapping(score, torch.log_softmax(z, 1)), (logits,))


def test_rows_that_are_no_log_probabilities_are_refused() -> None:
    for rows in ([[2.0, 1.0]], [[math.nan, 1.0]]):
        with pytest.raises(InputError, match=r"sum to 1 in each row.*log_softmax"):
            calibration_map(FocalScore(1.0), torch.tensor(rows))


@pytest.mark.parametrize("gamma", [1.5, 3.5])
def test_outside_the_convex_range_the_map_leads_to_the_truth(gamma: float) -> None:
    score, eta = InverseFocalScore(gamma), random_log_probs(rows=6, classes=3)
    torch.testing.assert_close(calibration_map(score, minimiser(score, eta).log_probs), eta, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("function", "score", "reason"),
    [
        (calibration_map, InverseFocalScore(3.6), "does not decrease"),
        (calibration_map, QuadraticScore(), "stays finite"),
        (inverse_calibration_map, InverseFocalScore(2.0), "φ decreasing and strictly convex.*not strictly convex"),
    ],
)
def test_a_score_without_the_map_is_refused_with_the_reason(function, score, reason: str) -> None:
    with pytest.raises(RangeError, match=reason):
        function(score, random_log_probs())


STORED = [  # of two classes: the stored value, the score, the tolerance
    *[(f"binary_focal_minimiser_eta{eta}_gamma{gamma}", FocalScore(gamma), 2e-8)
      for eta, gamma in ((0.8, 1), (0.8, 5), (0.6, 3))],
    ("inverse_focal_minimiser_eta0.8_gamma1", InverseFocalScore(1.0), 1e-6),
]  # fmt: skip


@pytest.mark.parametrize(("name", "score", "tolerance"), STORED)
def test_stored_minimisers(vectors, name: str, score, tolerance: float) -> None:
    eta = vectors[name]["inputs"]["eta"]
    found = inverse_calibration_map(score, torch.tensor([[eta, 1 - eta]], dtype=torch.float64).log()).exp()
    assert found[0, 0].item() == pytest.approx(vectors[name]["expected"]["q_star"], abs=tolerance)


@pytest.mark.parametrize("score", [*IN_RANGE, FocalScore(-0.999), FocalScore(40.0)], ids=repr)
def test_round_trip_at_every_margin(score: TrueClassScore) -> None:
    for classes in [2, 50]:
        logits = torch.randn(12, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(classes)) * 3
        logits[:, 0] += torch.tensor([0.0, 5.0, 30.0, 100.0], dtype=torch.float64).repeat(3)
        log_eta = torch.log_softmax(logits, dim=1)
        log_q = inverse_calibration_map(score, log_eta)
        total = torch.logsumexp(log_q, dim=1)
        torch.testing.assert_close(total, torch.zeros_like(total), atol=1e-12, rtol=0)
        torch.testing.assert_close(calibration_map(score, log_q), log_eta, atol=1e-10, rtol=0)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 2.0])
@pytest.mark.parametrize("mapping", [calibration_map, inverse_calibration_map])
def test_excluded_classes_stay_at_zero_and_change_nothing(mapping, gamma: float) -> None:
    eta = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.7, 0.0, 0.3]], dtype=torch.float64)
    q = mapping(FocalScore(gamma), eta.log()).exp()
    assert torch.equal(q == 0, eta == 0)
    torch.testing.assert_close(q[:2], eta[:2], atol=1e-15, rtol=0)
    pair = mapping(FocalScore(gamma), eta[2:, [0, 2]].log()).exp()
    torch.testing.assert_close(q[2:, [0, 2]], pair, atol=1e-14, rtol=0)


@pytest.mark.parametrize("score", IN_RANGE, ids=repr)
def test_the_expected_proper_part_is_least_at_the_truth(score: TrueClassScore) -> None:
    eta = random_log_probs(20, 7).exp()
    logits = eta.log().requires_grad_(True)
    risk = (eta * proper_part(score, torch.log_softmax(logits, dim=1))).sum(dim=1)
    (grad,) = torch.autograd.grad(risk.sum(), logits)
    assert float(grad.abs().max()) < 1e-12 * (1 + float(risk.detach().abs().max()))
    generator = torch.Generator().manual_seed(7)
    for scale in (1e-2, 1.0):
        noise = scale * torch.randn(20, 7, dtype=torch.float64, generator=generator)
        moved = torch.log_softmax(eta.log() + noise, dim=1)
        assert bool(((eta * proper_part(score, moved)).sum(dim=1) > risk.detach()).all())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("function", [calibration_map, inverse_calibration_map, proper_part])
def test_maps_are_computed_on_the_device(function) -> None:
    found = function(FocalScore(2.0), random_log_probs().cuda())
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), function(FocalScore(2.0), random_log_probs()), rtol=1e-10, atol=1e-10)
