"""The contract of metrics, as a function to call in a test."""

import itertools
import math
import warnings
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant._core.check import shown
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError, ZeroProbabilityWarning
from calibrant.metrics import Metric, SumMetric
from calibrant.testing._require import draw, require, require_refusal

_CUTS = ((100, 200), (1,), (7, 8, 9, 250))


def check_metric(metric: Metric, *, exact: float = 1e-12) -> None:
    """Check that ``metric`` fulfils the contract of the metrics in ``calibrant.metrics``.

    Call this function in the tests of your own metric. It checks that:

    - the metric is a frozen dataclass whose declared properties are true;
    - its values are Python floats within the bounds, and never NaN;
    - they depend neither on the order of the rows nor, for a ``SumMetric``, on the division of the rows into parts;
    - a row of weight w counts about as much as w rows, while the scale of the weights and rows of weight 0 have no
    effect
      (alternatively, the metric refuses weights with an ``InputError``);
    - Calibrant's errors are raised for the wrong kind of data, for no rows and for missing labels.

    Args:
        metric: The metric, an object.
        exact: Relative tolerance for the order of the rows and for weights. Pass a larger value for a metric that uses
            only some of the rows.

    Raises:
        AssertionError: If the metric breaks the contract; the message names the clause.
        InputError: If ``metric`` is not a ``metrics.Metric``.

    Examples:
        >>> from calibrant.metrics import ECE
        >>> check_metric(ECE())
    """
    if not isinstance(metric, Metric):
        raise InputError("check_metric takes an object of a class that extends metrics.Metric")
    data = Predictions.from_logits(*draw(300, 4))
    tied = Predictions.from_logits((2 * data.logits).round(), data.labels)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    _facts(metric)
    _bounds(metric)
    for rows in (data, tied):
        require(_close(metric(rows[order]), metric(rows), exact), f"{metric!r} does not depend on the order of rows")
        _weights(metric, rows, exact)
    if isinstance(metric, SumMetric):
        for rows in (data, replace(data, weights=1.0 + order.double())):
            _sums(metric, rows)
    _refusals(metric, data)


def _facts(metric: Metric) -> None:
    for fact in ("better", "bounds", "notion", "cite"):
        require(hasattr(metric, fact), f"{metric!r} declares {fact}")
    low, high = metric.bounds
    require(metric.better in ("lower", "higher", "zero"), f"{metric!r}.better is 'lower', 'higher' or 'zero'")
    require(low < high, f"{metric!r}.bounds are in ascending order")
    require(
        (metric.better == "zero") == (low < 0), f"{metric!r}.better is 'zero' if and only if its values can be negative"
    )
    frozen = is_dataclass(metric) and type(metric).__dataclass_params__.frozen  # type: ignore[attr-defined]
    require(bool(frozen), f"{type(metric).__name__} is a frozen dataclass")
    require(type(metric)(**vars(metric)) == metric, f"{metric!r} can be created again from its fields")


def _bounds(metric: Metric) -> None:
    low, high = metric.bounds
    for scale in (0.1, 2.0, 60.0):
        value = metric(Predictions.from_logits(*draw(300, 4, scale=scale)))
        require(isinstance(value, float), f"{metric!r} returns a Python float")
        require(low <= value <= high, f"{metric!r} stays within its bounds")
    # confidences of exactly 0 and 1, also for the label's class, and an excluded class
    saturated = torch.tensor([[200.0, 0.0, -200.0], [0.0, 1000.0, 0.0], [-math.inf, 0.0, 30.0], [0.0, 30.0, 90.0]])
    certain = Predictions.from_probs([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [1, 1, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroProbabilityWarning)
        for data in (Predictions.from_logits(saturated, [1, 1, 2, 0]), certain):
            require(not math.isnan(metric(data)), f"{metric!r} is not NaN for saturated probabilities")


def _sums(metric: SumMetric[Any], data: Predictions) -> None:
    try:
        value = metric.value(metric.state(data))
    except InputError:  # it refuses these weights, or states of this configuration cannot be added
        return
    require(_close(value, metric(data), 1e-12), f"{metric!r} equals the value of its state")
    # states are summed over files and machines, whose boundaries must not matter
    for cuts in _CUTS:
        first, *others = (metric.state(data[slice(a, b)]) for a, b in itertools.pairwise([0, *cuts, len(data)]))
        total = sum(others, first)
        require(
            _close(metric.value(total), value, 1e-12),
            f"the sum of states of {metric!r} does not depend on how the rows are divided",
        )


def _weights(metric: Metric, data: Predictions, exact: float) -> None:
    generator = torch.Generator().manual_seed(2)
    kept = torch.randint(5, (len(data),), generator=generator) > 0
    weights = (torch.rand(len(data), generator=generator, dtype=torch.float64) + 0.1) * kept

    def weighted(rows: Predictions, weights: Tensor) -> float:
        return metric(replace(rows, weights=weights))

    try:
        value = weighted(data, weights)
    except InputError:  # it refuses weights
        return
    clause = f"the scale of weights has no effect on {metric!r}: divide by their sum"
    require(_close(weighted(data, weights * 1e3), value, 1e-9), clause)
    clause = f"a row of weight 0 has no effect on {metric!r}"
    require(_close(weighted(data[kept], weights[kept]), value, exact), clause)
    plain, thirds = metric(data), torch.full((len(data),), 1 / 3, dtype=torch.float64)
    require(_close(weighted(data, thirds), plain, exact), f"equal weights have no effect on {metric!r}")
    # not equal, because corrections for few rows depend on their number, but closer than without weights
    times = torch.where(data.correct, 4, 1)
    repeated = metric(data[torch.repeat_interleave(torch.arange(len(data)), times)])
    clause = f"a row of weight w counts about as much as w rows in {metric!r}: weight the rows by data.weights"
    require(abs(weighted(data, times.double()) - repeated) <= abs(plain - repeated) / 2 + exact, clause)


def _refusals(metric: Metric, data: Predictions) -> None:
    wrong: list[Any] = [None, data.logits, data[torch.zeros(len(data), dtype=torch.bool)]]
    if metric.notion != "sharpness":
        wrong.append(Predictions.from_logits([[3.0, 0.0], [2.0, 0.0]]))
    # top-label pairs contain only the confidence and whether the decision was right
    if metric.needs_classes:
        wrong.append(data.top_label())
    else:
        try:
            value = metric(data.top_label())
        except CalibrantError as error:
            clause = f"{metric!r} must accept top-label pairs; set needs_classes = True on the class"
            raise AssertionError(clause) from error
        clause = f"{metric!r} is the same for predictions and for their top-label pairs"
        require(_close(value, metric(data), 1e-12), clause)
    for one in wrong:
        require_refusal(CalibrantError, f"{shown(one)} for {metric!r}", metric, one)


def _close(one: float, other: float, tolerance: float) -> bool:
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12)
