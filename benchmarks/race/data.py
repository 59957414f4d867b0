"""Logits for the races, from an over-confident model with an accuracy of 80 %, for which every task has a solution."""

import torch
from torch import Tensor

from calibrant import Predictions


def overconfident(rows: int, classes: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return float32 logits (N, K) with one class ahead by 6, and labels (N,), which are this class in 80 % of the rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator).mul_(2)
    decided = torch.randint(classes, (rows,), generator=generator)
    logits[torch.arange(rows), decided] += 6
    right = torch.rand(rows, generator=generator) < 0.8
    return logits, torch.where(right, decided, torch.randint(classes, (rows,), generator=generator))


def pairs(rows: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the float64 confidences (N,) of ``overconfident`` logits over ten classes, and whether decisions are correct (N,)."""
    data = Predictions.from_logits(*overconfident(rows, 10, seed=seed))
    return data.confidence, data.correct


def two_classes(rows: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return float64 probabilities (N,) of class 1 that are too far from one half, and labels (N,)."""
    generator = torch.Generator().manual_seed(seed)
    logit = torch.randn(rows, generator=generator, dtype=torch.float64) * 3
    labels = (torch.rand(rows, generator=generator, dtype=torch.float64) < torch.sigmoid(logit / 2 - 0.3)).long()
    return torch.sigmoid(logit), labels
