"""The contract of a metric, as a function to call in a test."""

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
    """Check that ``metric`` does what every metric of ``calibrant.metrics`` does; call it in a test of your own.

    It is a frozen dataclass whose declared facts hold; values are Python floats, never NaN, within the bounds; neither the
    order of rows nor, for a ``SumMetric``, how they are cut into parts matters; a row of weight w counts about as w rows, and
    neither the scale of weights nor a row of weight 0 has an effect; the wrong kind of data, no rows and no labels are refused by
    Calibrant's errors. A metric may refuse weights by an ``InputError``.

    Args:
        metric: The metric, an object.
        exact: Relative tolerance for the order of rows and for weights; wider for a metric that looks at some rows only.

    Raises:
        AssertionError: Naming the clause that does not hold.
        InputError: If ``metric`` is no ``metrics.Metric``.

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
    require(low < high, f"{metric!r}.bounds ascend")
    require((metric.better == "zero") == (low < 0), f"{metric!r} is best at 0 if it can be negative, and only then")
    frozen = is_dataclass(metric) and type(metric).__dataclass_params__.frozen  # type: ignore[attr-defined]
    require(bool(frozen), f"{type(metric).__name__} is a frozen dataclass")
    require(type(metric)(**vars(metric)) == metric, f"{metric!r} is made again by its fields")


def _bounds(metric: Metric) -> None:
    low, high = metric.bounds
    for scale in (0.1, 2.0, 60.0):
        value = metric(Predictions.from_logits(*draw(300, 4, scale=scale)))
        require(isinstance(value, float), f"{metric!r} returns a Python float")
        require(low <= value <= high, f"{metric!r} stays within its bounds")
    # confidences of exactly 0 and 1, also under the label, and a class that is excluded
    saturated = torch.tensor([[200.0, 0.0, -200.0], [0.0, 1000.0, 0.0], [-math.inf, 0.0, 30.0], [0.0, 30.0, 90.0]])
    certain = Predictions.from_probs([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [1, 1, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroProbabilityWarning)
        for data in (Predictions.from_logits(saturated, [1, 1, 2, 0]), certain):
            require(not math.isnan(metric(data)), f"{metric!r} is a number for saturated probabilities")


def _sums(metric: SumMetric[Any], data: Predictions) -> None:
    try:
        value = metric.value(metric.state(data))
    except InputError:  # it refuses these weights, or this configuration does not merge
        return
    require(_close(value, metric(data), 1e-12), f"{metric!r} is the value of its state")
    # states are summed over files and machines, whose boundaries mean nothing
    for cuts in _CUTS:
        first, *others = (metric.state(data[slice(a, b)]) for a, b in itertools.pairwise([0, *cuts, len(data)]))
        total = sum(others, first)
        require(_close(metric.value(total), value, 1e-12), f"states of {metric!r} add up however the rows are cut")


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
    clause = f"a row of weight 0 is no row of {metric!r}"
    require(_close(weighted(data[kept], weights[kept]), value, exact), clause)
    plain, thirds = metric(data), torch.full((len(data),), 1 / 3, dtype=torch.float64)
    require(_close(weighted(data, thirds), plain, exact), f"equal weights have no effect on {metric!r}")
    # not the same, as what corrects for few rows knows how many there are; but nearer to it than without weights
    times = torch.where(data.correct, 4, 1)
    repeated = metric(data[torch.repeat_interleave(torch.arange(len(data)), times)])
    clause = f"a row of weight w counts about as w rows in {metric!r}: weight the rows by data.weights"
    require(abs(weighted(data, times.double()) - repeated) <= abs(plain - repeated) / 2 + exact, clause)


def _refusals(metric: Metric, data: Predictions) -> None:
    wrong: list[Any] = [None, data.logits, data[torch.zeros(len(data), dtype=torch.bool)]]
    if metric.notion != "sharpness":
        wrong.append(Predictions.from_logits([[3.0, 0.0], [2.0, 0.0]]))
    # of top-label pairs only the confidence and whether it was right are known
    if metric.needs_classes:
        wrong.append(data.top_label())
    else:
        try:
            value = metric(data.top_label())
        except CalibrantError as error:
            clause = f"{metric!r} must accept top-label pairs; set needs_classes = True on the class"
            raise AssertionError(clause) from error
        clause = f"top-label pairs give {metric!r} of the rows that they are of"
        require(_close(value, metric(data), 1e-12), clause)
    for one in wrong:
        require_refusal(CalibrantError, f"{shown(one)} for {metric!r}", metric, one)


def _close(one: float, other: float, tolerance: float) -> bool:
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12)
