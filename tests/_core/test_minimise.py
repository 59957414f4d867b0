"""The one solver of convex losses: hand values, Newton's method against L-BFGS, several problems at once, and no optimum."""

import math

import pytest
import torch
from torch import Tensor

from calibrant._core.minimise import Objective, _limited, minimise
from calibrant.errors import FitError

F64 = torch.float64
RIGHT, WRONG = 3.0, 1.0  # rows: log-loss 3 softplus(−θ) + softplus(θ)


def second(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums of problems whose parameters do not meet, θ (P,) or (C, P)."""
    p = torch.sigmoid(theta)
    value = -(RIGHT * torch.nn.functional.logsigmoid(theta) + WRONG * torch.nn.functional.logsigmoid(-theta))
    total = RIGHT + WRONG
    return value.sum(dim=-1), total * p - RIGHT, torch.diag_embed(total * p * (1 - p))


def first(theta: Tensor) -> tuple[Tensor, Tensor]:
    return second(theta)[:2]


def test_without_a_ridge_the_minimum_is_the_log_odds_of_the_rows() -> None:
    found = minimise(Objective(4.0, second), torch.zeros(1, dtype=F64))
    assert abs(float(found.theta) - math.log(3)) < 1e-12
    assert abs(found.value - (0.75 * math.log(4 / 3) + 0.25 * math.log(4))) < 1e-12
    assert found.gradient < 1e-12
    assert _limited(torch.tensor([[4.0, -8.0], [1.0, 0.5], [0.0, 0.0]]), 2.0).tolist() == [[1, -2], [1, 0.5], [0, 0]]


def test_a_ridge_holds_theta_at_its_centre() -> None:
    ridge, centre = torch.tensor([0.1, 1e6], dtype=F64), torch.tensor([0.0, -2.0], dtype=F64)
    theta = minimise(Objective(4.0, second, ridge=ridge, centre=centre), torch.zeros(2, dtype=F64)).theta
    # σ(θ) − ¾ + 2 · 0.1 θ = 0
    assert abs(float(torch.sigmoid(theta[0]) - 0.75 + 0.2 * theta[0])) < 1e-12
    assert abs(float(theta[1]) + 2) < 1e-6


def test_lbfgs_ends_where_newtons_method_does_also_with_other_blocks() -> None:
    ridge = torch.tensor([0.1, 0.2, 0.01], dtype=F64)
    loss, start = Objective(4.0, second, first, ridge=ridge, centre=0.5), torch.zeros(3, dtype=F64)
    exact = minimise(loss, start, newton_up_to=3).theta
    scales = torch.tensor([1e-4, 1.0, 1e4], dtype=F64)[:, None, None]
    for blocks in (None, lambda: scales):
        found = minimise(loss, start, newton_up_to=2, blocks=blocks)
        torch.testing.assert_close(found.theta, exact, rtol=0, atol=1e-6)  # 3e-8 over a curvature of 0.2
        assert found.gradient <= 3e-8


def test_several_problems_end_as_each_alone() -> None:
    ridge = torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=F64)
    start = torch.tensor([[0.0, 5.0], [-5.0, 1.0]], dtype=F64)
    both = minimise(Objective(4.0, second, ridge=ridge), start)
    for own, at, theta in zip(ridge, start, both.theta, strict=True):
        torch.testing.assert_close(minimise(Objective(4.0, second, ridge=own), at).theta, theta, rtol=0, atol=1e-12)


def test_a_bound_holds_and_is_no_part_of_the_certificate() -> None:
    low = torch.tensor([2.0], dtype=F64)
    found = minimise(Objective(4.0, second, bounds=(low, low + 9)), torch.full((1,), 3.0, dtype=F64))
    assert (float(found.theta), found.gradient) == (2.0, 0.0)


def test_no_minimum_is_an_error_by_either_method_unless_none_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant._core.minimise._RESTARTS", 1)  # each takes a second

    def falling(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return -theta.sum(), -torch.ones_like(theta), 0.01 * torch.eye(1, dtype=F64)

    loss, start = Objective(1.0, falling, lambda theta: falling(theta)[:2]), torch.zeros(1, dtype=F64)
    for newton_up_to in (None, 0):
        with pytest.raises(FitError, match=r"gradient below .*; regularise more"):
            minimise(loss, start, newton_up_to=newton_up_to)
    assert minimise(loss, start, enough=math.inf).gradient == 1.0
