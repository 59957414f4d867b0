"""What every part of ``operate`` does with weighted, dependent, missing and impossible rows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.draws import drawn

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.operate import Monitor, abstain, check, estimate, rows_needed, thresholds

COSTS = [[0, 1, 2], [3, 0, 1], [1, 1, 0]]


def rows(count: int = 300, *, seed: int = 0) -> Predictions:
    """Return calibrated predictions of three classes."""
    return Predictions.from_logits(*drawn(count, 3, seed=seed, spread=2, sharp=1))


USES: dict[str, Callable[[Predictions], object]] = {
    "check": lambda data: check(data, maximum={"ece": 0.1}),
    "check(baseline)": lambda data: check(rows(), no_worse={"nll": 0.1}, baseline=data),
    "rows_needed": lambda data: rows_needed(data, ece=0.1, draws=10),
    "Monitor": lambda data: Monitor(data),
    "Monitor.update": lambda data: Monitor(rows(seed=1)).update(data),
    "estimate": lambda data: estimate(data),
    "estimate(reference)": lambda data: estimate(rows(seed=1), reference=data),
    "abstain": lambda data: abstain(data, error=0.3),
    "expected_cost": lambda data: thresholds(COSTS).expected_cost(data),
    "foreseen_cost": lambda data: thresholds(COSTS).foreseen_cost(data),
}


UNLABELLED = ("rows_needed", "estimate", "foreseen_cost")


@pytest.mark.parametrize("name", USES)
def test_rows_that_do_not_count_alike_are_refused(name: str) -> None:
    use, data = USES[name], rows()
    use(data)
    cases = {
        "without weights": replace(data, weights=torch.full((len(data),), 2.0).double()),
        "expected independent rows": replace(data, groups=torch.arange(len(data)) // 2),
        "expected at least one row": data[torch.zeros(len(data), dtype=torch.bool)],
        "labelled": replace(data, labels=None),
    }
    for message, wrong in cases.items():
        if message == "labelled" and name in UNLABELLED:
            continue
        with pytest.raises(InputError, match=message):
            use(wrong)


def impossible(data: Predictions, count: int) -> Predictions:
    """Return ``data`` with probability 0 for the labels of the first ``count`` rows."""
    probs, labels = data.probs.clone(), data.require_labels()
    probs[torch.arange(count), labels[:count]] = 0
    return Predictions.from_probs(probs / probs.sum(dim=1, keepdim=True), labels)


@pytest.mark.parametrize("count", [1, 300])
def test_labels_of_probability_0_give_finite_figures(count: int) -> None:
    data = impossible(rows(), count)
    certain = Predictions.from_probs(torch.eye(3).double()[(data.require_labels() + 1) % 3], data.labels)
    assert estimate(rows(seed=1), reference=data).nll is None
    with pytest.raises(InputError, match="100 % of the rows have confidences outside those of the reference, 1 to 1"):
        estimate(rows(seed=1), reference=certain)
    for zero in (data, certain):
        monitor = Monitor(zero)
        status = monitor.update(rows(200, seed=1))
        assert np.isfinite([status.evidence, status.peak, status.confidence, status.accuracy]).all()
        assert "nan" not in str(status)
        assert np.isfinite(Monitor(rows(seed=2)).update(zero).evidence)
        bounds = check(zero, maximum={"ece": 0.1, "brier": 0.3}, minimum={"accuracy": 0.5}).lines
        assert all(0 <= line.low <= line.value <= line.high <= 2 for line in bounds)
        with pytest.raises(InputError, match="the log-loss is infinite in"):
            check(zero, no_worse={"nll": 0.1}, baseline=rows())
