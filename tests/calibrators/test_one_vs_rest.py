"""Platt scaling, beta calibration and splines against scikit-learn, autograd and values worked out by hand; one against the rest."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.draws import drawn, drawn_events, of_log_odds
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as log_loss

from calibrant.calibrators import (
    BetaCalibration,
    Calibrator,
    CentredIsotonic,
    IsotonicCalibration,
    PlattScaling,
    SplineCalibration,
    VennAbers,
)
from calibrant.calibrators.one_vs_rest import log_odds, pool_ties
from calibrant.errors import FitError

optimize = late("scipy.optimize")

F64 = torch.float64


def p_of(calibrator: Calibrator, z: Tensor) -> Tensor:
    return torch.softmax(calibrator(z).double(), 1)[:, 1]


def platt_targets(y: Tensor) -> Tensor:
    hits = float(y.sum())
    return y.double() * (hits + 1) / (hits + 2) + (1 - y.double()) / (len(y) - hits + 2)


def test_log_odds_hold_at_every_margin() -> None:
    z = torch.tensor([[40.0, 0.0, -1.0], [90.0, 0.0, 0.0], [0.0, -50.0, -60.0], [500.0, 0.0, 0.0]], dtype=F64)
    odds = log_odds(z).T
    assert float(odds[0, 0]) == pytest.approx(40 - math.log(1 + math.exp(-1)), abs=1e-12)
    assert float(odds[1, 0]) == pytest.approx(90 - math.log(2), abs=1e-12)
    assert float(odds[2, 1]) == pytest.approx(-50.0, abs=1e-12)
    assert odds[3].tolist() == [100, -100, -100]
    assert torch.equal(log_odds(torch.tensor([[1.0, 3.5]])), torch.tensor([[2.5]], dtype=F64))


def test_platt_scaling_by_hand() -> None:
    # one place a class, so each class is answered by its target: 3 hits give 4/5, 1 miss gives 1/3
    z = torch.tensor([[0.0, 1.0]] * 3 + [[0.0, -1.0]], dtype=F64)
    p = p_of(PlattScaling(ridge=0.0).fit(z, torch.tensor([1, 1, 1, 0])), z)
    torch.testing.assert_close(p, torch.tensor([0.8, 0.8, 0.8, 1 / 3], dtype=F64), rtol=0, atol=1e-9)


def test_beta_calibration_is_at_its_constrained_optimum() -> None:
    g = torch.Generator().manual_seed(2)
    s = torch.randn(400, generator=g, dtype=F64) * 2
    y = torch.bernoulli(torch.sigmoid(1 - s.abs()), generator=g)  # falls at one end
    features = torch.stack([torch.sigmoid(s).log(), -torch.sigmoid(-s).log(), torch.ones(400, dtype=F64)], 1)

    def objective(x: np.ndarray) -> float:
        theta = torch.from_numpy(np.asarray(x, dtype=np.float64))
        return float(log_loss(features @ theta, y) + (theta - torch.tensor([1.0, 1.0, 0.0])).square().sum() / 400)

    ours = BetaCalibration().fit(of_log_odds(s), y.long()).coefficients[0].numpy()
    brute = optimize.minimize(
        objective, [1.0, 1.0, 0.0], method="L-BFGS-B", bounds=[(0, None), (0, None), (None, None)]
    )
    assert min(ours[:2]) == 0  # else the constraint would not have been tried
    assert objective(ours) <= brute.fun + 1e-9


def test_a_spline_is_at_its_minimum_and_straight_outside() -> None:
    z, y, s = drawn_events(500)
    fitted = SplineCalibration().fit(z, y)
    far = torch.logit(p_of(fitted, of_log_odds(torch.tensor([8.0, 9.0, 10.0, -8.0, -9.0, -10.0], dtype=F64))))
    assert float(far[2] - far[1]) == pytest.approx(float(far[1] - far[0]), abs=1e-6)
    assert float(far[5] - far[4]) == pytest.approx(float(far[4] - far[3]), abs=1e-6)
    knots = fitted.places[0]
    expected = np.quantile(s.numpy(), np.linspace(0.05, 0.95, 5), method="inverted_cdf")
    np.testing.assert_allclose(knots, expected, atol=1e-12)

    def curve(x: Tensor) -> Tensor:
        cube = [(s - k).clamp_min(0) ** 3 for k in knots]
        d = [(cube[j] - cube[-1]) / (knots[-1] - knots[j]) for j in range(4)]
        return x[0] + x[1] * s + sum(x[2 + j] * (d[j] - d[-1]) for j in range(3)) / (knots[-1] - knots[0])

    def objective(x: Tensor) -> Tensor:
        ridge = (x - torch.tensor([0, 1.0, 0, 0, 0], dtype=F64)).square().sum()
        return log_loss(curve(x), platt_targets(y)) + ridge / 500

    torch.testing.assert_close(torch.logit(p_of(fitted, z)), curve(fitted.coefficients[0]), rtol=0, atol=1e-9)
    assert float(torch.func.grad(objective)(fitted.coefficients[0]).abs().max()) < 1e-9


def test_separable_rows_without_a_ridge_have_no_beta_calibration() -> None:
    z, _, s = drawn_events()
    with pytest.raises(FitError, match="the classes may be separable"):
        BetaCalibration(ridge=0.0).fit(z, (s > 0.3).long())


@pytest.mark.parametrize("other", [2.0, math.nextafter(2, 3)], ids=["equal", "equal but for rounding"])
def test_rows_of_equal_scores_are_pooled(other: float) -> None:
    s, hit = torch.tensor([other, -1.0, 2.0, 0.5], dtype=F64), torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=F64)
    (found,) = pool_ties(s[None], hit[None], torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64))
    assert (found.places.tolist(), found.mean.tolist(), found.mass.tolist()) == ([-1, 0.5, 2], [0, 1, 0.25], [2, 4, 4])


METHODS: list[Callable[..., Calibrator]] = [
    PlattScaling, BetaCalibration, SplineCalibration, IsotonicCalibration, CentredIsotonic, VennAbers,
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_more_classes_are_one_against_the_rest_then_normalised(method: Callable[..., Calibrator]) -> None:
    z, y = drawn(300, 3, spread=2)
    # the floor is ε / K, so it differs between two and three classes
    made = (lambda: method(floor=0.0)) if hasattr(method(), "floor") else method
    odds = log_odds(z)
    each = [p_of(made().fit(of_log_odds(one), (y == c).long()), of_log_odds(one)) for c, one in enumerate(odds)]
    expected = torch.stack(each, 1)
    ours = torch.softmax(made().fit(z, y)(z), 1)
    torch.testing.assert_close(ours, expected / expected.sum(1, keepdim=True), rtol=0, atol=1e-9)
