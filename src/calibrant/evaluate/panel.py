"""The panel: the metrics of a report, each with its confidence interval and its values for a calibrated model.

If no valid interval or limit is known, there is none.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from calibrant._core.check import check_count, check_number
from calibrant._core.config import json_data
from calibrant._core.notebook import to_html
from calibrant.binning import EqualMass
from calibrant.data.checks import Data, require_rows
from calibrant.data.pairs import Pairs, are_events
from calibrant.errors import NoIntervalError
from calibrant.metrics import AURC, ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, Metric, SmoothECE

_NOT_PERCENT = ("proper score", "ranking")  # notions whose values are no fractions, so not shown in percent


@dataclass(frozen=True)
class Row:
    """One metric on one set of predictions; fractions, not per cent.

    Args:
        metric: The metric's repr, which shows its configuration.
        value: The value of the metric.
        low: Lower end of its confidence interval, or None if no interval with the nominal coverage is known.
        high: Upper end, or None.
        null_high: The 97.5 % limit if calibrated: 97.5 % of perfectly calibrated models with these probabilities have a smaller
            value; None for a metric that is not a calibration error.
        n: Number of rows.
        null_mean: The mean over perfectly calibrated models with these probabilities; None if it is not a calibration error.
        effective: Effective number of rows, if they have weights; otherwise None.
        average: For several labels per row, "pooled" (over all known labels of all rows, so that frequent labels count most) or
            "macro" (the mean over labels); None for one class per row.
        labels: Number of labels L, or None for one class per row.
        refused: For several labels per row, why there is no interval.
        label: The metric's short name, for tables.
        percent: Whether tables show it in percent.
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
        """Return the row as JSON data: values are fractions; missing and non-finite ones are None."""
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
        """The value and its 95 % interval as cells of a table, each with its unit."""
        return self.shown(self.value), self.interval + " %" if self.interval and self.percent else self.interval

    @property
    def significant(self) -> bool:
        """Whether the value lies above its 97.5 % limit if calibrated."""
        return self.null_high is not None and self.value > self.null_high

    @property
    def limits(self) -> str:
        """The mean and the 97.5 % limit if calibrated as text; empty without them."""
        if self.null_high is None:
            return ""
        mean = "" if self.null_mean is None else f"{self.shown(self.null_mean).removesuffix(' %')} … "
        return f"{mean}{self.shown(self.null_high)}"

    @property
    def interval(self) -> str:
        """The 95 % interval as text; empty without one."""
        if self.low is None or self.high is None:
            return ""
        between = " … " if self.low < 0 else "–"  # beside a sign a dash reads as another
        return f"{self.shown(self.low)}{between}{self.shown(self.high)}".replace(" %", "")


class Panel(list[Row]):
    """Rows of a panel, which print as a table."""

    _repr_html_ = to_html

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def default_metrics(predictions: Data) -> list[Metric]:
    """Return the panel's metrics that apply to ``predictions``.

    Args:
        predictions: Predictions over all classes, or top-label pairs, which leave out what needs all probabilities.

    Examples:
        >>> from calibrant import Pairs
        >>> default_metrics(Pairs.from_top_label([0.9, 0.6], [1, 0], [1, 1]))[0]
        Accuracy()
    """
    predictions = require_rows(predictions, what="the panel")
    errors: list[Metric] = [ECE(), ECE(EqualMass()), MCE(), ClasswiseECE(), DebiasedECE(), SmoothECE()]
    metrics = [Accuracy(), NLL(), Brier(), *errors, AURC()]
    if are_events(predictions):  # which are neither right nor wrong
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
    """Return every metric of the panel with its interval and its limit if calibrated.

    Args:
        predictions: Labelled predictions, or top-label pairs.
        metrics: The metrics; None takes ``default_metrics(predictions)``.
        uncertainty: Whether to compute intervals and limits if calibrated; False is faster.
        draws: Number of simulated label sets for the limit if calibrated, ≥ 2.
        seed: Seed of the simulation; the same seed gives the same numbers.
        level: Coverage of the intervals, in (0, 1); a fraction (1 − level) / 2 of calibrated models is above the limit.

    Returns:
        One row per metric, in the order of ``metrics``; it prints as one line per metric.

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
    for metric in default_metrics(data) if metrics is None else metrics:
        rows, null, found = metric.check(data), None, None
        # rows in groups, for most metrics, and too few: the row says so by having none
        with suppress(NoIntervalError):
            if uncertainty and metric.measures_calibration:
                null = metric.null_band(rows, level=level, draws=draws, seed=seed)
        with suppress(NoIntervalError):
            found = metric.interval(rows, level=level) if uncertainty else None
        low, high = (None, None) if found is None else (found.low, found.high)
        limit, mean = (None, None) if null is None else (null.high, null.estimate)
        panel.append(row_of(metric, metric.measure(rows), low, high, limit, mean, n=data.count, effective=effective))
    return panel


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
    """Return the row of a metric's figures."""
    percent = metric.bounds == (0.0, 1.0) and metric.notion not in _NOT_PERCENT
    figures = (value, low, high, null_high, n, null_mean, effective)
    return Row(repr(metric), *figures, label=label_of(metric), percent=percent)


def label_of(value: Any) -> str:
    """Return a configuration's short name: its class, with only the fields that differ from their defaults.

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
