"""Checks a study before its first training by constructing once everything that it names, without reading data."""

import json
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch

from calibrant._files import error_boundary
from calibrant.errors import FileFormatError, InputError, UsageWarning
from calibrant.study import models
from calibrant.study.data import data_set
from calibrant.study.load import StudyFile
from calibrant.study.recipe import Cell, Recipe, Study
from calibrant.study.record import naming
from calibrant.study.resolve import make_loss, make_model, model_class
from calibrant.study.train import make_optimizers

ROWS, CLASSES = 4, 10  # shape of the batch on which every loss is called


def check_study(study: Study) -> None:
    """Raise if a data set, a network, a loss or an optimiser of a study cannot be built.

    Options of data sets are checked, networks are built on the meta device, and every loss is called on four rows. No
    data file is read.

    Args:
        study: The study to check.

    Raises:
        CalibrantError: If something cannot be built; the error states the setting or objective and the remedy.

    Examples:
        >>> from calibrant.study import load_study
        >>> check_study(load_study("digits"))
    """
    done: set[str] = set()
    for cell in study.cells():
        recipe = cell.recipe
        data, plan = dict(recipe.data), recipe.training
        untrained = {k: v for k, v in data.items() if k not in ("train", "validation", "test", "ood")}
        setting, objective = f"setting {cell.setting!r}", f"objective {cell.objective!r}"
        # trainings with the same data, network or loss are checked once
        for check, place, seen in (
            (_check_data, setting, [cell.setting, data, recipe.fold, plan.batch, plan.drop_last]),
            (_check_network, setting, [untrained, dict(recipe.model), dict(plan.rates), plan.optimizer]),
            (_try_loss, objective, [dict(recipe.loss), plan.reduction]),
        ):
            key = json.dumps([check.__name__, seen], default=str, sort_keys=True)
            if key not in done:
                done.add(key)
                with naming(place):
                    check(recipe)


def check_file(file: StudyFile, chosen: Study) -> None:
    """Check a study that was read from ``file``, and its other scales if it is the user's own; errors name the file."""
    own = file.name.endswith(".toml")
    with naming(file.name if own else ""):
        for study in (chosen, *(file.study(scale) for scale in file.scales if own)):
            check_study(study)


def check_folders(cells: Iterable[Cell]) -> None:
    """Raise ``FileFormatError`` for the first folder of data that does not exist, before a training begins."""
    for place, setting in missing_folders(cells):
        wanted, got = f"the data of setting {setting!r}", f"no such folder: {place}"
        raise FileFormatError(
            wanted, got, "put the data there, or name another folder with --data or study.with_data_from"
        )


def missing_folders(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    """Return each data folder that does not exist, with the label of its setting."""
    named = {(str(cell.recipe.data["folder"]), cell.setting) for cell in cells if cell.recipe.data.get("folder")}
    return sorted((folder, setting) for folder, setting in named if not Path(folder).is_dir())


def _check_data(recipe: Recipe) -> None:
    """Construct the data set, and check the batch size if the number of training samples is known."""
    plan, count = recipe.training, getattr(data_set(recipe.data, fold=recipe.fold)[0], "train", None)
    if plan.drop_last and count is not None and count < plan.batch:  # an epoch would have no whole batch
        raise InputError(f"batch of at most {count} with drop_last", f"{plan.batch}", "lower it")


def _check_network(recipe: Recipe) -> None:
    """Build the network on the meta device, and its optimisers."""
    made = data_set(recipe.data, fold=recipe.fold)[0]
    sizes = made.sizes()
    if recipe.model.get("weights") is not None or not sizes:
        model_class(recipe.model)  # weights are not loaded, which could require a download or take long
        return
    with torch.device("meta"):
        network = make_model(recipe.model, sizes=sizes)
    with error_boundary("training that the optimizer accepts", "an error", "correct it", kind=InputError):
        make_optimizers(network, recipe.training)
    batch, name = made.sample(), recipe.model["type"]
    if batch is None or name not in models.__all__:  # others may not run on the meta device
        return
    wanted = f"logits (N, {sizes['classes']}) from {name!r} for samples of shape {tuple(batch.shape[1:])}"
    # torch raises many types for shapes that do not match
    with error_boundary(wanted, "an error", "choose another network", kind=InputError):
        logits = network(batch)
    if logits.shape != (len(batch), sizes["classes"]):
        raise InputError(wanted, f"shape {tuple(logits.shape)}", "leave classes out of the model")


def _try_loss(recipe: Recipe) -> None:
    """Build the loss and call it on four rows, forward and backward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UsageWarning)  # the training issues it
        loss = make_loss(recipe.loss, reduction=recipe.training.reduction)
    logits = torch.linspace(-1.0, 1.0, ROWS * CLASSES).reshape(ROWS, CLASSES).requires_grad_()
    # a user's own class may raise anything
    wanted, got = "a loss of logits (N, K) and labels (N,)", f"an error of {recipe.loss.get('type')!r}"
    with error_boundary(wanted, got, "correct the class or its arguments", kind=InputError):
        loss(logits, torch.arange(ROWS)).backward()
