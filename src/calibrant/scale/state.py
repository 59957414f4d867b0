"""Sums as plain JSON, so that long computations can stop, move between machines and resume."""

import base64
import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FileFormatError

__all__ = ["has_fields", "is_plain", "state_from_plain", "state_to_plain"]


def is_plain(state: Any) -> bool:
    """Return whether ``state_to_plain`` accepts ``state``: numbers, texts, tensors, and tuples and dataclasses of them."""
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return all(is_plain(getattr(state, field.name)) for field in dataclasses.fields(state))
    if isinstance(state, tuple):
        return all(map(is_plain, state))
    return state is None or isinstance(state, Tensor | int | float | str)


def state_to_plain(state: Any) -> Any:
    """Return a state as JSON data; every bit of its numbers is kept."""
    if isinstance(state, Tensor):
        array = state.detach().cpu().contiguous().numpy()
        content = base64.b64encode(array.tobytes()).decode()
        return {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": content}
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return {"fields": [state_to_plain(getattr(state, field.name)) for field in dataclasses.fields(state)]}
    if isinstance(state, tuple):
        return {"items": [state_to_plain(item) for item in state]}
    if isinstance(state, float):
        return {"number": state.hex()}
    return state


def has_fields(plain: Any) -> bool:
    """Return whether ``plain`` is of a state with dataclasses in it, which needs another such state to be read."""
    if not isinstance(plain, dict):
        return False
    return "fields" in plain or any(map(has_fields, plain.get("items", ())))


def state_from_plain(plain: Any, like: Any = None) -> Any:
    """Return the state that ``state_to_plain`` made ``plain`` from.

    Args:
        plain: JSON data.
        like: A state of the same request, whose classes are taken; None where it ``has_fields`` of no class.

    Raises:
        FileFormatError: If ``plain`` does not have the structure of ``like``.
    """
    try:
        return _rebuilt(plain, like)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise FileFormatError(
            f"expected a saved sum of the same kind, got another ({error}); delete the checkpoint"
        ) from error


def _rebuilt(plain: Any, like: Any) -> Any:
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise TypeError("a number was expected")
        return plain
    if "bytes" in plain:
        array = np.frombuffer(base64.b64decode(plain["bytes"]), dtype=np.dtype(plain["dtype"]))
        return torch.from_numpy(array.reshape(plain["shape"]).copy())
    if "number" in plain:
        return float.fromhex(plain["number"])
    if "items" in plain:
        items = plain["items"]
        likes = like if like is not None and len(like) == len(items) else [like[0] if like else None] * len(items)
        return tuple(_rebuilt(item, one) for item, one in zip(items, likes, strict=True))
    if not dataclasses.is_dataclass(like) or isinstance(like, type):
        raise TypeError("a record was not expected")
    fields = zip(plain["fields"], dataclasses.fields(like), strict=True)
    return type(like)(*(_rebuilt(item, getattr(like, field.name)) for item, field in fields))
