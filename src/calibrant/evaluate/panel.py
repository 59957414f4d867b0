"""The panel: the set of metrics in a report, each with its confidence interval and its values for a calibrated model.

If no valid interval or limit is known for a metric, it is None.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from calibrant._core.check import check_count, check_number, refuse, shown
from calibrant._core.config import json_data
from calibrant._core.notebook import to_html
from calibrant.binning import EqualMass
from calibrant.data.checks import Data, require_rows
from calibrant.data.pairs import Pairs, are_events
from calibrant.errors import NoIntervalError
from calibrant.metrics import AURC, ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, Metric, SmoothECE

_NOT_PERCENT = ("proper score", "ranking")  # notions whose values are not fractions, so they are not shown in percent


@dataclass(frozen=True)
class Row:
    """One metric on one set of predictions, in fractions and not in percent.

    Args:
        metric: The metric's repr, which shows its configuration.
        value: The value of the metric.
        low: Lower end of the metric's confidence interval, or None if no interval with the nominal coverage is known.
        high: Upper end of this interval, or None.
        null_high: The limit if calibrated: 97.5 % of perfectly calibrated models with the same probabilities have a smaller
            value. None if the metric is not a calibration error.
        n: Number of rows.
        null_mean: Mean of the metric over perfectly calibrated models with the same probabilities; None if the metric is
            not a calibration error.
        effective: Effective number of rows if they have weights, otherwise None.
        average: For several labels per row, "pooled" (over all known labels of all rows, so that frequent labels count most)
            or "macro" (the mean over labels). None for one class per row.
        labels: Number of labels L, or None for one class per row.
        refused: For several labels per row, the reason why there is no interval.
        label: The metric's short name, for tables.
        percent: Whether tables show the metric in percent.
        file: The file of the predictions.
        split: Name of the split.
        calibrator: The repr of the fitted calibrator, or None before calibration.
        group: Subgroup of the split, such as "region=EU", or None for the whole split.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    null_high: float | None
    n: int
    null_mean: float | None = None
    effective: float | None = None
    average: Literal["pooled", "macro"] | None = None
    labels: int | None = None
    refused: str | None = None
    label: str = ""
    percent: bool = False
    file: str = ""
    split: str = ""
    calibrator: str | None = None
    group: str | None = None

    def __str__(self) -> str:
        ends = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        limit = "" if self.null_high is None else f", limit if calibrated {self.null_high:.4g}"
        return f"{self.metric}: {self.value:.4g}{ends}{limit}"

    def plain(self) -> dict[str, Any]:
        """Return the row as JSON data. Values are fractions, and missing or non-finite values are None."""
        names = ["file", "split", "calibrator", "metric", "value", "low", "high", "null_high", "n"]
        if self.average is not None:
            names += ["average", "labels", "refused", "null_mean"]
        names += [name for name in ("group", "effective") if getattr(self, name) is not None]
        return {name: json_data(getattr(self, name)) for name in names}

    def shown(self, value: float | None) -> str:
        """Return ``value``, one of this row's numbers, formatted with its unit."""
        if value is None:
            return ""
        if math.isinf(value):
            return "∞"
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4f}"

    @property
    def value_and_interval(self) -> tuple[str, str]:
        """The value and its 95 % interval as table cells, each with its unit."""
        return self.shown(self.value), self.interval + " %" if self.interval and self.percent else self.interval

    @property
    def significant(self) -> bool:
        """Whether the value exceeds the limit that 97.5 % of calibrated models stay below."""
        return self.null_high is not None and self.value > self.null_high

    @property
    def limits(self) -> str:
        """The mean and the 97.5 % limit of a calibrated model as text; empty if there is no limit."""
        if self.null_high is None:
            return ""
        mean = "" if self.null_mean is None else f"{self.shown(self.null_mean).removesuffix(' %')} … "
        return f"{mean}{self.shown(self.null_high)}"

    @property
    def interval(self) -> str:
        """The 95 % interval as text; empty if there is no interval."""
        if self.low is None or self.high is None:
            return ""
        between = " … " if self.low < 0 else "–"  # next to a minus sign, a dash looks like another one
        return f"{self.shown(self.low)}{between}{self.shown(self.high)}".replace(" %", "")


class Panel(list[Row]):
    """The rows of a panel, which print as a table."""

    _repr_html_ = to_html

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def default_metrics(predictions: Data) -> list[Metric]:
    """Return the metrics of the panel that apply to ``predictions``.

    Args:
        predictions: Predictions over all classes, or top-label pairs, for which metrics of all probabilities are left out.

    Returns:
        The metrics, in the order of the panel.

    Raises:
        InputError: If these are not predictions or pairs, or there is no row of positive weight.

    Examples:
        >>> from calibrant import Pairs
        >>> default_metrics(Pairs.from_top_label([0.9, 0.6], [1, 0], [1, 1]))[0]
        Accuracy()
    """
    predictions = require_rows(predictions, what="the panel")
    errors: list[Metric] = [ECE(), ECE(EqualMass()), MCE(), ClasswiseECE(), DebiasedECE(), SmoothECE()]
    metrics = [Accuracy(), NLL(), Brier(), *errors, AURC()]
    if are_events(predictions):  # events are neither right nor wrong
        metrics = errors
    return [metric for metric in metrics if not (metric.needs_classes and isinstance(predictions, Pairs))]


def panel(
    predictions: Data,
    *,
    metrics: Sequence[Metric] | None = None,
    uncertainty: bool = True,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Panel:
    """Return every metric of the panel with its confidence interval and its limit for a calibrated model.

    The limit is the value that 97.5 % of perfectly calibrated models with these probabilities stay below.

    Args:
        predictions: Labelled predictions, or top-label pairs.
        metrics: The metrics to compute; None is ``default_metrics(predictions)``.
        uncertainty: Whether to compute intervals and limits; False is faster.
        draws: Number of simulated label sets for the limit, ≥ 1.
        seed: Seed of the simulation; the same seed gives the same numbers.
        level: Coverage of the intervals, in (0, 1). A fraction (1 − level) / 2 of calibrated models exceed the limit.

    Returns:
        One row per metric, in the order of ``metrics``. The panel prints as one line per metric.

    Raises:
        InputError: If the predictions have no labels or no rows, or a metric does not apply to them.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import ECE, Accuracy
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> print(panel(data, metrics=[Accuracy(), ECE()]))
        Accuracy(): 0.8 [0.7112, 0.8666]
        ECE(binning=EqualWidth(bins=15), norm=1): 0.002184 [0, 0.09109], limit if calibrated 0.09121
    """
    data = require_rows(predictions, what="the panel")
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    check_count(draws, name="draws")
    panel, effective = Panel(), None if data.weights is None else data.effective_count
    for metric in default_metrics(data) if metrics is None else check_metrics(metrics):
        rows, null, found = metric.check(data), None, None
        # most metrics have no limit for grouped rows, and few rows have no interval: the row then has None
        with suppress(NoIntervalError):
            if uncertainty and metric.measures_calibration:
                null = metric.null_band(rows, level=level, draws=draws, seed=seed)
        with suppress(NoIntervalError):
            found = metric.interval(rows, level=level) if uncertainty else None
        low, high = (None, None) if found is None else (found.low, found.high)
        limit, mean = (None, None) if null is None else (null.high, null.estimate)
        panel.append(row_of(metric, metric.measure(rows), low, high, limit, mean, n=data.count, effective=effective))
    return panel


def check_metrics(metrics: Sequence[Metric]) -> Sequence[Metric]:
    """Return ``metrics`` if they are instances of ``Metric``, not names or classes."""
    if wrong := [one for one in metrics if not isinstance(one, Metric)]:
        raise refuse("metrics as a list such as [ECE(), NLL()]", shown(wrong[0]), "pass objects from calibrant.metrics")
    return metrics


def row_of(
    metric: Metric,
    value: float,
    low: float | None,
    high: float | None,
    null_high: float | None,
    null_mean: float | None,
    *,
    n: int,
    effective: float | None = None,
) -> Row:
    """Return the panel's row with these values of ``metric``."""
    figures = (value, low, high, null_high, n, null_mean, effective)
    return Row(repr(metric), *figures, label=label_of(metric), percent=in_percent(metric))


def in_percent(metric: Metric) -> bool:
    """Return whether tables and sentences show a metric in percent: a fraction that is neither a proper score nor a ranking."""
    return metric.bounds == (0.0, 1.0) and metric.notion not in _NOT_PERCENT


def label_of(value: Any) -> str:
    """Return a configuration's short name: its class name and the fields that differ from their defaults.

    Examples:
        >>> from calibrant.binning import EqualMass
        >>> from calibrant.metrics import ECE
        >>> label_of(ECE()), label_of(ECE(EqualMass())), label_of(ECE(norm=2))
        ('ECE', 'ECE(EqualMass)', 'ECE(norm=2)')
    """
    shown = []
    for field in fields(value):
        held = getattr(value, field.name)
        if held != field.default:
            nested = is_dataclass(held)
            shown.append(label_of(held) if nested else f"{field.name}={held!r}")
    return type(value).__name__ + (f"({', '.join(shown)})" if shown else "")
