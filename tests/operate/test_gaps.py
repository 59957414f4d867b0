"""The lower bound for gaps of alternating signs: never above the truth more often than it says, and above 0 where gaps are seen."""

import math

import numpy as np
import pytest

from calibrant.operate import gaps
from calibrant.operate.gaps import alternating_low
from calibrant.operate.moments import Moments
from calibrant.operate.plan import simulated


def test_what_a_bin_adds_is_never_too_large_on_average() -> None:
    factor, _ = gaps._table()
    draws = np.random.default_rng(0).normal(size=200_000)
    excess = []
    for gap in np.linspace(0, 5, 21):
        z = gap + draws
        excess.append(float((np.abs(z) - factor * np.exp(-(z**2) / (2 * gaps.WIDTH**2))).mean() - gap))
    error = 1.3 / math.sqrt(len(draws))  # of the simulated mean
    assert max(excess) <= 3 * error
    assert max(excess) >= -3 * error  # and no smaller than it must be


@pytest.mark.parametrize("shape", ["calibrated", "alternating", "few bins"])
def test_it_is_missed_as_rarely_as_it_says(shape: str) -> None:
    from benchmarks.gate import broken, models

    p, mass = models()["confidences 0.3 to 1"]
    true = 0.0 if shape == "calibrated" else 0.03
    truth = p if true == 0 else broken(p, mass, true, shape)
    rng, alpha, draws = np.random.default_rng(3), 0.05, 4000
    moments, confidences = simulated(p, mass, truth, 3000, draws=draws, rng=rng)
    low = alternating_low(moments, confidences, alpha=alpha)
    assert (low > true).mean() <= alpha + 2 * math.sqrt(alpha / draws)


def test_alternating_gaps_are_proved_from_2000_rows() -> None:
    from benchmarks.gate import broken, models

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
