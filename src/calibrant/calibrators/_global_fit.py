"""One temperature and one bias for all rows: what methods by features start from and fall back to."""

import torch
from torch import Tensor

from calibrant.calibrators._affine import lift_excluded
from calibrant.calibrators._group_sums import GroupChunk, Layout, fit_groups, group_chunk
from calibrant.calibrators._tempering import fit_temperature
from calibrant.rows import Chunk, RowSource


def fit_everyone(rows: RowSource, mass: float, *, biased: bool) -> tuple[float, Tensor, float]:
    """Return the global slope, biases (K,) and certificate: all rows as one group, beside the best temperature.

    Args:
        rows: Without a true class at −inf.
        mass: Σ of their weights.
        biased: Whether to fit biases.
    """
    slope, none = (
        1 / fit_temperature(rows, None),
        torch.zeros(rows.classes, dtype=torch.float64, device=rows.device),
    )
    if not biased:
        return slope, none, 0.0
    layout = Layout(1, 1, rows.classes, bias=True)
    theta, worst = fit_groups(rows.prepared(_input_of_all, slope), mass, layout, 1.0)
    return slope * (1 + float(theta[0])), theta[1:], worst


def _input_of_all(chunk: Chunk, slope: float) -> GroupChunk:
    everyone = torch.zeros(len(chunk), 1, dtype=torch.int64)
    return group_chunk(chunk, lift_excluded(chunk.logits.double()) * slope, everyone, 1)
