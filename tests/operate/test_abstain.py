"""Abstention: the promise in simulation, by class and by group, by coverage, and as a module."""

import math

import numpy as np
import pytest
import torch

from calibrant import Pairs, Predictions
from calibrant.errors import InputError
from calibrant.operate import abstain


def pairs(rows: int, *, seed: int, doubt: float = 1.0) -> Pairs:
    """Return confidences that are wrong ``doubt`` times as often as they say."""
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-rng.normal(2, 2, rows)))
    return Pairs.from_probs(p, (rng.random(rows) >= np.minimum(1, doubt * (1 - p))).astype(int))


def risk_above(threshold: float, *, doubt: float = 1.0) -> float:
    p = 1 / (1 + np.exp(-np.random.default_rng(999).normal(2, 2, 200_000)))
    taken = p >= threshold
    return float(np.minimum(1, doubt * (1 - p[taken])).mean()) if taken.any() else 0.0


def classified(rows: int, *, seed: int) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    z[:, 3] += 1
    return Predictions.from_logits(z, torch.multinomial(z.softmax(dim=1), 1, generator=generator)[:, 0])


@pytest.mark.parametrize(("doubt", "least"), [(1.0, 0.35), (2.5, 0.12)])  # 0.55 and 0.31 where the truth is known
def test_the_error_is_kept_as_often_as_promised(doubt: float, least: float) -> None:
    runs, broken, answered = 100, 0, 0.0
    for seed in range(runs):
        rule = abstain(pairs(800, seed=seed, doubt=doubt), error=0.05, confidence=0.9)
        broken += rule.qualifies and risk_above(rule.threshold, doubt=doubt) > 0.05
        answered += rule.coverage.value / runs
    assert broken <= 0.1 * runs + 2 * math.sqrt(0.09 * runs)
    assert answered > least


def test_where_no_threshold_qualifies_it_says_so() -> None:
    data = Pairs.from_probs([0.99] * 1000, [0, 1] * 500)
    rule = abstain(data, error=0.1)
    assert not rule.qualifies
    assert rule.threshold == math.inf
    assert rule.coverage.value == 0
    assert rule.decide(data).tolist() == [-1] * 1000
    assert not abstain(Pairs.from_probs([0.99] * 20, [1] * 20), error=0.1).qualifies  # 0.9²⁰ = 0.12


def test_a_confidence_at_the_threshold_is_answered() -> None:
    data = classified(8000, seed=0)
    rule = abstain(data, coverage=0.8)
    at = data.confidence == rule.threshold
    assert int(at.sum()) == 1
    assert rule(data.logits[at]).tolist() == data.predicted[at].tolist()


def test_the_p_value_is_the_binomials() -> None:
    # of 90 equal confidences 1 error passes at 5 % of error 5 %, since 0.95⁹⁰ + 90 · 0.05 · 0.95⁸⁹ = 0.0567 does not
    for errors, rows, passes in ((1, 90, False), (1, 93, True), (2, 93, False), (2, 124, True)):
        rule = abstain(Pairs.from_probs([0.9] * rows, [0] * errors + [1] * (rows - errors)), error=0.05)
        assert rule.qualifies is passes


def test_answer_eighty_per_cent() -> None:
    kept = bounded = 0
    for seed in range(60):
        rule = abstain(pairs(400, seed=seed), coverage=0.8)
        fresh = pairs(20_000, seed=10_000 + seed)
        answered = rule.decide(fresh) >= 0
        kept += float(answered.double().mean()) >= 0.8
        bounded += rule.error.high >= 1 - float(fresh.correct[answered].double().mean())
        assert 0.78 < rule.coverage.value < 0.9
    assert kept >= 54
    assert bounded >= 54


def test_what_cannot_be_promised_is_refused() -> None:
    data = classified(40, seed=6)
    for promise in ({}, {"error": 0.1, "coverage": 0.8}):
        with pytest.raises(InputError, match="either error or coverage, and not both"):
            abstain(data, **promise)
