"""Intervals of a mean loss that few wrong decisions decide.

A row's loss is the least that any label would give it, a, and an excess e ≥ 0 that only an unlikely label brings. With shares v_i of
the mass the mean is Σ v a + Σ v e, of which the first part is close to normal. The second is a sum over few events of sizes v_i e_i,
and Student's t is far off: the data do not show how large the next event would have been, but the probabilities say how large it
can be.

*Enough information.* (Σ v e)² / Σ v² e² is the number of equal events that would vary as much as those seen. The sum below it is at
least that expected from the probabilities, since events of a size that was not seen decide the variance too. Whether an interval is
offered does not depend on this number, only its method.

*Bounds.* Events of equal size are a binomial count of x = (Σ v e)² / Σ v² e² among N rows, with Clopper and Pearson's bounds. For the
upper one an event of the largest possible size is added to both sums, which is theirs for equal sizes and conservative for others
(Fay and Feuer's bound of a weighted sum of Poisson counts, here with the beta quantiles of binomial ones).
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from calibrant.data.checks import Data
from calibrant.statistics.means import ENOUGH, contributions, mean_of, spread_of, student_quantile

__all__ = ["Events", "Excess", "HasExcess"]


@dataclass(frozen=True)
class Excess:
    """What a loss can be in each row, whatever its label.

    Args:
        least: (N,) its smallest value over the labels.
        square: (N,) the mean square of how much larger it is, by the row's probabilities.
        most: (N,) the largest that it can be; infinite where a label has probability 0.
    """

    least: Tensor
    square: Tensor
    most: Tensor


@runtime_checkable
class HasExcess(Protocol):
    """A mean over rows that knows what each row's value would be for every label."""

    def excess(self, data: Data) -> Excess:
        """Return what the values (N,) can be."""


@dataclass(frozen=True)
class Events:
    """Sums over rows of the excess of a mean loss, in shares of the mass.

    Args:
        total: Σ v e.
        squares: Σ v² e².
        expected: The same as expected from the probabilities.
        most: The largest v e that a row can have.
        units: Number of rows, of repetitions of counted ones, or of rows of equal weight that vary as much.
    """

    total: float
    squares: float
    expected: float
    most: float
    units: float

    @classmethod
    def of(cls, rows: Tensor, excess: Excess, weight: Tensor | None) -> "Events":
        """Return the sums for the values ``rows`` (N,) of a loss."""
        seen, count = (rows.double() - excess.least).clamp_min(0), rows.shape[0]
        times = None if weight is None or weight.is_floating_point() else weight.double()
        mass = float(count if weight is None else weight.sum())
        share = torch.full_like(seen, 1 / mass) if weight is None or times is not None else weight.double() / mass
        often = torch.ones_like(seen) if times is None else times
        total = float((often * share * seen).sum())
        squares, expected = (float((often * share.square() * x).sum()) for x in (seen.square(), excess.square))
        units = mass if weight is None or times is not None else 1 / float(share.square().sum())
        return cls(total, squares, expected, float((share * excess.most).max()), units)

    @property
    def informative(self) -> float:
        """The effective number of events."""
        return self.total**2 / max(self.squares, self.expected, 1e-300)

    @property
    def enough(self) -> bool:
        """Whether Student's t holds for the mean: the one rule of enough information."""
        return self.informative >= ENOUGH

    def ends(self, *, level: float) -> tuple[float, float]:
        """Return the bounds of the population's Σ v e.

        References:
            Clopper & Pearson 1934; Fay & Feuer 1997 (weighted sums).
        """
        from scipy.special import betaincinv

        tail, low, high = (1 - level) / 2, 0.0, self.units * self.most
        if self.total > 0:
            size = self.squares / self.total
            low = size * self.units * float(betaincinv(self.total / size, self.units - self.total / size + 1, tail))
        total, squares = self.total + self.most, self.squares + self.most**2
        size = squares / total if total > 0 else 0.0
        count = total / size if size else 0.0
        if 0 < count < self.units + 1:
            high = size * self.units * float(betaincinv(count, self.units - count + 1, 1 - tail))
        return min(low, self.total), max(high, self.total)

    def mean_ends(self, least: Tensor, weight: Tensor | None, *, level: float) -> tuple[float, float]:
        """Return the ends of the whole mean: the squares of both parts' distances to their ends add.

        References:
            Zou & Donner 2008 (the method of variance estimates recovery).
        """
        spread = spread_of(contributions(least, None, weight))
        mean = mean_of(least, weight) + self.total
        half = spread.error * student_quantile((1 + level) / 2, max(spread.units - 1, 1))
        low, high = self.ends(level=level)
        return mean - math.hypot(half, self.total - low), mean + math.hypot(half, high - self.total)
