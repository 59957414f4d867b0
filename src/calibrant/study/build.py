"""Builds losses, networks and optimisers from a recipe, and checks a study by building everything that it names once.

Recipes are trusted like code, because they may name any importable class.
"""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant import binning, losses
from calibrant._core.config import build, find_class
from calibrant._files import error_boundary
from calibrant.errors import InputError, UsageWarning
from calibrant.study import models
from calibrant.study.data import data_set
from calibrant.study.recipe import Cell, Recipe, Study, Training
from calibrant.study.record import naming

ROWS, CLASSES = 4, 10  # shape of the batch on which every loss is called


def make_loss(table: Mapping[str, Any], *, reduction: str = "mean") -> nn.Module:
    """Return the loss that ``{"type": name, argument: value …}`` describes.

    Args:
        table: The name of a class in ``calibrant.losses`` or ``"module:Class"``, and its arguments. Nested tables are
            resolved as well.
        reduction: The ``reduction`` to use if the table has none.

    Returns:
        The loss.

    Raises:
        InputError: If there is no such class, or it does not accept the arguments.

    Examples:
        >>> make_loss({"type": "FocalLoss", "gamma": 3.0})
        FocalLoss(gamma=3.0)
    """
    made: nn.Module = build({"reduction": reduction, **table}, families=[losses, binning], importable=True)
    return made


def make_model(table: Mapping[str, Any], *, sizes: Mapping[str, Any]) -> nn.Module:
    """Return the network that ``{"type": name, argument: value …}`` describes.

    Args:
        table: The name of a class in ``study.models`` or ``"module:Class"``, and its arguments.
        sizes: Sizes of the data (``classes``, ``inputs`` …). The network receives the sizes that its constructor accepts.

    Returns:
        The network.

    Raises:
        InputError: If there is no such class, or it does not accept the arguments.

    Examples:
        >>> make_model({"type": "MLP", "hidden": []}, sizes={"classes": 2, "inputs": 3}).classifier
        Linear(in_features=3, out_features=2, bias=True)
    """
    asked = inspect.signature(find_class(table.get("type"), families=[models], importable=True)).parameters
    # a size that the recipe sets itself overrides the size of the data
    own = {name: size for name, size in sizes.items() if name in asked}
    made: nn.Module = build({**own, **table}, families=[models], importable=True)
    return made


def make_optimizers(model: nn.Module, plan: Training) -> list[torch.optim.Optimizer]:
    """Return the optimisers of ``plan``: the main one, with a parameter group per entry of ``plan.rates``, and SGD for ``plan.plain``."""
    groups: list[dict[str, Any]] = []
    plain: list[dict[str, Any]] = []
    for prefix, rate in plan.rates.items():
        own = [p for name, p in model.named_parameters() if name.startswith(prefix)]
        if not own:
            known = sorted({name.partition(".")[0] for name, _ in model.named_parameters()})
            raise InputError(f"rates for parts among {', '.join(known)}", f"{prefix!r}", "correct the name")
        (plain if prefix in plan.plain else groups).append({"params": own, "lr": rate, "initial_lr": rate})
    rest = [p for name, p in model.named_parameters() if not name.startswith(tuple(plan.rates))]
    groups.append({"params": rest, "lr": plan.lr, "initial_lr": plan.lr})
    kinds: dict[str, Any] = {
        "sgd": partial(torch.optim.SGD, momentum=plan.momentum),
        "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad,
    }  # fmt: skip
    main = kinds[plan.optimizer](groups, lr=plan.lr, weight_decay=plan.weight_decay)
    return [main, *([torch.optim.SGD(plain)] if plain else [])]


def check_study(study: Study) -> None:
    """Raise an error if a data set, a network, a loss or an optimiser of a study cannot be built.

    The options of data sets are checked, networks are built on the meta device, and every loss is called on four rows. No
    data files are read.

    Args:
        study: The study to check.

    Raises:
        CalibrantError: If something cannot be built. The message names the setting or objective, and the remedy.

    Examples:
        >>> from calibrant.study import load_study
        >>> check_study(load_study("digits"))
    """
    done: set[str] = set()
    for cell in study.cells():
        recipe, plan = cell.recipe, cell.recipe.training
        network = (recipe.data, recipe.model, plan.rates, plan.optimizer, plan.plain)
        for check, place, parts in (
            (_check_network, f"setting {cell.setting!r}", network),
            (_check_loss, f"objective {cell.objective!r}", (recipe.loss, plan.reduction)),
        ):
            # training runs with the same network or loss are checked once
            if (key := f"{check.__name__} {parts}") not in done:
                done.add(key)
                with naming(place):
                    check(recipe)


def missing_folders(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    """Return each data folder that does not exist, with the label of its setting."""
    named = {(str(cell.recipe.data["folder"]), cell.setting) for cell in cells if cell.recipe.data.get("folder")}
    return sorted((folder, setting) for folder, setting in named if not Path(folder).is_dir())


def _check_network(recipe: Recipe) -> None:
    """Construct the data set, and build the network on the meta device with its optimisers."""
    model, sizes = recipe.model, data_set(recipe.data)[0].sizes()
    if model.get("weights") is not None or not sizes:
        # weights are not loaded, because that could require a download or take long
        find_class(model.get("type"), families=[models], importable=True)
        return
    with torch.device("meta"):
        network = make_model(model, sizes=sizes)
    with error_boundary("training options that the optimizer accepts", "an error", "correct them", kind=InputError):
        make_optimizers(network, recipe.training)


def _check_loss(recipe: Recipe) -> None:
    """Build the loss, and run it forward and backward on four rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UsageWarning)  # the training run issues the warning
        loss = make_loss(recipe.loss, reduction=recipe.training.reduction)
    logits = torch.linspace(-1.0, 1.0, ROWS * CLASSES).reshape(ROWS, CLASSES).requires_grad_()
    # a user's own class may raise anything
    wanted, got = "a loss that takes logits (N, K) and labels (N,)", f"an error from {recipe.loss.get('type')!r}"
    with error_boundary(wanted, got, "correct the class or its arguments", kind=InputError):
        loss(logits, torch.arange(ROWS)).backward()
