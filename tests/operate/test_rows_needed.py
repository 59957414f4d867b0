"""How many rows a gate needs."""

import re

import numpy as np
import pytest

from calibrant import Pairs, Predictions
from calibrant.errors import InputError
from calibrant.operate import check, rows_needed


def test_so_many_rows_do_reach_the_verdict() -> None:
    rows = rows_needed(accuracy=0.9, ece=0.05)
    rng = np.random.default_rng(1)
    p = rng.beta(4.5, 0.5, (60, rows))
    verdicts = [check(Pairs.from_probs(one, rng.random(rows) < one), maximum={"ece": 0.05}).verdict for one in p]
    assert verdicts.count("pass") / 60 >= 0.75
    assert rows_needed(accuracy=0.9, ece=0.1, draws=40) < rows / 2


def test_an_error_near_the_limit_needs_more_rows() -> None:
    far, near = (rows_needed(accuracy=0.9, ece=0.03, true_ece=true, draws=40) for true in (0.1, 0.06))
    assert 50 < far < near / 2


def test_given_predictions_stand_for_the_model() -> None:
    sure, unsure = (Predictions.from_binary_probs(np.full(50, p)) for p in (0.999, 0.6))
    assert rows_needed(sure, ece=0.05, draws=40) < rows_needed(unsure, ece=0.05, draws=40)


@pytest.mark.parametrize(
    ("true_ece", "message"),
    [
        (0.03, "10,000,000 rows cannot distinguish a true ECE of 0.03 from the limit 0.03"),
        (0.95, "confidences with mean 0.900 cannot have a true ECE of 0.95"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(true_ece: float, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rows_needed(ece=0.03, accuracy=0.9, true_ece=true_ece, draws=10)
