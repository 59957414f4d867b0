"""Intervals of mean losses: Student's t corrected for skewness, or bounds from the probabilities if few decisions are wrong.

A row's loss is the sum of a, the smallest loss that any label would give, and an excess e ≥ 0 that only an unlikely label
causes. With shares v_i of the mass, the mean loss is Σ v a + Σ v e. The first part is close to normal. The second is a sum
over few events of sizes v_i e_i, for which Student's t is far off: the data do not show how large the next event would
have been, but the probabilities show how large it can be.

*Enough information.* (Σ v e)² / Σ v² e² is the number of equal events that would vary as much as those seen. Its
denominator is at least the sum expected from the probabilities, since events of sizes that were not seen contribute to the
variance too. The denominator must not be less than the square of the largest possible event. These conditions decide only
which method is used, not whether an interval is returned.

*Bounds.* If all events had equal size, they would be a binomial count of x = (Σ v e)² / Σ v² e² among N rows, with Clopper
and Pearson's bounds. For the upper bound, an event of the largest possible size is added to both sums. The result is
Clopper and Pearson's bound for equal sizes and is conservative for other sizes (Fay and Feuer's bound for a weighted sum of
Poisson counts, here with the beta quantiles of binomial counts).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant._core.check import shown
from calibrant._core.numerics import add_records, slices
from calibrant.data.checks import Data
from calibrant.errors import NoIntervalError
from calibrant.statistics.design import FEWEST, Design, require_groups
from calibrant.statistics.means import (
    Interval,
    Powers,
    contributions,
    interval_from,
    normal_quantile,
    share_interval,
    student_quantile,
)

# Effective number of events from which Student's t is used for a mean loss; with fewer, the range of the loss gives the bounds.
ENOUGH = 20
# The probabilities may raise the variance of a mean loss by at most this many standard errors of the variance. For the populations
# with the longest tails, the upper end misses 2.7 to 2.9 % of samples with two, 3.2 to 3.9 % with one, and 4.3 to 5.4 % with none.
UNSEEN = 2.0
_ROUNDING = 1e-12  # an excess below this fraction of the mean loss is rounding


class Excess(NamedTuple):
    """The values that a loss can take in each row, over all possible labels.

    The excess of a label is its loss minus the smallest loss of the row.

    Args:
        least: (N,) smallest loss over the labels, ≥ 0.
        mean: (N,) mean excess under the row's probabilities.
        square: (N,) mean squared excess under the row's probabilities.
        most: (N,) largest excess; infinite where a label has probability 0.
    """

    least: Tensor
    mean: Tensor
    square: Tensor
    most: Tensor


@dataclass(frozen=True, eq=False)
class MeanSums:
    """The moments of a mean over independent rows, which give its value and its interval; two of them can be added.

    Args:
        rows: Moments of the rows.
        least: Moments of the smallest values that the rows could have; None if the metric does not know them.
        excess: (2,) Σ w² e² of the excess e over these smallest values: as observed, and as expected from the
            probabilities.
        foreseen: (3,) Σ v, and the values of Σ v x and Σ v x² expected from the probabilities, with v = w².
        most: The largest w e that a row can have.
        decided: (2, 2) Σ w and Σ w² of wrong decisions and of right decisions.
        binary: Whether every row is 0 or 1.
    """

    rows: Powers
    least: Powers | None
    excess: Tensor
    foreseen: Tensor
    most: float
    decided: Tensor
    binary: bool

    @classmethod
    def of(cls, rows: Tensor, data: Data, excess: Excess | None = None) -> "MeanSums":
        """Return the moments of ``rows`` (N,), one number for each row of ``data``.

        Args:
            rows: (N,) values.
            data: The data that the values come from.
            excess: The values that each row could take, or None if the metric does not know them.
        """
        rows, decided = rows.double(), decided_of(data)
        whole, binary = Powers.of(rows, data.weights), bool(((rows == 0) | (rows == 1)).all())
        if excess is None:
            nothing = torch.zeros(3, dtype=torch.float64)
            return cls(whole, None, nothing[:2], nothing, math.inf, decided, binary)
        w, most = data.row_weights, -math.inf
        found = torch.zeros(5, dtype=torch.float64, device=rows.device)
        for some in slices(len(rows), 1 << 14):  # blocks that fit into the cache
            least, mean, square, largest = (one[some] for one in excess)
            v, seen = w[some].square(), (rows[some] - least).clamp_min(0).square()
            squared = least.square() + 2 * least * mean + square
            found += torch.stack([seen, square, torch.ones_like(v), least + mean, squared]) @ v
            most = max(most, float((w[some] * largest).max()))
        found = found.cpu()
        return cls(whole, Powers.of(excess.least, data.weights), found[:2], found[2:], most, decided, binary)

    def __add__(self, other: "MeanSums") -> "MeanSums":
        return add_records(self, other, most=max(self.most, other.most), binary=self.binary and other.binary)

    def interval(self, what: object, *, level: float) -> Interval:
        """Return the interval of the mean.

        Args:
            what: The metric, for error messages.
            level: Nominal coverage in (0, 1).

        Raises:
            NoIntervalError: If too few decisions are wrong or right and the range of the metric is unknown, or if the mean is
                infinite.
        """
        rows = self.rows
        require_finite(rows.mean, what)
        if self.binary and not rows.weighted:
            return share_interval(round(float(rows.sums[0, 1])), round(rows.mass), level=level)
        if self.binary:
            return _weighted_share_interval(rows, level=level)
        if self.least is None:
            check_enough_errors(self.decided, weighted=rows.weighted, what=what)
            return interval_from(rows.mean, rows.spread(), level=level)
        events = (rows.mean - self.least.mean) * rows.mass
        seen = events > _ROUNDING * rows.mean * rows.mass  # without any event, Student's t cannot be used
        squares = float(self.excess.max())
        # an event of the largest possible size that would outweigh all seen events may simply not have happened yet
        enough = seen and events**2 >= ENOUGH * squares and self.most**2 <= squares
        alike = rows.total(2) <= _ROUNDING * rows.mean**2  # equal losses have no variance
        if math.isfinite(self.most) and (alike or not enough):
            return self._bounded(self.least, level=level)
        # A loss has a long upper tail, and most samples contain too few of its largest values, so the upper end misses twice as often
        # as the lower one. The probabilities show how large unlikely losses are. They can expect too large ones (an under-confident
        # model), so the variance of the sample is raised by at most UNSEEN of its own standard errors √Σ c⁴.
        spread, square, (whole, first, second) = rows.spread(), rows.total(2), self.foreseen.tolist()
        found = interval_from(rows.mean, spread, level=level)
        foreseen = (second - first**2 / whole) / rows.mass**2
        raised = max(0.0, min(foreseen, square + UNSEEN * math.sqrt(rows.total(4))))
        error = math.sqrt(raised * spread.units / (spread.units - 1))
        if not square or error <= spread.error:
            return found
        return replace(found, high=interval_from(rows.mean, replace(spread, error=error), level=level).high)

    def _bounded(self, least: Powers, *, level: float) -> Interval:
        """Return an interval that adds the squared half-widths of the two parts of the mean, ``least`` and the excess.

        References:
            Clopper & Pearson 1934; Fay & Feuer 1997 (weighted sums); Zou & Donner 2008 (variance estimates recovery).
        """
        from scipy.special import betaincinv

        rows, tail = self.rows, (1 - level) / 2
        if rows.units < 2:
            raise NoIntervalError(
                "rows that are worth two of equal weight", f"{rows.units:.3g}", "measure on more data"
            )
        # the smallest losses: few rows may dominate them, so the degrees of freedom are those of the variance (Satterthwaite)
        spread, fourth = least.spread(), least.total(4)
        degrees = 2 * least.total(2) ** 2 / fourth if fourth else math.inf
        sure = interval_from(least.mean, replace(spread, units=min(spread.units, 1 + max(degrees, 1.0))), level=level)
        # the events, whose observed sum Σ v e is total
        units, total = rows.units, rows.mean - least.mean
        most, squares, low = self.most / rows.mass, float(self.excess[0]) / rows.mass**2, 0.0
        if total > 0 and squares > 0:
            size = squares / total
            # unequal weights can give more effective events than rows
            low = size * units * float(betaincinv(total / size, max(units - total / size, 0) + 1, tail))
        high, size = units * most, (squares + most**2) / max(total + most, 1e-300)
        if 0 < (count := (total + most) / size if size else 0.0) < units + 1:
            high = size * units * float(betaincinv(count, units - count + 1, 1 - tail))
        low, high = min(low, total), max(high, total)
        # rows whose smallest loss is 0 may exist though none was seen, up to the fraction that the sample allows (Clopper and Pearson)
        unseen = sure.estimate * (1 - tail ** (1 / units))
        low = max(0.0, rows.mean - math.hypot(max(sure.estimate - sure.low, unseen), total - low))
        high = rows.mean + math.hypot(sure.high - sure.estimate, high - total)
        return Interval(rows.mean, low, high, level, "Clopper–Pearson for the effective number of errors")


def rows_interval(
    rows: Tensor, data: Data, *, what: object, level: float, excess: Callable[[Data], Excess | None] = lambda _: None
) -> Interval:
    """Return the interval of the mean of ``rows`` (N,), one number for each row of ``data``.

    If the data have groups, the groups are the independent units.

    Args:
        rows: (N,) values of the metric.
        data: The data that the values come from.
        what: The metric, for error messages.
        level: Nominal coverage in (0, 1).
        excess: A function that returns the values that the metric could take in each row, or None.

    Raises:
        NoIntervalError: As in ``MeanSums.interval``, and if there are too few groups.
    """
    if data.groups is None:
        return MeanSums.of(rows, data, excess(data)).interval(what, level=level)
    require_groups(data.groups, what=what, weight=data.weights)
    check_enough_errors(decided_of(data), weighted=data.weights is not None, what=what)
    require_finite(float(rows.sum()), what)
    mean, _, spread = contributions(rows, Design.of(rows, groups=data.groups, weight=data.weights))
    return interval_from(mean, spread, level=level)


def _weighted_share_interval(rows: Powers, *, level: float) -> Interval:
    """Return Wilson's interval of a proportion of weighted rows, with the effective sample size.

    The effective sample size is the smaller of two values: (Σw)² / Σw², which assumes that weights are independent of
    outcomes, and p (1 − p) divided by the sandwich variance Σ w² (row − p)² / (Σw)², which does not assume this but is
    imprecise where few rows dominate it.

    References:
        Kish 1965; Korn & Graubard 1998 (effective sample sizes in score intervals); Franco et al. 2019.
    """
    p, count, variance = rows.mean, rows.units, rows.total(2)
    if variance > 0:
        count = min(count, p * (1 - p) / variance)
    ratio = student_quantile((1 + level) / 2, max(rows.units - 1, 1)) / normal_quantile((1 + level) / 2)
    count = max(count / ratio**2, 1.0)
    found = share_interval(p * count, count, level=level)
    return replace(found, estimate=p, method=f"Wilson score, effective sample size {rows.units:.4g}")


def require_finite(value: float, what: object) -> None:
    """Raise ``NoIntervalError`` if ``value``, the mean of the metric ``what``, is not finite."""
    if not math.isfinite(value):
        got = f"an infinite {shown(what, most=200)}"
        raise NoIntervalError("a finite value in every row", got, "give every class a probability above 0")


def decided_of(data: Data) -> Tensor:
    """Return Σ w and Σ w² of the wrong and of the right decisions, (2, 2) with one line for each kind."""
    chosen = (data.row_weights[data.correct == right] for right in (False, True))
    return torch.stack([torch.stack([w.sum(), w.square().sum()]) for w in chosen]).cpu()


def check_enough_errors(decided: Tensor, *, what: object, weighted: bool) -> None:
    """Raise ``NoIntervalError`` if there are too few wrong or too few right decisions.

    Args:
        decided: (2, 2) sums from ``decided_of``, which give the effective numbers of decisions.
        what: The metric, for the error message.
        weighted: Whether the rows have weights.
    """
    wrong, right = (float(mass**2 / max(square, 1e-300)) for mass, square in decided.tolist())
    fewest, kind = min((wrong, "wrong"), (right, "right"))
    if fewest < FEWEST:
        rows = float(decided[:, 0].sum())
        more = f"about {math.ceil(rows * FEWEST * 1.6 / fewest):,} rows" if fewest else "many more rows"
        worth = " (the rows of equal weight that theirs are worth)" if weighted else ""
        raise NoIntervalError(
            f"at least {FEWEST} {kind} decisions for an interval of {shown(what, most=200)}",
            f"{fewest:.3g}{worth} of {rows:,.0f}",
            f"measure on {more}, or read the interval of Accuracy()",
        )
