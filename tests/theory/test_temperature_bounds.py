"""Each bound over many random cases."""

import math

import pytest
import torch

from calibrant.errors import InputError
from calibrant.scores import FocalScore
from calibrant.theory import (
    SLOPE_BOUND_LIMIT,
    confidence_change,
    confidence_never_falls,
    entropy_bound,
    fit_temperatures,
    focal_curvature,
    focal_logit,
    measured_temperature_bounds,
    nearest_temperature,
    neutral_probability,
    scaling_change,
    small_logit_slope,
    temperature_bounds,
)

LOGITS = torch.logspace(-6, math.log10(60), 4000, dtype=torch.float64)


def rows(classes: int, *, seed: int, count: int = 2000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(count, 1, dtype=torch.float64, generator=generator) * 8
    return torch.log_softmax(torch.randn(count, classes, dtype=torch.float64, generator=generator) * scale, dim=1)


@pytest.mark.parametrize("name", [f"focal_map_binary_slope_gamma{gamma}" for gamma in ("0.5", "2", "4", "10")])
def test_slope_and_temperatures(vectors, name: str) -> None:
    case = vectors[name]
    gamma, expected = case["inputs"]["gamma"], case["expected"]
    assert small_logit_slope(gamma) == pytest.approx(expected["slope_at_zero"], abs=1e-9)
    assert 1 / small_logit_slope(gamma) == pytest.approx(expected["T_upper"], abs=1e-9)
    bounds = temperature_bounds(gamma)
    assert (bounds.low, bounds.high) == (pytest.approx(expected["T_lower"]), pytest.approx(expected["printed_T_upper"]))
    s = torch.tensor(1e-4, dtype=torch.float64)
    assert float(focal_logit(s, gamma) / s) == pytest.approx(expected["slope_at_zero"], rel=1e-7)  # s² remains


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0, 2.0, 4.0, 5.6, 7.0, 10.0, 50.0])
def test_proposition_3_holds_corrected(gamma: float) -> None:
    mapped, bounds = focal_logit(LOGITS, gamma), temperature_bounds(gamma)
    assert bool((mapped >= LOGITS / bounds.high).all())
    assert bool((mapped <= LOGITS / bounds.low * (1 + 1e-15)).all())
    assert bool((focal_logit(-LOGITS, gamma) <= -LOGITS / bounds.high).all())
    assert focal_logit(torch.zeros(1), gamma).item() == 0  # equality, where a strict inequality is printed


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 3.0, 5.0, 5.6, 5.635])
def test_the_slope_at_0_bounds_up_to_its_limit(gamma: float) -> None:
    mapped = focal_logit(LOGITS, gamma)
    # at small s the logit is a difference of numbers of size γ, so its rounding is absolute
    assert bool((mapped >= LOGITS / temperature_bounds(gamma, tight=True).high - 1e-14).all())
    assert temperature_bounds(gamma, tight=True).width < temperature_bounds(gamma).width


@pytest.mark.parametrize(("gamma", "dip", "at"), [(7.0, 1.0e-4, 1.15), (10.0, 4.9e-4, 1.9)])
def test_beyond_the_limit_the_slope_dips_below(gamma: float, dip: float, at: float) -> None:
    relative = focal_logit(LOGITS, gamma) / (small_logit_slope(gamma) * LOGITS) - 1
    assert float(relative.min()) == pytest.approx(-dip, rel=0.05)
    assert float(LOGITS[relative.argmin()]) == pytest.approx(at, abs=0.1)
    with pytest.raises(InputError, match="tight bound"):
        temperature_bounds(gamma, tight=True)


def test_the_limit_is_where_the_third_derivative_at_0_changes_sign() -> None:
    def cubic(gamma: float) -> float:
        s = torch.tensor(0.02, dtype=torch.float64)
        return float(focal_logit(s, gamma) / s - small_logit_slope(gamma))

    assert cubic(SLOPE_BOUND_LIMIT - 0.01) > 0 > cubic(SLOPE_BOUND_LIMIT + 0.01)


def test_measured_bounds_lie_inside() -> None:
    found = measured_temperature_bounds(4.0)
    assert (found.low, found.high) == (pytest.approx(0.2033, abs=1e-4), pytest.approx(0.21784, abs=1e-5))
    assert measured_temperature_bounds(4.0, reach=11.0).low == pytest.approx(0.206, abs=5e-4)
    for gamma in (0.5, 2.0, 8.0):
        found, proven = measured_temperature_bounds(gamma, step=0.01), temperature_bounds(gamma)
        assert proven.low < found.low < found.high < proven.high


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.3, 0.5, 0.99, 1.0, 2.0, 10.0])
def test_proposition_1_the_curvature_is_positive(gamma: float) -> None:
    p = torch.sigmoid(torch.linspace(-30, 15, 2001, dtype=torch.float64))
    curvature = focal_curvature(p, gamma)
    assert bool((curvature > 0).all())
    if gamma > 0:
        middle = p[600:1500].requires_grad_(True)
        value = FocalScore(gamma).value(torch.log(middle), torch.log1p(-middle))
        (first,) = torch.autograd.grad(value.sum(), middle, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), middle)
        torch.testing.assert_close(second, curvature[600:1500], rtol=1e-7, atol=1e-10)


def test_curvature_is_refused_at_the_ends() -> None:
    with pytest.raises(InputError, match=r"inside \(0, 1\)"):
        focal_curvature(torch.tensor([0.0, 0.5]), 1.0)


def test_proposition_5_has_counter_examples(vectors) -> None:
    four = torch.tensor([vectors["focal_map_prop5_counterexample_K4"]["inputs"]["q"]], dtype=torch.float64)
    assert confidence_change(four.log(), 0.5).item() == pytest.approx(0.3299225858196007 - 0.33, abs=1e-12)
    thousand = torch.tensor([[0.1] + [0.0009] * 1000], dtype=torch.float64)
    assert 0.1 + confidence_change(thousand.log(), 3.0).item() == pytest.approx(0.0806, abs=5e-5)
    assert confidence_never_falls(four.log()).tolist() == [False]


@pytest.mark.parametrize("classes", [2, 3, 4, 10, 100])
def test_the_corrected_proposition_5(classes: int) -> None:
    log_q = rows(classes, seed=classes)
    safe = confidence_never_falls(log_q)
    assert bool(safe.any())
    for gamma in (0.05, 0.5, 1.0, 3.0, 10.0):
        assert float(confidence_change(log_q, gamma)[safe].min()) > -1e-15


@pytest.mark.parametrize(("gamma", "q1"), [(0.5, 0.421), (1.0, math.exp(-1)), (2.0, 0.298), (3.0, 0.253), (5.0, 0.197)])
def test_neutral_probability(gamma: float, q1: float) -> None:
    found = neutral_probability(gamma)
    assert found == pytest.approx(q1, abs=1e-12 if gamma == 1 else 6e-4)
    r = (1 - found) ** -gamma / (1 - gamma * found * math.log(found) / (1 - found))
    assert r == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.5, 1.0, 2.0, 7.0])
def test_the_entropy_bound_for_labels_and_soft_targets(classes: int, gamma: float) -> None:
    log_p = rows(classes, seed=classes)
    labels = torch.arange(len(log_p)) % classes
    soft = rows(classes, seed=classes + 1).exp()
    for targets in (labels, soft):
        found = entropy_bound(log_p, targets, gamma)
        assert float(found.gap.min()) > -1e-12
    hard = entropy_bound(log_p, labels, gamma)
    expected = -log_p.gather(1, labels[:, None])[:, 0] + gamma * (log_p.exp() * log_p).sum(dim=1)
    torch.testing.assert_close(hard.bound, expected)


@pytest.mark.parametrize("factor", [1.0, 1.001, 2.0, 50.0])
def test_theorem_1_of_the_report(factor: float) -> None:
    logits = torch.randn(500, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    change = scaling_change(logits, factor)
    direct = torch.softmax(factor * logits, 1).amax(1) - torch.softmax(logits, 1).amax(1)
    torch.testing.assert_close(change, direct, atol=1e-14, rtol=0)
    assert bool((change >= 0).all())
    ties = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, -math.inf]], dtype=torch.float64)
    assert scaling_change(ties, factor).tolist() == [0.0, 0.0]


QUARTERS = [i / 4 for i in range(41)]


def check_temperatures(case: dict, classes: int) -> None:
    for gamma, temperature in case["expected"]["T_at"].items():
        assert nearest_temperature(classes, float(gamma)) == pytest.approx(temperature, abs=case["tolerance"]["T"])


def test_binary_temperatures_and_errors(vectors) -> None:
    case = vectors["fit_binary"]
    check_temperatures(case, 2)
    fit = fit_temperatures(2, [0.45, 1.0, 3.0])
    assert fit.errors == pytest.approx([0.001208, 0.00079, 6.6e-05], rel=0.01)


def test_binary_lines(vectors) -> None:
    expected = vectors["fit_binary"]["expected"]
    fit = fit_temperatures(2, QUARTERS[::2])
    assert fit.line() == pytest.approx((expected["slope"], expected["intercept"]), abs=0.01)
    first = fit_temperatures(2, [i / 2 for i in range(15)])
    assert first.line() == pytest.approx(expected["fit_range_0_7"], abs=0.012)  # half as many γ as there
    assert fit.inverse_temperatures[0] == pytest.approx(1.0, abs=1e-4)


def test_three_class_temperatures(vectors) -> None:
    check_temperatures(vectors["fit_3class"], 3)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 4])
def test_lines_of_three_and_four_classes(vectors, classes: int) -> None:
    case = vectors[f"fit_{classes}class"]
    expected, tolerance = case["expected"], case["tolerance"]
    fit = fit_temperatures(classes, QUARTERS)
    slope, intercept = fit.line()
    assert slope == pytest.approx(expected["slope"], abs=tolerance["slope"])
    assert intercept == pytest.approx(expected["intercept"], abs=tolerance["intercept"])
    assert fit.errors[36] == pytest.approx(expected["max_err_at_9"], abs=tolerance["err"])
    check_temperatures(case, classes)
    if classes == 4:  # the printed line is not ours
        assert abs(intercept - expected["paper"][1]) > 0.1


@pytest.mark.parametrize("gamma", [-0.99, -0.5, 0.5, 3.0])
def test_no_other_temperature_is_nearer(gamma: float) -> None:
    s = torch.arange(0, 20, 0.01, dtype=torch.float64)
    target = torch.sigmoid(focal_logit(s, gamma))
    inverse = torch.arange(0.5 * (gamma + 1), max(gamma + 1, 1.5), 1e-3, dtype=torch.float64)
    errors = (torch.sigmoid(inverse[:, None] * s) - target).abs().amax(dim=1)
    assert 1 / nearest_temperature(2, gamma) == pytest.approx(float(inverse[errors.argmin()]), abs=2e-3)


def test_a_line_needs_two_gammas() -> None:
    with pytest.raises(InputError, match="two gammas"):
        fit_temperatures(2, [1.0])
