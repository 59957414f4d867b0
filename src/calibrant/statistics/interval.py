"""Intervals: for means Student's t corrected for skewness, for proportions Wilson's, for other metrics their own method."""

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from calibrant._core.arguments import check_level, check_sampling
from calibrant._core.check import check_count, check_number, check_row_tensor, refuse, shown
from calibrant.data.checks import Data, need_rows
from calibrant.errors import NoIntervalError
from calibrant.statistics._resampling import count_units, quantiles, resampled_means
from calibrant.statistics._results import Interval
from calibrant.statistics.events import Events, HasExcess
from calibrant.statistics.means import mean_interval, mean_of, need_errors, need_groups, student_quantile

__all__ = ["HasInterval", "HasRows", "Interval", "bootstrap", "interval", "normal_quantile", "share_interval", "wilson"]


@runtime_checkable
class HasRows(Protocol):
    """A metric that is the mean of one number per row."""

    def rows(self, data: Data) -> Tensor:
        """Return the numbers (N,) whose mean is the metric."""


@runtime_checkable
class HasInterval(Protocol):
    """A metric with its own interval method."""

    def interval(self, data: Data, *, level: float, draws: int, seed: int, null: Tensor | None = None) -> Interval:
        """Return the metric's value with its interval; ``null`` holds its values under calibration, if drawn before."""


def interval(
    metric: object,
    predictions: Data,
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    null: Tensor | None = None,
) -> Interval:
    """Return the metric's confidence interval, or raise if no method is known to have the nominal coverage.

    Args:
        metric: Any metric. The method is the metric's own if it has one (binned errors), Wilson's score interval for a
            proportion of rows (accuracy), and Student's t corrected for skewness for any other mean over rows.
        predictions: The data; if they have ``groups``, the groups are the independent units.
        draws: Label sets drawn from the probabilities, for metrics whose interval needs a null distribution.
        seed: Same seed, same interval.
        level: Nominal coverage in (0, 1).
        null: (draws,) values of the metric under calibration, if ``null_draws`` was called before.

    Raises:
        NoIntervalError: If no method is known for this metric, or there are too few data: fewer than ten wrong decisions,
            fewer than ten groups, or too few rows per bin.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import ECE
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> interval(ECE(), data).low
        0.0
    """
    check_sampling(draws=draws, seed=seed, level=level, low=2)
    if null is not None and check_row_tensor(null, name="null").shape[0] < 2:
        raise refuse("null as a tensor (draws,) of null_draws", shown(null), "leave it out to have it drawn")
    _need_object(metric)
    predictions = need_rows(predictions, what=metric)
    if isinstance(metric, HasInterval):
        return metric.interval(predictions, level=level, draws=draws, seed=seed, null=null)
    rows = _finite_rows(metric, predictions)
    weight = predictions.weights
    if predictions.groups is None and bool(((rows == 0) | (rows == 1)).all()):
        if weight is None:
            return share_interval(int(rows.sum()), rows.shape[0], level=level)
        if not weight.is_floating_point():
            return share_interval(int((rows * weight).sum()), int(weight.sum()), level=level)
        return sampled_share_interval(rows, weight, level=level)
    need_groups(predictions.groups, what=metric)
    if predictions.groups is None and isinstance(metric, HasExcess):
        excess = metric.excess(predictions)
        events = Events.of(rows, excess, weight)
        if not events.enough and math.isfinite(events.most):
            low, high = events.mean_ends(excess.least, weight, level=level)
            return Interval(
                mean_of(rows, weight), low, high, level, "Clopper–Pearson for the effective number of errors"
            )
    else:
        need_errors(predictions, what=metric)
    return mean_interval(rows, groups=predictions.groups, level=level, weight=weight)


def _finite_rows(metric: object, predictions: Data) -> Tensor:
    if not isinstance(metric, HasRows):
        if not callable(metric) or isinstance(metric, type):
            raise refuse("a metric such as ECE()", shown(metric), "pass a metric object")
        raise NoIntervalError(
            "a metric that is a mean over rows or knows its interval",
            f"{shown(metric, most=200)}, for which none is known to cover",
            "compare it with null_band",
        )
    rows = metric.rows(predictions)
    if not bool(torch.isfinite(rows).all()):
        raise NoIntervalError(
            "a finite value in every row", f"an infinite {shown(metric, most=200)}", "give the calibrator a floor"
        )
    return rows


def bootstrap(metric: object, predictions: Data, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the percentile bootstrap interval of a metric that is a mean over rows.

    Args:
        metric: A metric with ``rows``, such as ``Accuracy()``, ``NLL()`` or ``Brier()``.
        predictions: The data; with ``groups`` whole groups are resampled.
        draws: Resamples, ≥ 1.
        seed: Same seed, same interval.
        level: Nominal coverage.

    Raises:
        NoIntervalError: For a metric that is not a mean over rows (the percentile interval of the plug-in ECE has coverage 0
            for a calibrated model), for an infinite value, and for a single row or group.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import Accuracy
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> estimate = bootstrap(Accuracy(), data)
        >>> estimate.low < 0.8 < estimate.high
        True
    """
    check_sampling(draws=draws, seed=seed, level=level)
    _need_object(metric)
    predictions = need_rows(predictions, what=metric)
    rows = _finite_rows(metric, predictions)
    if count_units(rows, predictions.groups) < 2:
        raise NoIntervalError("at least two rows, or groups of rows, for an interval", "one", "measure on more data")
    need_errors(predictions, what=metric)
    weight = predictions.weights
    drawn = resampled_means(rows[:, None], groups=predictions.groups, draws=draws, seed=seed, weight=weight)
    low, high = quantiles(drawn[:, 0], level=level)
    return Interval(mean_of(rows, weight), low, high, level, f"percentile bootstrap, {draws} draws")


def share_interval(successes: int, count: int, *, level: float = 0.95) -> Interval:
    """Return Wilson's interval of a proportion, with a Poisson-type end for one to three successes or failures.

    The coverage of Wilson's interval is too low for some proportions near 0: with .17 expected successes it misses in 16 % of
    samples. For one to three successes (or failures) x the end next to 0 (or its distance from 1) is therefore
    ½ χ²_{1 − level}(2x) / count.

    Args:
        successes: Number of successes among ``count``.
        count: ≥ 1.
        level: Nominal coverage.

    Examples:
        >>> print(share_interval(99, 100), wilson(99, 100))
        0.99 [0.9455, 0.9995] 0.99 [0.9455, 0.9982]

    References:
        Brown, Cai & DasGupta 2001, §4.1.1 (modified Wilson interval).
    """
    found = wilson(successes, count, level=level)
    low, high = _ends(successes, count, level=level)
    low, high = min(low, found.estimate), max(high, found.estimate)  # against rounding, for a proportion of 0 or 1
    return Interval(found.estimate, low, high, level, "Wilson score, modified next to 0 and 1")


def sampled_share_interval(rows: Tensor, weight: Tensor, *, level: float = 0.95) -> Interval:
    """Return the interval of a proportion of rows with sampling weights: Wilson's with the effective sample size.

    That is the smaller of (Σw)² / Σw², which assumes that weights are independent of outcomes, and p (1 − p) over the sandwich
    variance, which does not but is imprecise where few rows decide it.

    Args:
        rows: (N,) 0 or 1.
        weight: (N,) positive sampling weights.
        level: Nominal coverage.

    References:
        Kish 1965; Korn & Graubard 1998 (effective sample sizes in score intervals); Franco et al. 2019.
    """
    normalised = weight.double() / weight.sum()
    mean = float((normalised * rows).sum())
    square = float(normalised.square().sum())
    variance = float((normalised.square() * (rows.double() - mean).square()).sum())
    count = 1 / square
    if variance > 0:
        count = min(count, mean * (1 - mean) / variance)
    quantile = student_quantile((1 + level) / 2, max(1 / square - 1, 1)) / normal_quantile((1 + level) / 2)
    count = max(count / quantile**2, 1.0)
    low, high = _ends(mean * count, count, level=level)
    return Interval(mean, low, high, level, f"Wilson score, effective sample size {1 / square:.4g}")


def _ends(successes: float, count: float, *, level: float) -> tuple[float, float]:
    """Return both ends of Wilson's interval, modified for one to three successes or failures; counts may be non-integers."""
    from scipy.special import chdtri

    low, high = _score_ends(successes / count, count, level=level)
    if 1 <= successes <= 3:
        low = float(chdtri(2 * successes, level)) / 2 / count
    if 1 <= count - successes <= 3:
        high = 1 - float(chdtri(2 * (count - successes), level)) / 2 / count
    return low, high


def wilson(successes: int, count: int, *, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion, whose coverage is close to nominal also near 0 and 1.

    Args:
        successes: Number of successes among ``count``.
        count: ≥ 1.
        level: Nominal coverage.

    Examples:
        >>> print(wilson(80, 100))
        0.8 [0.7112, 0.8666]

    References:
        Wilson 1927; Brown, Cai & DasGupta 2001.
    """
    check_level(level)
    if check_count(successes, name="successes", low=0) > check_count(count, name="count"):
        raise refuse("at most as many successes as rows", f"{successes} of {count}", "pass successes before the count")
    proportion = successes / count
    low, high = _score_ends(proportion, count, level=level)
    low, high = min(low, proportion), max(high, proportion)  # against rounding, for a proportion of 0 or 1
    return Interval(proportion, low, high, level, "Wilson score")


def _score_ends(proportion: float, count: float, *, level: float) -> tuple[float, float]:
    """Return both ends of Wilson's interval: the proportions whose score test accepts ``proportion``."""
    z = normal_quantile((1 + level) / 2)
    centre = (proportion + z * z / (2 * count)) / (1 + z * z / count)
    variance = max(proportion * (1 - proportion), 0.0) / count + z * z / (4 * count * count)
    half = z * math.sqrt(variance) / (1 + z * z / count)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile.

    Args:
        probability: In (0, 1).
    """
    check_number(probability, name="probability", low=0, high=1, open_low=True, open_high=True)
    return float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))


def _need_object(metric: object) -> None:
    if isinstance(metric, type):
        raise refuse("a metric such as ECE()", shown(metric), "pass a metric object")
