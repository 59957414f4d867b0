"""Optimisers and learning-rate schedule of a recipe."""

import math
from typing import Any

import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.study.recipe import Training


def make_optimizers(model: nn.Module, plan: Training) -> list[torch.optim.Optimizer]:
    """Return the optimisers of ``plan``: the main one, with a group per entry of ``plan.rates``, and SGD for ``plan.plain``."""
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in model.named_parameters() if name.startswith(prefix)], "lr": rate, "prefix": prefix}
        for prefix, rate in plan.rates.items()
    ]
    missing = [group["prefix"] for group in groups if not group["params"]]
    if missing:
        known = sorted({name.partition(".")[0] for name, _ in model.named_parameters()})
        raise InputError(f"rates for parts among {', '.join(known)}", f"{missing[0]!r}", "correct the name")
    rest = [p for name, p in model.named_parameters() if not name.startswith(tuple(plan.rates))]
    plain = [group for group in groups if group["prefix"] in plan.plain]
    groups = [group for group in groups if group["prefix"] not in plan.plain]
    groups.append({"params": rest, "lr": plan.lr, "prefix": ""})
    for group in (*groups, *plain):
        group["initial_lr"] = group["lr"]
        del group["prefix"]
    return [_main_optimizer(groups, plan), *([torch.optim.SGD(plain)] if plain else [])]


def _main_optimizer(groups: list[dict[str, Any]], plan: Training) -> torch.optim.Optimizer:
    if plan.optimizer == "sgd":
        return torch.optim.SGD(
            groups, lr=plan.lr, momentum=plan.momentum, nesterov=plan.nesterov, weight_decay=plan.weight_decay
        )
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}
    return kinds[plan.optimizer](groups, lr=plan.lr, weight_decay=plan.weight_decay)


def rate_factor(plan: Training, epoch: int) -> float:
    """Return the factor on the initial learning rates in ``epoch``, counted from 0."""
    if plan.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / plan.epochs))
    ahead = 1 if plan.step_first else 0
    return plan.decay ** sum(epoch + ahead >= milestone for milestone in plan.milestones)


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to ``factor`` times its initial one."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
