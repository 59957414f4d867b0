"""Calibration of costs: hand values, size and power of its tests, weights, groups, and what is refused."""

import math

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluate import cost_calibration
from calibrant.evaluate.cost_calibration import range_tail

COSTS = [[0.0, 1.0, 4.0], [2.0, 0.0, 1.0], [6.0, 3.0, 0.0]]


def sample(rows: int, *, seed: int = 0, sharpness: float = 1.0) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(rows, 3, generator=g).double()
    return Predictions.from_logits(sharpness * z, torch.softmax(z, 1).multinomial(1, generator=g)[:, 0])


def test_by_hand() -> None:
    # .9: action 1 foresees .1 · 1; .1: action 0 foresees .1 · 5 = .5; two of four events are missed
    data = Predictions.from_binary_probs([0.9, 0.9, 0.1, 0.1], [1, 0, 1, 0])
    found = cost_calibration(data, [[0, 1], [5, 0]])
    assert (found.foreseen, found.realised) == (pytest.approx(0.3), pytest.approx((0 + 1 + 5 + 0) / 4))
    assert found.difference.estimate == pytest.approx(1.2)
    assert found.kuiper == pytest.approx((0.8 + 4.0) / 4)  # both ranges lie above, in the order .1 .1 | .5 .5
    abstained = cost_calibration(data, [[0, 1], [5, 0]], reject=0.2)
    assert (abstained.foreseen, abstained.realised) == (pytest.approx(0.15), pytest.approx((0 + 1 + 0.2 + 0.2) / 4))


def test_the_tests_have_their_size_and_find_a_gap() -> None:
    calibrated = [cost_calibration(sample(1000, seed=seed), COSTS) for seed in range(400)]
    for ps in ([one.p for one in calibrated], [one.kuiper_p or 0.0 for one in calibrated]):
        assert np.mean(np.array(ps) < 0.05) < 0.08
    assert np.mean([one.difference.low <= 0 <= one.difference.high for one in calibrated]) > 0.92
    off = [cost_calibration(sample(1000, seed=seed, sharpness=1.6), COSTS) for seed in range(40)]
    assert np.mean([one.p < 0.05 for one in off]) > 0.9
    assert np.mean([(one.kuiper_p or 1.0) < 0.05 for one in off]) > 0.9


def test_the_range_of_a_brownian_motion() -> None:
    steps = np.random.default_rng(0).normal(size=(4000, 1000)).cumsum(axis=1) / math.sqrt(1000)
    ranges = np.maximum(steps.max(1), 0) - np.minimum(steps.min(1), 0)
    for ratio in (1.2, 1.8, 2.5):  # 1,000 steps see a range that is about .037 shorter (.58 √(1 / 1,000) at each end)
        assert range_tail(ratio) == pytest.approx(np.mean(ranges + 0.037 > ratio), abs=0.03)


def test_gaps_that_cancel_are_found_over_ranges() -> None:
    probs = torch.tensor([0.02, 0.12]).repeat(1500)
    y = torch.zeros(3000, dtype=torch.long)
    y[0::2][: 30 + 45], y[1::2][: 180 - 45] = 1, 1  # 5 % of the first, 9 % of the second
    found = cost_calibration(Predictions.from_binary_probs(probs, y), [[0, 100], [1, 100]])
    assert found.p > 0.5
    assert found.kuiper_p < 0.01


def test_weights_and_groups_count() -> None:
    data = sample(600, sharpness=1.3)
    once = cost_calibration(data, COSTS)
    shares = Predictions.from_logits(data.logits, data.labels, weights=[2.0] * 600)
    both = Predictions.cat([data, data])
    assert cost_calibration(shares, COSTS).p == pytest.approx(once.p)
    grouped = Predictions.from_logits(both.logits, both.labels, groups=torch.arange(600).repeat(2))
    found = cost_calibration(grouped, COSTS)
    assert found.kuiper_p is None
    assert found.p == pytest.approx(once.p, abs=0.05)  # as without the copies


def test_negative_costs_are_fine_and_equal_ones_refused() -> None:
    with pytest.raises(
        InputError, match="expected costs that differ between actions, got the same for all of them; give"
    ):
        cost_calibration(sample(100), [[2.0, 2.0]] * 3)
    assert cost_calibration(sample(100), [[-cost for cost in row] for row in COSTS]).foreseen < 0
