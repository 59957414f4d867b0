"""Confidence intervals of metrics, their distribution for a calibrated model, and the bootstrap of a mean.

Each metric computes its own interval and null distribution. A mean over rows uses ``losses`` and ``means``, a binned error
uses ``binned``, and any other metric uses simulated labels.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant._core.numerics import computing_on, row_chunks
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.errors import NoIntervalError
from calibrant.statistics.losses import check_enough_errors, decided_of, require_finite
from calibrant.statistics.means import Interval


def interval(metric: Any, predictions: Data, *, level: float = 0.95) -> Interval:
    """Return the metric's confidence interval, or raise an error if no method is known to have the nominal coverage.

    Args:
        metric: Any metric. A binned error has its own method. A proportion of rows (accuracy) has Wilson's score interval,
            and any other mean over rows has Student's t interval, corrected for skewness.
        predictions: The data. If they have ``groups``, the groups are the independent units.
        level: Nominal coverage in (0, 1).

    Returns:
        The estimate with both ends of its interval.

    Raises:
        NoIntervalError: If no method is known for this metric, or there are too few data: fewer than ten wrong decisions,
            or fewer than ten groups.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import ECE
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> interval(ECE(), data).low
        0.0
    """
    rows = _checked(metric, predictions, level=level)
    with computing_on(rows.scores.device):
        found: Interval = metric.interval(rows, level=level)
    return found


def null_band(metric: Any, predictions: Data, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the mean and the central range that ``metric`` would have if the predicted probabilities were calibrated.

    A value inside the band does not reject calibration. For independent rows, the bands of ``ECE``, ``TopLabelECE`` and
    ``ClasswiseECE`` do not depend on ``draws`` and ``seed``. With ``groups``, the sums of each bin are simulated with the
    covariance between whole groups.

    Args:
        metric: Any metric.
        predictions: The data; for ``Pairs``, outcomes are drawn with probability ``p``.
        draws: Number of simulated sets of outcomes, ≥ 1, for metrics that need them.
        seed: Seed of the simulation; the same seed gives the same band.
        level: The fraction of values inside the band, in (0, 1).

    Returns:
        An interval. Its ``estimate`` is the mean for a calibrated model, and its ``high`` end is the value that a fraction
        (1 + level) / 2 of calibrated models stay below, 97.5 % by default.

    Raises:
        NoIntervalError: If the rows have groups, and there are fewer than ten or the metric is not binned.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import ECE
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> 0 < null_band(ECE(), data).estimate < 0.1
        True

    References:
        Bröcker & Smith 2007; Vaicenavicius et al. 2019; de Moivre 1730 (see Diaconis & Zabell 1991).
    """
    rows = _checked(metric, predictions, level=level, draws=draws)
    with computing_on(rows.scores.device):
        band: Interval = metric.null_band(rows, level=level, draws=draws, seed=seed)
    return band


def _checked(metric: Any, predictions: Data, *, level: float, draws: int = 1) -> Any:
    """Check the arguments, and return the rows of positive weight in the form that ``metric`` measures."""
    if isinstance(metric, type) or not hasattr(metric, "null_band"):
        raise refuse("a metric such as ECE()", shown(metric), "pass a metric object")
    if not 0 < level < 1 or draws < 1:
        raise refuse("level in (0, 1) and draws ≥ 1", f"level {level} and draws {draws}", "choose other values")
    return metric.check(predictions)


def band_of(values: Tensor, *, level: float) -> Interval:
    """Return the mean and the central range of the simulated ``values`` (draws,)."""
    found = values.cpu().double().numpy()
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(float(found.mean()), low, high, level, f"outcomes drawn from the probabilities, {len(found)} draws")


def redraw(predictions: Data, *, generator: torch.Generator) -> Data:
    """Return the same predictions with labels drawn from their probabilities.

    Args:
        predictions: Predictions over all classes, or pairs.
        generator: The random number generator.
    """
    if isinstance(predictions, Pairs):
        happened = torch.rand(len(predictions), dtype=torch.float64, generator=generator) < predictions.p.cpu()
        return replace(
            predictions, y=happened.double().to(predictions.p.device), decision=None, labels=None, features=None
        )
    drawn = []
    for rows in row_chunks(len(predictions), predictions.classes, device=predictions.logits.device):
        p = predictions.float64_probs(rows)
        uniform = torch.rand(len(p), 1, dtype=torch.float64, generator=generator).to(p.device)
        cumulative = p.cumsum(dim=1)
        below = (cumulative < uniform * cumulative[:, -1:]).sum(dim=1)
        drawn.append(below.clamp_max(predictions.classes - 1))
    return predictions.relabelled(torch.cat(drawn))


def bootstrap(metric: Any, predictions: Data, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the percentile bootstrap interval of a metric that is a mean over rows.

    Args:
        metric: A metric with ``rows``, such as ``Accuracy()``, ``NLL()`` or ``Brier()``.
        predictions: The data; with ``groups``, whole groups are resampled.
        draws: Number of resamples, ≥ 1.
        seed: Seed of the resampling; the same seed gives the same interval.
        level: Nominal coverage in (0, 1).

    Returns:
        The estimate with both ends of its interval.

    Raises:
        NoIntervalError: If the metric is not a mean over rows (for a calibrated model, a bootstrap interval of the ECE
            almost never contains the true value 0), if its value is infinite, or if there is only one row or group.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import Accuracy
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> estimate = bootstrap(Accuracy(), data)
        >>> estimate.low < 0.8 < estimate.high
        True
    """
    data = _checked(metric, predictions, level=level, draws=draws)
    if not hasattr(metric, "rows"):
        got = f"{shown(metric, most=200)}, for which no interval with the nominal coverage is known"
        raise NoIntervalError("a metric that is a mean over rows", got, "use statistics.interval")
    rows = metric.rows(data).cpu().double().numpy()
    require_finite(rows.sum(), metric)
    check_enough_errors(decided_of(data), what=metric, weighted=data.weights is not None)
    size = data.row_weights.cpu().numpy()
    estimate = float(rows @ size / size.sum())
    sums = np.stack([size * (rows - estimate), size])  # centred, so that the products below do not lose digits
    if data.groups is not None:
        unit = np.unique(data.groups.cpu().numpy(), return_inverse=True)[1]
        sums = np.stack([np.bincount(unit, weights=column) for column in sums])
    if (units := sums.shape[1]) < 2:
        raise NoIntervalError("at least two rows, or groups of rows, to resample", "one", "measure on more data")
    rng, drawn = np.random.default_rng(seed), np.empty(draws)
    for draw in range(draws):
        times = np.bincount(rng.integers(units, size=units, dtype=np.uint32), minlength=units)  # draws of each unit
        total, mass = sums @ times
        drawn[draw] = total / mass
    low, high = estimate + np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high), level, f"percentile bootstrap, {draws} draws")
