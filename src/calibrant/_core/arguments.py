"""Validators of arguments that many functions share: mappings, lists and rows of tensors, and objects of a known class."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._core.check import check_kind, check_row_tensor, refuse, shown

T = TypeVar("T")


def check_mapping(values: Any, *, name: str, example: str) -> Mapping[Any, Any]:
    """Return ``values`` if it is a mapping, and an empty one for None."""
    if values is not None and not isinstance(values, Mapping):
        raise refuse(f"{name} as a dictionary", shown(values), f"write {example}")
    return values if values is not None else {}


def check_list_of(values: Any, kind: type[T], *, name: str, remedy: str) -> list[T]:
    """Return ``values`` as a list if it is a list, tuple or iterator of ``kind`` only."""
    if isinstance(values, str | bytes | Mapping | Tensor | np.ndarray) or not isinstance(values, Iterable):
        raise refuse(f"{name} as a list of {kind.__name__}", shown(values), remedy)
    found = list(values)
    for one in found:
        check_kind(one, kind, name=f"each of {name}", remedy=remedy)
    return found


def check_generator(value: Any) -> torch.Generator:
    """Return ``value`` if it is a source of randomness."""
    return check_kind(value, torch.Generator, name="generator", remedy="make one with torch.Generator().manual_seed(0)")


def check_linear(value: Any) -> nn.Linear:
    """Return ``value`` if it is a linear layer."""
    return check_kind(value, nn.Linear, name="linear", remedy="pass the last layer of the network, an nn.Linear")


def check_index(index: Any, *, rows: int, bins: int) -> Tensor:
    """Return bin indices (N,) int64 if each lies in [−1, ``bins``)."""
    found: Tensor = check_row_tensor(index, name="index", rows=rows)
    if found.dtype != torch.int64 or found.numel() == 0:
        raise refuse("index of dtype int64 with at least one row", shown(found), "make it with binning.assign(p)")
    low, high = (int(end) for end in found.aminmax())
    if low < -1 or high >= bins:
        raise refuse(f"bins in [−1, {bins})", f"{low if low < -1 else high}", "make them with binning.assign(p)")
    return found


def check_row_weight(weight: Any, *, rows: int) -> Tensor | None:
    """Return ``weight`` if it is None or (N,) finite weights > 0: int64 counts of repeated rows, or sampling weights."""
    if weight is None:
        return None
    given: Tensor = check_row_tensor(weight, name="weight", rows=rows)
    if given.dtype == torch.bool or not bool((torch.isfinite(given.double()) & (given > 0)).all()):
        raise refuse("finite weights > 0", shown(given), "leave out rows of weight 0")
    return given
