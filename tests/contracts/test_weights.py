"""What weights keep beside the contract of a metric (check_metric): counts are repeated rows, scale is nothing."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contracts.test_metrics import EXTRA
from tests.contracts.test_metrics import METRICS as ALL

import calibrant.metrics as family
from calibrant import BinaryPairs, Predictions
from calibrant.binning import EqualMass, EqualWidth
from calibrant.errors import InputError
from calibrant.evaluate import calibration_line, compare, optimal_ece, panel, refinement
from calibrant.metrics import (
    ECE,
    NLL,
    Accuracy,
    Brier,
    ClasswiseECE,
    DebiasedECE,
    Metric,
    SmoothECE,
    TopLabelECE,
)
from calibrant.statistics import interval

METRICS = [*ALL, *EXTRA]
INTERPOLATED = [metric for metric in METRICS if "interpolated" in repr(metric)]


def sample(rows: int = 120, classes: int = 3) -> Predictions:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(rows, classes, generator=generator, dtype=torch.float64) * 2
    return Predictions.from_logits(logits, torch.randint(classes, (rows,), generator=generator))


def shares(rows: int = 120) -> torch.Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3 + 0.01


def weighted(data: Predictions, weights: Any, kind: Any) -> Predictions:
    return Predictions.from_logits(data.logits, data.labels, weights=weights, weight_kind=kind)


@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_weights_count(metric: Metric) -> None:
    if metric in INTERPOLATED:
        with pytest.raises(InputError, match="use EqualMass\\(ties='together'\\)"):
            metric(weighted(sample(), shares(), "sampling"))
    else:
        assert metric(weighted(sample(), shares(), "sampling")) != pytest.approx(metric(sample()), rel=1e-3)


def test_states_of_rows_with_and_without_sampling_weights_do_not_add() -> None:
    data = sample()
    for binning in (EqualWidth(15), EqualMass(15)):
        with pytest.raises(InputError, match="measure all parts with weights"):
            ECE(binning).state(data) + ECE(binning).state(weighted(data, shares(), "sampling"))


def test_counts_beyond_what_could_be_repeated() -> None:
    pairs = BinaryPairs.from_decisions([0.9, 0.6], [1, 0], weights=[10**9, 3 * 10**9], weight_kind="frequency")
    assert family.Accuracy()(pairs) == 0.25
    assert family.AURC()(pairs) == pytest.approx(0.25 * (math.log(4) * -1 + 3), rel=1e-8)


def pairs_of(kind: str = "frequency", rows: int = 700) -> tuple[Predictions, Predictions]:
    """Return predictions with counts, and the same rows repeated."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(rows, 3, generator=generator, dtype=torch.float64) * 3
    labels = torch.multinomial((logits * 0.7).softmax(dim=1), 1, generator=generator)[:, 0]
    times = torch.randint(0, 4, (rows,), generator=generator)
    groups = torch.arange(rows) // 4
    data = Predictions.from_logits(logits, labels, groups=groups, weights=times, weight_kind=kind)  # type: ignore[arg-type]
    places = torch.repeat_interleave(torch.arange(rows), times)
    return data, Predictions.from_logits(logits[places], labels[places], groups=groups[places])


def agree(one: Any, other: Any, *fields: str) -> None:
    assert one.metric == other.metric
    for field in fields:
        ours, theirs = getattr(one, field), getattr(other, field)
        assert ours is theirs is None or ours == pytest.approx(theirs, rel=1e-10, abs=1e-12), (one.metric, field)


@pytest.mark.parametrize("grouped", [False, True])
def test_intervals_and_comparisons_of_counts_are_those_of_repeated_rows(grouped: bool) -> None:
    data, rows = pairs_of()
    if not grouped:
        data, rows = replace(data, groups=None), replace(rows, groups=None)
    metrics = [
        Accuracy(),
        NLL(),
        Brier(),
        ECE(),
        ECE(EqualMass(10)),
        ClasswiseECE(EqualWidth(5)),
        TopLabelECE(EqualWidth(4)),
    ]
    metrics += [] if grouped else [DebiasedECE(), SmoothECE()]
    for one, other in zip(*(panel(part, metrics=metrics, draws=200) for part in (data, rows)), strict=True):
        agree(one, other, "value", "low", "high", "null_high", "null_mean")
        assert one.n == other.n
        assert one.effective is None
        assert one.low is None or one.low <= one.value
    first, second = (compare(part, replace(part, logits=part.logits * 0.6)) for part in (data, rows))
    assert first.n == second.n
    for one, other in zip(first.rows, second.rows, strict=True):
        agree(one, other, "a", "b", "difference", "low", "high", "p_value")


@pytest.mark.parametrize(
    "metric", [Accuracy(), NLL(), ECE(), DebiasedECE(), TopLabelECE(EqualWidth(3)), ClasswiseECE(EqualWidth(5))]
)
def test_intervals_of_sampled_rows_do_not_depend_on_scale(metric: Metric) -> None:
    data, _ = pairs_of()
    data = replace(data, groups=None)
    w = data.weights.double() * torch.rand(len(data), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # the limit if calibrated puts rows together whose weights agree within a factor of 1.25, whatever else is added later: by a power
    # of that factor the same rows meet in each cell, and the same random numbers are drawn
    scales = (1.0, 1.25**-41)
    one, other = (interval(metric, replace(data, weights=w * c, weight_kind="sampling"), draws=100) for c in scales)
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-9)
    kept = replace(data, weights=w, weight_kind="sampling")[w > 0]
    assert interval(metric, kept, draws=100) == one


@pytest.mark.parametrize("metric", [Accuracy(), NLL(), Brier(), ECE(), DebiasedECE(), ClasswiseECE(EqualWidth(5))])
def test_equal_sampling_weights_give_nearly_the_interval_of_none(metric: Metric) -> None:
    _, rows = pairs_of()
    rows = replace(rows, groups=None)
    plain, found = (
        interval(metric, rows, draws=300),
        interval(
            metric, replace(rows, weights=torch.full((len(rows),), 2.5).double(), weight_kind="sampling"), draws=300
        ),
    )
    width = plain.high - plain.low
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=0.05 * width)


def test_models_with_other_weights_are_not_compared() -> None:
    data, _ = pairs_of()
    for other in (replace(data, weights=None, weight_kind=None), replace(data, weights=data.weights + 1)):  # type: ignore[operator]
        with pytest.raises(InputError, match="expected A and B with the same weights"):
            compare(data, other)


def test_the_panel_shows_the_effective_sample_size() -> None:
    pairs = BinaryPairs.from_decisions([0.9, 0.6], [1, 0], weights=[3.0, 1.0], weight_kind="sampling")
    assert panel(pairs, metrics=[Accuracy()])[0].effective == pytest.approx(1.6)


def test_measures_that_fit_take_counts_for_repeated_rows_and_sampling_weights_whatever_their_scale() -> None:
    data, rows = pairs_of()
    assert optimal_ece(data).temperature == pytest.approx(optimal_ece(rows).temperature, rel=1e-9)
    data, rows = replace(data, groups=None), replace(rows, groups=None)
    ours, theirs = calibration_line(data), calibration_line(rows)
    for name in ("slope", "intercept", "in_the_large"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one.low, one.estimate, one.high) == pytest.approx((other.low, other.estimate, other.high), rel=1e-9)
    found, plain = refinement(data), refinement(rows)
    assert found.total == pytest.approx(plain.total, rel=1e-12)
    assert found.refinement == pytest.approx(plain.refinement, rel=0.02)  # the folds are others
    sampled = [replace(data, weights=data.weights.double() * c, weight_kind="sampling") for c in (0.01, 70.0)]
    assert calibration_line(sampled[0]).slope.high == pytest.approx(calibration_line(sampled[1]).slope.high, rel=1e-9)
    assert refinement(sampled[0]).refinement == pytest.approx(refinement(sampled[1]).refinement, rel=1e-6)
