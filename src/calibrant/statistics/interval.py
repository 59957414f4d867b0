"""Intervals: for means Student's t corrected for skewness, for proportions Wilson's, for other metrics their own method.

That of a binned error, such as the ECE's, is ``binned.error_interval``, reached through the metric's ``interval``.

A mean loss that few wrong decisions decide is bounded by what the probabilities allow. A row's loss is the least that any label
would give it, a, and an excess e ≥ 0 that only an unlikely label brings. With shares v_i of the mass the mean is Σ v a + Σ v e,
of which the first part is close to normal. The second is a sum over few events of sizes v_i e_i, and Student's t is far off:
the data do not show how large the next event would have been, but the probabilities say how large it can be.

*Enough information.* (Σ v e)² / Σ v² e² is the number of equal events that would vary as much as those seen. The sum below it is at
least that expected from the probabilities, since events of a size that was not seen decide the variance too. Whether an interval is
offered does not depend on this number, only its method.

*Bounds.* Events of equal size are a binomial count of x = (Σ v e)² / Σ v² e² among N rows, with Clopper and Pearson's bounds. For the
upper one an event of the largest possible size is added to both sums, which is theirs for equal sizes and conservative for others
(Fay and Feuer's bound of a weighted sum of Poisson counts, here with the beta quantiles of binomial ones).
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import MOST_DRAWS, Draws, Fits, Integer, Level, Seed, checked
from calibrant._core.numerics import add_records
from calibrant.data.checks import Data, require_rows
from calibrant.errors import NoIntervalError
from calibrant.statistics._resampling import quantiles, resampled_means
from calibrant.statistics.enough import FEWEST, check_enough_errors, decided_of
from calibrant.statistics.means import Interval, Powers, Spread, UnitSums, interval_from, mean_of, student_quantile

# Effective number of events from which Student's t holds for a mean loss; with fewer it is bounded by its range.
ENOUGH = 20
# Standard errors of a mean loss's variance by which what the probabilities foresee can raise it: with two the upper end of the
# populations with the longest tails misses in 2.7 to 2.9 % instead of 4.3 to 5.4, with one in 3.2 to 3.9.
UNSEEN = 2.0
_ROUNDING = 1e-12  # of a mean loss, below which its excess is none


@dataclass(frozen=True)
class Excess:
    """What a loss can be in each row, whatever its label.

    Args:
        least: (N,) its smallest value over the labels, ≥ 0.
        mean: (N,) how much larger it is on average, by the row's probabilities.
        square: (N,) the mean square of how much larger it is, by the row's probabilities.
        most: (N,) the largest that it can be; infinite where a label has probability 0.
    """

    least: Tensor
    mean: Tensor
    square: Tensor
    most: Tensor


def _a_metric(value: Any, *, name: str) -> Any:
    if isinstance(value, type) or not hasattr(value, "null_band"):
        raise refuse("a metric such as ECE()", shown(value), "pass a metric object")
    return value


AnyMetric = Annotated[Any, Fits(_a_metric, "")]


@checked
def interval(
    metric: AnyMetric,
    predictions: Data,
    *,
    draws: Annotated[int, Integer(2, MOST_DRAWS)] = 1000,
    seed: Seed = 0,
    level: Level = 0.95,
) -> Interval:
    """Return the metric's confidence interval, or raise if no method is known to have the nominal coverage.

    Args:
        metric: Any metric. The method is the metric's own if it has one (binned errors), Wilson's score interval for a
            proportion of rows (accuracy), and Student's t corrected for skewness for any other mean over rows.
        predictions: The data; if they have ``groups``, the groups are the independent units.
        draws: Sets of gaps drawn for the limit if calibrated of a binned error of rows in groups.
        seed: Same seed, same interval.
        level: Nominal coverage in (0, 1).

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
    found: Interval = metric.interval(predictions, level=level, draws=draws, seed=seed)
    return found


def _need_finite(value: float, what: object) -> None:
    if not math.isfinite(value):
        got = f"an infinite {shown(what, most=200)}"
        raise NoIntervalError("a finite value in every row", got, "give the calibrator a floor")


@checked
def bootstrap(
    metric: AnyMetric, predictions: Data, *, draws: Draws = 1000, seed: Seed = 0, level: Level = 0.95
) -> Interval:
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
    predictions = require_rows(predictions, what=metric)
    if not hasattr(metric, "rows"):
        got = f"{shown(metric, most=200)}, for which none is known to cover"
        raise NoIntervalError("a metric that is a mean over rows", got, "use interval")
    rows, weight = metric.rows(predictions), predictions.weights
    _need_finite(float(rows.sum()), metric)
    check_enough_errors(decided_of(predictions), what=metric, weighted=weight is not None)
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
    proportion, (low, high) = successes / count, _wilson_interval(successes, count, level=level)
    low, high = min(low, proportion), max(high, proportion)  # against rounding, for a proportion of 0 or 1
    return Interval(proportion, low, high, level, "Wilson score, modified next to 0 and 1")


def weighted_share_interval(mean: float, units: float, variance: float, *, level: float) -> Interval:
    """Return the interval of a proportion of weighted rows: Wilson's with the effective sample size.

    That is the smaller of (Σw)² / Σw², which assumes that weights are independent of outcomes, and p (1 − p) over the sandwich
    variance, which does not but is imprecise where few rows decide it.

    Args:
        mean: The proportion.
        units: (Σw)² / Σw².
        variance: The sandwich variance Σ w² (row − mean)² / (Σw)².
        level: Nominal coverage.

    References:
        Kish 1965; Korn & Graubard 1998 (effective sample sizes in score intervals); Franco et al. 2019.
    """
    count = min(units, mean * (1 - mean) / variance) if variance > 0 else units
    quantile = student_quantile((1 + level) / 2, max(units - 1, 1)) / normal_quantile((1 + level) / 2)
    count = max(count / quantile**2, 1.0)
    low, high = _wilson_interval(mean * count, count, level=level)
    return Interval(mean, low, high, level, f"Wilson score, effective sample size {units:.4g}")


def _wilson_interval(successes: float, count: float, *, level: float) -> tuple[float, float]:
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
    """Return the standard normal quantile."""
    return float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))


def _interval_of_few(rows: Powers, *, level: float) -> Interval:
    """Return the interval of a mean that few rows may decide: corrected for skewness, with the degrees that they leave.

    Two (Σ c²)² / Σ c⁴ are those of the variance (Satterthwaite), 2x if x equal rows decide it.
    """
    spread, fourth = rows.spread(), rows.total(4)
    degrees = 2 * rows.total(2) ** 2 / fourth if fourth else math.inf
    return interval_from(rows.mean, replace(spread, units=min(spread.units, 1 + max(degrees, 1.0))), level=level)


@dataclass(frozen=True, eq=False)
class MeanSums:
    """The moments of a mean over rows, from which its interval follows; they add over chunks, workers and days.

    Args:
        rows: Of the rows.
        least: Of the least values that the rows could have; None for a metric that does not know them.
        squares: Σ w² e² of the excess e beyond it.
        expected: The same as expected from the probabilities.
        foreseen: (3,) Σ v, and Σ v x and Σ v x² as expected from the probabilities, with v = w².
        most: The largest w e that a row can have.
        decided: (2, 2) Σ w and Σ w² of wrong and of right decisions.
        binary: Whether every row is 0 or 1.
        units: Sums over the groups, which then are the independent units; None for independent rows.
    """

    rows: Powers
    least: Powers | None
    squares: float
    expected: float
    foreseen: Tensor
    most: float
    decided: Tensor
    binary: bool
    units: UnitSums | None = None

    @classmethod
    def of(cls, rows: Tensor, data: Data, excess: Excess | None = None) -> "MeanSums":
        """Return the moments of ``rows`` (N,), one number for each row of ``data``, of which ``excess`` says what they can be."""
        rows, weight = rows.double(), data.weights
        w = torch.ones_like(rows) if weight is None else weight.to(rows)
        v, decided = w.square(), decided_of(data)
        whole, binary = Powers.of(rows, weight), bool(((rows == 0) | (rows == 1)).all())
        units = None if data.groups is None else UnitSums.of_column(data.groups, w, rows)
        if units is not None or excess is None:
            unknown = torch.zeros(3, dtype=torch.float64)
            return cls(whole, None, 0.0, 0.0, unknown, math.inf, decided, binary, units)
        squared = excess.least.square() + 2 * excess.least * excess.mean + excess.square
        foreseen = torch.stack([v.sum(), (v * (excess.least + excess.mean)).sum(), (v * squared).sum()]).cpu()
        seen = (rows - excess.least).clamp_min(0)
        squares, expected = (float((v * x).sum()) for x in (seen.square(), excess.square))
        most = float((w * excess.most).max())
        return cls(whole, Powers.of(excess.least, weight), squares, expected, foreseen, most, decided, binary)

    def __add__(self, other: "MeanSums") -> "MeanSums":
        return add_records(self, other, most=max(self.most, other.most), binary=self.binary and other.binary)

    @property
    def enough(self) -> bool:
        """Whether Student's t holds for the mean: the one rule of enough information."""
        if self.least is None:
            return True
        excess = self.rows.mean - self.least.mean
        seen = excess > _ROUNDING * self.rows.mean  # no event at all is too few
        return seen and (excess * self.rows.mass) ** 2 >= ENOUGH * max(self.squares, self.expected)

    def interval(self, what: object, *, level: float) -> Interval:
        """Return the interval of the mean.

        Args:
            what: The metric, for messages.
            level: Nominal coverage.

        Raises:
            NoIntervalError: If few decisions are wrong, or right, and the metric does not know its range, for few groups, or for an
                infinite value.
        """
        rows = self.rows
        if self.units is not None:
            self.units.need(what=what, least=FEWEST)
            check_enough_errors(self.decided, weighted=rows.weighted, what=what)
        _need_finite(rows.mean, what)
        if self.units is not None:
            return interval_from(rows.mean, self.units.contributions(0).spread, level=level)
        if self.binary and not rows.weighted:
            return share_interval(round(float(rows.sums[0, 1])), round(rows.mass), level=level)
        if self.binary:
            return weighted_share_interval(rows.mean, rows.units, rows.total(2), level=level)
        if self.least is None:
            check_enough_errors(self.decided, weighted=rows.weighted, what=what)
        elif not self.enough and math.isfinite(self.most):
            return self._bounded(self.least, level=level)
        found = interval_from(rows.mean, rows.spread(), level=level)
        higher = interval_from(rows.mean, self._foreseen_spread(), level=level).high
        return replace(found, high=max(found.high, higher))

    def _foreseen_spread(self) -> Spread:
        """Return the spread with the variance that the probabilities foresee, if it is larger than that seen.

        A loss has a long upper tail, and in most samples its largest values are too few: the upper end then misses twice as often as
        the lower one. The probabilities say how large unlikely losses are; where they expect too large ones (an under-confident
        model), the sample tells, so that the variance is raised by at most ``UNSEEN`` of its own standard errors √Σ c⁴.
        """
        spread, square = self.rows.spread(), self.rows.total(2)
        whole, first, second = self.foreseen.tolist()
        if self.least is None or not square or not whole or spread.units < 2:
            return spread
        foreseen = (second - first**2 / whole) / self.rows.mass**2
        raised = min(foreseen, square + UNSEEN * math.sqrt(self.rows.total(4)))
        error = math.sqrt(max(raised, 0.0) * spread.units / (spread.units - 1))
        return replace(spread, error=max(spread.error, error))

    def _bounded(self, least: Powers, *, level: float) -> Interval:
        """Return the interval of both parts together: the squares of their distances to their ends add.

        References:
            Clopper & Pearson 1934; Fay & Feuer 1997 (weighted sums); Zou & Donner 2008 (variance estimates recovery).
        """
        if self.rows.units < 2:
            raise NoIntervalError(
                "rows that are worth two of equal weight", f"{self.rows.units:.3g}", "measure on more data"
            )
        total, sure = self.rows.mean - least.mean, _interval_of_few(least, level=level)
        low, high = self._event_ends(total, level=level)
        # rows whose least loss is 0 need not be among those seen: as many as none of the sample excludes (Clopper and Pearson)
        unseen = sure.estimate * (1 - ((1 - level) / 2) ** (1 / self.rows.units))
        low = max(0.0, self.rows.mean - math.hypot(max(sure.estimate - sure.low, unseen), total - low))
        high = self.rows.mean + math.hypot(sure.high - sure.estimate, high - total)
        return Interval(self.rows.mean, low, high, level, "Clopper–Pearson for the effective number of errors")

    def _event_ends(self, total: float, *, level: float) -> tuple[float, float]:
        """Return the bounds of the population's Σ v e, seen to be ``total``."""
        from scipy.special import betaincinv

        units, mass, tail = self.rows.units, self.rows.mass, (1 - level) / 2
        most, squares, low = self.most / mass, self.squares / mass**2, 0.0
        if total > 0 and squares > 0:
            size = squares / total
            # unequal weights can give more effective events than rows
            low = size * units * float(betaincinv(total / size, max(units - total / size, 0) + 1, tail))
        high, size = units * most, (squares + most**2) / max(total + most, 1e-300)
        if 0 < (count := (total + most) / size if size else 0.0) < units + 1:
            high = size * units * float(betaincinv(count, units - count + 1, 1 - tail))
        return min(low, total), max(high, total)
