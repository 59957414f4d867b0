"""How many rows a gate needs."""

import math
import re

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.operate import check, rows_needed
from calibrant.operate.bounds import Moments, log_below
from calibrant.operate.rows_needed import _assumed_confidences, decisions


def test_a_looser_limit_needs_fewer_rows() -> None:
    loose, tight = (rows_needed(accuracy=0.9, ece=ece, draws=60) for ece in (0.1, 0.05))
    assert loose < tight


def test_a_broken_model_needs_rows_to_fail_and_a_true_error_near_the_limit_needs_more() -> None:
    far, near = (rows_needed(accuracy=0.9, ece=0.03, true_ece=true, draws=60) for true in (0.1, 0.06))
    assert 64 < far < near


def test_the_simulated_decisions_are_those_of_check() -> None:
    rng = np.random.default_rng(0)
    for wrong in (0.1, 0.16, 0.2):
        p = rng.uniform(0.8, 0.999, 1500)
        right = rng.random(1500) > wrong
        data = Predictions.from_binary_probs(p, right.astype(int))
        index = np.clip(np.ceil(p * 15).astype(int) - 1, 0, 14)
        moments = Moments.of(p - right, index, bins=15)
        batch = Moments(*(getattr(moments, name)[None] for name in ("count", "total", "squares")))
        passes, fails = decisions(batch, np.bincount(index, p, minlength=15)[None], 0.05)
        verdict = check(data, maximum={"ece": 0.05}).verdict
        assert (bool(passes[0]), bool(fails[0])) == (verdict == "pass", verdict == "fail")
    count, gaps = np.full((1000, 1), 2000.0), np.linspace(0.046, 0.048, 1000)[:, None]
    batch = Moments(count, gaps * count, gaps**2 * count)
    passes, _ = decisions(batch, 0.9 * count, 0.05)
    assert log_below(batch, 0.05, alpha=0.025)[passes].min() == pytest.approx(math.log(40), rel=1e-3)


def test_given_predictions_stand_for_the_model() -> None:
    sure = Predictions.from_binary_probs(np.full(50, 0.999))
    unsure = Predictions.from_binary_probs(np.full(50, 0.6))
    rows = [rows_needed(data, ece=0.05, draws=60) for data in (sure, unsure)]
    assert rows[0] < rows[1]
    assert rows[0] > math.log(40) / 0.05
    assert _assumed_confidences(None, 0.9)[0].mean() == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ece": 0.03}, "either predictions or an accuracy to assume"),
        ({"ece": 0.03, "accuracy": 0.9, "true_ece": 0.03}, "true_ece must differ from the limit"),
        ({"ece": 0.03, "accuracy": 0.9, "true_ece": 0.95}, "cannot have a true ECE of 0.95; assume less"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rows_needed(**arguments)
