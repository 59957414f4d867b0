"""Intervals: of means by the bootstrap, of shares by Wilson's score, and of other metrics by their own method."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from calibrant._check import check_count, check_number
from calibrant.errors import NoIntervalError
from calibrant.predictions import BinaryPairs, Predictions
from calibrant.statistics._resampling import count_units, quantiles, resampled_means

__all__ = ["HasInterval", "HasRows", "Interval", "bootstrap", "interval", "mean_error", "normal_quantile", "wilson"]

Data = Predictions | BinaryPairs


@runtime_checkable
class HasRows(Protocol):
    """A metric that is the mean of one number a row."""

    def rows(self, data: Data) -> Tensor:
        """Return the numbers (N,) whose mean is the metric."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval.

    Args:
        estimate: The figure itself.
        low: Lower end.
        high: Upper end.
        level: Nominal coverage in (0, 1).
        method: How it was made.
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


@runtime_checkable
class HasInterval(Protocol):
    """A metric that knows an interval of its own."""

    def interval(self, data: Data, *, level: float, seed: int, null: Tensor | None = None) -> Interval:
        """Return the metric's value with its interval; ``null`` holds its null draws if they are there already."""


def interval(
    metric: object,
    predictions: Data,
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    null: Tensor | None = None,
) -> Interval:
    """Return the interval that covers for this metric.

    Args:
        metric: Any metric. Its own method if it has one (binned errors), Wilson's score interval for a share of rows
            (accuracy), the bootstrap for any other mean over rows.
        predictions: The data; rows of one group (``groups``) are never taken for independent.
        draws: Resamples, where there are any.
        seed: Same seed, same interval.
        level: Nominal coverage in (0, 1).
        null: (draws,) null draws of the metric, if they are there already.

    Raises:
        NoIntervalError: If no interval is known to cover for this metric.

    Example:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import ECE
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> interval(ECE(), data).low
        0.0
    """
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    if isinstance(metric, HasInterval):
        return metric.interval(predictions, level=level, seed=seed, null=null)
    if isinstance(metric, HasRows) and predictions.groups is None:
        rows = metric.rows(predictions)
        if bool(((rows == 0) | (rows == 1)).all()):
            return wilson(int(rows.sum()), rows.shape[0], level=level)
    return bootstrap(metric, predictions, draws=draws, seed=seed, level=level)


def bootstrap(metric: object, predictions: Data, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the percentile bootstrap interval of a metric that is a mean over rows.

    Args:
        metric: A metric with ``rows``, such as ``Accuracy()``, ``NLL()`` or ``Brier()``.
        predictions: The data; with ``groups`` whole groups are drawn.
        draws: Resamples, ≥ 1.
        seed: Same seed, same interval.
        level: Nominal coverage.

    Raises:
        NoIntervalError: For a metric that is no mean over rows (a percentile interval of plug-in ECE covers 0 % when the
            model is calibrated), for an infinite one, and for a single row or group.

    Example:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import Accuracy
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> estimate = bootstrap(Accuracy(), data)
        >>> estimate.low < 0.8 < estimate.high
        True
    """
    check_count(draws, name="draws")
    check_number(level, name="level", low=0, high=1, open_low=True, open_high=True)
    if not isinstance(metric, HasRows):
        raise NoIntervalError(
            f"expected a metric that is a mean over rows, got {metric!r}, for which a bootstrap interval does not cover; "
            "use statistics.interval, or compare it with null_band"
        )
    rows = metric.rows(predictions)
    if not bool(torch.isfinite(rows).all()):
        raise NoIntervalError(
            f"expected a finite value in every row, got an infinite {metric!r}; give the calibrator a floor"
        )
    if count_units(rows, predictions.groups) < 2:
        raise NoIntervalError(
            "expected at least two rows, or groups of rows, for an interval, got one; measure on more data"
        )
    drawn = resampled_means(rows[:, None], groups=predictions.groups, draws=draws, seed=seed)
    low, high = quantiles(drawn[:, 0], level=level)
    return Interval(float(rows.double().mean()), low, high, level, f"percentile bootstrap, {draws} draws")


def wilson(successes: int, count: int, *, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a share: it covers also where the share is near 0 or 1.

    Args:
        successes: How many of ``count``.
        count: ≥ 1.
        level: Nominal coverage.

    Example:
        >>> print(wilson(80, 100))
        0.8 [0.7112, 0.8666]

    References:
        Wilson 1927; Brown, Cai & DasGupta 2001.
    """
    z = normal_quantile((1 + level) / 2)
    share = successes / check_count(count, name="count")
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return Interval(share, max(centre - half, 0.0), min(centre + half, 1.0), level, "Wilson score")


def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile.

    Args:
        probability: In (0, 1).
    """
    return float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))


def mean_error(rows: Tensor, *, groups: Tensor | None = None) -> float:
    """Return the standard error of the mean of ``rows`` (N,), of whole clusters if there are ``groups`` (N,).

    Args:
        rows: One number a row.
        groups: Cluster of each row.

    Example:
        >>> mean_error(torch.tensor([0.0, 1.0, 0.0, 1.0]))
        0.25
    """
    rows = rows.double() - rows.double().mean()
    if groups is None:
        return float(rows.square().sum().sqrt()) / rows.shape[0]
    _, code = torch.unique(groups.to(rows.device), return_inverse=True)
    sums = torch.bincount(code, weights=rows)
    return float((sums.square().sum() * sums.shape[0] / max(sums.shape[0] - 1, 1)).sqrt()) / rows.shape[0]
