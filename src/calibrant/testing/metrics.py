"""The contract of a metric, as a function to call in a test."""

import itertools
import math
import warnings
from dataclasses import is_dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from calibrant._core.check import shown
from calibrant._core.constraints import Kind, NonNegative, checked
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, InputError, ZeroProbabilityWarning
from calibrant.metrics import Metric, SumMetric
from calibrant.testing.assertions import Contract, normal_sample, require_refusal

CONTRACT = Contract("the docstring of calibrant.metrics.Metric")
_CUTS = ((100, 200), (1,), (7, 8, 9, 250))


AnyMetric = Annotated[Metric, Kind(Metric, "extend calibrant.metrics.Metric, and pass an object of it")]


@checked
def check_metric(metric: AnyMetric, *, exact: NonNegative = 1e-12) -> None:
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
    _facts_are_declared(metric)
    data = Predictions.from_logits(*normal_sample(300, 4))
    _values_stay_in_bounds(metric)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    for rows in (data, Predictions.from_logits((2 * data.logits).round(), data.labels)):  # the second has many ties
        CONTRACT.require(
            math.isclose(metric(rows[order]), metric(rows), rel_tol=exact, abs_tol=1e-12),
            f"{metric!r} does not depend on the order of rows",
        )
        _weights_enter(metric, rows, exact)
    if isinstance(metric, SumMetric):
        _states_add_up(metric, data)
        weighted = _with_weights(data, 1.0 + order)
        if _value_unless_refused(metric, weighted) is not None:
            _states_add_up(metric, weighted)
    _other_data_are_refused(metric, data)


def _facts_are_declared(metric: Metric) -> None:
    for fact in ("better", "bounds", "notion", "cite"):
        CONTRACT.require(hasattr(metric, fact), f"{metric!r} declares {fact}")
    low, high = metric.bounds
    CONTRACT.require(metric.better in ("lower", "higher", "zero"), f"{metric!r}.better is 'lower', 'higher' or 'zero'")
    CONTRACT.require(low < high, f"{metric!r}.bounds ascend")
    CONTRACT.require(
        (metric.better == "zero") == (low < 0), f"{metric!r} is best at 0 if it can be negative, and only then"
    )
    frozen = is_dataclass(metric) and type(metric).__dataclass_params__.frozen  # type: ignore[attr-defined]
    CONTRACT.require(bool(frozen), f"{type(metric).__name__} is a frozen dataclass")
    CONTRACT.require(type(metric)(**vars(metric)) == metric, f"{metric!r} is made again by its fields")


def _values_stay_in_bounds(metric: Metric) -> None:
    low, high = metric.bounds
    for scale in (0.1, 2.0, 60.0):
        value = metric(Predictions.from_logits(*normal_sample(300, 4, scale=scale)))
        CONTRACT.require(isinstance(value, float), f"{metric!r} returns a Python float")
        CONTRACT.require(low <= value <= high, f"{metric!r} stays within its bounds")
    # confidences of exactly 0 and 1, also under the label, and a class that is excluded
    saturated = torch.tensor([[200.0, 0.0, -200.0], [0.0, 1000.0, 0.0], [-math.inf, 0.0, 30.0], [0.0, 30.0, 90.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroProbabilityWarning)
        for data in (
            Predictions.from_logits(saturated, [1, 1, 2, 0]),
            Predictions.from_probs([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [1, 1, 0]),
        ):
            CONTRACT.require(not math.isnan(metric(data)), f"{metric!r} is a number for saturated probabilities")


def _states_add_up(metric: SumMetric[Any], data: Predictions) -> None:
    try:
        whole = metric.state(data)
    except InputError:  # says that this configuration does not merge
        return
    value = metric.value(whole)
    CONTRACT.require(
        math.isclose(value, metric(data), rel_tol=1e-12, abs_tol=1e-13), f"{metric!r} is the value of its state"
    )
    # states are summed over files and machines, whose boundaries mean nothing
    for cuts in _CUTS:
        parts = [metric.state(data[slice(a, b)]) for a, b in itertools.pairwise([0, *cuts, len(data)])]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        close = math.isclose(metric.value(total), value, rel_tol=1e-12, abs_tol=1e-13)
        CONTRACT.require(close, f"states of {metric!r} add up however the rows are cut")


def _weights_enter(metric: Metric, data: Predictions, exact: float) -> None:
    generator = torch.Generator().manual_seed(2)
    kept = torch.randint(5, (len(data),), generator=generator) > 0
    weights = (torch.rand(len(data), generator=generator, dtype=torch.float64) + 0.1) * kept
    one, other = (_value_unless_refused(metric, _with_weights(data, weights * scale)) for scale in (1.0, 1e3))
    if one is None and other is None:
        return
    CONTRACT.require(
        one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9),
        f"the scale of weights has no effect on {metric!r}",
        f"divide by their sum (got {one}, for weights 1,000 times as large {other})",
    )
    left = _value_unless_refused(metric, _with_weights(data[kept], weights[kept]))
    # thirds: their sums are rounded, so that equal accuracies of bins differ in the last digit
    alike = _value_unless_refused(metric, _with_weights(data, torch.full((len(data),), 1 / 3, dtype=torch.float64)))
    for found, right, clause in (
        (one, left, "a row of weight 0 is left out of"),
        (alike, metric(data), "equal weights have no effect on"),
    ):
        same = found is not None and right is not None and math.isclose(found, right, rel_tol=exact, abs_tol=1e-12)
        CONTRACT.require(same, f"{clause} {metric!r}", f"weight the rows by data.weights (got {found} and {right})")
    # not the same, as what corrects for few rows knows how many there are; but nearer to it than without weights
    times = torch.where(data.correct, 4, 1)
    repeated, plain = metric(data[torch.repeat_interleave(torch.arange(len(data)), times)]), metric(data)
    weighted = metric(_with_weights(data, times.double()))
    CONTRACT.require(
        abs(weighted - repeated) <= abs(plain - repeated) / 2 + exact,
        f"a row of weight w counts about as w rows in {metric!r}",
        f"weight the rows by data.weights (got {weighted}, without weights {plain}, for repeated rows {repeated})",
    )


def _with_weights(data: Predictions, weights: Tensor) -> Predictions:
    return Predictions.from_logits(data.logits, data.labels, weights=weights)


def _value_unless_refused(metric: Metric, weighted: Predictions) -> float | None:
    """Return the value for weighted rows, or None if ``metric`` refuses them."""
    try:
        return metric(weighted)
    except InputError:
        return None


def _pairs_are_accepted(metric: Metric, data: Predictions) -> None:
    weighted = _with_weights(data, torch.arange(1.0, 1 + len(data), dtype=torch.float64))
    try:
        for rows in (data, weighted) if _value_unless_refused(metric, weighted) is not None else (data,):
            same = math.isclose(metric(rows.top_label()), metric(rows), rel_tol=1e-12, abs_tol=1e-13)
            CONTRACT.require(same, f"top-label pairs give {metric!r} of the rows that they are of")
    except CalibrantError as error:
        raise AssertionError(
            f"expected that {metric!r} accepts top-label pairs, since needs_classes is False, got an error ({error}); set "
            "needs_classes = True on the class"
        ) from error


def _other_data_are_refused(metric: Metric, data: Predictions) -> None:
    wrong: list[Any] = [
        None,
        15,
        data.logits,
        (data.logits, data.labels),
        data[torch.zeros(len(data), dtype=torch.bool)],
    ]
    if metric.notion != "sharpness":
        wrong.append(Predictions.from_logits([[3.0, 0.0], [2.0, 0.0]]))
    # of top-label pairs only the confidence and whether it was right are known
    if metric.needs_classes:
        wrong.append(data.top_label())
    else:
        _pairs_are_accepted(metric, data)
    for one in wrong:
        require_refusal(CalibrantError, f"{shown(one)} for {metric!r}", metric, one)
