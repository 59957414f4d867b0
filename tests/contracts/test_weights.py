"""What weights keep beside the contract of a metric (check_metric): their scale is nothing, and intervals are robust."""

from dataclasses import replace

import pytest
import torch

from calibrant import Pairs, Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.errors import InputError
from calibrant.evaluate import calibration_line, compare, optimal_ece, panel, refinement
from calibrant.metrics import ECE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, Metric, TopLabelECE
from calibrant.statistics import interval


def rows_of(rows: int = 700) -> Predictions:
    """Return predictions with weights 0 to 3 in groups of four."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(rows, 3, generator=generator, dtype=torch.float64) * 3
    labels = torch.multinomial((logits * 0.7).softmax(dim=1), 1, generator=generator)[:, 0]
    times = torch.randint(0, 4, (rows,), generator=generator)
    return Predictions.from_logits(logits, labels, groups=torch.arange(rows) // 4, weights=times)


def test_weights_that_cannot_count_are_refused() -> None:
    data = rows_of()
    for binning in (EqualWidth(15), EqualMass(15)):
        with pytest.raises(InputError, match="give all parts weights"):
            ECE(binning).state(data) + ECE(binning).state(replace(data, weights=None))
    for make in (ECE, ClasswiseECE):  # that all other metrics count weights: check_metric
        with pytest.raises(InputError, match=r"use EqualMass\(ties='together'\)"):
            make(EqualMass(5, ties="interpolated"))(data)


@pytest.mark.parametrize("metric", [NLL(), ECE(), ClasswiseECE(EqualWidth(5))])
def test_a_weight_is_worth_a_group_of_equal_rows(metric: Metric) -> None:
    """The robust variance of a row of weight w is that of a group of w copies of it."""
    data = replace(rows_of(2000), groups=None)
    place = torch.repeat_interleave(torch.arange(len(data)), data.row_weights.long())
    copies = replace(data, weights=None, groups=torch.arange(len(data)))[place]
    one, other = (interval(metric, part) for part in (data, copies))
    assert one.estimate == pytest.approx(other.estimate, rel=1e-9)
    # the limits if calibrated, which the lower ends rest on, are those of rows and of groups
    assert one.high - one.low == pytest.approx(other.high - other.low, rel=0.15)


OF_WEIGHTS = [NLL(), Brier(), Accuracy(), DebiasedECE(), TopLabelECE(EqualWidth(3)), ClasswiseECE(EqualWidth(5))]


@pytest.mark.parametrize("metric", OF_WEIGHTS, ids=repr)
def test_intervals_do_not_depend_on_scale(metric: Metric) -> None:
    data = replace(rows_of(), groups=None)
    w = data.weights * torch.rand(len(data), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # the limit if calibrated puts rows together whose weights agree within a factor of 1.25, whatever else is added later: by a power
    # of that factor the same rows meet in each cell, and the same random numbers are drawn
    scales = (1.0, 1.25**-41)
    one, other = (interval(metric, replace(data, weights=w * c)) for c in scales)
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-9)
    kept = replace(data, weights=w)[w > 0]
    assert interval(metric, kept) == one


def test_models_with_other_weights_are_not_compared() -> None:
    data = rows_of()
    for other in (replace(data, weights=None), replace(data, weights=data.weights + 1)):
        with pytest.raises(InputError, match="expected A and B with the same weights"):
            compare(data, other)


def test_the_panel_shows_the_effective_sample_size() -> None:
    pairs = Pairs.from_probs([0.9, 0.6], [1, 0], weights=[3.0, 1.0])
    assert panel(pairs, metrics=[Accuracy()])[0].effective == pytest.approx(1.6)


def test_measures_that_fit_take_weights_whatever_their_scale() -> None:
    data = replace(rows_of(), groups=None)
    one, other = (replace(data, weights=data.weights * scale) for scale in (0.01, 70.0))
    assert optimal_ece(one).temperature == pytest.approx(optimal_ece(other).temperature, rel=1e-9)
    assert calibration_line(one).slope.high == pytest.approx(calibration_line(other).slope.high, rel=1e-9)
    assert refinement(one).refinement == pytest.approx(refinement(other).refinement, rel=1e-6)
