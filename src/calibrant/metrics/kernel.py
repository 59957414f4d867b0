"""Calibration of the whole probability vector, by kernels: a density estimate, and an unbiased pairwise statistic."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._check import check_number
from calibrant._data import Data, need_predictions
from calibrant.errors import InputError
from calibrant.metrics._base import Metric
from calibrant.predictions import Predictions

__all__ = ["SKCE", "KernelECE"]

TILE = 1 << 19  # float64 entries of a tile of the N × N kernel matrix: 4 MiB
SMALLEST = 1e-300  # stands for a probability of 0 under a logarithm
SUBSAMPLE = 1000  # rows, evenly spaced, by which a kernel width is chosen
WIDTHS = tuple(10 ** (-4 + 0.25 * step) for step in range(15))  # 1e-4 … 0.32


@dataclass(frozen=True)
class KernelECE(Metric):
    """(1/N) Σ_j ‖E[y | p_j] − p_j‖_q^q, with E[y | p_j] a kernel average over the other rows: canonical calibration.

    The kernel of row i is the Dirichlet density with parameters p_i / width + 1, which lives on the simplex. Tiled:
    O(N² K) time, 4 MiB of memory.

    Args:
        width: Kernel width > 0; None takes the one of 15 between 1e-4 and 0.32 with the largest leave-one-out likelihood
            on up to 1,000 rows.
        norm: q ≥ 1.

    Examples:
        >>> from calibrant import Predictions
        >>> round(KernelECE(width=0.1)(Predictions.from_probs([[0.8, 0.2]] * 10, [0] * 5 + [1] * 5)), 4)
        0.6

    References:
        Popordanoska, Sayer & Blaschko 2022, Eq. 9 and 11.
    """

    width: float | None = None
    norm: float = 1

    better = "lower"
    bounds = (0.0, 2.0)
    notion = "canonical"
    cite = "Popordanoska et al. 2022"
    needs_classes = True

    def __post_init__(self) -> None:
        if self.width is not None:
            check_number(self.width, name="width", low=0, open_low=True)
        check_number(self.norm, name="norm", low=1)

    def __call__(self, data: Data) -> float:
        """Return the value on ``data``, a Python float."""
        p, hot = _vectors(need_predictions(data, metric=self), metric=self)
        width = chosen_width(p) if self.width is None else self.width
        total = 0.0
        for rows, log_kernel in _log_kernels(p, width):
            expected = torch.softmax(log_kernel, dim=1) @ hot
            total += float((expected - p[rows]).abs().pow(self.norm).sum())
        return total / p.shape[0]


@dataclass(frozen=True)
class SKCE(Metric):
    """Mean over pairs i < j of exp(−‖p_i − p_j‖ / width) ⟨y_i − p_i, y_j − p_j⟩: canonical calibration, unbiased.

    The squared kernel calibration error: 0 in expectation if and only if the model is canonically calibrated, with no
    bins and no bias, so it can be negative. Tiled: O(N² K) time, 4 MiB of memory.

    Args:
        width: Kernel width > 0; None takes the mean distance between up to 1,000 rows.

    Examples:
        >>> from calibrant import Predictions
        >>> round(SKCE(width=1.0)(Predictions.from_probs([[0.8, 0.2]] * 2, [1, 1])), 4)
        1.28

    References:
        Widmann, Lindsten & Zachariah 2019, Eq. 9 (unbiased quadratic estimator).
    """

    width: float | None = None

    better = "zero"
    bounds = (-2.0, 2.0)
    notion = "canonical"
    cite = "Widmann et al. 2019"
    needs_classes = True

    def __post_init__(self) -> None:
        if self.width is not None:
            check_number(self.width, name="width", low=0, open_low=True)

    def __call__(self, data: Data) -> float:
        """Return the value on ``data``, a Python float."""
        p, hot = _vectors(need_predictions(data, metric=self), metric=self)
        residual, rows = hot - p, p.shape[0]
        some = p[:: max(1, rows // SUBSAMPLE)]
        width = float(torch.cdist(some, some).mean()) if self.width is None else self.width
        width = width if width > 0 else 1.0  # all rows alike: every width gives the same kernel
        total = -float(residual.square().sum())  # the pairs (i, i), whose kernel is 1
        for part in _tiles(rows, rows):
            kernel = torch.cdist(p[part], p, compute_mode="donot_use_mm_for_euclid_dist").div_(-width).exp_()
            total += float((kernel @ residual * residual[part]).sum())
        return total / (rows * (rows - 1))


def chosen_width(p: Tensor) -> float:
    """Return the width of ``WIDTHS`` with the largest leave-one-out likelihood of (a part of) the rows ``p`` (N, K)."""
    some = p[:: max(1, p.shape[0] // SUBSAMPLE)]

    def likelihood(width: float) -> float:
        return sum(float(torch.logsumexp(kernel, dim=1).sum()) for _, kernel in _log_kernels(some, width))

    return max(WIDTHS, key=likelihood)


def _log_kernels(p: Tensor, width: float) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows j and log k(p_j; p_i) (n, N) with −inf at i = j: the Dirichlet densities of p_i / width + 1 at p_j."""
    log_p = p.clamp_min(SMALLEST).log()
    alpha = p / width
    normaliser = torch.lgamma(torch.tensor(1 / width + p.shape[1], dtype=torch.float64)) - torch.lgamma(alpha + 1).sum(
        1
    )
    for rows in _tiles(p.shape[0], p.shape[0]):
        log_kernel = log_p[rows] @ alpha.T + normaliser
        log_kernel[torch.arange(rows.stop - rows.start), torch.arange(rows.start, rows.stop)] = -math.inf
        yield rows, log_kernel


def _tiles(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, TILE // columns)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _vectors(predictions: Predictions, *, metric: Metric) -> tuple[Tensor, Tensor]:
    """Return probabilities and one-hot labels (N, K) in float64."""
    labels = predictions.need_labels()
    if len(predictions) < 2:
        raise InputError(f"expected at least two rows for {metric}, got {len(predictions)}; it compares rows in pairs")
    p = predictions.given_probs.double() if predictions.given_probs is not None else predictions.log_probs.exp()
    hot = torch.zeros_like(p).scatter_(1, labels[:, None], 1.0)
    return p, hot
