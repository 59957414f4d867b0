"""Optimiser and learning rate of a recipe."""

import math

import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.study.recipe import Training


def make_optimizer(model: nn.Module, plan: Training) -> torch.optim.Optimizer:
    """Return the optimiser that ``plan`` describes, with a group for each rate of its own."""
    groups = [
        {"params": [p for name, p in model.named_parameters() if name.startswith(prefix)], "lr": rate}
        for prefix, rate in plan.rates.items()
    ]
    missing = [prefix for prefix, group in zip(plan.rates, groups, strict=True) if not group["params"]]
    if missing:
        known = sorted({name.partition(".")[0] for name, _ in model.named_parameters()})
        raise InputError(f"expected rates for parts among {', '.join(known)}, got {missing[0]!r}; correct the name")
    rest = [p for name, p in model.named_parameters() if not name.startswith(tuple(plan.rates))]
    groups.append({"params": rest, "lr": plan.lr})
    for group in groups:
        group["initial_lr"] = group["lr"]
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}
    if plan.optimizer == "sgd":
        return torch.optim.SGD(
            groups, lr=plan.lr, momentum=plan.momentum, nesterov=plan.nesterov, weight_decay=plan.weight_decay
        )
    return kinds[plan.optimizer](groups, lr=plan.lr, weight_decay=plan.weight_decay)


def rate_factor(plan: Training, epoch: int) -> float:
    """Return what the starting rates are multiplied by in ``epoch``, counted from 0."""
    if plan.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / plan.epochs))
    ahead = 1 if plan.step_first else 0
    return plan.decay ** sum(epoch + ahead >= milestone for milestone in plan.milestones)


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's rate to ``factor`` times its first one."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
