"""Construction of losses and networks from a recipe's tables. Recipes are trusted like code: they may name any class."""

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import nn

from calibrant import binning, losses
from calibrant.errors import CalibrantError, InputError
from calibrant.study import models

__all__ = ["make_loss", "make_model"]


def make_loss(table: Mapping[str, Any], *, reduction: str = "mean") -> nn.Module:
    """Return the loss that ``{"type": name, argument: value …}`` describes.

    Args:
        table: A class of ``calibrant.losses`` or ``"module:Class"``, and its arguments; nested tables are resolved as well.
        reduction: Default of the table's ``reduction``.

    Examples:
        >>> make_loss({"type": "FocalLoss", "gamma": 3.0})
        FocalLoss(gamma=3.0)
    """
    return _build({"reduction": reduction, **table}, family=losses, what="loss")


def make_model(table: Mapping[str, Any], *, sizes: Mapping[str, Any]) -> nn.Module:
    """Return the network that ``{"type": name, argument: value …}`` describes.

    Args:
        table: A class of ``study.models`` or ``"module:Class"``, and its arguments.
        sizes: Sizes of the data (``classes``, ``inputs`` …); a network receives those that its constructor accepts.

    Examples:
        >>> make_model({"type": "MLP", "hidden": []}, sizes={"classes": 2, "inputs": 3}).classifier
        Linear(in_features=3, out_features=2, bias=True)
    """
    cls = _find(table.get("type"), family=models, what="model")
    asked = inspect.signature(cls).parameters
    # a size that the recipe sets itself wins over that of the data
    return _build({**{k: v for k, v in sizes.items() if k in asked}, **table}, family=models, what="model")


def find_model(table: Mapping[str, Any]) -> None:
    """Raise if a table's network is unknown or does not accept its arguments, without building it."""
    arguments = {key: value for key, value in table.items() if key != "type"}
    _check_arguments(_find(table.get("type"), family=models, what="model"), str(table["type"]), arguments, whole=False)


def _check_arguments(cls: Any, name: str, arguments: Mapping[str, Any], *, whole: bool = True) -> None:
    """Raise for unknown argument names and, if ``whole``, for missing required arguments."""
    try:
        known = inspect.signature(cls).parameters
    except (TypeError, ValueError):  # a class without a signature is checked only when it is called
        return
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in known.values()):
        return
    unknown = [key for key in arguments if key not in known]
    if unknown:
        raise InputError(f"arguments of {name} ({', '.join(known) or 'none'})", f"{unknown[0]!r}", "correct the name")
    missing = [key for key, item in known.items() if item.default is inspect.Parameter.empty and key not in arguments]
    if whole and missing and known[missing[0]].kind is not inspect.Parameter.VAR_POSITIONAL:
        raise InputError(f"the argument {missing[0]!r} of {name}", "none", "add it")


def _build(table: Mapping[str, Any], *, family: ModuleType, what: str) -> Any:
    arguments = dict(table)
    name = arguments.pop("type", None)
    cls = _find(name, family=family, what=what)
    _check_arguments(cls, str(name), arguments)
    try:
        for key, value in arguments.items():
            if isinstance(value, Mapping) and "type" in value:  # a binning, or another member of the family
                inner = binning if value["type"] in binning.__all__ else family
                arguments[key] = _build(value, family=inner, what=what)
        return cls(**arguments)
    except CalibrantError:
        raise
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"arguments of {name}", f"{arguments} ({error})", "see its documentation") from error


def imported(name: str, *, what: str) -> Any:
    """Return what ``"module:attribute"`` names; modules of the current folder are found as well.

    Raises:
        InputError: If it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # the installed command starts without it
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{what} {name!r} to be importable", f"{error}", "check the name") from error


def _find(name: Any, *, family: ModuleType, what: str) -> Any:
    if isinstance(name, str) and ":" in name:
        return imported(name, what=what)
    if name not in family.__all__:
        raise InputError(f"{what} type to be one of {', '.join(family.__all__)}", f"{name!r}", "choose one")
    return getattr(family, name)
