"""Records of results: each metric of a split with its interval and its limit if calibrated."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibrant._core.config import json_data
from calibrant.data.checks import Data
from calibrant.data.multilabel import MultiLabel
from calibrant.evaluate.multilabel import multilabel_panel
from calibrant.evaluate.panel import PanelRow, default_metrics, panel
from calibrant.metrics import Metric

_NOT_PERCENT = ("proper score", "ranking")  # notions whose values are no fractions, so not shown in percent


@dataclass(frozen=True, kw_only=True)
class Row(PanelRow):
    """One row of the panel for one split of one file, before calibration (``calibrator`` is None) or after it.

    Args:
        file: The file of the predictions.
        split: Name of the split.
        calibrator: The repr of the fitted calibrator, or None.
        label: The metric's short name, for tables.
        percent: Whether tables show it in percent.
        group: Subgroup of the split, such as "region=EU", or None for the whole split.
    """

    file: str
    split: str
    calibrator: str | None
    label: str
    percent: bool
    group: str | None = None

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


def measure(
    data: Data | MultiLabel,
    *,
    file: str,
    split: str,
    calibrator: str | None = None,
    metrics: Sequence[Metric] | None = None,
    draws: int = 1000,
    group: str | None = None,
) -> list[Row]:
    """Return one row per metric.

    Args:
        data: Labelled predictions, with one class or several labels per row, or top-label pairs.
        file: As in ``Row``.
        split: As in ``Row``.
        calibrator: As in ``Row``.
        metrics: The metrics; None is the default panel, the only choice for several labels.
        draws: Simulation draws for intervals and limits if calibrated; 0 leaves both out.
        group: As in ``Row``.
    """
    place: dict[str, Any] = {"file": file, "split": split, "calibrator": calibrator, "group": group}
    if isinstance(data, MultiLabel):
        figures = multilabel_panel(data, uncertainty=draws > 0)
        return [Row(**place, **asdict(one), label=one.metric, percent=False) for one in figures]
    chosen = default_metrics(data) if metrics is None else metrics
    # two draws are the fewest that a limit can be a quantile of; without draws none is asked for
    return panel_rows(panel(data, metrics=chosen, uncertainty=draws > 0, draws=max(draws, 2)), chosen, **place)


def panel_rows(figures: Sequence[PanelRow], metrics: Sequence[Metric], **place: Any) -> list[Row]:
    """Return a row of each figure of a panel, or of streamed rows, at a ``place``: file, split, calibrator and group."""
    rows = []
    for figure, metric in zip(figures, metrics, strict=True):
        percent = metric.bounds == (0.0, 1.0) and metric.notion not in _NOT_PERCENT
        rows.append(Row(**place, **asdict(figure), label=label_of(metric), percent=percent))
    return rows


def label_of(value: Any) -> str:
    """Return a configuration's short name: its class, with only the fields that differ from their defaults.

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
