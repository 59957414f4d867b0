"""Weights and groups of the rows that a mean is taken over; groups are the independent units.

Let S_gc = Σ_{i in group g, column c} v_i x_i with normalised weights v, centred over groups. The effect of a group shifts
all its columns in one direction, so the covariance SᵀS between columns matters, not only the variances.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant._core.check import shown
from calibrant.errors import NoIntervalError

# Smallest number of groups, of wrong decisions and of correct decisions for an interval of a mean or a binned error
FEWEST = 10
MAX_SUMS = 1 << 26  # largest number of sums over all groups, half a gigabyte


@dataclass(frozen=True)
class Clusters:
    """Corrections for unequal group sizes in a variance that is estimated from the groups' sums.

    A large group shifts the mean towards itself, so its centred sum is too small. If v_g are the groups' fractions of the
    rows and each group has one effect, E c_g² is v_g² σ² (1 − 2 v_g + Σ v²) instead of v_g² σ².

    Args:
        scale: (G,) factors 1 / √(1 − 2 v_g + Σ v²) that multiply the centred sums c to make Σ c² unbiased.
        degrees: Degrees of freedom of Σ c², from its mean and variance for normal effects; G − 1 for equal sizes.
        effective: Effective number of groups, 1 / Σ v².

    References:
        Bell & McCaffrey 2002 (bias-reduced linearisation); Satterthwaite 1946.
    """

    scale: Tensor
    degrees: float
    effective: float

    @classmethod
    def of(cls, sizes: Tensor) -> "Clusters":
        """Return the corrections for group sizes (G,) > 0, which are row counts or sums of weights."""
        v = sizes.double() / sizes.sum()
        square = float(v.square().sum())
        if v.shape[0] < 2:
            return cls(torch.ones_like(v), 0.0, 1.0)
        left = (1 - 2 * v + square).clamp_min(1e-12)  # ≥ (1 − v)², so 0 only for a group that contains every row
        # Σ c² is a quadratic form u'Bu of the effects, B = A − v a' − a v' + (Σ a) v v' with A = diag a, a = v² / left.
        # Its degrees of freedom are 2 mean² / variance = tr(B)² / tr(B²). They need only sums over groups, because B is a diagonal
        # matrix plus one of rank two.
        a = v.square() / left
        total, aa, av, avv, aav = (float(x.sum()) for x in (a, a * a, a * v, a * v * v, a * a * v))
        trace = total - 2 * av + total * square
        low_rank = 2 * (square * aa + av**2) - 4 * total * square * av + (total * square) ** 2
        scatter = aa + 2 * (total * avv - 2 * aav) + low_rank
        # where one group has nearly all the weight, rounding can make the denominator 0
        return cls(left.rsqrt(), trace**2 / scatter if scatter > 0 else 0.0, 1 / square)


@dataclass(frozen=True, eq=False)
class Design:
    """The weights and groups of N rows.

    Args:
        share: (N,) float64 weights, normalised to sum to 1.
        unit: (N,) int64 number of each row's group; None for independent rows.
    """

    share: Tensor
    unit: Tensor | None = None

    @classmethod
    def of(cls, rows: Tensor, *, groups: Tensor | None, weight: Tensor | None) -> "Design":
        """Return the design of ``rows`` (N, …) with ``groups`` (N,) and weights ``weight`` (N,), each of which may be None."""
        w = torch.ones(len(rows), dtype=torch.float64, device=rows.device) if weight is None else weight.to(rows.device)
        unit = None if groups is None else torch.unique(groups.to(rows.device), return_inverse=True)[1]
        return cls(w.double() / w.sum(), unit)

    @cached_property
    def clusters(self) -> Clusters:
        """The corrections for the sizes of the groups."""
        assert self.unit is not None
        return Clusters.of(torch.bincount(self.unit, weights=self.share))

    @property
    def units(self) -> float:
        """The number of independent units: the effective number of rows, or the groups' degrees of freedom plus 1."""
        return 1 / float(self.share.square().sum()) if self.unit is None else self.clusters.degrees + 1

    def sums_of(self, values: Tensor) -> Tensor:
        """Return each unit's contribution to the mean of centred ``values`` (N,): (N,) for rows, (G,) for groups."""
        if self.unit is None:
            return self.share * values
        return self.sums(1, [(slice(None), torch.zeros_like(self.unit), values)])[:, 0]

    def sums(self, columns: int, parts: Iterable[tuple[slice, Tensor, Tensor]]) -> Tensor:
        """Return S (G, C), scaled so that SᵀS is the covariance of the columns' Σ v x.

        Args:
            columns: Number of columns C.
            parts: Triples of a slice of n rows, the column (n, …) that each number belongs to (−1 for none), and the
                numbers x (n, …).

        Raises:
            NoIntervalError: If G · C exceeds ``MAX_SUMS``.
        """
        assert self.unit is not None
        groups = int(self.unit.max()) + 1
        if groups * columns > MAX_SUMS:
            expected = f"at most {MAX_SUMS // columns:,} groups for {columns:,} sums of each"
            raise NoIntervalError(expected, f"{groups:,}", "use fewer bins, ECE(), or larger groups")
        sums = self.share.new_zeros(groups * columns)
        for rows, column, values in parts:
            trailing = [1] * (column.dim() - 1)
            inside, home = column >= 0, self.unit[rows].view(-1, *trailing) * columns + column
            sums.index_add_(0, home[inside], (values * self.share[rows].view(-1, *trailing))[inside])
        sums = sums.view(groups, columns)
        mass = torch.bincount(self.unit, weights=self.share, minlength=groups)
        # subtract each group's part of the total, in proportion to its mass
        return (sums - mass[:, None] * sums.sum(dim=0)) * self.clusters.scale[:, None]


def require_groups(groups: Tensor | None, *, what: object, weight: Tensor | None = None, least: int = FEWEST) -> None:
    """Raise an error if the rows have groups, but too few for an interval or a null distribution.

    Args:
        groups: (N,) group of each row, or None.
        what: The metric, for the error message.
        weight: (N,) weights, or None. With weights, the effective number of groups can be much smaller than their number.
        least: Smallest effective number of groups.

    Raises:
        NoIntervalError: If the effective number of groups is smaller than ``least``.
    """
    if groups is None:
        return
    unit = torch.unique(groups, return_inverse=True)[1]
    sizes = torch.bincount(unit, weights=None if weight is None else weight.to(unit.device))
    effective = Clusters.of(sizes).effective
    if effective < least - 1e-6:  # rounding must not refuse ten groups of equal size
        expected = f"at least {least} groups of rows for the uncertainty of {shown(what, most=200)}"
        got = f"{len(sizes)} groups, which are worth {effective:.1f} groups of equal size"
        raise NoIntervalError(expected, got, "measure on more groups")


def require_ungrouped(groups: Any, *, what: object) -> None:
    """Raise an error if rows have groups, for methods that need independent rows.

    Args:
        groups: Groups of the rows, or None for independent rows.
        what: The metric, for the error message.

    Raises:
        NoIntervalError: If the rows have groups.
    """
    if groups is not None:
        expected = f"independent rows for the uncertainty of {shown(what, most=200)}"
        raise NoIntervalError(expected, "groups, for which no valid method is known", "use ECE(), which has one")
