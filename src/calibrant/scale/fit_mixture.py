"""Mixtures of tempered, raw and uniform probabilities on tables larger than memory: Newton's method on merged sums."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators._affine import check_label_logits
from calibrant.calibrators._mixture import HIGH, LOW, POINTS, Mixture, mixture_sums, settle
from calibrant.calibrators._simplex import Array, solve_weights
from calibrant.scale.passes import StreamedPasses, labelled
from calibrant.scale.rows import ParquetRows, Shard

__all__ = ["fit_both", "fit_ensemble_weights"]

_SAMPLE = 50_000  # rows whose weights the search on all rows starts from
_SHARES = tuple(float(x) for x in np.concatenate([np.geomspace(1e-9, 0.1, 17), np.linspace(0.15, 0.95, 9)]))


def fit_ensemble_weights(passes: StreamedPasses, temperature: float) -> Tensor:
    """Return the weights (3,) of tempered, raw and uniform with the least mean log-loss, within 1e-8 nats, checked.

    Args:
        passes: The data.
        temperature: T of the tempered part.

    Raises:
        FitError: If the gap is not reached.
    """
    shard = passes.rows.shards[0]
    taken = 0
    parts: list[Tensor] = []
    for logits, labels in labelled(passes.rows, shard):
        parts.append(_parts(logits, labels, temperature))
        taken += len(labels)
        if taken >= _SAMPLE:
            break
    sample = torch.cat(parts)
    start = solve_weights(_Sample(sample.numpy()), pseudo=np.zeros(3))
    found = solve_weights(_OnDisk(passes, temperature), pseudo=np.zeros(3), start=start)
    return torch.from_numpy(found)


@dataclass(frozen=True)
class _Sample:
    """The sums that the weights are found by, of rows in memory."""

    table: Array

    def value(self, w: Array) -> float:
        """Return the mean of log Σ w p."""
        return float(np.log(self.table @ w).mean())

    def derivatives(self, w: Array) -> tuple[Array, Array]:
        """Return the means of r and of r rᵀ, r = w p / Σ w p."""
        ratio = self.table * (w / (self.table @ w)[:, None])
        return ratio.mean(axis=0), ratio.T @ ratio / len(ratio)


@dataclass(frozen=True)
class _OnDisk:
    """The same sums of rows on disk; value and derivatives come by the same pass."""

    passes: StreamedPasses
    temperature: float

    def value(self, w: Array) -> float:
        """Return the mean of log Σ w p."""
        return float(self._sums(w)[0])

    def derivatives(self, w: Array) -> tuple[Array, Array]:
        """Return the means of r and of r rᵀ."""
        sums = self._sums(w)
        return sums[1:4], sums[4:].reshape(3, 3)

    def _sums(self, w: Array) -> Array:
        sums = self.passes.total(ensemble_of, temperature=self.temperature, weights=tuple(float(v) for v in w))
        mean: Array = (sums / self.passes.rows.rows).numpy()
        return mean


def _parts(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the probability (n, 3) of the label under each part, relative to the largest."""
    check_label_logits(logits, labels)
    z = logits.double()
    log_p = [torch.log_softmax(z * beta, dim=1).gather(1, labels[:, None])[:, 0] for beta in (1 / temperature, 1.0)]
    p = torch.stack([*(part.exp() for part in log_p), torch.full_like(log_p[0], 1 / z.shape[1])], dim=1)
    return p / p.amax(dim=1, keepdim=True)


def ensemble_of(rows: ParquetRows, shard: Shard, *, temperature: float, weights: tuple[float, ...]) -> Tensor:
    """Return Σ log Σ w p, Σ r and Σ r rᵀ (13,) of a shard."""
    w = torch.tensor(weights, dtype=torch.float64)
    total = torch.zeros(13, dtype=torch.float64)
    for logits, labels in labelled(rows, shard):
        p = _parts(logits, labels, temperature)
        mixed = p @ w
        ratio = p * w / mixed[:, None]
        total += torch.cat([mixed.log().sum()[None], ratio.sum(dim=0), (ratio.T @ ratio).reshape(-1)])
    return total


def fit_both(passes: StreamedPasses, prior: float | None) -> dict[str, Any]:
    """Return log T and ε that minimise the log-loss of their mixture, with one imagined row as in memory.

    The same 41 temperatures are tried, each with 26 shares; Newton's method in (log T, log ε) ends the search from the
    best of them, as in memory.

    Args:
        passes: The data.
        prior: Standard deviation of a normal prior on log T, or None.

    Raises:
        FitError: If the gradient is not small at the end.
    """
    rows = passes.rows.rows
    grid = tuple(float(u) for u in np.linspace(LOW, HIGH, POINTS))
    shares = (*_SHARES, 1 / (rows + 1))
    losses = passes.total(tried_of, grid=grid, shares=shares).view(len(grid), len(shares))
    losses = losses - torch.tensor(shares, dtype=torch.float64).log()
    if prior is not None:
        losses = losses + torch.tensor(grid, dtype=torch.float64)[:, None] ** 2 / (2 * prior**2)
    best = int(losses.argmin())
    start = Mixture(grid[best // len(shares)], shares[best % len(shares)])

    def sums(at: Mixture) -> Tensor:
        return passes.total(mixed_of, log_temperature=at.log_temperature, share=at.share)

    found = settle(sums, start, total=float(rows), prior=prior)
    return {"log_temperature": found.log_temperature, "share": found.share}


def tried_of(rows: ParquetRows, shard: Shard, *, grid: tuple[float, ...], shares: tuple[float, ...]) -> Tensor:
    """Return Σ log-loss of the mixture (G · S,) for each log T and ε, of a shard."""
    total = torch.zeros(len(grid), len(shares), dtype=torch.float64)
    for logits, labels in labelled(rows, shard):
        z, uniform = logits.double(), 1 / logits.shape[1]
        for i, u in enumerate(grid):
            p = torch.log_softmax(z * math.exp(-u), dim=1).gather(1, labels[:, None])[:, 0].exp()
            total[i] -= torch.stack([(p + share * (uniform - p)).log().sum() for share in shares])
    return total.view(-1)


def mixed_of(rows: ParquetRows, shard: Shard, *, log_temperature: float, share: float) -> Tensor:
    """Return ``mixture_sums`` of a shard."""
    total = torch.zeros(6, dtype=torch.float64)
    for logits, labels in labelled(rows, shard):
        total += mixture_sums(logits, labels, None, Mixture(log_temperature, share))
    return total
