"""The minimiser against direct minimisation, inside the range and outside."""

import math

import pytest
import torch
from tests.theory.scores_for_tests import LinearScore, OwnFocalScore, QuadraticScore

from calibrant.errors import RangeError
from calibrant.scores import FocalScore, InverseFocalScore, TrueClassScore
from calibrant.theory import inverse_calibration_map, minimiser

PAIRS = torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.6, 0.4]], dtype=torch.float64)


def risk(score: TrueClassScore, eta: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return Σ_j η_j φ(q_j) from φ's value alone; 1 − q is the sum of the other classes."""
    log_q = torch.log_softmax(logits, dim=-1)
    own = torch.eye(logits.shape[-1], dtype=torch.bool)
    others = torch.where(own, -1e9, logits[..., None, :])
    log_not_q = torch.logsumexp(others, dim=-1) - torch.logsumexp(logits, dim=-1, keepdim=True)
    return (eta * score.value(log_q, log_not_q)).sum(dim=-1)


def minimise(score: TrueClassScore, eta: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Return log q (N, K) by damped Newton descent in the logits; knows nothing of maps."""
    z = start.clone()
    one = lambda row, target: risk(score, target, row)  # noqa: E731
    gradient, hessian = torch.func.vmap(torch.func.grad(one)), torch.func.vmap(torch.func.hessian(one))
    damping = torch.full((len(z), 1, 1), 1e-2, dtype=torch.float64)
    value = risk(score, eta, z)
    for _ in range(80):
        matrix = hessian(z, eta)
        lowest = torch.linalg.eigvalsh(matrix)[:, :1, None].clamp_max(0)
        damped = matrix + (damping - 1.01 * lowest) * torch.eye(z.shape[1], dtype=torch.float64)
        step = torch.linalg.solve(damped, gradient(z, eta)[..., None])[..., 0]
        new = risk(score, eta, z - step)
        better = new <= value
        z = torch.where(better[:, None], z - step, z)
        value = torch.where(better, new, value)
        damping = torch.where(better[:, None, None], damping / 10, damping * 4).clamp(1e-13, 1e6)
        if float(gradient(z, eta).abs().max()) < 1e-11:
            break
    return torch.log_softmax(z, dim=1)


@pytest.mark.parametrize("score", [FocalScore(3.0), FocalScore(-0.75), OwnFocalScore()], ids=str)
@pytest.mark.parametrize("classes", [2, 5])
def test_direct_minimisation_lands_on_the_inverse_map(score: TrueClassScore, classes: int) -> None:
    torch.manual_seed(classes)
    eta = torch.distributions.Dirichlet(torch.ones(classes, dtype=torch.float64)).sample((2,))
    direct, found = minimise(score, eta, 0.3 * torch.log(eta)).exp(), minimiser(score, eta.log())
    # gradients below 1e-11 leave about that over the curvature, which is of the order of η, in q
    torch.testing.assert_close(found.log_probs.exp(), direct, atol=1e-7, rtol=0)
    assert torch.equal(found.log_probs, inverse_calibration_map(score, eta.log()))
    assert bool(found.unique.all())


@pytest.mark.parametrize("gamma", [2, 3])
def test_inverse_focal_outside_its_range(vectors, gamma: int) -> None:
    case = vectors[f"inverse_focal_minimiser_eta0.8_gamma{gamma}"]
    found = minimiser(InverseFocalScore(gamma), PAIRS[:1].log())
    assert found.log_probs.exp()[0, 0].item() == pytest.approx(case["expected"]["q_star"], abs=2e-8)
    assert found.unique.tolist() == [True]


def test_inverse_focal_of_2_has_two_minima_at_one_half() -> None:
    score = InverseFocalScore(2.0)
    found = minimiser(score, PAIRS.log())
    assert found.unique.tolist() == [True, False, True]
    low, high = sorted(found.log_probs.exp()[1].tolist())
    assert (low, high) == (pytest.approx(0.208314, abs=1e-6), pytest.approx(0.791686, abs=1e-6))
    # both are minima of the expected loss, and ½ between them is a maximum
    q = torch.tensor([low, high, 0.5], dtype=torch.float64)
    s = torch.logit(q)[:, None] + torch.tensor([-1e-3, 0.0, 1e-3], dtype=torch.float64)
    values = risk(score, PAIRS[1], torch.stack([s, torch.zeros_like(s)], dim=-1))
    assert float(values[0, 1]) == pytest.approx(float(values[1, 1]), abs=1e-14)
    assert bool((values[:2, 1] < values[:2, 0]).all())
    assert bool((values[:2, 1] < values[:2, 2]).all())
    assert float(values[2, 1]) > float(values[2, 0])


@pytest.mark.parametrize(("gamma", "classes", "rows"), [(1.5, 2, 2), (3.7, 4, 2)])
def test_nothing_lower_is_found_from_other_starts(gamma: float, classes: int, rows: int) -> None:
    score = InverseFocalScore(gamma)
    torch.manual_seed(classes)
    eta = torch.distributions.Dirichlet(torch.ones(classes, dtype=torch.float64)).sample((rows,))
    found = minimiser(score, eta.log())
    lowest = risk(score, eta, found.log_probs)
    for start in range(rows):
        begin = 3 * torch.randn(rows, classes, dtype=torch.float64)
        begin[:, start % classes] += 3
        assert bool((lowest <= risk(score, eta, minimise(score, eta, begin)) + 1e-12).all())
    spread = torch.log_softmax(found.log_probs + 0.2 * torch.randn(50, rows, classes, dtype=torch.float64), dim=-1)
    assert bool((risk(score, eta, spread) >= lowest).all())


def test_scores_that_are_not_steep_may_leave_classes_at_zero() -> None:
    # φ = (1 − p)²: 1 − q_j = c/η_j while that is below 1, by hand (0.98, 0.019, 0.001) keeps two classes
    eta = torch.tensor([[0.8, 0.1, 0.1], [0.98, 0.019, 0.001]], dtype=torch.float64)
    found = minimiser(QuadraticScore(), eta.log())
    c = 2 / (1 / 0.8 + 20)
    expected = torch.tensor([[1 - c / 0.8, 1 - 10 * c, 1 - 10 * c], [0.98 / 0.999, 0.019 / 0.999, 0.0]])
    torch.testing.assert_close(found.log_probs.exp(), expected.double(), atol=2e-7, rtol=0)
    assert found.unique.tolist() == [True, True]


def test_a_linear_score_ends_in_a_vertex() -> None:
    found = minimiser(LinearScore(), PAIRS.log())
    assert found.log_probs.exp().tolist() == [[1.0, 0.0]] * 3
    assert found.unique.tolist() == [True, False, True]


def test_zeros_and_dtype() -> None:
    eta = torch.tensor([[0.8, 0.2, 0.0], [1.0, 0.0, 0.0]])
    found = minimiser(InverseFocalScore(2.0), eta.log())
    assert found.log_probs.dtype == torch.float32
    torch.testing.assert_close(found.log_probs.exp()[0], torch.tensor([0.948364, 0.051636, 0.0]), atol=1e-6, rtol=0)
    assert found.log_probs[1].tolist() == [0.0, -math.inf, -math.inf]
    with pytest.raises(RangeError, match="leave it out"):
        minimiser(InverseFocalScore(5.0), eta.log())


class ConvexAgain(TrueClassScore):
    """Convex, concave, convex."""

    def value(self, log_p: torch.Tensor, log_not_p: torch.Tensor) -> torch.Tensor:
        return -log_p + 0.5 * torch.sin(12 * torch.exp(log_p))


def test_a_score_that_is_convex_again_is_refused() -> None:
    with pytest.raises(RangeError, match="convex up to some p and not beyond"):
        minimiser(ConvexAgain(), PAIRS.log())
