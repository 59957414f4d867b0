"""Constructs losses and networks from a recipe's tables.

Recipes are trusted like code: they may name any importable class.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from calibrant import binning, losses
from calibrant._core.config import build, find_class
from calibrant.study import models


def make_loss(table: Mapping[str, Any], *, reduction: str = "mean") -> nn.Module:
    """Return the loss that ``{"type": name, argument: value …}`` describes.

    Args:
        table: A class of ``calibrant.losses`` or ``"module:Class"``, and its arguments; nested tables are resolved as well.
        reduction: Default of the table's ``reduction``.

    Examples:
        >>> make_loss({"type": "FocalLoss", "gamma": 3.0})
        FocalLoss(gamma=3.0)
    """
    made: nn.Module = build({"reduction": reduction, **table}, families=[losses, binning], importable=True)
    return made


def make_model(table: Mapping[str, Any], *, sizes: Mapping[str, Any]) -> nn.Module:
    """Return the network that ``{"type": name, argument: value …}`` describes.

    Args:
        table: A class of ``study.models`` or ``"module:Class"``, and its arguments.
        sizes: Sizes of the data (``classes``, ``inputs`` …); a network receives those that its constructor accepts.

    Examples:
        >>> make_model({"type": "MLP", "hidden": []}, sizes={"classes": 2, "inputs": 3}).classifier
        Linear(in_features=3, out_features=2, bias=True)
    """
    asked = inspect.signature(model_class(table)).parameters
    # a size that the recipe sets itself wins over that of the data
    own = {name: size for name, size in sizes.items() if name in asked}
    made: nn.Module = build({**own, **table}, families=[models], importable=True)
    return made


def model_class(table: Mapping[str, Any]) -> Any:
    """Return the class of a table's network, without building it."""
    return find_class(table.get("type"), families=[models], importable=True)
