"""Bounds that hold for any number of rows: never missed more often than they say, and as wide as they must be."""

import math

import numpy as np
import pytest
from tests.conftest import late

from calibrant.operate.bounds import mean_ends, share_ends

stats = late("scipy.stats")


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (3, 50), (997, 1000)])
def test_bounds_of_a_share_are_scipys(k: int, n: int) -> None:
    exact = stats.binomtest(k, n).proportion_ci(0.95, "exact")
    assert share_ends(k, n, alpha=0.025) == pytest.approx((exact.low, exact.high), abs=1e-12)


@pytest.mark.parametrize("n", [3, 1000])
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_bounds_of_a_mean_are_missed_as_rarely_as_they_say(n: int, rate: float) -> None:
    rng = np.random.default_rng(n)
    missed = np.zeros(2)
    for _ in range(100):
        x = 2.0 * (rng.random(n) < rate)  # the furthest from normal there is
        low, high = mean_ends(x, low=0, high=2, alpha=0.025)
        assert 0 <= low <= x.mean() <= high <= 2
        missed += (low > 2 * rate, high < 2 * rate)
    assert (missed <= 100 * 0.025 + 2 * math.sqrt(100 * 0.025)).all()


def test_at_its_bound_the_mean_of_the_e_values_is_one_over_alpha() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 60) + 0.2
    low, high = mean_ends(x, low=-1, high=2, alpha=0.025)
    for rows, c in (((x + 1) / 3, (low + 1) / 3), ((2 - x) / 3, (2 - high) / 3)):
        total = 0.0
        for deviation, stake in zip(
            [0.6, 0.45, 0.33, 0.24, 0.17, 0.12, 0.08, 0.05, 1e-9], [0.14] * 6 + [0.05, 0.05, 0.06], strict=False
        ):
            bet = min(math.sqrt(2 * math.log(40) / 60) / deviation, 0.9 / c)
            y, u = rows - c, bet * c
            total += stake * math.exp(bet * y.sum() + (math.log(1 - u) + u) / c**2 * (y**2).sum())
        assert total == pytest.approx(40, rel=1e-6)


def test_a_mean_of_zeros_is_bounded_by_the_rule_of_three() -> None:
    for n, most in ((20, 0.45), (1000, 0.0101)):
        low, high = mean_ends(np.zeros(n), low=0, high=1, alpha=0.025)
        assert low == 0
        assert 3.0 / n < high < most
