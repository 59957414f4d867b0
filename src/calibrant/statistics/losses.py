"""Intervals of mean losses: Student's t corrected for skewness, and where few wrong decisions decide, what the probabilities allow.

A row's loss is the least that any label would give it, a, and an excess e ≥ 0 that only an unlikely label brings. With shares v_i
of the mass the mean is Σ v a + Σ v e, of which the first part is close to normal. The second is a sum over few events of sizes
v_i e_i, and Student's t is far off: the data do not show how large the next event would have been, but the probabilities say how
large it can be.

*Enough information.* (Σ v e)² / Σ v² e² is the number of equal events that would vary as much as those seen. The sum below it is at
least that expected from the probabilities, since events of a size that was not seen decide the variance too, and must not be less
than the square of the largest possible event. Whether an interval is offered does not depend on this, only its method.

*Bounds.* Events of equal size are a binomial count of x = (Σ v e)² / Σ v² e² among N rows, with Clopper and Pearson's bounds. For the
upper one an event of the largest possible size is added to both sums, which is theirs for equal sizes and conservative for others
(Fay and Feuer's bound of a weighted sum of Poisson counts, here with the beta quantiles of binomial ones).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant._core.check import shown
from calibrant._core.numerics import add_records
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

# Effective number of events from which Student's t holds for a mean loss; with fewer it is bounded by its range.
ENOUGH = 20
# Standard errors of a mean loss's variance by which what the probabilities foresee can raise it: with two the upper end of the
# populations with the longest tails misses in 2.7 to 2.9 % instead of 4.3 to 5.4, with one in 3.2 to 3.9.
UNSEEN = 2.0
_ROUNDING = 1e-12  # of a mean loss, below which its excess is none


class Excess(NamedTuple):
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


@dataclass(frozen=True, eq=False)
class MeanSums:
    """The moments of a mean over independent rows, from which its value and interval are computed; they can be added.

    Args:
        rows: Moments of the rows.
        least: Moments of the smallest values that the rows could have; None if the metric does not know them.
        excess: (2,) Σ w² e² of the excess e beyond these, and the same as expected from the probabilities.
        foreseen: (3,) Σ v, and Σ v x and Σ v x² as expected from the probabilities, with v = w².
        most: The largest w e that a row can have.
        decided: (2, 2) Σ w and Σ w² of wrong and of right decisions.
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
        """Return the moments of ``rows`` (N,), one number for each row of ``data``, of which ``excess`` says what they can be."""
        rows, decided = rows.double(), decided_of(data)
        whole, binary = Powers.of(rows, data.weights), bool(((rows == 0) | (rows == 1)).all())
        if excess is None:
            nothing = torch.zeros(3, dtype=torch.float64)
            return cls(whole, None, nothing[:2], nothing, math.inf, decided, binary)
        w = data.row_weights
        v, mean = w.square(), excess.least + excess.mean
        squared = excess.least.square() + 2 * excess.least * excess.mean + excess.square
        seen = (rows - excess.least).clamp_min(0).square()
        found = torch.stack([(v * x).sum() for x in (seen, excess.square, torch.ones_like(v), mean, squared)]).cpu()
        most = float((w * excess.most).max())
        return cls(whole, Powers.of(excess.least, data.weights), found[:2], found[2:], most, decided, binary)

    def __add__(self, other: "MeanSums") -> "MeanSums":
        return add_records(self, other, most=max(self.most, other.most), binary=self.binary and other.binary)

    def interval(self, what: object, *, level: float) -> Interval:
        """Return the interval of the mean; ``what`` is the metric, for messages.

        Raises:
            NoIntervalError: If few decisions are wrong, or right, and the metric does not know its range; for an infinite value.
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
        seen = events > _ROUNDING * rows.mean * rows.mass  # no event at all is too few
        squares = float(self.excess.max())
        # if one event of the largest possible size would outweigh all that were seen, it may only not have happened yet
        enough = seen and events**2 >= ENOUGH * squares and self.most**2 <= squares
        alike = rows.total(2) <= _ROUNDING * rows.mean**2  # equal losses have no variance
        if math.isfinite(self.most) and (alike or not enough):
            return self._bounded(self.least, level=level)
        # A loss has a long upper tail, and in most samples its largest values are too few: the upper end then misses twice as often
        # as the lower one. The probabilities say how large unlikely losses are; where they expect too large ones (an under-confident
        # model), the sample tells, so that the variance is raised by at most UNSEEN of its own standard errors √Σ c⁴.
        spread, square, (whole, first, second) = rows.spread(), rows.total(2), self.foreseen.tolist()
        found = interval_from(rows.mean, spread, level=level)
        foreseen = (second - first**2 / whole) / rows.mass**2
        raised = max(0.0, min(foreseen, square + UNSEEN * math.sqrt(rows.total(4))))
        error = math.sqrt(raised * spread.units / (spread.units - 1))
        if not square or error <= spread.error:
            return found
        return replace(found, high=interval_from(rows.mean, replace(spread, error=error), level=level).high)

    def _bounded(self, least: Powers, *, level: float) -> Interval:
        """Return the interval of both parts together: the squares of their distances to their ends add.

        References:
            Clopper & Pearson 1934; Fay & Feuer 1997 (weighted sums); Zou & Donner 2008 (variance estimates recovery).
        """
        from scipy.special import betaincinv

        rows, tail = self.rows, (1 - level) / 2
        if rows.units < 2:
            raise NoIntervalError(
                "rows that are worth two of equal weight", f"{rows.units:.3g}", "measure on more data"
            )
        # the least losses: few rows may decide them, so that the degrees are those of the variance (Satterthwaite)
        spread, fourth = least.spread(), least.total(4)
        degrees = 2 * least.total(2) ** 2 / fourth if fourth else math.inf
        sure = interval_from(least.mean, replace(spread, units=min(spread.units, 1 + max(degrees, 1.0))), level=level)
        # the events, seen to be Σ v e = total
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
        # rows whose least loss is 0 need not be among those seen: as many as none of the sample excludes (Clopper and Pearson)
        unseen = sure.estimate * (1 - tail ** (1 / units))
        low = max(0.0, rows.mean - math.hypot(max(sure.estimate - sure.low, unseen), total - low))
        high = rows.mean + math.hypot(sure.high - sure.estimate, high - total)
        return Interval(rows.mean, low, high, level, "Clopper–Pearson for the effective number of errors")


def rows_interval(
    rows: Tensor, data: Data, *, what: object, level: float, excess: Callable[[Data], Excess | None] = lambda _: None
) -> Interval:
    """Return the interval of the mean of ``rows`` (N,), one number for each row of ``data``; groups are the independent units.

    Raises:
        NoIntervalError: As ``MeanSums.interval``, and for few groups.
    """
    if data.groups is None:
        return MeanSums.of(rows, data, excess(data)).interval(what, level=level)
    require_groups(data.groups, what=what, weight=data.weights)
    check_enough_errors(decided_of(data), weighted=data.weights is not None, what=what)
    require_finite(float(rows.sum()), what)
    mean, _, spread = contributions(rows, Design.of(rows, groups=data.groups, weight=data.weights))
    return interval_from(mean, spread, level=level)


def _weighted_share_interval(rows: Powers, *, level: float) -> Interval:
    """Return the interval of a proportion of weighted rows: Wilson's with the effective sample size.

    That is the smaller of (Σw)² / Σw², which assumes that weights are independent of outcomes, and p (1 − p) over the sandwich
    variance Σ w² (row − p)² / (Σw)², which does not but is imprecise where few rows decide it.

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
    """Raise for an infinite mean."""
    if not math.isfinite(value):
        got = f"an infinite {shown(what, most=200)}"
        raise NoIntervalError("a finite value in every row", got, "give the calibrator a floor")


def decided_of(data: Data) -> Tensor:
    """Return (2, 2) Σ w and Σ w² of wrong and of right decisions."""
    right, w = data.correct.double().cpu(), data.row_weights.cpu()
    return torch.stack([1 - right, right]) @ torch.stack([w, w.square()], dim=1)


def check_enough_errors(decided: Tensor, *, what: object, weighted: bool) -> None:
    """Raise if there are too few wrong, or right, decisions: by their effective numbers, from ``decided_of``."""
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
