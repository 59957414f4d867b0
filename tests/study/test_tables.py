"""Verdicts of a study on its papers' orderings, said in sentences, and the measures behind them."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from tests.conftest import late

from calibrant import Predictions
from calibrant.binning import EqualMass
from calibrant.calibrators import FocalTemperatureScaling
from calibrant.metrics import ECE
from calibrant.study import Claim, load_study
from calibrant.study.measures import Measured, Run, ignore_bound_warnings
from calibrant.study.page import in_short, one_gamma_table
from calibrant.study.tables import Summary, verdict_on_claim

stats = late("scipy.stats")

CLAIM = Claim("b is lower than a", "a paper", "ece", ("a", "b"))


@pytest.mark.parametrize(
    ("first", "last", "outcome"),
    [
        ({0: 0.1, 1: 0.12, 2: 0.11}, {0: 0.05, 1: 0.06, 2: 0.07}, "shows"),
        ({0: 0.05, 1: 0.06, 2: 0.07}, {0: 0.1, 1: 0.12, 2: 0.11}, "shows the opposite"),
        ({0: 0.1, 1: 0.12, 2: 0.11}, {0: 0.12, 1: 0.09, 2: 0.10}, "unclear"),
        ({0: 0.0135}, {0: 0.0097}, "unclear"),
        ({0: 0.1, 1: 0.2}, {2: 0.05, 3: 0.06}, "unclear"),  # no seed in common
        ({}, {0: 0.1}, "not run"),
        ({0: math.nan, 1: 0.1}, {0: 0.1, 1: 0.1}, "not run"),
    ],
)
def test_a_verdict_needs_two_seeds_and_a_difference_beyond_chance(
    first: dict[int, float], last: dict[int, float], outcome: str
) -> None:
    assert verdict_on_claim(CLAIM, "digits", [first, last]).outcome == outcome
    if outcome == "shows":  # steps in another order
        claim = Claim("falls", "a paper", "ece", ("a", "b", "c"))
        assert verdict_on_claim(claim, "digits", [first, {0: 0.4, 1: 0.41, 2: 0.42}, last]).outcome == "shows in part"


def test_both_tests_are_those_of_scipy_and_by_hand() -> None:
    verdict = verdict_on_claim(CLAIM, "digits", [{0: 0.08, 1: 0.09}, {0: 0.02, 1: 0.04}])
    assert verdict.values == pytest.approx((0.085, 0.03))
    # differences .06 and .05: t = .055 / (.00707 / √2) = 11, p = 2·(1 − F_1(11)) = 1 − 2/π·atan(11)
    assert verdict.p == pytest.approx(1 - 2 / math.pi * math.atan(11))
    assert verdict.p_unpaired == pytest.approx(stats.ttest_ind([0.08, 0.09], [0.02, 0.04]).pvalue)
    assert verdict_on_claim(CLAIM, "digits", [{0: 0.1, 1: 0.1}, {0: 0.2, 1: 0.2}]).p_unpaired is None
    assert verdict_on_claim(CLAIM, "digits", [{0: 0.1}, {0: 0.1, 1: 0.2}]).p_unpaired is None


def test_measures_of_a_training_and_of_other_images_by_hand() -> None:
    known = Predictions.from_logits([[4.0, 0.0], [0.0, 3.0]], [0, 1])
    unsure = Predictions.from_logits([[0.1, 0.0], [5.0, 0.0]])  # one of two has a higher entropy than both known rows

    def entry(nll: float, ece: float, wrong: float | None) -> dict[str, Any]:
        return {"test": {"nll": nll, "ece": ece, "entropy_correct": 0.5 * nll, "entropy_wrong": wrong}}

    entries = [entry(2.0, 0.1, 0.9), entry(1.0, 0.05, 0.6), entry(1.5, 0.2, None)]
    fits = Measured([Run(known, known, {"noise": unsure}, entries)])
    assert fits.value("ood_auroc") == 0.5
    assert [fits.value(name) for name in ("ece_at_least_nll", "ece_late")] == [0.05, 0.2]
    assert [fits.value(f"entropy_correct_{when}") for when in ("early", "late")] == [1.0, 0.75]
    assert fits.value("entropy_wrong_early") == 0.9
    assert math.isnan(fits.value("entropy_wrong_late"))  # no wrong samples at the end
    assert math.isnan(Measured([Run(known, known, {}, entries)]).value("ood_auroc"))


def test_a_study_opens_with_what_is_wrong_how_sure_and_what_to_do() -> None:
    def line(name: str, ece: float, temperature: float, loss: float) -> Summary:
        mean = {"ece": ece, "temperature": temperature, "nll_at_t": loss, "ece_at_t": 0.02, "ece_by_chance": 0.03}
        return Summary("digits", name, 3, mean, {"ece": 0.01, "nll_at_t": 0.05}, 1797)

    wrong, sure, do = in_short([line("Cross-entropy", 0.09, 2.4, 0.5), line("Focal 3", 0.02, 0.9, 0.54)])
    assert "Cross-entropy is over-confident. Its ECE is 9.0 ± 1.0 %, and its best temperature is 2.40" in wrong
    assert "3 seeds of 1,797 test rows. At the best temperature, the ECE is 2.0 %, below the 3.0 %" in sure
    assert "Cross-entropy has the lowest log-loss (0.500; 1 other is within its standard deviation over seeds)" in do


def test_one_gamma_of_focal_temperature_scaling_serves_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FocalTemperatureScaling, "published", (0.0, 1.0, 3.0))
    generator = torch.Generator().manual_seed(0)

    def rows() -> Predictions:
        logits = 3 * torch.randn(120, 3, generator=generator)
        return Predictions.from_logits(logits, torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0])

    def run(seed: int) -> Measured:
        return Measured([Run(rows(), rows())], "digits", "Cross-entropy", seed)

    items, metric, tried = [run(seed) for seed in range(2)], ECE(EqualMass(15)), []
    for gamma in FocalTemperatureScaling.published:
        with ignore_bound_warnings():
            scaling = partial(FocalTemperatureScaling, "ece", gammas=(gamma,), grid="komisarenko")
            made = [scaling().fit(item.runs[0].validation) for item in items]
        seen, new = (
            [metric(rows.calibrated_by(one, allow_fit_rows=True)) for one, rows in zip(made, parts, strict=True)]
            for parts in ([item.runs[0].validation for item in items], [item.runs[0].test for item in items])
        )
        tried.append((sum(seen), gamma, sum(new) / 2))
    study = load_study("komisarenko-table1")
    (table,) = one_gamma_table(study, items)
    ((_, best, _, error),) = table.rows
    assert (best, error.partition("±")[0]) == (f"{min(tried)[1]:g}", f"{100 * min(tried)[2]:.2f}")
    assert one_gamma_table(load_study("digits"), items) == []
