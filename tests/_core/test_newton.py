"""Newton's methods: hand values, ridges, bounds, several problems at once, and no optimum."""

import math

import pytest
import torch
from torch import Tensor

from calibrant._core import newton as minimisers
from calibrant._core.newton import convex_fit, newton
from calibrant.errors import FitError

F64 = torch.float64


def derivatives(theta: Tensor, ridge: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean log-loss of three rows right and one wrong, ¾ softplus(−θ) + ¼ softplus(θ), with ridge · θ², in each coordinate."""
    p = torch.sigmoid(theta)
    value = -0.75 * p.log() - 0.25 * (1 - p).log() + ridge * theta**2
    return value.sum(dim=-1), p - 0.75 + 2 * ridge * theta, torch.diag_embed(p * (1 - p) + 2 * ridge)


def test_the_minimum_is_the_log_odds_of_the_rows() -> None:
    found = newton(derivatives, torch.full((1,), -4.0, dtype=F64))
    assert abs(float(found.theta) - math.log(3)) < 1e-14  # the last step makes the point exact
    assert abs(found.value - (0.75 * math.log(4 / 3) + 0.25 * math.log(4))) < 1e-14
    assert found.gradient < 1e-15


def test_several_problems_end_as_each_alone() -> None:
    start = torch.tensor([[0.0, 5.0], [-5.0, 1.0]], dtype=F64)
    both = newton(lambda theta: derivatives(theta, 0.1), start)
    assert float((torch.sigmoid(both.theta) - 0.75 + 0.2 * both.theta).abs().max()) < 1e-14
    for row, theta in zip(start, both.theta, strict=True):
        torch.testing.assert_close(newton(lambda x: derivatives(x, 0.1), row).theta, theta, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("low", "high", "end"), [(2.0, math.inf, 2.0), (-math.inf, -1.0, -1.0), (0.0, 2.0, math.log(3))]
)
def test_a_bound_holds_and_is_no_part_of_the_certificate(low: float, high: float, end: float) -> None:
    start = torch.full((1,), low if math.isfinite(low) else -3.0, dtype=F64)
    found = newton(derivatives, start, low=low, high=high)
    assert abs(float(found.theta) - end) < 1e-14
    assert found.gradient < 1e-15


def test_bounds_end_at_the_constrained_minimum() -> None:
    # ½ xᵀ H x − bᵀ x, whose free minimum is (−1, 4): with x₁ ≥ 0 the other coordinate is b₂ / H₂₂
    hessian, b = torch.tensor([[2.0, 1.0], [1.0, 1.0]], dtype=F64), torch.tensor([2.0, 3.0], dtype=F64)

    def quadratic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x @ hessian @ x / 2 - b @ x, hessian @ x - b, hessian

    found = newton(quadratic, torch.tensor([5.0, 0.0], dtype=F64), low=torch.tensor([0.0, -9.0]))
    torch.testing.assert_close(found.theta, torch.tensor([0.0, 3.0], dtype=F64), rtol=0, atol=1e-9)


def test_parameters_that_change_nothing_and_units_do_not_matter() -> None:
    def two(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ways = torch.tensor([1e-6, 1e6], dtype=F64)
        value, gradient, hessian = derivatives((ways @ theta)[None])
        return value, gradient * ways, hessian * torch.outer(ways, ways)  # singular

    found = newton(two, torch.zeros(2, dtype=F64), accepted=1e-5)
    assert abs(1e-6 * float(found.theta[0]) + 1e6 * float(found.theta[1]) - math.log(3)) < 1e-9


def test_a_step_beyond_the_domain_is_shortened() -> None:
    def barrier(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (x - x.log()).sum(), 1 - 1 / x, torch.diag(1 / x**2)  # NaN below 0

    assert abs(float(newton(barrier, torch.tensor([50.0], dtype=F64)).theta) - 1) < 1e-12

    def falling(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return -x.sum(), -torch.ones_like(x), 0.01 * torch.eye(1, dtype=F64)

    with pytest.raises(FitError, match=r"a finite minimum .* got a gradient of 1; regularise more"):
        newton(falling, torch.zeros(1, dtype=F64))
    assert newton(falling, torch.zeros(1, dtype=F64), accepted=math.inf).gradient == 1


@pytest.mark.parametrize("wrong", [0.0, 0.25])  # all rows right; rows of one coordinate right, of the other not all
def test_a_minimum_at_infinity_is_an_error(wrong: float) -> None:
    def separable(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p, share = torch.sigmoid(-theta), torch.tensor([0.0, wrong], dtype=F64)
        softplus = torch.nn.functional.softplus
        value = (softplus(-theta) + share * theta).sum()
        return value, share - p, torch.diag(p * (1 - p))

    with pytest.raises(FitError, match="parameters that grow without bound"):
        newton(separable, torch.zeros(2, dtype=F64))


@pytest.mark.parametrize("few", [64, 0])  # with the Hessian, and with its products
def test_the_search_by_autograd_finds_the_same_minimum_or_raises(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimisers, "_FEW", few)

    def three_of_four(theta: Tensor) -> Tensor:
        shifted = theta - torch.arange(6, dtype=F64)
        return derivatives(shifted, 0.1)[0] + 0.5 * (theta.diff() - 1).square().sum()

    theta, worst = convex_fit(three_of_four, torch.zeros(6, dtype=F64))
    shared = newton(lambda x: derivatives(x, 0.1), torch.zeros(1, dtype=F64)).theta
    torch.testing.assert_close(theta - torch.arange(6), shared.expand(6), rtol=0, atol=1e-7)
    assert worst < 1e-9
    with pytest.raises(FitError, match="a gradient below 1e-06 at the optimum"):
        convex_fit(lambda x: x.sum(), torch.zeros(2, dtype=F64))
