"""Binary methods and their one-vs-rest form against scikit-learn, scipy and values worked out by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logit
from tests.conftest import late
from tests.draws import drawn
from torch import Tensor

from calibrant.calibrators import (
    BetaCalibration,
    Calibrator,
    CentredIsotonic,
    IsotonicCalibration,
    PlattScaling,
    ScalingBinning,
    SplineCalibration,
    VennAbers,
)
from calibrant.calibrators.one_vs_rest.maps import log_odds

isotonic = late("sklearn.isotonic")
linear_model = late("sklearn.linear_model")

F64 = torch.float64


def binary(rows: int = 300, *, seed: int = 0, ties: bool = False) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return logits (N, 2), labels and the log-odds s of class 1; labels follow σ(0.6 s − 0.5)."""
    g = torch.Generator().manual_seed(seed)
    s = 2 * torch.randn(rows, generator=g, dtype=F64)
    s = (s * 2).round() / 2 if ties else s
    y = torch.bernoulli(torch.sigmoid(0.6 * s - 0.5), generator=g).long()
    return torch.stack([torch.zeros_like(s), s], 1), y, s.numpy()


def p_of(calibrator: Calibrator, z: Tensor) -> np.ndarray:
    return torch.softmax(calibrator(z).double(), 1)[:, 1].numpy()


def soft_targets(y: np.ndarray) -> np.ndarray:
    hits, misses = y.sum(), (1 - y).sum()
    return np.where(y == 1, (hits + 1) / (hits + 2), 1 / (misses + 2))


def test_log_odds_hold_at_every_margin() -> None:
    z = torch.tensor([[40.0, 0.0, -1.0], [90.0, 0.0, 0.0], [0.0, -50.0, -60.0]], dtype=F64)
    odds = log_odds(z)
    assert float(odds[0, 0]) == pytest.approx(40 - math.log(1 + math.exp(-1)), abs=1e-12)
    assert float(odds[1, 0]) == pytest.approx(90 - math.log(2), abs=1e-12)
    assert float(odds[2, 1]) == pytest.approx(-50.0, abs=1e-12)
    assert torch.equal(log_odds(torch.tensor([[1.0, 3.5]])), torch.tensor([[2.5]], dtype=F64))


def test_platt_scaling_is_scikit_learns_logistic_regression_on_platts_targets() -> None:
    z, y, s = binary()
    target = soft_targets(y.numpy())
    peer = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    both = np.r_[s, s][:, None]
    peer.fit(both, np.r_[np.ones(300), np.zeros(300)], sample_weight=np.r_[target, 1 - target])
    a, b = PlattScaling(ridge=0.0).fit(z, y).coefficients[0].tolist()
    assert a == pytest.approx(peer.coef_[0, 0], abs=1e-5)
    assert b == pytest.approx(peer.intercept_[0], abs=1e-5)


def test_platt_scaling_by_hand() -> None:
    # one place a class, so each class is answered by its target: 3 hits give 4/5, 1 miss gives 1/3
    z = torch.tensor([[0.0, 1.0]] * 3 + [[0.0, -1.0]], dtype=F64)
    p = p_of(PlattScaling(ridge=0.0).fit(z, torch.tensor([1, 1, 1, 0])), z)
    np.testing.assert_allclose(p, [0.8, 0.8, 0.8, 1 / 3], atol=1e-6)


def test_beta_calibration_is_logistic_regression_on_its_two_logarithms() -> None:
    z, y, s = binary(1000)
    p = expit(s)
    peer = linear_model.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    peer.fit(np.stack([np.log(p), -np.log(1 - p)], 1), y.numpy())
    a, b, c = BetaCalibration(ridge=0.0).fit(z, y).coefficients[0].tolist()
    assert (a, b, c) == pytest.approx((*peer.coef_[0], peer.intercept_[0]), abs=1e-4)
    assert min(a, b) > 0


def test_beta_calibration_keeps_its_constraints_at_the_constrained_optimum() -> None:
    g = torch.Generator().manual_seed(2)
    s = torch.randn(400, generator=g, dtype=F64) * 2
    y = torch.bernoulli(torch.sigmoid(1 - s.abs()), generator=g).long()  # falls at one end
    z = torch.stack([torch.zeros_like(s), s], 1)
    p = expit(s.numpy())
    features = np.stack([np.log(p), -np.log(1 - p), np.ones(400)], 1)

    def objective(x: np.ndarray) -> float:
        t = features @ x
        ridge = ((x - np.array([1.0, 1.0, 0.0])) ** 2).sum() / 400
        return float(np.mean(np.logaddexp(0, t) - y.numpy() * t) + ridge)

    ours = BetaCalibration().fit(z, y).coefficients[0].numpy()
    brute = minimize(objective, [1.0, 1.0, 0.0], method="L-BFGS-B", bounds=[(0, None), (0, None), (None, None)])
    assert ours[:2].min() >= 0
    assert min(ours[:2]) == 0  # else the constraint would not have been tried
    assert objective(ours) <= brute.fun + 1e-9


def test_a_spline_is_straight_outside_its_knots_and_at_its_minimum() -> None:
    z, y, s = binary(500)
    fitted = SplineCalibration().fit(z, y)
    far = torch.tensor([[0.0, 8.0], [0.0, 9.0], [0.0, 10.0], [0.0, -8.0], [0.0, -9.0], [0.0, -10.0]], dtype=F64)
    t = logit(p_of(fitted, far))
    assert t[2] - t[1] == pytest.approx(t[1] - t[0], abs=1e-6)
    assert t[5] - t[4] == pytest.approx(t[4] - t[3], abs=1e-6)

    knots, target = fitted.places[0].numpy(), soft_targets(y.numpy())

    def curve(x: np.ndarray, at: np.ndarray) -> np.ndarray:
        cube = [np.maximum(at - k, 0) ** 3 for k in knots]
        d = [(cube[j] - cube[-1]) / (knots[-1] - knots[j]) for j in range(4)]
        bent = sum(x[2 + j] * (d[j] - d[-1]) for j in range(3)) / (knots[-1] - knots[0])
        return np.asarray(x[0] + x[1] * at + bent)

    def objective(x: np.ndarray) -> float:
        t = curve(x, s)
        return float(np.mean(np.logaddexp(0, t) - target * t) + (((x - np.eye(5)[1]) ** 2).sum()) / 500)

    ours = fitted.coefficients[0].numpy()
    np.testing.assert_allclose(logit(p_of(fitted, z)), curve(ours, s), atol=1e-9)
    brute = minimize(objective, np.eye(5)[1], method="BFGS", options={"gtol": 1e-8})
    assert objective(ours) <= brute.fun + 1e-12


@pytest.mark.parametrize("ties", [False, True])
def test_isotonic_is_scikit_learns(ties: bool) -> None:
    z, y, s = binary(ties=ties)
    peer = isotonic.IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(s, y.numpy())
    fitted = IsotonicCalibration(floor=0.0).fit(z, y)
    fresh = torch.stack([torch.zeros(200), torch.linspace(-9, 9, 200)], 1).double()
    for at in (z, fresh):
        np.testing.assert_allclose(p_of(fitted, at), peer.predict(at[:, 1].numpy()), atol=1e-9)


def test_the_floor_keeps_the_log_loss_finite() -> None:
    z, y, _ = binary()
    p = p_of(IsotonicCalibration().fit(z, y), z)
    assert p.min() >= 1 / 301 / 2 - 1e-12
    assert p_of(IsotonicCalibration(floor=0.0).fit(z, y), z).min() == 0
    assert p_of(IsotonicCalibration(floor=0.1).fit(z, y), z).max() <= 0.95 + 1e-12


def test_centred_isotonic_by_hand() -> None:
    # isotonic: 0 | 1/3 over s = 1, 2, 3 | 1; the pooled block is drawn to s = 2
    s = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0], dtype=F64)
    z = torch.stack([torch.zeros(5, dtype=F64), s], 1)
    fitted = CentredIsotonic(floor=0.0).fit(z, torch.tensor([0, 1, 0, 0, 1]))
    at = torch.tensor([[0.0, -5.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 7.0]], dtype=F64)
    np.testing.assert_allclose(p_of(fitted, at), [0, 1 / 6, 1 / 3, 2 / 3, 1], atol=1e-12)


def test_scaling_binning_answers_the_mean_of_the_scaled_probabilities() -> None:
    z, y, s = binary(400)
    fitted = ScalingBinning(8).fit(z, y)
    scaled = expit(PlattScaling().fit(z, y).coefficients[0].numpy() @ np.stack([s, np.ones(400)]))
    order = np.argsort(scaled)
    expected = np.empty(400)
    for rows in np.array_split(order, 8):
        expected[rows] = scaled[rows].mean()
    np.testing.assert_allclose(p_of(fitted, z), expected, atol=1e-9)
    assert len(np.unique(p_of(fitted, binary(400, seed=9)[0]).round(12))) <= 8


@pytest.mark.parametrize("ties", [False, True])
def test_venn_abers_is_two_isotonic_fits_for_every_row(ties: bool) -> None:
    z, y, s = binary(60, ties=ties)
    fitted = VennAbers().fit(z, y)
    fresh = np.r_[s[:10], np.linspace(-7, 7, 31)]
    low, high = fitted.interval(torch.stack([torch.zeros(41, dtype=F64), torch.from_numpy(fresh)], 1))
    for i, place in enumerate(fresh):
        for label, ours in ((0, low), (1, high)):
            peer = isotonic.IsotonicRegression().fit(np.r_[s, place], np.r_[y.numpy(), label])
            assert float(ours[i, 1]) == pytest.approx(float(peer.predict([place])[0]), abs=1e-9)
    p = p_of(fitted, torch.stack([torch.zeros(41, dtype=F64), torch.from_numpy(fresh)], 1))
    np.testing.assert_allclose(p, (high / (1 - low + high))[:, 1].numpy(), atol=1e-12)
    # the other class's interval is the complement
    np.testing.assert_allclose((low[:, 0] + high[:, 1]).numpy(), 1, atol=1e-12)


METHODS: list[Callable[[], Calibrator]] = [
    PlattScaling,
    BetaCalibration,
    SplineCalibration,
    IsotonicCalibration,
    CentredIsotonic,
    ScalingBinning,
    VennAbers,
]


@pytest.mark.parametrize("method", METHODS)
def test_more_classes_are_one_against_the_rest_then_normalised(method: Callable[[], Calibrator]) -> None:
    z, y = drawn(300, 3, spread=2)
    odds = log_odds(z)
    each = []
    for c in range(3):
        one = method()
        if hasattr(one, "floor"):
            one = type(one)(floor=0.0)  # the floor is ε / K, so it differs between two and three classes
        pair = torch.stack([torch.zeros_like(odds[:, c]), odds[:, c]], 1)
        each.append(p_of(one.fit(pair, (y == c).long()), pair))
    expected = np.stack(each, 1)
    whole = type(one)(floor=0.0) if hasattr(one, "floor") else method()
    ours = torch.softmax(whole.fit(z, y)(z), 1).numpy()
    np.testing.assert_allclose(ours, expected / expected.sum(1, keepdims=True), atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_binary_labels_may_be_named_the_other_way_round(method: Callable[[], Calibrator]) -> None:
    z, y, _ = binary()
    one = p_of(method().fit(z, y), z)
    other = p_of(method().fit(z.flip(1), 1 - y), z.flip(1))
    if method is ScalingBinning or method is SplineCalibration:
        assert np.abs(one - (1 - other)).max() < 0.05  # bins and knots are counted from one end
    else:
        np.testing.assert_allclose(one, 1 - other, atol=1e-6)
