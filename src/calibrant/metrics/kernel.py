"""Kernel estimates of canonical calibration: a kernel regression, and an unbiased statistic over pairs of rows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.constraints import Number, Positive
from calibrant._core.numerics import slices
from calibrant._core.warn import warn_user
from calibrant.data.checks import ComparedRows
from calibrant.data.predictions import Predictions
from calibrant.errors import UsageWarning
from calibrant.metrics._base import Metric

_FEW_CLASSES = 3
TILE = 1 << 19  # float64 entries of a tile of the N × N kernel matrix: 4 MiB
SMALLEST = 1e-300  # replaces a probability of 0 under a logarithm
SUBSAMPLE = 1000  # number of evenly spaced rows from which a kernel width is chosen
WIDTHS = tuple(10 ** (-4 + 0.25 * step) for step in range(15))  # 1e-4 … 0.32


@dataclass(frozen=True)
class KernelECE(Metric):
    """(1/N) Σ_j ‖E[y | p_j] − p_j‖_q^q, with E[y | p_j] a kernel average over the other rows: canonical calibration.

    The kernel of row i is the Dirichlet density with parameters p_i / width + 1, whose support is the simplex. Computed in
    tiles: O(N² K) time, 4 MiB of memory.

    Args:
        width: Kernel width > 0; None chooses, of 15 widths between 1e-4 and 0.32, that with the largest leave-one-out
            likelihood on up to 1,000 rows.
        norm: q ≥ 1.

    Examples:
        >>> from calibrant import Predictions
        >>> round(KernelECE(width=0.1)(Predictions.from_probs([[0.8, 0.2]] * 10, [0] * 5 + [1] * 5)), 4)
        0.6

    References:
        Popordanoska, Sayer & Blaschko 2022, Eq. 9 and 11.
    """

    width: Positive | None = None
    norm: Annotated[float, Number(1, keep=True)] = 1

    bounds = (0.0, 2.0)
    notion = "canonical"
    cite = "Popordanoska et al. 2022"
    needs_classes = True

    def __call__(self, data: ComparedRows) -> float:
        """Return the value on ``data``, a Python float."""
        if data.classes > _FEW_CLASSES:
            # measured on calibrated models: .17 at K = 3, .68 at 10, .83 at 50, where the error is 0
            warn_user(
                f"expected at most {_FEW_CLASSES} classes for KernelECE, got {data.classes}, among which rows are too far apart "
                "for a kernel regression: its value is mostly bias; use CanonicalError",
                UsageWarning,
            )
        p, hot = _vectors(data)
        weight, each = data.weights, data.row_weights
        width = chosen_width(_subsample(p)) if self.width is None else self.width
        total = 0.0
        for rows, log_kernel in _log_kernels(p, width, weight):
            expected = torch.softmax(log_kernel, dim=1) @ hot
            errors = (expected - p[rows]).abs().pow(self.norm).sum(dim=1)
            total += float(errors @ each[rows])
        return total / float(each.sum())


@dataclass(frozen=True)
class SKCE(Metric):
    """Mean over pairs i < j of exp(−‖p_i − p_j‖ / width) ⟨y_i − p_i, y_j − p_j⟩: canonical calibration, unbiased.

    The squared kernel calibration error. Its expectation is 0 if and only if the model is canonically calibrated. It needs no
    bins and is unbiased, so it can be negative. Computed in tiles: O(N² K) time, 4 MiB of memory.

    Args:
        width: Kernel width > 0; None is the mean distance between up to 1,000 rows.

    Examples:
        >>> from calibrant import Predictions
        >>> round(SKCE(width=1.0)(Predictions.from_probs([[0.8, 0.2]] * 2, [1, 1])), 4)
        1.28

    References:
        Widmann, Lindsten & Zachariah 2019, Eq. 9 (unbiased quadratic estimator).
    """

    width: Positive | None = None

    better = "zero"
    bounds = (-2.0, 2.0)
    notion = "canonical"
    cite = "Widmann et al. 2019"
    needs_classes = True

    def __call__(self, data: ComparedRows) -> float:
        """Return the value on ``data``, a Python float."""
        p, hot = _vectors(data)
        some = _subsample(p)
        width = float(torch.cdist(some, some).mean()) if self.width is None else self.width
        width = width if width > 0 else 1.0  # all rows alike: every width gives the same kernel
        rows, weight = p.shape[0], data.row_weights
        residual = weight[:, None] * (hot - p)
        self_weight = weight.square()  # no row forms a pair with itself
        total = -float((self_weight * (hot - p).square().sum(dim=1)).sum())  # the pairs (i, i), whose kernel is 1
        for part in _tiles(rows, rows):
            kernel = torch.cdist(p[part], p, compute_mode="donot_use_mm_for_euclid_dist").div_(-width).exp_()
            total += float((kernel @ residual * residual[part]).sum())
        return total / float(weight.sum().square() - self_weight.sum())


def _subsample(p: Tensor) -> Tensor:
    """Return about ``SUBSAMPLE`` evenly spaced rows."""
    return p[:: max(1, p.shape[0] // SUBSAMPLE)]


def chosen_width(p: Tensor) -> float:
    """Return the width of ``WIDTHS`` with the largest leave-one-out likelihood of the rows ``p`` (N, K)."""

    def likelihood(width: float) -> float:
        return sum(float(torch.logsumexp(kernel, dim=1).sum()) for _, kernel in _log_kernels(p, width))

    return max(WIDTHS, key=likelihood)


def _log_kernels(p: Tensor, width: float, weight: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows j with log w_i k(p_j; p_i) (n, N): the Dirichlet densities of p_i / width + 1 at p_j.

    At i = j it is −inf.
    """
    log_p = p.clamp_min(SMALLEST).log()
    # Dir(x; α + 1) = Γ(Σ α + K) / Π Γ(α_k + 1) · Π x_k^α_k with α = p_i / width, so that Σ α = 1 / width for every row i: the
    # log-densities of a tile are one matrix product (Popordanoska et al. 2022, Eq. 9)
    alpha = p / width
    normaliser = torch.lgamma(torch.tensor(1 / width + p.shape[1], dtype=torch.float64)) - torch.lgamma(alpha + 1).sum(
        1
    )
    for rows in _tiles(p.shape[0], p.shape[0]):
        log_kernel = log_p[rows] @ alpha.T + normaliser
        here = torch.arange(rows.stop - rows.start), torch.arange(rows.start, rows.stop)
        if weight is not None:
            log_kernel = log_kernel + weight.log()
        log_kernel[here] = -math.inf
        yield rows, log_kernel


def _tiles(rows: int, columns: int) -> Iterator[slice]:
    return slices(rows, max(1, TILE // columns))


def _vectors(predictions: Predictions) -> tuple[Tensor, Tensor]:
    """Return probabilities and one-hot labels (N, K) in float64."""
    p = predictions.float64_probs()
    hot = torch.zeros_like(p).scatter_(1, predictions.need_labels()[:, None], 1.0)
    return p, hot
