"""Binned errors of rows in groups: the joint distribution of the bins' gaps when whole groups are sampled.

Let S_gb = Σ_{i in group g, bin b} (p_i − y_i) / N, centred over groups. A group's effect moves all its bins in one direction, so
the covariance between bins matters: the variance of the signed sum Σ_b sign_b d_b is Σ_g (Σ_b sign_b S_gb)². The bins' gaps under
calibration are drawn jointly as ξᵀS with independent standard normal ξ_g (a multiplier bootstrap), divided by √(χ²_ν / ν),
since S is estimated from ν + 1 groups.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from calibrant._core.numerics import add_records
from calibrant.binning import BinTable
from calibrant.statistics.binned import BinnedRows, error_interval, table_error
from calibrant.statistics.enough import FEWEST
from calibrant.statistics.interval import normal_quantile
from calibrant.statistics.means import Clusters, Interval, UnitSums, need_effective, student_quantile

# The signs are estimated from the same rows, so that a group's effects partly cancel in the signed sum: in simulation its
# standard error is too small by about this factor where effects are large (7.8 to 8.2 % of intervals missed).
SIGNS = 1.05
_BLOCK = 1 << 22  # normal numbers drawn at once


def unit_sums(rows: BinnedRows, groups: Tensor) -> UnitSums:
    """Return Σ w (p − y) by group and bin; ``centred`` is S (G, B), SᵀS the covariance of the bins' weighted gaps."""
    weight = torch.ones_like(rows.p, dtype=torch.float64) if rows.weight is None else rows.weight.double()
    gaps = (rows.p.double() - rows.y.double()) * weight
    return UnitSums.of(groups, weight, rows.bins, [(slice(None), rows.index, gaps)])


@dataclass(frozen=True, eq=False)
class UnitSizes:
    """How large the groups are of which each is one row with several numbers; they add.

    Args:
        sizes: (3,) the groups, their numbers, and the squares of how many each has.
        masses: (2,) Σ and Σ of squares of their weights.
        total: (C,) Σ w x of each column over all of them.
    """

    sizes: Tensor
    masses: Tensor
    total: Tensor

    @classmethod
    def of(cls, sums: Tensor, sizes: Tensor, mass: Tensor) -> "UnitSizes":
        """Return those of groups with sums Σ w x (N, C), of so many numbers ``sizes`` (N,) and weights ``mass`` (N,) each.

        Args:
            sums: One row a group.
            sizes: How many numbers each has; a group of none is none.
            mass: The sum of their weights.
        """
        numbers = torch.stack([(sizes > 0).double(), sizes, sizes.square()])
        return cls(numbers.sum(dim=1), torch.stack([mass, mass.square()]).sum(dim=1), sums.sum(dim=0))

    def __add__(self, other: "UnitSizes") -> "UnitSizes":
        return add_records(self, other)

    @property
    def square(self) -> float:
        """Σ v² of the groups' parts v of the mass."""
        return float(self.masses[1] / self.masses[0].square())


@dataclass(frozen=True, eq=False)
class RowUnits:
    """What ``UnitSums`` knows of groups of which each is one row: sums that do not grow with their number; they add.

    Args:
        whole: The sizes of all groups, which each row is centred and scaled by.
        products: (C, C) Σ over groups of the products of their centred sums, the covariance of the columns' Σ w x / Σ w.
        parts: (5,) sums of ``Clusters.parts_of``.
    """

    whole: UnitSizes
    products: Tensor
    parts: Tensor

    @classmethod
    def of(cls, whole: UnitSizes, sums: Tensor, mass: Tensor) -> "RowUnits":
        """Return the products of some of the groups whose sizes are ``whole``; arguments as in ``UnitSizes.of``."""
        v = mass / whole.masses[0]
        left = (1 - 2 * v + whole.square).clamp_min(1e-12)
        centred = (sums - v[:, None] * whole.total) / whole.masses[0]
        return cls(whole, (centred / left[:, None]).T @ centred, Clusters.parts_of(v, left).sum(dim=1))

    def __add__(self, other: "RowUnits") -> "RowUnits":
        return replace(self, products=self.products + other.products, parts=self.parts + other.parts)

    def need(self, *, what: object, least: int) -> None:
        """Raise unless they are worth ``least`` groups of equal size.

        Raises:
            NoIntervalError: Then.
        """
        count, numbers, squares = self.whole.sizes.tolist()
        for effective in (numbers**2 / max(squares, 1.0), 1 / self.whole.square):
            need_effective(round(count), effective, what=what, least=least)

    @property
    def degrees(self) -> float:
        """Of freedom of a variance over the groups."""
        return Clusters.degrees_of(self.parts, self.whole.square)

    @cached_property
    def centred(self) -> Tensor:
        """(C, C) as many rows as columns with the products of the groups' centred sums."""
        return _symmetric_root(self.products)


def need_units(rows: BinnedRows, groups: Tensor, *, what: object) -> UnitSums:
    """Return ``unit_sums`` if there are enough groups for the uncertainty of ``what``.

    Raises:
        NoIntervalError: If there are fewer than ten of equal size, or too many to keep the sums of.
    """
    units = unit_sums(rows, groups)
    units.need(what=what, least=FEWEST)
    return units


def clustered_table(table: BinTable, units: "UnitSums | RowUnits", *, draws: int, seed: int) -> BinTable:
    """Return the table with outcome sums (draws, B) of calibrated models with the covariance of these groups."""
    gaps = clustered_gaps(units.centred, draws=draws, seed=seed, degrees=units.degrees)
    return replace(table, sum_y=table.sum_p - gaps * table.total, second=None)


def clustered_interval(table: BinTable, units: "UnitSums | RowUnits", gate: float, *, level: float) -> Interval:
    """Return the interval of Σ_b weight_b |gap_b| of rows in groups, whose limit if calibrated is ``gate``."""
    error = cluster_error(table, units.centred, level=level, degrees=units.degrees)
    spread = units.centred.square().sum(dim=0).sqrt()
    return error_interval(table, gate, level=level, spread=spread, error=error)


def cluster_error(table: BinTable, sums: Tensor, *, level: float, degrees: float) -> float:
    """Return the standard error of Σ_b weight_b |gap_b|, times the ratio of the quantiles of Student's t and the normal.

    It is the largest of four: that of the signed sum, that with the signs of doubtful bins that make it largest, that of independent
    bins, and that of independent rows (which is > 0 even if nearly all decisions are correct).

    Args:
        table: Of the rows in their bins.
        sums: S (G, B), from ``unit_sums``.
        level: Of the interval.
        degrees: Of freedom (``Clusters``).
    """
    signed = (
        max(float((sums @ sign).square().sum()) for sign in (torch.sign(table.gap), _worst_signs(table, sums))) ** 0.5
    )
    apart = float(sums.square().sum().sqrt())
    probability = (1 + level) / 2
    wider = student_quantile(probability, degrees) / normal_quantile(probability)
    return float(SIGNS * max(signed, apart, float(table_error(table, level=level))) * wider)


def _worst_signs(table: BinTable, sums: Tensor) -> Tensor:
    """Return signs (B,) of the bins: those seen where a gap is clear, elsewhere those that vary together with the clear ones.

    Where groups' effects are large, the gaps of a sample can all be near 0 with mixed signs though all of the population's are of
    one sign, and the sum over these mixed signs hardly varies.
    """
    gap = table.weight * table.gap
    clear = gap.abs() > 2 * sums.square().sum(dim=0).sqrt()
    known = torch.where(clear, torch.sign(gap), 0.0) if bool(clear.any()) else torch.ones_like(gap)
    return torch.where(clear, torch.sign(gap), torch.sign(sums.T @ (sums @ known)))


def clustered_gaps(sums: Tensor, *, draws: int, seed: int, degrees: float) -> Tensor:
    """Return weighted gaps (draws, B) of a calibrated model with the covariance of these groups: ξᵀS / √(χ²_ν / ν).

    Args:
        sums: S (G, B), from ``unit_sums``.
        draws: Number of draws.
        seed: Same seed, same gaps.
        degrees: Of freedom (``Clusters``).
    """
    home, rng = sums.cpu(), np.random.default_rng(seed)
    # ξᵀS is normal with covariance SᵀS, and so is a normal of as many numbers as bins times the root of that
    if home.shape[0] > home.shape[1]:
        home = _symmetric_root(home.T @ home)
    count, gaps = home.shape[0], []
    for start in range(0, draws, step := max(1, _BLOCK // count)):
        size = min(step, draws - start)
        normal = torch.from_numpy(rng.standard_normal((size, count)))
        root = torch.from_numpy(np.sqrt(rng.chisquare(degrees, size=(size, 1)) / degrees))
        gaps.append(normal @ home / root)
    return torch.cat(gaps).to(sums.device)


def _symmetric_root(matrix: Tensor) -> Tensor:
    """Return the symmetric root (B, B) of a covariance, which rounding moves little; other roots turn with it."""
    values, vectors = torch.linalg.eigh(matrix)
    # a root makes 1e-16 of the largest 1e-8, so that what is 0 but for rounding is 0
    kept = torch.where(values > 1e-10 * values[-1], values, 0.0)
    root: Tensor = vectors * kept.sqrt() @ vectors.T
    return root
