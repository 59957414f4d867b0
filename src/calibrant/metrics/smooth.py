"""Smooth calibration error: no bins, and a kernel width chosen from the data."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import check_count
from calibrant.binning import BinTable
from calibrant.metrics._base import SumMetric
from calibrant.statistics.design import need_independent
from calibrant.statistics.means import Interval
from calibrant.statistics.null import band_of, calibrated_table

Floats = NDArray[np.float64]
BLOCK = 1 << 15  # rows whose temporaries stay in the cache
WIDTH_TOLERANCE = 1e-7  # of the kernel width: at its solution error and width agree to this
FINE = 16  # parts of a cell to which a row's position is resolved before linear interpolation between cells


@dataclass(frozen=True)
class SmoothECE(SumMetric[Tensor]):
    """∫ |r_σ(t)| dt for the residual r = confidence − correct smoothed by a Gaussian of width σ, at the σ equal to this integral.

    The kernel is reflected at 0 and 1. The error decreases in σ, so exactly one σ equals its error. It needs no bins and no
    bandwidth, and is continuous in the predictions.

    Args:
        cells: Number of cells of the grid of [0, 1] to which residuals are assigned by linear interpolation. The smoothing is
            exact on the grid (diffusion with reflecting ends, by cosine transform); with 1,000 rows or more the grid changes
            the value by less than 1e-4.

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
        """Return the weighted sums of confidence − correct on the grid, and then the sum of the weights (cells + 1,)."""
        p, y = rows.confidence, rows.correct
        once = p.new_ones(1).expand(p.shape[0]) if rows.weights is None else rows.weights
        parts = self.cells * FINE
        sums = torch.zeros(parts, dtype=torch.float64, device=p.device)
        for part, hit, weight in zip(p.split(BLOCK), y.split(BLOCK), once.split(BLOCK), strict=True):
            place = (part * parts).long().clamp_(max=parts - 1)
            sums.scatter_add_(0, place, (part - hit.double()) * weight)
        sums = sums.view(self.cells, FINE)
        # each part goes to the two nearest cells' centres, by distance
        offset = (torch.arange(FINE, dtype=torch.float64, device=p.device) + 0.5) / FINE - 0.5  # from the cell's centre
        before, after = sums @ (-offset).clamp_min(0), sums @ offset.clamp_min(0)
        residual = sums.sum(dim=1) - before - after
        residual[:-1] += before[1:]
        residual[1:] += after[:-1]
        residual[0] += before[0]  # the first and the last cell have no neighbour beyond the end
        residual[-1] += after[-1]
        return torch.cat([residual, once.sum()[None]]).cpu()

    def value(self, state: Tensor) -> float:
        """Return the error of a state."""
        return float(smooth_errors((state[:-1] / state[-1]).numpy()[None])[0])

    def null_band(self, rows: Any, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the mean and the central range of the metric if calibrated, with each confidence at its cell's centre.

        Raises:
            NoIntervalError: For rows in groups.
        """
        need_independent(rows.groups, what=self)
        p, weight = rows.confidence, rows.weights
        index = (p * self.cells).long().clamp_max(self.cells - 1)
        table = calibrated_table(
            BinTable.from_pairs(index, p, p, bins=self.cells, weight=weight), draws=draws, seed=seed
        )
        residuals = ((table.sum_p - table.sum_y) / table.mass).cpu().numpy()
        parts = [smooth_errors(residuals[start : start + 100]) for start in range(0, draws, 100)]  # bounded memory
        return band_of(torch.from_numpy(np.concatenate(parts)), level=level)


def smooth_errors(residuals: Floats) -> Floats:
    """Return the errors (D,) of mean residuals (D, M) on the grid: the σ at which error(σ) = σ.

    error(σ) is non-increasing, so the solution always lies between σ and error(σ). The next σ is that of the secant method,
    or the bracket's midpoint if that lies outside the bracket or the last step did not halve it.
    """
    from scipy.fft import dct, idct

    coefficients = dct(residuals, axis=1)
    cells = residuals.shape[1]
    decay = -0.5 * (math.pi * np.arange(cells)) ** 2  # heat kernel: coefficient k falls by exp(−σ² π² k² / 2)

    def error(width: Floats) -> Floats:
        kept = min(cells, int(9 / (math.pi * float(width.min())) + 2))  # beyond, the factor is below 1e-17
        damped = np.zeros_like(coefficients)
        damped[:, :kept] = coefficients[:, :kept] * np.exp(decay[:kept] * width[:, None] ** 2)
        found: Floats = np.abs(idct(damped, axis=1)).sum(axis=1)
        return found

    # an error is at most 1; at σ = 0 no coefficient decays
    low, high = np.full(len(residuals), 1e-9), np.ones(len(residuals))
    # the mean residual is what is left at σ = ∞, so the solution lies above it; .01 keeps the first series short
    width, slope = np.abs(residuals.sum(axis=1)).clip(0.01, 1), np.zeros(len(residuals))
    found = error(width)
    while True:
        before = high - low
        low, high = np.maximum(low, np.minimum(width, found)), np.minimum(high, np.maximum(width, found))
        middle: Floats = (low + high) / 2
        if float((high - low).max()) <= WIDTH_TOLERANCE:
            return middle
        # error(σ) ≈ found + slope · (σ − width) equals σ at this σ; slope ≤ 0, so the denominator is at least 1
        secant = (found - slope * width) / (1 - slope)
        trusted = (secant >= low) & (secant <= high) & (high - low < before / 2)
        last_width, last_found = width, found
        width = np.where(trusted, secant, middle)
        found = error(width)
        moved = width - last_width
        slope = np.minimum(np.divide(found - last_found, moved, out=np.zeros_like(moved), where=moved != 0), 0)
