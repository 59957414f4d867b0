"""What needs a fit: optimal ECE, refinement, slope and intercept."""

import math

import pytest
import torch
from tests.draws import drawn

from calibrant import Pairs, Predictions
from calibrant.errors import FitError, InputError
from calibrant.evaluate import calibration_line, optimal_ece, refinement
from calibrant.metrics import ECE, NLL, Brier


def model(temperature: float = 1.0, *, rows: int = 2000, groups: object = None) -> Predictions:
    true, labels = drawn(rows, 4, spread=2, sharp=1)
    return Predictions.from_logits(true / temperature, labels, groups=groups)


def test_optimal_ece_is_below_that_of_every_temperature_tried() -> None:
    data = model(0.4)
    best = optimal_ece(data, steps=60)
    assert best.temperature == pytest.approx(2.5, rel=0.15)
    for temperature in (1.0, 2.0, 2.5, 3.0, *(best.temperature * torch.linspace(0.95, 1.05, 21)).tolist()):
        assert best.value <= ECE()(Predictions(data.logits / temperature, labels=data.labels)) + 1e-6
    scaled = Predictions(data.logits / best.temperature, labels=data.labels)
    assert best.value == pytest.approx(ECE()(scaled), abs=1e-12)


def test_refinement_finds_what_a_temperature_corrects() -> None:
    for score, metric in (("log", NLL()), ("brier", Brier())):
        found = refinement(model(0.4), score=score)
        assert found.reliable
        assert found.total == pytest.approx(metric(model(0.4)))
        assert found.refinement == pytest.approx(metric(model(1.0)), abs=0.01)
        assert found.calibration.estimate == pytest.approx(found.total - found.refinement, abs=1e-12)
        assert not refinement(model(1.0), score=score).reliable


def test_groups_stay_in_one_fold_and_few_of_them_tell_nothing() -> None:
    assert refinement(model(0.4, groups=torch.arange(2000) // 80), folds=4).reliable
    few = refinement(model(0.4, groups=torch.arange(2000) // 500), folds=2)  # four groups, whatever the gain
    assert (few.reliable, few.calibration.low, few.calibration.high) == (False, -math.inf, math.inf)
    with pytest.raises(InputError, match="expected score"):
        refinement(model(), score="accuracy")


def test_an_overconfident_model_has_a_slope_below_1() -> None:
    off = calibration_line(model(0.5))
    assert (off.slope.high < 1, off.in_the_large.high < 0) == (True, True)
    line = calibration_line(model(1.0, rows=20_000))
    assert line.slope.low < 1 < line.slope.high
    assert line.intercept.low < 0 < line.intercept.high


def test_of_two_classes_the_line_is_that_of_the_event() -> None:
    data = Predictions.from_logits(*drawn(2000, 2, spread=1, sharp=2))
    assert calibration_line(data) == calibration_line(data.one_vs_rest(1))
    assert calibration_line(data, event=0) == calibration_line(data.one_vs_rest(0))
    assert calibration_line(data, event=None) == calibration_line(data.top_label())


@pytest.mark.parametrize("rows", [30, 50_000])
def test_separable_outcomes_have_no_slope_at_any_size(rows: int) -> None:
    p = torch.linspace(0.01, 0.99, rows, dtype=torch.float64)
    same = torch.full((rows,), 0.7)  # whose intercept and slope cannot be told apart
    for confidence, right in ((p, p > 0.5), (p, p > 0), (same, torch.arange(rows) % 3 == 0)):
        with pytest.raises(FitError, match="a finite minimum"):
            calibration_line(Pairs.from_probs(confidence, right))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("extreme", [False, True])
def test_the_line_is_where_the_summed_scores_vanish(weighted: bool, extreme: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    p = torch.rand(4000, generator=generator, dtype=torch.float64)
    p = 1 - 1e-4 * p if extreme else p  # a thousandth as much curvature
    y = (torch.rand(4000, generator=generator, dtype=torch.float64) < p * 0.99).long()
    weights = torch.randint(1, 5, (4000,), generator=generator) / 3 if weighted else None
    line = calibration_line(Pairs.from_probs(p, y, weights=weights))
    score = torch.logit(p, eps=1e-12)
    once = torch.ones(4000, dtype=torch.float64) if weights is None else weights.double()
    residual = once * (torch.sigmoid(line.intercept.estimate + line.slope.estimate * score) - y)
    assert abs(float(residual.sum())) < 1e-8
    assert abs(float((residual * score).sum())) < 1e-7
    large = once * (torch.sigmoid(line.in_the_large.estimate + score) - y)
    assert abs(float(large.sum())) < 1e-8


def test_errors_that_do_not_move_vouch_for_no_gain() -> None:
    """Rows at which the model says exactly .5 are often wrong, and no temperature moves them; six errors decide."""
    z = torch.tensor([0.0] * 300 + [6.0] * 300)
    y = [0, 1] * 150 + [1] * 294 + [0] * 6
    for score in ("log", "brier"):
        found = refinement(Predictions.from_binary_logits(z, y), score=score)
        assert not found.reliable
        assert "whose score the recalibration changes" in found.calibration.method
