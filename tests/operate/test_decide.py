"""Decisions by cost: the rule, its threshold, what it costs."""

import pytest
import torch
from tests.draws import drawn

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.operate import thresholds
from calibrant.operate.bounds import mean_ends


def rows(count: int = 4000, *, seed: int = 0) -> Predictions:
    """Return calibrated predictions of three classes."""
    return Predictions.from_logits(*drawn(count, 3, seed=seed, spread=2, sharp=1))


def test_the_threshold_is_elkans() -> None:
    rule = thresholds([[0, 2], [6, -2]])  # (2 − 0) / (2 − 0 + 6 + 2)
    assert rule.threshold == pytest.approx(0.2)
    p = torch.tensor([0.19, 0.21, 0.0, 1.0], dtype=torch.float64)
    assert rule.decide(Predictions.from_binary_probs(p)).tolist() == [0, 1, 0, 1]


def test_each_row_has_the_action_of_least_expected_cost() -> None:
    costs = torch.tensor([[0.0, 4.0, 1.0, 2.5], [3.0, 0.0, 1.0, 0.5], [9.0, 8.0, 1.0, 0.0]], dtype=torch.float64)
    data = rows(200)
    expected = (data.probs[:, :, None] * costs).sum(dim=1)
    rule = thresholds(costs)
    assert torch.equal(rule.decide(data), expected.argmin(dim=1))
    unlabelled = Predictions.from_logits(data.logits)
    assert rule.foreseen_cost(unlabelled) == pytest.approx(float(expected.amin(dim=1).mean()))
    with pytest.raises(InputError, match="two classes and two actions"):
        _ = rule.threshold


def test_abstaining_is_chows_rule() -> None:
    data = rows(500)
    chosen = thresholds(1 - torch.eye(3), reject=0.3).decide(data)
    sure = data.probs.amax(dim=1) >= 0.7
    assert torch.equal(chosen, torch.where(sure, data.predicted, -1))
    assert 0 < int((chosen == -1).sum()) < 500


def test_what_it_costs_has_the_bounds_of_a_mean_within_the_table() -> None:
    rule, large = thresholds([[0, 1, 5], [2, 0, 1], [20, 1, 0]], reject=0.4), rows(20_000)
    found, actions = rule.expected_cost(large), rule.decide(large)
    paid = rule.table[large.require_labels(), torch.where(actions < 0, 3, actions)].numpy()
    assert (found.low, found.high) == pytest.approx(mean_ends(paid, low=0, high=20, alpha=0.025))
    assert found.value == pytest.approx(paid.mean())
    assert rule.foreseen_cost(large) == pytest.approx(found.value, abs=0.02)


def test_costs_that_decide_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="finite costs"):
        thresholds([[0, float("nan")], [1, 0]])
    with pytest.raises(InputError, match="each better for its own class"):
        _ = thresholds([[0, 1], [0, 1]]).threshold


@pytest.mark.parametrize("method", ["decide", "expected_cost", "foreseen_cost"])
def test_costs_of_other_classes_are_refused(method: str) -> None:
    rule = thresholds([[0, 1], [5, 0]])
    with pytest.raises(
        InputError, match="expected predictions of 2 classes, one for each row of the costs, got 3 classes"
    ):
        getattr(rule, method)(rows(20))
