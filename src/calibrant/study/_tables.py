"""Conversion of TOML tables to frozen dataclasses, with names and types checked."""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from calibrant._core.check import check_number, shown
from calibrant.errors import InputError

T = TypeVar("T")


def from_table(cls: type[T], table: Mapping[str, Any], *, where: str) -> T:
    """Return a dataclass from a TOML table, checking names and types.

    Raises:
        InputError: Stating the table, the accepted names or type, and what was got.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"a table for {where}", f"{shown(table)}", "write it in braces or under a heading")
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    unknown = set(table) - set(known)
    if unknown:
        raise InputError(f"{', '.join(known)} in {where}", f"{', '.join(sorted(unknown))}", "correct the name")
    missing = [
        name
        for name, item in known.items()
        if item.default is MISSING and item.default_factory is MISSING and name not in table
    ]
    if missing:
        raise InputError(f"{', '.join(missing)} in {where}", "a table without", f"add {_these(missing)}")
    hints = typing.get_type_hints(cls)
    values = {key: _typed(value, hints[key], where=f"{key} of {where}") for key, value in table.items()}
    return cls(**values)


def _these(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _typed(value: Any, hint: Any, *, where: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _typed(value, inner[0], where=where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"a list for {where}", f"{shown(value)}", "write it in brackets")
        return tuple(_typed(item, inner[0], where=where) for item in value)
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return from_table(hint, value, where=where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return check_number(value, name=where)
    if origin is typing.Literal:  # the class itself checks which
        return value
    expected = Mapping if origin is not None else hint
    if not isinstance(value, expected) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{getattr(expected, '__name__', expected)} for {where}", f"{shown(value)}", "correct it")
    return value
