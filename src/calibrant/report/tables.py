"""Figures as rows: every metric of a split with its interval and its null level, as plain records."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibrant._check import check_count, check_sequence, refuse, shown
from calibrant.evaluate import default_metrics, panel
from calibrant.metrics import Metric
from calibrant.plot.arguments import check_data, check_label
from calibrant.predictions import BinaryPairs, Predictions

Data = Predictions | BinaryPairs
_AS_IS = ("proper score", "ranking")  # notions whose values are no shares, so not shown in percent
_SAYS_NOTHING = 0.25


@dataclass(frozen=True)
class Row:
    """One figure: a metric of one split of one file, before (``calibrator`` None) or after calibration.

    Args:
        file: Where the predictions came from.
        split: Which part of it.
        calibrator: The repr of the fitted calibrator, or None.
        metric: The metric's repr.
        value: Its value.
        low: Lower end of its 95 % interval, or None where no interval covers.
        high: Upper end.
        null_high: What a perfectly calibrated model of this size stays below in 97.5 % of draws, or None.
        n: Rows of the split.
        label: The metric's short name, for people.
        percent: Whether people read it in percent.
        null_mean: The mean over calibrated models of this size, or None.
        effective: Rows of equal weight that would vary as much as rows with sampling weights; None without such weights.
        group: The part of the split that it is of, such as "region=EU", or None for all of it.
    """

    file: str
    split: str
    calibrator: str | None
    metric: str
    value: float
    low: float | None
    high: float | None
    null_high: float | None
    n: int
    label: str
    percent: bool
    null_mean: float | None = None
    effective: float | None = None
    group: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return the row as JSON data: values are fractions; what is absent or not finite is None."""
        names = ("file", "split", "calibrator", "metric", "value", "low", "high", "null_high", "n")
        beside = {name: held for name in ("group", "effective") if (held := getattr(self, name)) is not None}
        return {name: _finite(getattr(self, name)) for name in names} | beside

    def shown(self, value: float | None) -> str:
        """Return ``value``, one of this row's numbers, as a person reads it."""
        if value is None:
            return ""
        if math.isinf(value):
            return "∞"
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4f}"

    @property
    def says_nothing(self) -> bool:
        """Whether a calibrated model of this size would show so much that the figure tells nothing: a limit above 25 %."""
        return self.percent and self.null_high is not None and self.null_high > _SAYS_NOTHING

    @property
    def limits(self) -> str:
        """What is expected if calibrated, and the 97.5 % limit, as text, or nothing."""
        if self.null_high is None:
            return ""
        mean = "" if self.null_mean is None else f"{self.shown(self.null_mean)} … "
        return f"{mean}{self.shown(self.null_high)}"

    @property
    def interval(self) -> str:
        """The 95 % interval as text, or nothing."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.shown(self.low)}–{self.shown(self.high)}".replace(" %", "")


def measure(
    data: Data,
    *,
    file: str,
    split: str,
    calibrator: str | None = None,
    metrics: Sequence[Metric] | None = None,
    draws: int = 1000,
    group: str | None = None,
) -> list[Row]:
    """Return one row a metric.

    Args:
        data: Labelled predictions or top-label pairs.
        file: As in ``Row``.
        split: As in ``Row``.
        calibrator: As in ``Row``.
        metrics: What to measure; None is the panel.
        draws: Draws for intervals and null levels; 0 leaves both out.
        group: As in ``Row``.
    """
    check_data(data, weighted=True)
    check_label(file, name="file")
    check_label(split, name="split")
    check_label(calibrator, name="calibrator")
    check_label(group, name="group")
    check_count(draws, name="draws", low=0)
    chosen = default_metrics(data) if metrics is None else list(check_sequence(metrics, name="metrics"))
    for metric in chosen:
        if not isinstance(metric, Metric):
            raise refuse("metrics of calibrant.metrics", shown(metric), "pass instances such as ECE()")
    measured = panel(data, metrics=chosen, uncertainty=draws > 0, draws=max(draws, 2))
    return [
        Row(
            file,
            split,
            calibrator,
            **asdict(figures),
            label=label_of(metric),
            percent=in_percent(metric),
            group=group,
        )
        for metric, figures in zip(chosen, measured, strict=True)
    ]


def in_percent(metric: Metric) -> bool:
    """Say whether people read ``metric`` in percent."""
    return metric.bounds == (0.0, 1.0) and metric.notion not in _AS_IS


def label_of(value: Any) -> str:
    """Return a configuration's short name: its class, with only what differs from the default.

    Examples:
        >>> from calibrant.binning import EqualMass
        >>> from calibrant.metrics import ECE
        >>> label_of(ECE()), label_of(ECE(EqualMass())), label_of(ECE(norm=2))
        ('ECE', 'ECE(EqualMass)', 'ECE(norm=2)')
    """
    shown = []
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if held != field.default:
            nested = dataclasses.is_dataclass(held)
            shown.append(label_of(held) if nested else f"{field.name}={held!r}")
    return type(value).__name__ + (f"({', '.join(shown)})" if shown else "")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
