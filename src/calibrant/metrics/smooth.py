"""The smooth calibration error, without bins and with a kernel width chosen from the data."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_count
from calibrant._core.numerics import slices
from calibrant.binning import BinTable
from calibrant.metrics._base import SumMetric
from calibrant.statistics.binned import calibrated_table
from calibrant.statistics.design import require_ungrouped
from calibrant.statistics.interval import band_of
from calibrant.statistics.means import Floats, Interval

BLOCK = 1 << 15  # rows per block, so that temporaries stay in the cache
_LEAST = 1e-12  # smaller errors are raised to this value, so that they have a logarithm
_EXACT = 1e-10
# Number of cells for simulated outcomes. This grid changes an error by at most 1 %; the limit from 1,000 draws itself varies by 2 %.
NULL_CELLS = 512
FINE = 16  # a row's position is rounded to 1/16 of a cell before the linear interpolation between cells


@dataclass(frozen=True)
class SmoothECE(SumMetric[Tensor]):
    """Smooth calibration error: ∫ |r_σ(t)| dt, where r_σ is confidence − correct smoothed by a Gaussian of width σ.

    The kernel is reflected at 0 and 1. The integral decreases as σ grows, so exactly one σ equals its own integral. This σ
    is the error. The metric needs no bins and no choice of a bandwidth, and is continuous in the predictions.

    Args:
        cells: Number of grid cells on [0, 1]. Residuals are distributed to the cells by linear interpolation. The smoothing
            is exact on the grid (diffusion with reflecting ends, by a cosine transform). With 1,000 rows or more, the grid
            changes the value by less than 1e-4.

    Examples:
        >>> from calibrant import Pairs
        >>> round(SmoothECE()(Pairs.from_probs([0.8] * 10, [1] * 5 + [0] * 5)), 3)
        0.3

    References:
        Błasiok & Nakkiran 2023, Definition 2 and Algorithm 1.
    """

    cells: int = 2048

    notion = "confidence"
    cite = "Błasiok & Nakkiran 2023"

    def __post_init__(self) -> None:
        check_count(self.cells, name="cells", low=16, high=1 << 24)

    def state(self, rows: Any) -> Tensor:
        """Return the weighted sums of confidence − correct in each cell, followed by the sum of the weights, (cells + 1,)."""
        p, y, weight = rows.confidence, rows.correct, rows.weights
        parts = self.cells * FINE
        sums = p.new_zeros(parts, dtype=torch.float64)
        for some in slices(len(p), BLOCK):
            place = (p[some] * parts).long().clamp_(max=parts - 1)
            residual = p[some] - y[some].double()
            sums.scatter_add_(0, place, residual if weight is None else residual * weight[some])
        sums = sums.view(self.cells, FINE)
        # each part is divided between the two nearest cell centres by linear interpolation
        offset = (torch.arange(FINE, dtype=torch.float64, device=p.device) + 0.5) / FINE - 0.5
        before, after = sums @ (-offset).clamp_min(0), sums @ offset.clamp_min(0)
        residual = sums.sum(dim=1) - before - after
        # the end cells have no outer neighbour, so they keep this amount
        residual += torch.cat([before[1:], after[-1:]]) + torch.cat([before[:1], after[:-1]])
        mass = len(p) if weight is None else weight.sum()
        return torch.cat([residual, residual.new_tensor([mass])]).cpu()

    def value(self, state: Tensor) -> float:
        """Return the error for a state."""
        return float(smooth_errors((state[:-1] / state[-1]).numpy()[None])[0])

    def null_band(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the mean and the central range of the metric for a calibrated model, simulated on a grid of 512 cells.

        Raises:
            NoIntervalError: If the rows have groups.
        """
        require_ungrouped(rows.groups, what=self)
        p, cells = rows.confidence, min(self.cells, NULL_CELLS)
        index = (p * cells).long().clamp_max(cells - 1)
        sums = BinTable.from_pairs(index, p, p, bins=cells, weight=rows.weights)
        table = calibrated_table(sums, draws=draws, seed=seed)
        residuals = ((table.sum_p - table.sum_y) / table.total).cpu().numpy()
        parts = [smooth_errors(residuals[start : start + 100]) for start in range(0, draws, 100)]  # bounded memory
        return band_of(torch.from_numpy(np.concatenate(parts)), level=level)


def smooth_errors(residuals: Floats) -> Floats:
    """Return the errors (D,) of mean residuals (D, M) on the grid, the σ at which error(σ) = σ, within 1e-10.

    Since error(σ) does not increase, the solution lies between any σ and error(σ), and its distance from σ is at most
    |error(σ) − σ|. Because log error(σ) is nearly linear in log σ, regula falsi on the logarithms needs ten steps where
    bisection would need thirty.
    """
    cells = residuals.shape[1]
    # The cosine transform of r is the Fourier transform of r followed by its mirror image, with the phase of half a cell.
    phase = np.exp(-0.5j * math.pi * np.arange(cells) / cells)
    coefficients = (np.fft.rfft(np.concatenate([residuals, residuals[:, ::-1]], axis=1))[:, :cells] * phase).real
    decay = -0.5 * (math.pi * np.arange(cells)) ** 2  # heat kernel: coefficient k falls by exp(−σ² π² k² / 2)

    def error(width: Floats) -> Floats:
        kept = int(np.count_nonzero(decay * width.min() ** 2 > -40))  # all other coefficients are below rounding
        damped = coefficients[:, :kept] * np.exp(decay[:kept] * width[:, None] ** 2) * phase[:kept].conj()
        smoothed = np.fft.irfft(damped, n=2 * cells)[:, :cells]
        found: Floats = np.maximum(np.abs(smoothed).sum(axis=1), _LEAST)
        return found

    # at σ = ∞ only the mean residual remains, so the solution is at least as large as its absolute value
    low = np.log(np.maximum(np.abs(residuals.sum(axis=1)), _LEAST))
    above = np.log(error(np.exp(low))) - low  # log error(σ) − log σ at both ends, ≥ 0 and ≤ 0
    high = low + np.maximum(above, 0)
    below = np.log(error(np.exp(high))) - high
    width: Floats = np.exp(high)
    rose = np.zeros(len(low))
    for _ in range(60):
        gap = above - below
        middle = low + (high - low) * above / np.where(gap > 0, gap, 1)
        width = np.exp(middle)
        found = error(width)
        if np.abs(found - width).max() < _EXACT:
            break
        excess = np.log(found) - middle
        up = excess > 0
        # Illinois algorithm: if an end stays for a second time, halve the value there, so that the other end moves too
        above = np.where(up, excess, np.where(rose < 0, above / 2, above))
        below = np.where(up, np.where(rose > 0, below / 2, below), excess)
        low, high, rose = np.where(up, middle, low), np.where(up, high, middle), np.where(up, 1, -1)
    return width
