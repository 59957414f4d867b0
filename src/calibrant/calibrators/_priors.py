"""Class priors of unlabelled rows: by maximum likelihood from calibrated probabilities, and by a confusion matrix."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant._core.numerics import row_chunks
from calibrant.calibrators._simplex import MixtureChunk, fit_mixture_weights
from calibrant.errors import InputError
from calibrant.rows import LazyRows

_Z = 1.959963984540054  # of a 95 % interval
_RIDGE = 1e-12  # of an information matrix's diagonal: classes that cannot be told apart get the interval [0, 1]
_SMALLEST = 1e-8  # singular value of a confusion matrix, below which its classes cannot be told apart


@dataclass(frozen=True)
class Priors:
    """Estimated priors with 95 % intervals.

    Args:
        priors: (K,) ≥ 0, Σ = 1.
        low: (K,) lower ends.
        high: (K,) upper ends.
        gap: How far the mean log-likelihood may at most lie below its maximum, in nats; NaN for a confusion matrix.
    """

    priors: Tensor
    low: Tensor
    high: Tensor
    gap: float


def by_likelihood(logits: Tensor, source: Tensor, *, rows: float) -> Priors:
    """Return the priors q that maximise Σ_i log Σ_k q_k p_ik / π_k, which is concave: what EM converges to.

    The interval is that of the moment equations mean g_k = 1, g_k = (p_k / π_k) / Σ_j q_j p_j / π_j, whose expectation over
    the new rows and, class by class, over the source rows is estimated; so an error of p that is the same for all new
    rows counts as far as ``rows`` labelled source rows could leave it unnoticed.

    Args:
        logits: (N, K) calibrated on the source, floating.
        source: (K,) priors π > 0 of the source, float64.
        rows: Labelled source rows.
    """

    def ratios(part: slice) -> Tensor:
        return torch.softmax(logits[part].double(), dim=1) / source.to(logits.device)

    parts = list(row_chunks(*logits.shape, device=logits.device))

    def chunks() -> "map[MixtureChunk]":
        return map(_chunk, map(ratios, parts))

    count, classes = logits.shape
    q = fit_mixture_weights(
        LazyRows(chunks, classes=classes, count=count, device=logits.device), members=classes, mass=float(count)
    )
    means = torch.stack([_scores(ratios(part), q).sum(dim=0) for part in parts]).sum(dim=0).cpu() / count
    covariance = _covariance([ratios(part) for part in parts], q, source, rows=rows)
    low, high = _ends(q, covariance)
    return Priors(q, low, high, float(means.max() - 1))


def by_confusion(decisions: Tensor, confusion: Tensor) -> Priors:
    """Return the priors q with C q = the frequencies of the decisions, C the source's confusion matrix (Lipton et al. 2018).

    Args:
        decisions: (N,) int64, the decided classes of the new rows.
        confusion: (K, K) weights of the source rows by decision and label.

    Raises:
        InputError: If classes cannot be told apart by the decisions.
    """
    per_label = confusion.sum(dim=0)
    table = confusion / per_label
    smallest = float(torch.linalg.matrix_norm(table, ord=-2))
    if smallest < _SMALLEST:
        raise InputError(
            f"expected a confusion matrix that tells the classes apart, got one of smallest singular value {smallest:.1g}; "
            'use method="em", or fit on more rows'
        )
    count = len(decisions)
    seen = torch.bincount(decisions.cpu(), minlength=len(table)).double() / count
    q = _on_simplex(table, seen)
    noise = _multinomial(seen) / count
    # of few rows some decisions are never seen: one imagined row more, spread over all, keeps their variance above 0
    smooth = (confusion + 1 / len(table)) / (per_label + 1)
    for label, prior in enumerate(q.tolist()):
        noise += prior**2 * _multinomial(smooth[:, label]) / (per_label[label] - 1).clamp_min(0.5)
    inverse = torch.linalg.inv(table)
    low, high = _ends(q, inverse @ noise @ inverse.T)
    return Priors(q, low, high, float("nan"))


def _chunk(ratios: Tensor) -> MixtureChunk:
    return MixtureChunk.of(ratios, torch.ones(len(ratios), dtype=torch.float64, device=ratios.device))


def _scores(ratios: Tensor, q: Tensor) -> Tensor:
    """Return g (n, K)."""
    return ratios / (ratios @ q.to(ratios.device))[:, None]


def _covariance(parts: list[Tensor], q: Tensor, source: Tensor, *, rows: float) -> Tensor:
    """Return the covariance (K, K) of q: H⁻¹ (Cov_new(g) / N + Cov_source(w_y (E[g | y] − g)) / rows) H⁻¹, H = E g gᵀ.

    The source's part is computed from the new rows, of which class y has the probability q_y g_y, since a source row of
    label y counts w_y = q_y / π_y times as a new one.
    """
    count = sum(len(part) for part in parts)
    weight = q / source
    second, outer, cross = (torch.zeros(len(q), len(q), dtype=torch.float64) for _ in range(3))
    for part in parts:
        g = _scores(part, q).cpu()
        stake = (g * q * weight).sum(dim=1)  # Σ_y P(y | x) w_y
        second += g.T @ g
        outer += (g * stake[:, None]).T @ g
        cross += g.T @ (g * q * weight)
    second, outer, cross = second / count, outer / count, cross / count
    of_new = second - 1
    of_source = outer - cross @ second - (cross @ second).T + (second * (q * weight)) @ second
    scale = second.diagonal().rsqrt()
    scaled = second * scale[:, None] * scale + _RIDGE * torch.eye(len(q), dtype=torch.float64)
    inverse = torch.linalg.inv(scaled) * scale[:, None] * scale
    covariance: Tensor = inverse @ (of_new / count + of_source / rows) @ inverse
    return covariance


def _ends(q: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    half = _Z * covariance.diagonal().clamp_min(0).sqrt()
    return (q - half).clamp(0, 1), (q + half).clamp(0, 1)


def _multinomial(p: Tensor) -> Tensor:
    spread: Tensor = torch.diag(p) - p[:, None] * p
    return spread


def _on_simplex(table: Tensor, seen: Tensor) -> Tensor:
    """Return the q ≥ 0, Σ q = 1, with the least ‖C q − seen‖: the solution itself where that is not negative."""
    from scipy.optimize import nnls

    exact: Tensor = torch.linalg.solve(table, seen)
    if bool((exact >= 0).all()):
        return exact / exact.sum()
    heavy = 1e6  # of the row that makes the sum 1
    system = np.vstack([table.numpy(), np.full((1, len(seen)), heavy)])
    found: Tensor = torch.from_numpy(nnls(system, np.append(seen.numpy(), heavy))[0])
    return found / found.sum()
