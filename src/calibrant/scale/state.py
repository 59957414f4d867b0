"""Metric states as plain JSON, so that long computations can stop, move between machines and resume."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import FileFormatError
from calibrant.metrics import SumMetric

__all__ = ["state_from_plain", "state_to_plain"]


def state_to_plain(state: Any) -> Any:
    """Return a state (numbers, tensors, tuples and dataclasses of them) as JSON data; floats keep every bit."""
    if isinstance(state, Tensor):
        kind = "int" if state.dtype == torch.int64 else "float"
        values = state.tolist() if kind == "int" else [value.hex() for value in state.double().reshape(-1).tolist()]
        return {kind: values, "shape": list(state.shape)}
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return {"fields": [state_to_plain(getattr(state, field.name)) for field in dataclasses.fields(state)]}
    if isinstance(state, tuple):
        return {"items": [state_to_plain(item) for item in state]}
    if isinstance(state, float):
        return {"number": state.hex()}
    return state


def state_from_plain(plain: Any, like: Any) -> Any:
    """Return the state that ``state_to_plain`` made ``plain`` from; ``like`` is a state of the same metric.

    Raises:
        FileFormatError: If ``plain`` does not have the structure of ``like``.
    """
    try:
        return _rebuild(plain, like)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileFormatError(
            f"expected a saved state of the same metrics, got another ({error}); delete the checkpoint"
        ) from error


def _rebuild(plain: Any, like: Any) -> Any:
    if isinstance(like, Tensor) or (
        isinstance(plain, Mapping) and "shape" in plain
    ):  # the second case: sums of weights, which ``like`` does not have
        if "int" in plain:
            return torch.tensor(plain["int"], dtype=torch.int64).reshape(plain["shape"])
        values = [float.fromhex(value) for value in plain["float"]]
        return torch.tensor(values, dtype=torch.float64).reshape(plain["shape"])
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        fields = dataclasses.fields(like)
        values = [
            _rebuild(item, getattr(like, field.name)) for item, field in zip(plain["fields"], fields, strict=True)
        ]
        return type(like)(*values)
    if isinstance(like, tuple):
        items = plain["items"]
        likes = like if len(like) == len(items) else like[:1] * len(items)
        return tuple(_rebuild(item, one) for item, one in zip(items, likes, strict=True))
    if isinstance(plain, Mapping) and "number" in plain:
        return float.fromhex(plain["number"])
    if isinstance(plain, Mapping | list):
        raise TypeError("a number was expected")
    return plain


def add_states(left: Mapping[SumMetric[Any], Any], right: Mapping[SumMetric[Any], Any]) -> dict[SumMetric[Any], Any]:
    """Return the sum of two mappings of states by metric; an empty mapping is the identity."""
    if not left or not right:
        return dict(left or right)
    return {metric: left[metric] + right[metric] for metric in left}
