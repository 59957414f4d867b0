"""The confidence interval of a metric, and the bootstrap of a mean.

Each metric computes its own interval: a mean over rows with ``losses`` and ``means``, a binned error with ``binned``.
"""

from typing import Any

import numpy as np

from calibrant._core.check import refuse, shown
from calibrant._core.numerics import computing_on
from calibrant.data.checks import Data
from calibrant.errors import NoIntervalError
from calibrant.statistics.enough import check_enough_errors, decided_of
from calibrant.statistics.losses import require_finite
from calibrant.statistics.means import Interval

BLOCKS = 20_000  # with more than three times as many units, random blocks are drawn: the same limit in bounded time
_CHUNK = 1 << 18  # counts that fit the second-level cache


def interval(metric: Any, predictions: Data, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the metric's confidence interval, or raise if no method is known to have the nominal coverage.

    Args:
        metric: Any metric. The method is the metric's own if it has one (binned errors), Wilson's score interval for a
            proportion of rows (accuracy), and Student's t corrected for skewness for any other mean over rows.
        predictions: The data; if they have ``groups``, the groups are the independent units.
        draws: Number of simulated sets of gaps, ≥ 1; used only for a binned error of rows in groups.
        seed: Seed of the simulation; the same seed gives the same interval.
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
    rows = require_metric(metric, level=level, draws=draws).check(predictions)
    with computing_on(rows.scores.device):
        found: Interval = metric.interval(rows, level=level, draws=draws, seed=seed)
    return found


def require_metric(metric: Any, *, level: float, draws: int) -> Any:
    """Return ``metric`` if it is a metric and ``level`` and ``draws`` are in range."""
    if isinstance(metric, type) or not hasattr(metric, "null_band"):
        raise refuse("a metric such as ECE()", shown(metric), "pass a metric object")
    if not 0 < level < 1 or draws < 1:
        raise refuse("level in (0, 1) and draws ≥ 1", f"level {level} and draws {draws}", "choose other values")
    return metric


def bootstrap(metric: Any, predictions: Data, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the percentile bootstrap interval of a metric that is a mean over rows.

    Args:
        metric: A metric with ``rows``, such as ``Accuracy()``, ``NLL()`` or ``Brier()``.
        predictions: The data; with ``groups``, whole groups are resampled.
        draws: Number of resamples, ≥ 1.
        seed: Seed of the simulation; the same seed gives the same interval.
        level: Nominal coverage.

    Raises:
        NoIntervalError: If the metric is not a mean over rows (a bootstrap interval of the ECE of a calibrated model almost
            never contains the true value 0), its value is infinite, or there is only one row or group.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import Accuracy
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> estimate = bootstrap(Accuracy(), data)
        >>> estimate.low < 0.8 < estimate.high
        True
    """
    data = require_metric(metric, level=level, draws=draws).check(predictions)
    if not hasattr(metric, "rows"):
        got = f"{shown(metric, most=200)}, for which no interval with the nominal coverage is known"
        raise NoIntervalError("a metric that is a mean over rows", got, "use interval")
    rows = metric.rows(data).cpu().double().numpy()
    require_finite(rows.sum(), metric)
    check_enough_errors(decided_of(data), what=metric, weighted=data.weights is not None)
    size = data.row_weights.cpu().numpy()
    estimate = float(rows @ size / size.sum())
    sums = np.stack([size * (rows - estimate), size])  # centred, so that the products below do not lose digits
    rng = np.random.default_rng(seed)
    if data.groups is not None:
        sums = _sums_by(np.unique(data.groups.cpu().numpy(), return_inverse=True)[1], sums)
    if (units := sums.shape[1]) < 2:
        raise NoIntervalError("at least two rows, or groups of rows, to resample", "one", "measure on more data")
    if units > 3 * BLOCKS:
        code = np.empty(units, dtype=np.int64)
        code[np.random.default_rng(seed).permutation(units)] = np.arange(units) % BLOCKS
        sums, units = _sums_by(code, sums), BLOCKS
    drawn = []
    for start in range(0, draws, step := max(1, _CHUNK // units)):
        # how often each unit is drawn: multinomial counts
        some = min(step, draws - start)
        chosen = rng.integers(units, size=(some, units), dtype=np.uint32) + np.arange(some)[:, None] * units
        counts = np.bincount(chosen.reshape(-1), minlength=some * units).reshape(some, units).astype(np.float64)
        drawn.append((counts @ sums[0]) / (counts @ sums[1]))
    low, high = estimate + np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high), level, f"percentile bootstrap, {draws} draws")


def _sums_by(code: Any, columns: Any) -> Any:
    """Return the sums (C, U) of ``columns`` (C, N) over the rows of each unit, which ``code`` (N,) numbers."""
    return np.stack([np.bincount(code, weights=column) for column in columns])
