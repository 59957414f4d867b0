"""What the values of a study must be: sizes, names, keys among many; and the conversion of its tables to dataclasses."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from calibrant._core.check import check_sequence, check_text, refuse, shown
from calibrant._core.constraints import Each, Integer, Kind
from calibrant.errors import InputError

_NOT_IN_NAMES = set('/\\:*?"<>|\0\n\r\t')
MOST = 1 << 24  # largest size of a layer: larger ones do not fit in memory


@dataclass(frozen=True, repr=False)
class OddInteger(Integer):
    """An odd integer: an even kernel cannot be centred."""

    def check(self, value: Any, name: str, caller: object) -> int:
        size = super().check(value, name, caller)
        if size % 2 == 0:
            raise refuse(f"{name} as an odd number", f"{size}", f"choose {size - 1} or {size + 1}")
        return size


@dataclass(frozen=True, repr=False)
class EachOf(Each):
    """As many sizes as a network has layers of a kind."""

    count: int = 1

    def check(self, value: Any, name: str, caller: object) -> tuple[Any, ...]:
        members = check_sequence(value, name=name)
        if len(members) != self.count:
            raise refuse(f"{name} as a list of {self.count} sizes", f"{len(members)}", "give one each")
        return super().check(members, name, caller)


Fields = Annotated[Mapping[str, Any], Kind(Mapping, "write {name = value}", "a table")]
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


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Begin the message of an ``InputError`` with the part of a study that is at fault, unless it is named already."""
    try:
        yield
    except InputError as error:
        if place in str(error):
            raise
        raise error.at(place) from error


T = TypeVar("T")
_hints = cache(typing.get_type_hints)  # of one class, for hundreds of tables


def record_of_table(cls: type[T], table: Any, *, where: str) -> T:
    """Return a record, whose class checks its fields, from a TOML table; tables inside become the records that its fields hold.

    Raises:
        InputError: Stating the table, what the record takes, and what was got.
    """
    if not isinstance(table, Mapping):
        raise refuse(f"{where} as a table", shown(table), "write it in braces or under a heading")
    hints = _hints(cls)  # type: ignore[arg-type]  # a class is hashable
    with naming(where):
        return cls(**{key: _field(value, hints.get(key), where=f"{key} of {where}") for key, value in table.items()})


def _field(value: Any, hint: Any, *, where: str) -> Any:
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_field(item, typing.get_args(hint)[0], where=where) for item in value)
    return record_of_table(hint, value, where=where) if isinstance(hint, type) and is_dataclass(hint) else value
