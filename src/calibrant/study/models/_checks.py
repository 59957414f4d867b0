"""What the sizes of networks must be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from calibrant._core.check import check_sequence, refuse
from calibrant._core.constraints import Each, Integer, Kind

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
