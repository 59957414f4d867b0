"""Each bound and the nearest temperatures: stored values, and the statements over many random cases."""

import math

import pytest
import torch

from calibrant.errors import InputError
from calibrant.scores import FocalScore
from calibrant.theory import (
    SLOPE_BOUND_LIMIT,
    entropy_bound,
    fit_temperatures,
    focal_curvature,
    focal_logit,
    focal_map,
    measured_temperature_bounds,
    nearest_temperature,
    scaling_change,
    temperature_bounds,
)

LOGITS = torch.logspace(-6, math.log10(60), 4000, dtype=torch.float64)


def random_rows(classes: int, *, seed: int, count: int = 2000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(count, 1, dtype=torch.float64, generator=generator) * 8
    return torch.log_softmax(torch.randn(count, classes, dtype=torch.float64, generator=generator) * scale, dim=1)


@pytest.mark.parametrize("name", [f"focal_map_binary_slope_gamma{gamma}" for gamma in ("0.5", "4")])
def test_stored_slope_and_temperatures(vectors, name: str) -> None:
    case = vectors[name]
    gamma, expected = case["inputs"]["gamma"], case["expected"]
    assert temperature_bounds(gamma, tight=True).high == pytest.approx(expected["T_upper"], abs=1e-9)
    bounds = temperature_bounds(gamma)
    assert (bounds.low, bounds.high) == (pytest.approx(expected["T_lower"]), pytest.approx(expected["printed_T_upper"]))
    s = torch.tensor(1e-4, dtype=torch.float64)
    assert float(focal_logit(s, gamma) / s) == pytest.approx(expected["slope_at_zero"], rel=1e-7)  # s² remains


@pytest.mark.parametrize("gamma", [0.25, 1.0, 5.635, 10.0, 50.0])
def test_proposition_3_holds_corrected(gamma: float) -> None:
    mapped, bounds = focal_logit(LOGITS, gamma), temperature_bounds(gamma)
    assert bool((mapped >= LOGITS / bounds.high).all())
    assert bool((mapped <= LOGITS / bounds.low * (1 + 1e-15)).all())
    if gamma < SLOPE_BOUND_LIMIT:
        tight = temperature_bounds(gamma, tight=True)
        # at small s the logit is a difference of numbers of size γ, so its rounding is absolute
        assert bool((mapped >= LOGITS / tight.high - 1e-14).all())
        assert tight.width < bounds.width


def test_beyond_the_limit_the_slope_at_0_is_no_bound() -> None:
    def excess(gamma: float) -> torch.Tensor:
        slope = 1 + gamma - gamma * (2 * math.log(2) - 1) / (1 + gamma * math.log(2))
        return focal_logit(LOGITS, gamma) / (slope * LOGITS) - 1

    assert float(excess(10.0).min()) == pytest.approx(-4.9e-4, rel=0.05)
    assert float(LOGITS[excess(10.0).argmin()]) == pytest.approx(1.9, abs=0.1)
    near = (LOGITS - 0.02).abs().argmin()  # where the third derivative decides the sign
    assert float(excess(SLOPE_BOUND_LIMIT - 0.01)[near]) > 0 > float(excess(SLOPE_BOUND_LIMIT + 0.01)[near])
    with pytest.raises(InputError, match="tight bound"):
        temperature_bounds(7.0, tight=True)


def test_measured_bounds_lie_inside_the_proven_ones() -> None:
    found = measured_temperature_bounds(4.0)
    assert (found.low, found.high) == (pytest.approx(0.2033, abs=1e-4), pytest.approx(0.21784, abs=1e-5))
    assert measured_temperature_bounds(4.0, reach=11.0).low == pytest.approx(0.206, abs=5e-4)
    found, proven = measured_temperature_bounds(8.0, step=0.01), temperature_bounds(8.0)
    assert proven.low < found.low < found.high < proven.high
    for step in (0.0, 21.0):
        with pytest.raises(InputError, match="step"):
            measured_temperature_bounds(4.0, step=step)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 10.0])
def test_proposition_1_the_curvature_is_positive(gamma: float) -> None:
    p = torch.sigmoid(torch.linspace(-30, 15, 2001, dtype=torch.float64))
    curvature = focal_curvature(p, gamma)
    assert bool((curvature > 0).all())
    middle = p[600:1500].requires_grad_(True)
    value = FocalScore(gamma).value(torch.log(middle), torch.log1p(-middle))
    (first,) = torch.autograd.grad(value.sum(), middle, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), middle)
    torch.testing.assert_close(second, curvature[600:1500], rtol=1e-7, atol=1e-10)


def test_proposition_5_is_false_for_four_classes(vectors) -> None:
    four = torch.tensor([vectors["focal_map_prop5_counterexample_K4"]["inputs"]["q"]], dtype=torch.float64)
    assert focal_map(four.log(), 0.5).exp().max().item() == pytest.approx(0.3299225858196007, abs=1e-12)
    log_q = random_rows(10, seed=10)
    safe = log_q.amax(dim=1).exp() >= 0.5
    for gamma in (0.05, 1.0, 10.0):
        change = focal_map(log_q, gamma).amax(dim=1).exp() - log_q.amax(dim=1).exp()
        assert float(change[safe].min()) > -1e-15


@pytest.mark.parametrize("gamma", [0.0, 0.3, 2.0])
def test_the_entropy_bound_for_labels_and_soft_targets(gamma: float) -> None:
    log_p = random_rows(5, seed=5)
    labels, soft = torch.arange(len(log_p)) % 5, random_rows(5, seed=6).exp()
    assert float(entropy_bound(log_p, soft, gamma).gap.min()) > -1e-12
    hard = entropy_bound(log_p, labels, gamma)
    assert float(hard.gap.min()) > -1e-12
    expected = -log_p.gather(1, labels[:, None])[:, 0] + gamma * (log_p.exp() * log_p).sum(dim=1)
    torch.testing.assert_close(hard.bound, expected)


@pytest.mark.parametrize("factor", [1.0, 1.001, 50.0])
def test_theorem_1_of_the_report(factor: float) -> None:
    logits = torch.randn(500, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    change = scaling_change(logits, factor)
    direct = torch.softmax(factor * logits, 1).amax(1) - torch.softmax(logits, 1).amax(1)
    torch.testing.assert_close(change, direct, atol=1e-14, rtol=0)
    assert bool((change >= 0).all())
    ties = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, -math.inf]], dtype=torch.float64)
    assert scaling_change(ties, factor).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("classes", [2, 3])
def test_stored_nearest_temperatures(vectors, classes: int) -> None:
    case = vectors["fit_binary" if classes == 2 else "fit_3class"]
    for gamma, temperature in case["expected"]["T_at"].items():
        assert nearest_temperature(classes, float(gamma)) == pytest.approx(temperature, abs=case["tolerance"]["T"])


def test_stored_line_and_errors_of_two_classes(vectors) -> None:
    expected = vectors["fit_binary"]["expected"]
    fit = fit_temperatures(2, [i / 2 for i in range(21)])
    assert fit.line() == pytest.approx((expected["slope"], expected["intercept"]), abs=0.01)
    assert fit.inverse_temperatures[0] == pytest.approx(1.0, abs=1e-4)
    assert fit_temperatures(2, [0.45, 1.0, 3.0]).errors == pytest.approx([0.001208, 0.00079, 6.6e-05], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 4])
def test_stored_lines_of_three_and_four_classes(vectors, classes: int) -> None:
    case = vectors[f"fit_{classes}class"]
    expected, tolerance = case["expected"], case["tolerance"]
    fit = fit_temperatures(classes, [i / 4 for i in range(41)])
    slope, intercept = fit.line()
    assert slope == pytest.approx(expected["slope"], abs=tolerance["slope"])
    assert intercept == pytest.approx(expected["intercept"], abs=tolerance["intercept"])
    assert fit.errors[36] == pytest.approx(expected["max_err_at_9"], abs=tolerance["err"])


@pytest.mark.parametrize("gamma", [-0.99, 0.5, 3.0])
def test_no_other_temperature_is_nearer(gamma: float) -> None:
    s = torch.arange(0, 20, 0.01, dtype=torch.float64)
    target = torch.sigmoid(focal_logit(s, gamma))
    inverse = torch.arange(0.5 * (gamma + 1), max(gamma + 1, 1.5), 1e-3, dtype=torch.float64)
    errors = (torch.sigmoid(inverse[:, None] * s) - target).abs().amax(dim=1)
    assert 1 / nearest_temperature(2, gamma) == pytest.approx(float(inverse[errors.argmin()]), abs=2e-3)
