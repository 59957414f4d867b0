"""Bounds from sums: never wrong more often than they say, whatever the number of rows, and as wide as they must be."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conftest import late

from calibrant.operate.bounds import (
    Moments,
    alternating_low,
    calibration_ends,
    fails_limit,
    log_above,
    mean_ends,
    share_ends,
)
from calibrant.operate.rows_needed import simulated

stats = late("scipy.stats")
BINS = 15


def models() -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return name → confidences and their probabilities."""
    wide, middle = (np.arange(60) + 0.5) / 60, np.linspace(0.3, 0.999, 60)
    sharp = np.linspace(0.3, 0.9995, 120)
    peaked = np.exp((sharp - 1) / 0.1)
    return {
        "confidences 0 to 1": (wide, np.full(60, 1 / 60)),
        "confidences 0.3 to 1": (middle, np.full(60, 1 / 60)),
        "mean confidence 0.90": (sharp, peaked / peaked.sum()),
    }


def broken(p: NDArray[np.float64], mass: NDArray[np.float64], ece: float, shape: str) -> NDArray[np.float64]:
    """Return the probabilities of being right at which the ECE in 15 bins is exactly ``ece``."""
    index = np.clip(np.ceil(p * BINS).astype(int) - 1, 0, BINS - 1)
    sign = np.where(index % 2 == 0, 1.0, -1.0) if shape == "alternating" else np.ones_like(p)
    if shape == "few bins":
        room = np.bincount(index, mass * p, minlength=BINS)
        order = np.argsort(-room)
        filled = int(np.searchsorted(np.cumsum(room[order]), ece))
        before = np.isin(index, order[:filled])  # wrong throughout; the next bin takes the rest of the gap
        rest = _shifted(np.where(index == order[filled], p, 0.0), mass, index, sign, ece - room[order[:filled]].sum())
        return np.where(before, 0.0, np.where(index == order[filled], rest, p))
    return _shifted(p, mass, index, sign, ece)


def _shifted(
    p: NDArray[np.float64], mass: NDArray[np.float64], index: NDArray[np.int64], sign: NDArray[np.float64], ece: float
) -> NDArray[np.float64]:
    """Return ``p`` moved against ``sign`` by the one amount at which the ECE is ``ece``."""
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        gaps = np.bincount(index, mass * (p - np.clip(p - sign * middle, 0, 1)))
        low, high = (middle, high) if np.abs(gaps).sum() < ece else (low, middle)
    return np.clip(p - sign * high, 0, 1)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (3, 50), (997, 1000)])
def test_bounds_of_a_share_are_scipys(k: int, n: int) -> None:
    exact = stats.binomtest(k, n).proportion_ci(0.95, "exact")
    assert share_ends(k, n, alpha=0.025) == pytest.approx((exact.low, exact.high), abs=1e-12)


@pytest.mark.parametrize("n", [3, 30, 1000])
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_bounds_of_a_mean_are_missed_as_rarely_as_they_say(n: int, rate: float) -> None:
    rng = np.random.default_rng(n)
    missed = np.zeros(2)
    for _ in range(100):
        x = 2.0 * (rng.random(n) < rate)  # the furthest from normal there is
        low, high = mean_ends(Moments.of(x), low=0, high=2, alpha=0.025)
        assert 0 <= low <= x.mean() <= high <= 2
        missed += (low > 2 * rate, high < 2 * rate)
    assert (missed <= 100 * 0.025 + 2 * math.sqrt(100 * 0.025)).all()


def test_no_error_among_few_rows_proves_little_and_among_many_much() -> None:
    for n, high in ((20, 0.3), (1000, 0.008)):
        x = np.full(n, -0.001)  # confidence 0.999, always right
        found = calibration_ends(Moments.of(x), confidences=np.array([0.999 * n]), alpha=0.025)
        assert found[0] <= 0.001 <= found[1]
        assert found[1] > 3.0 / n  # the rule of three: less could not be right
        assert found[1] < high or n == 20


def test_the_evidence_is_that_of_every_sign_vector_written_out() -> None:
    """Three bins have eight sign vectors: the factored form is their mean, mixed with those of one change."""
    rng = np.random.default_rng(2)
    x, index = rng.uniform(-1, 1, 60), rng.integers(0, 3, 60)
    moments, c, alpha = Moments.of(x, index, bins=3), 0.1, 0.025
    deviations = [0.6, 0.45, 0.33, 0.24, 0.17, 0.12, 0.08, 0.05, 1e-9]
    stakes = [0.14] * 6 + [0.05, 0.05, 0.06]
    total = 0.0
    for deviation, stake in zip(deviations, stakes, strict=True):
        bet = min(math.sqrt(2 * math.log(1 / alpha) / 60) / deviation, 0.9 / (1 + c))
        u = bet * (1 + c)
        products = {}
        for code in range(8):
            s = np.array([1 if code >> b & 1 else -1 for b in range(3)])
            y = s[index] * x - c
            products[tuple(s)] = math.exp(bet * y.sum() + (math.log(1 - u) + u) / (1 + c) ** 2 * (y**2).sum())
        one_change = [tuple([a] * k + [-a] * (3 - k)) for a in (1, -1) for k in range(4)]
        free = sum(products.values()) / 8
        total += stake * (free + sum(products[s] for s in one_change) / 8) / 2
    assert float(log_above(moments, c, alpha=alpha)) == pytest.approx(math.log(total), abs=1e-9)


@pytest.mark.parametrize("rows", [1000, 5000, 20_000])
def test_a_model_at_its_limit_rarely_fails_where_confidences_spread_and_errors_are_few(rows: int) -> None:
    rng, samples = (
        np.random.default_rng(4),
        2000,
    )  # 6 % of the rows at confidence .51, the others at .999; all are right in .999
    unsure = rng.binomial(rows, 0.06, samples)
    count = np.stack([unsure, rows - unsure], axis=1).astype(float)
    p = np.array([0.51, 0.999])
    right = rng.binomial(count.astype(int), 0.999)
    moments = Moments(count, count * p - right, count * p**2 - 2 * p * right + right)
    failed = fails_limit(moments, confidences=count * p, limit=0.06 * (0.999 - 0.51), alpha=0.025)
    assert failed.mean() < 0.025


@pytest.mark.parametrize("shape", ["calibrated", "alternating", "few bins"])
def test_it_is_missed_as_rarely_as_it_says(shape: str) -> None:
    p, mass = models()["confidences 0.3 to 1"]
    true = 0.0 if shape == "calibrated" else 0.03
    truth = p if true == 0 else broken(p, mass, true, shape)
    rng, alpha, draws = np.random.default_rng(3), 0.05, 4000
    moments, confidences = simulated(p, mass, truth, 3000, draws=draws, rng=rng)
    low = alternating_low(moments, confidences, alpha=alpha)
    assert (low > true).mean() <= alpha + 2 * math.sqrt(alpha / draws)


def test_alternating_gaps_are_proved_from_2000_rows() -> None:
    p, mass = models()["confidences 0 to 1"]
    moments, confidences = simulated(
        p, mass, broken(p, mass, 0.08, "alternating"), 2000, draws=500, rng=np.random.default_rng(4)
    )
    low = alternating_low(moments, confidences, alpha=0.025)
    assert (low > 0.03).mean() > 0.9
    one = Moments(moments.count[0], moments.total[0], moments.squares[0])
    assert alternating_low(one, confidences[0], alpha=0.025) == pytest.approx(low[0], abs=1e-12)


def test_bins_with_few_expected_errors_do_not_count() -> None:
    x = np.array([1.0] * 5 + [-0.0] * 3)  # all wrong at confidence 1: no normal sum is expected
    assert float(alternating_low(Moments.of(x), np.array([8.0]), alpha=0.025)) == 0.0
    empty = Moments(np.array([0.0, 200.0]), np.array([0.0, 90.0]), np.array([0.0, 60.0]))
    assert float(alternating_low(empty, np.array([0.0, 100.0]), alpha=0.025)) > 0.3
