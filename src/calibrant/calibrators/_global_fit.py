"""One temperature and bias for all rows, or a factor of each class where it pays: what methods by features start from."""

import math

import torch
from torch import Tensor

from calibrant.calibrators._affine import AffineChunk, Ridge, diagonal_loss, fit_affine, lift_excluded
from calibrant.calibrators._group_sums import GroupChunk, Layout, fit_groups, group_chunk
from calibrant.calibrators._tempering import fit_temperature
from calibrant.rows import Chunk, RowSource


def fit_everyone(rows: RowSource, mass: float, *, biased: bool) -> tuple[Tensor, Tensor, float]:
    """Return the global slopes (K,), biases (K,) and certificate: all rows as one group, beside the best temperature.

    The slopes are equal, a temperature, unless slopes of their own gain more than Schwarz's (1978) penalty for K − 1 parameters.

    Args:
        rows: Without a true class at −inf.
        mass: Σ of their weights.
        biased: Whether to fit biases, and to try slopes of each class.
    """
    slope = 1 / fit_temperature(rows, None)
    ones = torch.ones(rows.classes, dtype=torch.float64, device=rows.device)
    if not biased:
        return slope * ones, 0 * ones, 0.0
    layout = Layout(1, 1, rows.classes, bias=True)
    theta, worst = fit_groups(rows.prepared(_input_of_all, slope), mass, layout, 1.0)
    inputs = rows.prepared(_affine_of, slope)
    free = fit_affine(inputs, mass, Ridge(1 / mass, 0.0, 1 / mass), diagonal=True)
    plain, own = (
        inputs.total(_loss, torch.cat([scale - 1, bias]))
        for scale, bias in (((1 + theta[0]) * ones, theta[1:]), (free.scale, free.bias))
    )
    if float(plain - own) > (rows.classes - 1) / 2 * math.log(max(mass, 1.0)) and bool((free.scale > 0).all()):
        return slope * free.scale, free.bias, free.gradient
    return slope * (1 + theta[0]) * ones, theta[1:], worst


def _input_of_all(chunk: Chunk, slope: float) -> GroupChunk:
    everyone = torch.zeros(len(chunk), 1, dtype=torch.int64)
    return group_chunk(chunk, lift_excluded(chunk.logits.double()) * slope, everyone, 1)


def _affine_of(chunk: Chunk, slope: float) -> AffineChunk:
    return AffineChunk(lift_excluded(chunk.logits.double()) * slope, chunk.labels, chunk.weights)


def _loss(chunk: AffineChunk, theta: Tensor) -> Tensor:
    return diagonal_loss(chunk, theta)[0]
