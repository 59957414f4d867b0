"""Features (n, C, P) of log-odds (n, C) that a curve is a sum of."""

import torch
from torch import Tensor


def line(odds: Tensor) -> Tensor:
    """Return s and 1."""
    return torch.stack([odds, torch.ones_like(odds)], dim=2)


def parabola(odds: Tensor) -> Tensor:
    """Return s, 1 and s²."""
    return torch.stack([odds, torch.ones_like(odds), odds**2], dim=2)


def two_logs(odds: Tensor) -> Tensor:
    """Return log p, −log(1 − p) and 1."""
    sigmoid = torch.nn.functional.logsigmoid
    return torch.stack([sigmoid(odds), -sigmoid(-odds), torch.ones_like(odds)], dim=2)


def natural_spline(odds: Tensor, places: Tensor) -> Tensor:
    """Return the natural cubic basis (n, C, knots) at ``odds`` (n, C) for knots ``places`` (C, knots)."""
    last = places[:, -1:]
    cubes = (odds[:, :, None] - places).clamp_min(0) ** 3
    d = (cubes - cubes[:, :, -1:])[:, :, :-1] / (last - places[:, :-1])  # (n, C, knots − 1)
    # divided by the knots' range, the curved parts have the scale of s
    curved = (d[:, :, :-1] - d[:, :, -1:]) / (last - places[:, :1])
    return torch.cat([torch.ones_like(odds)[:, :, None], odds[:, :, None], curved], dim=2)
