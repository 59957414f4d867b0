"""ECE by monotone sweep: as many equal-mass bins as keep the accuracies in order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._data import Data, need_rows
from calibrant.binning import EqualMass, MassSketch, split_starts
from calibrant.metrics._base import SumMetric, check_norm

__all__ = ["SweepECE"]


@dataclass(frozen=True)
class SweepECE(SumMetric[MassSketch]):
    """Equal-mass ECE with the largest number of bins, counted up from 1, whose accuracies still increase.

    A calibration curve should increase; more bins than that follow noise. Less biased than a fixed number of bins.
    Equal confidences stay in one bin, so the value does not depend on row order.

    Args:
        norm: 1, or 2 for (Σ_b |B_b|/N · gap_b²)^½.

    Examples:
        >>> from calibrant import BinaryPairs
        >>> round(SweepECE()(BinaryPairs.from_probs([0.2, 0.4, 0.6, 0.8], [0, 1, 0, 1])), 4)
        0.2

    References:
        Roelofs et al. 2022, Algorithm 1.
    """

    norm: float = 1

    better = "lower"
    bounds = (0.0, 1.0)
    notion = "confidence"
    cite = "Roelofs et al. 2022"

    def __post_init__(self) -> None:
        check_norm(self.norm)

    def state(self, data: Data) -> MassSketch:
        """Return counts and sums by value."""
        data = need_rows(data, what=self)
        return EqualMass(1).sketch(data.confidence, data.correct, weight=data.weights)

    def value(self, state: MassSketch) -> float:
        """Return the error of a state."""
        zero = state.sum_p.new_zeros(1)
        rows = torch.cat([state.count.new_zeros(1), state.count.cumsum(0)])
        sum_p, sum_y = (torch.cat([zero, sums.cumsum(0)]) for sums in (state.sum_p, state.sum_y))
        total = int(rows[-1]) if state.squares is None else state.rows
        best = _cut(rows, 1, total)
        for bins in range(2, total + 1):
            cut = _cut(rows, bins, total)
            rates = sum_y[cut].diff() / rows[cut].diff()
            if bool((rates.diff() < 0).any()):
                break
            best = cut
        count = rows[best].diff()
        gap = (sum_p[best].diff() - sum_y[best].diff()) / count
        return float((count / rows[-1] * gap.abs() ** self.norm).sum() ** (1 / self.norm))


def _cut(rows: Tensor, bins: int, total: int) -> Tensor:
    """Return the positions in the cumulated counts ``rows`` where non-empty equal-mass bins begin, and the end.

    Args:
        rows: (M + 1,) cumulated int64 counts, or float64 sampling weights, which are scaled to the sum ``total``.
        bins: Bins.
        total: Rows.
    """
    starts = split_starts(total, bins).to(rows.device)
    if rows.is_floating_point():
        starts = (starts.double() - 1e-9 * total) * (float(rows[-1]) / total)
    last = torch.tensor([rows.shape[0] - 1], device=rows.device)
    cut: Tensor = torch.unique(torch.cat([torch.searchsorted(rows, starts), last]))
    return cut
