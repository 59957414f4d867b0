"""What every metric keeps, whoever wrote it: run over all of ``metrics.__all__``."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests import makers
from torch import Tensor

import calibrant.metrics as family
from calibrant import Pairs, Predictions, binning
from calibrant.binning import EqualMass
from calibrant.errors import InputError, NoIntervalError
from calibrant.metrics import (
    ECE,
    MCE,
    NLL,
    CanonicalError,
    ClasswiseECE,
    DebiasedECE,
    Entropy,
    SplitNLL,
    TopLabelECE,
)
from calibrant.metrics._base import NOTIONS, MeanMetric, Metric
from calibrant.statistics import interval, null_band
from calibrant.testing import check_metric

METRICS = list(makers.METRICS.values())
EXTRA: list[Metric] = [
    ECE(EqualMass(15)),
    ECE(EqualMass(10, ties="interpolated")),
    ECE(norm=2),
    MCE(EqualMass(15)),
    ClasswiseECE(EqualMass(15)),
    ClasswiseECE(EqualMass(5, ties="interpolated")),
    TopLabelECE(EqualMass(5)),
    SplitNLL("correct"),
    Entropy("wrong"),
]


def sample(
    rows: int = 300, classes: int = 4, *, scale: float = 2.0, seed: int = 0, form: str | None = None
) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator) * scale
    if form is not None:  # on a grid that half precision holds
        logits = FORMS[form]((logits * 128).round() / 128, torch.randint(-8, 9, (rows, 1), generator=generator))
    return Predictions.from_logits(logits, torch.randint(classes, (rows,), generator=generator))


# One model's rows as other programs give them, by logits and a constant of each row: the probabilities are the same.
FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "float32": lambda z, c: z,
    "half": lambda z, c: z.half(),
    "float64": lambda z, c: z.double(),
    "constant": lambda z, c: z + c,
    "far constant": lambda z, c: z.double() + 2.0**40 * c,
    "log-softmax": lambda z, c: z.double().log_softmax(dim=1),
    "in another layout": lambda z, c: z.T.contiguous().T,
}


WITH_INTERVAL = [
    m
    for m in [*METRICS, *EXTRA]
    if isinstance(m, MeanMetric | ECE | TopLabelECE | ClasswiseECE | DebiasedECE | CanonicalError) and m != ECE(norm=2)
]


@pytest.mark.parametrize("metric", [*METRICS, *EXTRA], ids=repr)
def test_it_keeps_what_every_metric_keeps(metric: Metric) -> None:
    check_metric(
        metric, exact=5e-2 if isinstance(metric, CanonicalError) else 1e-12
    )  # its width is chosen on some rows
    assert metric.measures_calibration == (metric.notion in NOTIONS)
    assert metric.cite or metric.notion == "accuracy"
    assert eval(repr(metric), vars(family) | vars(binning)) == metric


@dataclass(frozen=True)
class Plain(Metric):
    """A metric that is no sum, from which those below differ in one thing."""

    better = "lower"
    bounds = (0.0, 1.0)
    notion = "accuracy"
    cite = "–"

    def measure(self, rows: Any) -> float:
        return 0.0


def entropy(data: Any) -> float:
    return Entropy()(data) / 10


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda data: math.nan, "stays within its bounds"),
        (
            lambda data: float(data.confidence.mean()),
            r"a row of weight w counts about as much as w rows .* data.weights",
        ),
        (
            lambda data: entropy(data) * float(data.row_weights.sum()) ** (data.weights is not None),
            "the scale of weights has no effect",
        ),
        (entropy, "set needs_classes = True on the class"),
    ],
)
def test_a_metric_that_breaks_a_rule_is_named(call: Callable[[Any], float], rule: str) -> None:
    faulty = type("Faulty", (Plain,), {"measure": lambda self, rows: call(rows)})
    with pytest.raises(AssertionError, match=rule):
        check_metric(faulty())


# The worst value is that of other rows, or there is none.
OPEN = ("CalibrationLoss", "CanonicalError", "Entropy", "RefinementLoss", "SplitNLL")


@pytest.mark.filterwarnings("ignore::calibrant.errors.ZeroProbabilityWarning")
@pytest.mark.parametrize("metric", [m for m in METRICS if type(m).__name__ not in OPEN], ids=repr)
def test_certain_rows_reach_its_bounds(metric: Metric) -> None:
    right, wrong = (metric(Predictions.from_probs([[p, 1 - p]] * 4, [0] * 4)) for p in (1.0, 0.0))
    best, worst = sorted(metric.bounds, reverse=metric.better == "higher")
    assert (right, wrong) == (pytest.approx(best, abs=1e-9), pytest.approx(worst, abs=1e-9))


@pytest.mark.parametrize("metric", [*METRICS, *EXTRA], ids=repr)
def test_only_the_probabilities_of_the_rows_count(metric: Metric) -> None:  # compiled as in PyTorch: tests/_kernel
    expected = metric(sample(form="float32"))
    for form in FORMS:
        assert metric(sample(form=form)) == pytest.approx(expected, rel=1e-7, abs=1e-8), form


@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_one_row_and_many_classes(metric: Metric) -> None:
    one = Predictions.from_logits(torch.tensor([[3.0, 0.0]]), [1])
    if isinstance(metric, CanonicalError):
        with pytest.raises(InputError, match="at least two rows"):
            metric(one)
    else:
        assert not math.isnan(metric(one))
    assert math.isfinite(metric(sample(10, 100)))


@pytest.mark.parametrize("metric", [*METRICS, *EXTRA], ids=repr)
def test_an_interval_is_of_the_figure_where_there_is_one(metric: Any) -> None:
    data = sample(600)
    if metric in WITH_INTERVAL:
        assert metric.interval(data).estimate == pytest.approx(metric(data), rel=1e-9)
    else:
        with pytest.raises(NoIntervalError, match=r"for which no interval"):
            metric.interval(data)


def test_what_cannot_be_measured_or_added_is_refused() -> None:
    with pytest.raises(InputError, match="expected predictions over all classes"):
        NLL()(sample(20).top_label())
    with pytest.raises(InputError, match="from_top_label"):
        TopLabelECE()(Pairs.from_probs([0.5], [1]))
    with pytest.raises(InputError, match="the same number of bins"):
        _ = ECE().state(sample()) + MCE(EqualMass(3)).table(sample())


@pytest.mark.parametrize("metric", [*METRICS, *EXTRA], ids=repr)
def test_the_default_device_does_not_matter(metric: Metric) -> None:
    def measured() -> list[Any]:
        found: list[Any] = [metric(data), null_band(metric, data, draws=20)]
        return [*found, interval(metric, data)] if metric in WITH_INTERVAL else found

    data = sample(rows=1000)
    expected = measured()
    with torch.device("meta"):  # where nothing can be computed
        assert measured() == expected
