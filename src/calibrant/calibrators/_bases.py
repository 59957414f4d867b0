"""Features (n, C, P) of log-odds (n, C) that a curve is a sum of."""

import torch
from torch import Tensor


def line(log_odds: Tensor) -> Tensor:
    """Return s and 1."""
    return torch.stack([log_odds, torch.ones_like(log_odds)], dim=2)


def parabola(log_odds: Tensor) -> Tensor:
    """Return s, 1 and s²."""
    return torch.stack([log_odds, torch.ones_like(log_odds), log_odds**2], dim=2)


def two_logs(log_odds: Tensor) -> Tensor:
    """Return log p, −log(1 − p) and 1."""
    sigmoid = torch.nn.functional.logsigmoid
    return torch.stack([sigmoid(log_odds), -sigmoid(-log_odds), torch.ones_like(log_odds)], dim=2)


def natural_spline(log_odds: Tensor, places: Tensor) -> Tensor:
    """Return the natural cubic basis (n, C, knots) at ``log_odds`` (n, C) for knots ``places`` (C, knots)."""
    last = places[:, -1:]
    cubes = (log_odds[:, :, None] - places).clamp_min(0) ** 3
    d = (cubes - cubes[:, :, -1:])[:, :, :-1] / (last - places[:, :-1])  # (n, C, knots − 1)
    # divided by the knots' range, the curved parts have the scale of s
    curved = (d[:, :, :-1] - d[:, :, -1:]) / (last - places[:, :1])
    return torch.cat([torch.ones_like(log_odds)[:, :, None], log_odds[:, :, None], curved], dim=2)
