"""The panel: the metrics a report shows, each with its interval and with what a calibrated model would score."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from calibrant.binning import EqualMass
from calibrant.errors import NoIntervalError
from calibrant.metrics import AURC, ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, SmoothECE
from calibrant.metrics._base import Metric
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.statistics import interval, null_draws

__all__ = ["PanelRow", "default_metrics", "panel"]

Data = Predictions | BinaryPairs


@dataclass(frozen=True)
class PanelRow:
    """One metric on one set of predictions; fractions, not per cent.

    Args:
        metric: The metric's repr, which names its configuration.
        value: Its value.
        low: Lower end of its interval, or None where none is known to cover.
        high: Upper end, or None.
        null_high: What 97.5 % of perfectly calibrated models with these probabilities stay below, or None for a
            metric that is not a calibration error.
        n: Rows.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    null_high: float | None
    n: int


def default_metrics(predictions: Data) -> list[Metric]:
    """Return the panel's metrics that apply to ``predictions``.

    Args:
        predictions: Predictions over all classes, or top-label pairs, which leave out what needs all probabilities.

    Example:
        >>> from calibrant import BinaryPairs
        >>> default_metrics(BinaryPairs.from_probs([0.9, 0.6], [1, 0]))[0]
        Accuracy()
    """
    scores: list[Metric] = [Accuracy(), NLL(), Brier()]
    errors: list[Metric] = [ECE(), ECE(EqualMass()), MCE(), ClasswiseECE(), DebiasedECE(), SmoothECE()]
    metrics = [*scores, *errors, AURC()]
    return [m for m in metrics if isinstance(predictions, Predictions) or not m.needs_classes]


def panel(
    predictions: Data,
    *,
    metrics: Sequence[Metric] | None = None,
    uncertainty: bool = True,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> list[PanelRow]:
    """Return every metric of the panel with its interval and its null level.

    Args:
        predictions: Labelled predictions, or top-label pairs.
        metrics: Which; None takes ``default_metrics(predictions)``.
        uncertainty: False leaves out intervals and null levels, for speed.
        draws: Resamples, and label sets drawn for the null level.
        seed: Same seed, same numbers.
        level: Coverage of the intervals; the null level has (1 − level) / 2 of calibrated models above it.

    Returns:
        One row a metric, in their order.

    Example:
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> [row.value for row in panel(data, uncertainty=False)][0]
        0.8
    """
    chosen = default_metrics(predictions) if metrics is None else metrics
    return [_row(metric, predictions, uncertainty, draws=draws, seed=seed, level=level) for metric in chosen]


def _row(metric: Metric, data: Data, uncertainty: bool, *, draws: int, seed: int, level: float) -> PanelRow:
    if not uncertainty:
        return PanelRow(repr(metric), metric(data), None, None, None, len(data))
    null = null_high = low = high = None
    if metric.measures_calibration:
        null = null_draws(metric, data, draws=draws, seed=seed)
        null_high = float(torch.quantile(null, (1 + level) / 2))
    try:
        found = interval(metric, data, draws=draws, seed=seed, level=level, null=null)
        low, high = found.low, found.high
    except NoIntervalError:  # the row says so by having none
        low = high = None
    return PanelRow(repr(metric), metric(data), low, high, null_high, len(data))
