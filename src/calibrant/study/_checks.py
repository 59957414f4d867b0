"""What the values of a study must be: sizes, names, keys among many; and the conversion of its tables to dataclasses."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar

from calibrant._core.check import check_number, check_sequence, check_text, refuse, shown
from calibrant._core.constraints import Each, Integer
from calibrant.errors import InputError

_NOT_IN_NAMES = set('/\\:*?"<>|\0\n\r\t')
MOST = 1 << 24  # largest size of a layer: larger ones do not fit in memory


@dataclass(frozen=True, repr=False)
class OddInteger(Integer):
    """An odd integer: an even kernel cannot be centred."""

    def check(self, value: Any, name: str, caller: object) -> int:
        size = super().check(value, name, caller)
        if size % 2 == 0:
            raise refuse(f"{name} as an odd number", f"{size}", f"choose {size - 1} or {size + 1}", argument=name)
        return size


@dataclass(frozen=True, repr=False)
class EachOf(Each):
    """As many sizes as a network has layers of a kind."""

    count: int = 1

    def check(self, value: Any, name: str, caller: object) -> tuple[Any, ...]:
        members = check_sequence(value, name=name)
        if len(members) != self.count:
            raise refuse(f"{name} as a list of {self.count} sizes", f"{len(members)}", "give one each", argument=name)
        return super().check(members, name, caller)


Size = Annotated[int, Integer(1, MOST)]
Odd = Annotated[int, OddInteger(1, MOST)]
Three = Annotated[Sequence[int], EachOf(Integer(1, MOST), count=3)]
Six = Annotated[Sequence[int], EachOf(Integer(1, MOST), count=6)]


def check_file_name(value: Any, *, name: str) -> str:
    """Return ``value`` if it is a valid file name on any system.

    Args:
        value: The argument.
        name: Its name, for the message.

    Raises:
        InputError: If it is not a string, is empty, begins with a dot, or contains a separator or a control character.

    Examples:
        >>> check_file_name("reliability", name="the figure's name")
        'reliability'
    """
    check_text(value, name=name)
    if (
        not value.strip()
        or value.startswith(".")
        or _NOT_IN_NAMES & set(value)
        or len(value.encode("utf-8", "replace")) > 200
    ):
        raise refuse(f"{name} as the name of a file", shown(value), "use letters, digits, spaces and hyphens")
    return str(value)


def check_once(values: Sequence[Any], *, name: str) -> None:
    """Raise if one of ``values`` occurs twice.

    Raises:
        InputError: With the first such value.

    Examples:
        >>> check_once([0, 1], name="seeds")
    """
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise InputError(f"each of {name} once", f"{twice!r} twice", "leave one out or rename it")


T = TypeVar("T")


def record_of_table(cls: type[T], table: Mapping[str, Any], *, where: str) -> T:
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
        raise InputError(
            f"{', '.join(missing)} in {where}", "a table without", "add it" if len(missing) == 1 else "add them"
        )
    hints = typing.get_type_hints(cls)
    values = {key: _typed_entry(value, hints[key], where=f"{key} of {where}") for key, value in table.items()}
    return cls(**values)


def _typed_entry(value: Any, hint: Any, *, where: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _typed_entry(value, inner[0], where=where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"a list for {where}", f"{shown(value)}", "write it in brackets")
        return tuple(_typed_entry(item, inner[0], where=where) for item in value)
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return record_of_table(hint, value, where=where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return check_number(value, name=where)
    if origin is typing.Literal:  # the class itself checks which
        return value
    expected = Mapping if origin is not None else hint
    if not isinstance(value, expected) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{getattr(expected, '__name__', expected)} for {where}", f"{shown(value)}", "correct it")
    return value
