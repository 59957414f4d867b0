"""Binned errors of rows in groups: the joint distribution of the bins' gaps when whole groups are sampled.

Let S_gb = Σ_{i in group g, bin b} (p_i − y_i) / N, centred over groups. A group's effect moves all its bins in one direction, so
the covariance between bins matters: the variance of the signed sum Σ_b sign_b d_b is Σ_g (Σ_b sign_b S_gb)². The bins' gaps under
calibration are drawn jointly as ξᵀS with independent standard normal ξ_g (a multiplier bootstrap), divided by √(χ²_ν / ν),
since S is estimated from ν + 1 groups.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.arguments import check_kind, check_level, check_sampling, check_sums
from calibrant._core.check import check_row_tensor, refuse
from calibrant.statistics.binned import table_error
from calibrant.statistics.interval import normal_quantile
from calibrant.statistics.means import Clusters, student_quantile
from calibrant.statistics.squares import BinnedRows

__all__ = ["centred_sums", "cluster_error", "cluster_sums", "clustered_gaps", "sampled_errors"]

# The signs are estimated from the same rows, so that a group's effects partly cancel in the signed sum: in simulation its
# standard error is too small by about this factor where effects are large (7.8 to 8.2 % of intervals missed).
SIGNS = 1.05
_BLOCK = 1 << 22  # normal numbers drawn at once


def cluster_sums(rows: BinnedRows, groups: Tensor) -> Tensor:
    """Return S (G, B), centred and scaled by the groups' sizes, so that SᵀS is the covariance of the bins' weighted gaps.

    Args:
        rows: Rows in their bins.
        groups: (N,) group of each row; at least two of them.
    """
    _need_binned(rows)
    check_row_tensor(groups, name="groups", rows=rows.p.shape[0])
    _, code = torch.unique(groups.to(rows.index.device), return_inverse=True)
    count, shares = int(code.max()) + 1, rows.shares
    residual = torch.where(rows.index >= 0, rows.p.double() - rows.y.double(), 0.0) * shares
    flat = code * rows.bins + rows.index.clamp_min(0)
    sums = torch.bincount(flat, weights=residual, minlength=count * rows.bins).view(count, rows.bins)
    return centred_sums(sums, torch.bincount(code, weights=shares, minlength=count))


def sampled_errors(rows: BinnedRows, *, level: float) -> tuple[Tensor, float]:
    """Return the standard errors of the bins' weighted gaps (B,) and of their absolute sum, for rows with sampling weights.

    By the sandwich estimator: row i contributes w_i / Σw · (ε_i 1[i in b] − d_b) to the gap d_b, so no model of how outcomes
    depend on weights is needed. The second is computed as in ``cluster_error``; its degrees of freedom are the effective sample
    size (Σw)² / Σw² minus 1.

    Args:
        rows: Rows in their bins, with float64 weights.
        level: Of the interval.
    """
    check_level(level)
    table, shares, inside = _need_binned(rows).table(), rows.shares, rows.index >= 0
    residual = torch.where(inside, rows.p.double() - rows.y.double(), 0.0)
    home, signed = rows.index.clamp_min(0), table.gap * table.weight
    size, square = torch.where(inside, shares.square(), 0.0), float(shares.square().sum())

    def summed(values: Tensor) -> Tensor:
        sums: Tensor = torch.bincount(home, weights=values, minlength=rows.bins)
        return sums

    variance = summed(size * residual.square()) - 2 * signed * summed(size * residual) + signed.square() * square
    variance = variance.clamp_min(0)
    sign = torch.sign(table.gap)
    parts = shares * (sign[home] * residual - signed.abs().sum())
    apart = max(float(parts.square().sum()), float(variance.sum())) ** 0.5
    probability = (1 + level) / 2
    wider = student_quantile(probability, max(1 / square - 1, 1)) / normal_quantile(probability)
    return variance.sqrt(), max(apart, float(table_error(table, level=level))) * wider


def centred_sums(sums: Tensor, sizes: Tensor) -> Tensor:
    """Return sums of groups (G, B), minus each group's part of the total in proportion to its size, scaled as in ``Clusters``.

    Args:
        sums: (G, B) Σ (p_i − y_i) / N.
        sizes: (G,) rows.
    """
    sums, sizes = check_sums(sums, name="sums"), check_sums(sizes, name="sizes", dims=1)
    count = sums.shape[0]
    if sizes.shape[0] != count or float(sizes.min()) < 0 or not 0 < float(sizes.sum()) < math.inf:
        raise refuse(f"sizes ({count},) ≥ 0, not all 0", f"shape {tuple(sizes.shape)}", "pass the rows of each group")
    centred = sums - (sizes / sizes.sum())[:, None] * sums.sum(dim=0)
    return centred * Clusters.of(sizes).scale[:, None]


def cluster_error(rows: BinnedRows, sums: Tensor, *, level: float, degrees: float | None = None) -> float:
    """Return the standard error of Σ_b weight_b |gap_b|, times the ratio of the quantiles of Student's t and the normal.

    It is the largest of three: that of the signed sum, that of independent bins, and that of independent rows (which is > 0 even
    if nearly all decisions are correct).

    Args:
        rows: Rows in their bins.
        sums: (G, B), from ``cluster_sums``.
        level: Of the interval.
        degrees: Of freedom (``group_degrees``); None takes the number of groups minus 1.
    """
    table = _need_binned(rows).table()
    sums, level = _need_cells(sums, bins=rows.bins), check_level(level)
    signed = float((sums @ torch.sign(table.gap)).square().sum().sqrt())
    apart = float(sums.square().sum().sqrt())
    probability = (1 + level) / 2
    wider = student_quantile(probability, sums.shape[0] - 1 if degrees is None else degrees) / normal_quantile(
        probability
    )
    return SIGNS * max(signed, apart, float(table_error(table, level=level))) * wider


def clustered_gaps(sums: Tensor, *, draws: int, seed: int, degrees: float | None = None) -> Tensor:
    """Return weighted gaps (draws, B) of a calibrated model with the covariance of these groups: ξᵀS / √(χ²_ν / ν).

    Args:
        sums: (G, B), from ``cluster_sums``.
        draws: Number of draws.
        seed: Same seed, same gaps.
        degrees: Of freedom (``group_degrees``); None takes the number of groups minus 1.
    """
    check_sampling(draws=draws, seed=seed)
    sums = _need_cells(sums)
    count, rng = sums.shape[0], np.random.default_rng(seed)
    freedom = count - 1 if degrees is None else degrees
    home, gaps = sums.cpu(), []
    for start in range(0, draws, step := max(1, _BLOCK // count)):
        size = min(step, draws - start)
        normal = torch.from_numpy(rng.standard_normal((size, count)))
        root = torch.from_numpy(np.sqrt(rng.chisquare(freedom, size=(size, 1)) / freedom))
        gaps.append(normal @ home / root)
    return torch.cat(gaps).to(sums.device)


def group_degrees(groups: Tensor, weight: Tensor | None = None) -> float:
    """Return the degrees of freedom of a variance over groups (N,), from their numbers of rows or sums of weights (N,)."""
    _, code = torch.unique(groups, return_inverse=True)
    return Clusters.of(
        torch.bincount(code, weights=None if weight is None else weight.double().to(code.device))
    ).degrees


def _need_binned(rows: Any) -> BinnedRows:
    return check_kind(rows, BinnedRows, name="rows", remedy="pass the rows in their bins, metric.cells(data)")


def _need_cells(sums: Any, *, bins: int | None = None) -> Tensor:
    found: Tensor = check_sums(sums, name="sums")
    if found.shape[0] < 2 or (bins is not None and found.shape[1] != bins) or not bool(torch.isfinite(found).all()):
        expected = f"finite sums (groups, {'bins' if bins is None else bins}) of at least two groups"
        raise refuse(expected, f"shape {tuple(found.shape)}", "make them with cluster_sums(rows, groups)")
    return found
