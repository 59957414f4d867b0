"""What options of data sets and networks must be, and the place that a message of a study begins with."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from calibrant._core.check import check_sequence, refuse
from calibrant._core.constraints import Each, Integer, Kind
from calibrant.errors import InputError

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
