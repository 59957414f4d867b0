"""One map for all rows, as free as they pay for: what methods by features start from and fall back to."""

import torch
from torch import Tensor

from calibrant.calibrators._affine import AffineChunk, Ridge, fit_affine, lift_excluded
from calibrant.calibrators._group_sums import GroupChunk, Layout, fit_groups, group_chunk
from calibrant.calibrators._tempering import fit_temperature
from calibrant.rows import Chunk, RowSource

PENALTY = 2.0  # nats a parameter


def fit_everyone(rows: RowSource, mass: float, *, biased: bool) -> tuple[Tensor, Tensor, float]:
    """Return the global slopes (K,), biases (K,) and certificate: softmax(slope ∘ z + bias) of all rows.

    Of doing nothing, a temperature, a temperature with biases, and slopes of each class with biases, the one with the least
    log-loss, in nats of all rows, plus 2 a parameter, twice Akaike's (1974) penalty: where rows are few, a fit that they do not
    pay for does harm.

    Args:
        rows: Without a true class at −inf.
        mass: Σ of their weights.
        biased: Whether to try biases, and slopes of each class.
    """
    slope, classes = 1 / fit_temperature(rows, None), rows.classes
    ones = torch.ones(classes, dtype=torch.float64, device=rows.device)
    tried: list[tuple[int, Tensor, Tensor, float]] = [(0, ones, 0 * ones, 0.0), (1, slope * ones, 0 * ones, 0.0)]
    if biased:
        theta, worst = fit_groups(rows.prepared(_input_of_all, slope), mass, Layout(1, 1, classes, bias=True), 1.0)
        tried.append((classes, slope * (1 + theta[0]) * ones, theta[1:], worst))
        free = fit_affine(rows.prepared(_affine_of, slope), mass, Ridge(1 / mass, 0.0, 1 / mass), diagonal=True)
        if bool((free.scale > 0).all()):
            tried.append((2 * classes - 1, slope * free.scale, free.bias, free.gradient))
    slopes, biases = torch.stack([one[1] for one in tried]), torch.stack([one[2] for one in tried])
    penalty = PENALTY * torch.tensor([float(one[0]) for one in tried], dtype=torch.float64, device=rows.device)
    best = int((rows.total(_losses, slopes, biases) + penalty).argmin())
    return tried[best][1], tried[best][2], tried[best][3]


def _input_of_all(chunk: Chunk, slope: float) -> GroupChunk:
    everyone = torch.zeros(len(chunk), 1, dtype=torch.int64)
    return group_chunk(chunk, lift_excluded(chunk.logits.double()) * slope, everyone, 1)


def _affine_of(chunk: Chunk, slope: float) -> AffineChunk:
    return AffineChunk(lift_excluded(chunk.logits.double()) * slope, chunk.labels, chunk.weights)


def _losses(chunk: Chunk, slopes: Tensor, biases: Tensor) -> Tensor:
    """Return Σ log-loss (M,) of each of the maps (M, K)."""
    x, label = lift_excluded(chunk.logits.double()), chunk.labels[:, None]
    maps = zip(slopes, biases, strict=True)
    return torch.stack([-(chunk.weights @ torch.log_softmax(x * a + b, dim=1).gather(1, label)[:, 0]) for a, b in maps])
