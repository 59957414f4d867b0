"""The calibration map of any score: it is focal_map for the focal score, and what Lagrange's condition says for others."""

import math

import pytest
import torch
from tests.theory.scores_for_tests import IN_RANGE, InverseScore, OwnFocalScore, QuadraticScore

from calibrant.errors import InputError, RangeError
from calibrant.scores import FocalScore, InverseFocalScore
from calibrant.theory import calibration_map, focal_map, minimiser


def log_probs(rows: int = 20, classes: int = 5, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(classes)
    return torch.log_softmax(torch.randn(rows, classes, dtype=torch.float64, generator=generator) * scale, dim=1)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.5, 3.0])
def test_it_is_the_focal_map_for_the_focal_score(gamma: float) -> None:
    torch.testing.assert_close(calibration_map(FocalScore(gamma), log_probs()), focal_map(log_probs(), gamma))


def test_a_users_focal_score_gives_the_closed_form() -> None:
    rows = torch.cat([log_probs(), torch.log_softmax(torch.tensor([[100.0, 0, 0, 0, 0]]).double(), dim=1)])
    torch.testing.assert_close(calibration_map(OwnFocalScore(), rows), focal_map(rows, 2.0), atol=1e-10, rtol=0)


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
    with pytest.raises(InputError, match=r"sum of 1.*log_softmax"):
        calibration_map(FocalScore(1.0), torch.tensor([[2.0, 1.0]]))
    with pytest.raises(InputError, match="sum of 1"):
        calibration_map(FocalScore(1.0), torch.tensor([[math.nan, 1.0]]))
    with pytest.raises(InputError, match=r"shape \(N, K\)"):
        calibration_map(FocalScore(1.0), torch.tensor([-1.0]))


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
