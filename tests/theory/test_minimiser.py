"""The minimiser of the expected loss against direct minimisation, inside the range of the calibration map and outside."""

import math

import pytest
import torch
from tests.conftest import late
from tests.theory.scores_for_tests import ConvexAgain, LinearScore, QuadraticScore

from calibrant.errors import RangeError
from calibrant.scores import FocalScore, InverseFocalScore, TrueClassScore
from calibrant.theory import minimiser

optimize = late("scipy.optimize")

PAIRS = torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.6, 0.4]], dtype=torch.float64)


def risk(score: TrueClassScore, eta: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return Σ_j η_j φ(q_j) from φ's value alone; 1 − q is the sum of the other classes."""
    log_q = torch.log_softmax(logits, dim=-1)
    own = torch.eye(logits.shape[-1], dtype=torch.bool)
    others = torch.where(own, -1e9, logits[..., None, :])
    log_not_q = torch.logsumexp(others, dim=-1) - torch.logsumexp(logits, dim=-1, keepdim=True)
    return (eta * score.value(log_q, log_not_q)).sum(dim=-1)


def descend(score: TrueClassScore, eta: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Return log q (K,) of a local minimum near ``start``, by descent in the logits; knows nothing of maps."""

    def value_and_gradient(x):
        z = torch.tensor(x, requires_grad=True)
        value = risk(score, eta, z)
        return value.item(), torch.autograd.grad(value, z)[0].numpy()

    found = optimize.minimize(value_and_gradient, start.numpy(), jac=True, method="BFGS", options={"gtol": 1e-11})
    return torch.log_softmax(torch.from_numpy(found.x), dim=0)


@pytest.mark.parametrize("score", [FocalScore(3.0), FocalScore(-0.75), InverseFocalScore(1.5), InverseFocalScore(3.7)])
def test_descent_from_other_starts_finds_nothing_lower(score: TrueClassScore) -> None:
    torch.manual_seed(4)
    eta = torch.distributions.Dirichlet(torch.ones(4, dtype=torch.float64)).sample((2,))
    found = minimiser(score, eta.log())
    assert bool(found.unique.all())
    for row, log_q in zip(eta, found.log_probs, strict=True):
        starts = [row.log(), *(3 * torch.randn(4, dtype=torch.float64) for _ in range(3))]
        ends = [descend(score, row, start) for start in starts]
        lowest = min(ends, key=lambda end: float(risk(score, row, end)))
        assert float(risk(score, row, log_q)) == pytest.approx(float(risk(score, row, lowest)), abs=1e-12)
        torch.testing.assert_close(log_q.exp(), lowest.exp(), atol=1e-6, rtol=0)  # BFGS ends within this


@pytest.mark.parametrize("gamma", [2, 3])
def test_stored_minimiser_of_inverse_focal_outside_its_range(vectors, gamma: int) -> None:
    case = vectors[f"inverse_focal_minimiser_eta0.8_gamma{gamma}"]
    found = minimiser(InverseFocalScore(gamma), PAIRS[:1].log())
    assert found.log_probs.exp()[0, 0].item() == pytest.approx(case["expected"]["q_star"], abs=2e-8)


def test_inverse_focal_of_2_has_two_minima_at_one_half() -> None:
    score = InverseFocalScore(2.0)
    found = minimiser(score, PAIRS.log())
    assert found.unique.tolist() == [True, False, True]
    low, high = sorted(found.log_probs.exp()[1].tolist())
    assert (low, high) == (pytest.approx(0.208314, abs=1e-6), pytest.approx(0.791686, abs=1e-6))
    at = [risk(score, PAIRS[1], torch.tensor([q, 1 - q], dtype=torch.float64).log()) for q in (low, high, 0.5)]
    assert float(at[0]) == pytest.approx(float(at[1]), abs=1e-14)
    assert float(at[2]) > float(at[0])


def test_scores_that_are_not_steep_may_leave_classes_at_zero() -> None:
    # φ = (1 − p)²: 1 − q_j = c/η_j while that is below 1, by hand (0.98, 0.019, 0.001) keeps two classes
    eta = torch.tensor([[0.8, 0.1, 0.1], [0.98, 0.019, 0.001]], dtype=torch.float64)
    found = minimiser(QuadraticScore(), eta.log())
    c = 2 / (1 / 0.8 + 20)
    expected = torch.tensor([[1 - c / 0.8, 1 - 10 * c, 1 - 10 * c], [0.98 / 0.999, 0.019 / 0.999, 0.0]])
    torch.testing.assert_close(found.log_probs.exp(), expected.double(), atol=2e-7, rtol=0)
    assert found.unique.tolist() == [True, True]
    # (1 − q)² + q² is lowest at q = ½, which is a point of the search's grid
    half = minimiser(QuadraticScore(), PAIRS[1:2].log())
    assert (half.log_probs.exp().tolist(), half.unique.tolist()) == ([[pytest.approx(0.5)] * 2], [True])


def test_a_linear_score_ends_in_a_vertex() -> None:
    found = minimiser(LinearScore(), PAIRS.log())
    assert found.log_probs.exp().tolist() == [[1.0, 0.0]] * 3
    assert found.unique.tolist() == [True, False, True]


def test_an_increasing_score_ends_at_the_rarest_class() -> None:
    class Probability(TrueClassScore):
        def value(self, log_p: torch.Tensor, log_not_p: torch.Tensor) -> torch.Tensor:
            return torch.exp(log_p)  # Σ_j η_j q_j is lowest where all probability is on the smallest η

    found = minimiser(Probability(), torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]], dtype=torch.float64).log())
    assert found.log_probs.exp()[0].tolist() == [0.0, 0.0, 1.0]
    assert found.unique.tolist() == [True, False]


def test_classes_that_never_occur_keep_probability_zero() -> None:
    eta = torch.tensor([[0.8, 0.2, 0.0], [1.0, 0.0, 0.0]])
    found = minimiser(InverseFocalScore(2.0), eta.log())
    assert found.log_probs.dtype == torch.float32
    torch.testing.assert_close(found.log_probs.exp()[0], torch.tensor([0.948364, 0.051636, 0.0]), atol=1e-6, rtol=0)
    assert found.log_probs[1].tolist() == [0.0, -math.inf, -math.inf]
    with pytest.raises(RangeError, match="leave this class out"):
        minimiser(InverseFocalScore(5.0), eta.log())


def test_a_score_that_is_convex_again_is_refused() -> None:
    with pytest.raises(RangeError, match="convex up to some p and concave from there on"):
        minimiser(ConvexAgain(), PAIRS.log())
