"""Configurations as plain JSON, and back, resolving names only in the family that is named."""

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from calibrant import binning
from calibrant.errors import InputError


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON data; a dataclass becomes ``{"type": name, field: value …}``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"expected a configuration of plain values, got {type(value).__name__}; use numbers and names")


def binning_from_plain(value: Any) -> Any:
    """Return the binning that ``to_plain`` made ``value`` from; anything else is returned as it is."""
    if isinstance(value, Mapping) and "type" in value:
        return build(value, family=binning)
    return value


def build(value: Mapping[str, Any], *, family: ModuleType) -> Any:
    """Return the object a ``{"type": name, argument: value …}`` mapping describes; names resolve in ``family.__all__`` only.

    Raises:
        InputError: If the name is unknown or the arguments do not fit.
    """
    arguments = dict(value)
    name = arguments.pop("type", None)
    if name not in family.__all__:
        raise InputError(f"expected type to be one of {', '.join(family.__all__)}, got {name!r}; choose one of these")
    try:
        return getattr(family, name)(**{key: binning_from_plain(item) for key, item in arguments.items()})
    except TypeError as error:
        raise InputError(f"expected arguments of {name}, got {arguments} ({error}); see its documentation") from error
