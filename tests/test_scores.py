"""True-class scores: values, slopes given against slopes by autograd, limits, ranges."""

import math

import pytest
import torch
from tests.theory.scores_for_tests import OwnFocalScore

from calibrant.errors import RangeError
from calibrant.scores import FocalScore, InverseFocalScore, LogScore, TrueClassScore

P = torch.sigmoid(torch.linspace(-30, 30, 61, dtype=torch.float64))
LOG_P = torch.nn.functional.logsigmoid(torch.linspace(-30, 30, 61, dtype=torch.float64))
LOG_NOT_P = LOG_P.flip(0)
SCORES = [LogScore(), FocalScore(0.0), FocalScore(0.5), FocalScore(3.0), FocalScore(-0.5), InverseFocalScore(2.0)]


@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_the_slope_given_is_the_slope_by_autograd(score: TrueClassScore) -> None:
    by_autograd = TrueClassScore.slope(score, LOG_P, LOG_NOT_P)
    torch.testing.assert_close(score.slope(LOG_P, LOG_NOT_P), by_autograd, rtol=1e-9, atol=0)
    torch.testing.assert_close(score.log_slope(LOG_P, LOG_NOT_P), torch.log(by_autograd), rtol=0, atol=1e-9)


def test_hand_values() -> None:
    half = torch.tensor(0.5, dtype=torch.float64).log()
    assert FocalScore(2.0).value(half, half).item() == pytest.approx(0.25 * math.log(2))
    assert InverseFocalScore(2.0).value(half, half).item() == pytest.approx(2.25 * math.log(2))
    assert LogScore().value(half, half).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.25, 1.0, 3.0])
def test_focal_at_certainty(gamma: float, dtype: torch.dtype) -> None:
    log_p = torch.tensor([0.0, -math.inf], dtype=dtype)
    value = FocalScore(gamma).value(log_p, log_p.flip(0))
    assert value.tolist() == [0.0, math.inf]
    assert FocalScore(gamma).slope(log_p, log_p.flip(0)).tolist() == [0.0, 1.0]


def test_a_users_score_is_right_where_its_slope_underflows() -> None:
    log_p, log_not_p = torch.tensor([-math.exp(-60.0)]), torch.tensor([-60.0])
    expected = FocalScore(2.0).log_slope(log_p, log_not_p)
    torch.testing.assert_close(OwnFocalScore().log_slope(log_p, log_not_p), expected)
    assert OwnFocalScore().slope(log_p, log_not_p).dtype == torch.float32
    # one that underflows in float64, too, counts as the smallest normal number
    lost = OwnFocalScore().log_slope(
        torch.tensor([-1e-200], dtype=torch.float64), torch.tensor([-460.0], dtype=torch.float64)
    )
    assert lost.item() == pytest.approx(math.log(torch.finfo(torch.float64).tiny))


def test_a_users_slope_is_differentiable() -> None:
    log_p = torch.tensor([-0.3, -1.0, -5.0], dtype=torch.float64, requires_grad=True)
    function = lambda u: OwnFocalScore().log_slope(u, torch.log1p(-torch.exp(u)))  # noqa: E731
    assert torch.autograd.gradcheck(function, (log_p,))
    (own,) = torch.autograd.grad(function(log_p).sum(), log_p)
    (given,) = torch.autograd.grad(FocalScore(2.0).log_slope(log_p, torch.log1p(-torch.exp(log_p))).sum(), log_p)
    torch.testing.assert_close(own, given)


def test_the_log_slope_is_that_of_the_slope_given() -> None:
    class OwnSlope(OwnFocalScore):
        def slope(self, log_p: torch.Tensor, log_not_p: torch.Tensor) -> torch.Tensor:
            return FocalScore(2.0).slope(log_p, log_not_p)

    torch.testing.assert_close(OwnSlope().log_slope(LOG_P, LOG_NOT_P), FocalScore(2.0).log_slope(LOG_P, LOG_NOT_P))
    assert OwnSlope().log_slope(LOG_P.float(), LOG_NOT_P.float()).dtype == torch.float32


def test_a_slope_that_increases_has_no_logarithm() -> None:
    p = torch.tensor([0.39], dtype=torch.float64)
    assert math.isnan(InverseFocalScore(5.0).log_slope(p.log(), torch.log1p(-p)).item())


@pytest.mark.parametrize("gamma", [-1, -1.5])
def test_the_focal_range_names_its_reason(gamma: float) -> None:
    with pytest.raises(RangeError, match="negative probabilities"):
        FocalScore(gamma)
    with pytest.raises(ValueError, match="gamma"):
        FocalScore(math.nan)
    with pytest.raises(ValueError, match="gamma"):
        InverseFocalScore(-0.1)
