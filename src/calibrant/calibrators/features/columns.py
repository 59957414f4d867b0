"""Feature columns as a calibrator knows them from its fit: by their categories, or as numbers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Fits
from calibrant.data.record import Column, Features, check_column
from calibrant.rows import Chunk, RowSource

MOST_GROUPS = 1000


@dataclass(frozen=True)
class KnownColumn:
    """A column of the fitting rows.

    Args:
        name: Of the column.
        values: Its categories, ascending: all names, or all whole numbers; None of a column of numbers.
    """

    name: str
    values: tuple[str, ...] | tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.values or ())

    def codes(self, features: Features, rows: int | None = None) -> Tensor:
        """Return the code (N,) of each entry, and the number of categories for those that are none of them."""
        entries = _entries(self._read(features, rows), self.name)
        known = np.asarray(self.values)
        place = np.searchsorted(known, entries).clip(max=len(known) - 1)
        return torch.from_numpy(np.where(known[place] == entries, place, len(known)).astype(np.int64))

    def numbers(self, features: Features, rows: int | None = None, *, missing: bool = False) -> Tensor:
        """Return the column (N,) in float64.

        Args:
            features: The columns of the rows.
            rows: N, or None.
            missing: Whether NaN is allowed, and stands for what is not known.

        Raises:
            InputError: If it is missing, of names, of another length, or not finite.
        """
        values = torch.as_tensor(self._read(features, rows)).double()
        if not bool((torch.isfinite(values) | (torch.isnan(values) & missing)).all()):
            expected, got = ("finite numbers or NaN", "infinite ones") if missing else ("finite numbers", "NaN or inf")
            raise refuse(f"{expected} in the feature {self.name!r}", got, "drop those rows, or fill or clip the column")
        return values

    def _read(self, features: Features, rows: int | None) -> Column:
        column = need_column(features, self.name, rows)
        expected, got = ("names" if names else "numbers" for names in (self._of_names, not isinstance(column, Tensor)))
        if expected != got:
            remedy = "convert the column to what it was in the fit; GroupScaling goes by names, too"
            raise refuse(f"{expected} in the feature {self.name!r}", got, remedy)
        return column

    @property
    def _of_names(self) -> bool:
        return bool(self.values) and isinstance((self.values or ("",))[0], str)


def columns_in(features: Features, names: Sequence[str], *, whole: bool) -> list[KnownColumn]:
    """Return the columns ``names`` of the features; with ``whole``, numbers are categories, and must be whole."""
    found = []
    for name in names:
        column = need_column(features, name)
        numbers = isinstance(column, Tensor) and not whole
        found.append(KnownColumn(name, None if numbers else tuple(np.unique(_entries(column, name)).tolist())))
    return found


def known_columns(rows: RowSource, names: Sequence[str], *, whole: bool) -> list[KnownColumn]:
    """Return the columns ``names`` of all rows.

    Raises:
        InputError: If a column is missing, holds numbers that are not whole where they must be, or both names and numbers.
    """
    found: list[KnownColumn] = rows.fold(_columns_of_chunk, _united, tuple(names), whole)
    return found


def check_group_count(columns: Sequence[KnownColumn]) -> None:
    """Refuse columns of too many categories in all."""
    if (count := sum(map(len, columns))) > MOST_GROUPS:
        largest = max(columns, key=len)
        remedy = "leave that column out, or cut it into fewer categories"
        raise refuse(f"at most {MOST_GROUPS} groups in all", f"{count}, {len(largest)} of {largest.name!r}", remedy)


def codes_of(columns: Sequence[KnownColumn], features: Features, rows: int | None = None) -> Tensor:
    """Return the group (N, C) of each row in each column, numbered through all columns; their number in all for unknown ones."""
    total, start, found = sum(map(len, columns)), 0, []
    for one in columns:
        code = one.codes(features, rows)
        found.append(torch.where(code < len(one), code + start, total))
        start += len(one)
    return torch.stack(found, dim=1)


def as_bytes(value: Any) -> Tensor:
    """Return ``value`` as JSON in bytes, a tensor that is saved with what was learned; nothing of nothing."""
    return torch.tensor(list(json.dumps(value, ensure_ascii=False).encode()) if value else [], dtype=torch.uint8)


def from_bytes(buffer: Tensor) -> Any:
    """Return the value of ``as_bytes``; an empty list of nothing. It may come from a file, so that it may be anything."""
    return json.loads(bytes(buffer.to(torch.uint8).cpu().tolist()).decode()) if buffer.numel() else []


def to_buffer(columns: Sequence[KnownColumn]) -> Tensor:
    """Return the columns as JSON in bytes."""
    return as_bytes([{"name": one.name, "values": one.values} for one in columns])


def columns_from_json(table: Any) -> list[KnownColumn]:
    """Return the columns of ``to_buffer``'s JSON.

    Raises:
        ValueError: If it is none: it may come from a file.
    """
    made = [KnownColumn(str(one["name"]), None if one["values"] is None else tuple(one["values"])) for one in table]
    for one in made:
        kinds = {type(value) for value in one.values or ()}
        rising = kinds in ({str}, {int}) and all(a < b for a, b in pairwise(one.values or ()))  # type: ignore[operator]
        if one.values is not None and not rising:
            raise ValueError(f"categories of {one.name!r} that are not in order")
    return made


def check_column_names(value: Any, *, name: str, least: int = 1) -> tuple[str, ...]:
    """Return the distinct names of at least so many columns as a tuple."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
        raise refuse(f"{name} as a list of names", shown(value), 'write ["region", "sex"]')
    if len(value) < least or len(set(value)) < len(value):
        remedy = f"name each once, or leave {name} out"
        raise refuse(f"distinct {name}{', at least one' * least}", shown(value), remedy)
    return tuple(value)


def _check_names_or_all(value: object, *, name: str) -> Any:
    """``"all"`` as it is, else names; an array is compared with a word entry by entry, so the type is asked first."""
    return value if isinstance(value, str) and value == "all" else check_column_names(value, name=name)


_NO_NAMES = (3, object(), (1,), ("a", "a"))
Names = Annotated[Sequence[str], Fits(check_column_names, "distinct", _NO_NAMES)]
NamesOrAll = Annotated[  # one constraint: of "site" it says what a list of names is, not that it is not "all"
    Sequence[str] | Literal["all"],
    Fits(_check_names_or_all, "distinct", _NO_NAMES),
]
NamesOrNone = Annotated[Sequence[str], Fits(partial(check_column_names, least=0), "distinct", _NO_NAMES)]


def need_column(features: Mapping[str, Any], name: str, rows: int | None = None) -> Column:
    """Return the column ``name`` of the features.

    Args:
        features: Columns by name.
        name: Of the column.
        rows: How many entries it must have, or None.

    Raises:
        InputError: If it is not there, or of another length.
    """
    if not isinstance(features, Mapping):
        raise refuse("features as a dict of name → column", shown(features), 'pass a dict such as {"region": regions}')
    if name not in features:
        remedy = f"pass it by this name, in a file as the column feature:{name}"
        raise refuse(f"the feature {name!r}", ", ".join(map(repr, sorted(features))) or "none", remedy)
    column = check_column(features[name], name=f"the feature {name!r}")
    if rows is not None and len(column) != rows:
        raise refuse(f"features of {rows} rows", str(len(column)), "pass the features of the same rows")
    return column


def names_of(rows: RowSource, *, numbers: bool = False) -> tuple[str, ...]:
    """Return the names of the columns beside the rows, or in order of those of numbers.

    Raises:
        InputError: If rows have different ones.
    """
    found: tuple[str, ...] = rows.fold(_names_in, _same_names, numbers)
    return found


def _names_in(chunk: Chunk, numbers: bool) -> tuple[str, ...]:
    if not numbers:
        return tuple(chunk.features)
    return tuple(sorted(name for name, column in chunk.features.items() if isinstance(column, Tensor)))


def _same_names(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    if sorted(left) != sorted(right):
        raise refuse("the same features in all rows", f"{list(left)} and {list(right)}", "drop or add columns")
    return left


def _entries(column: Column, name: str) -> Any:
    if not isinstance(column, Tensor):
        return column
    array = column.cpu().numpy()
    if array.dtype.kind == "f":
        if not bool((np.isfinite(array) & (array == np.round(array))).all()):
            remedy = "cut the column into bins, as numpy.digitize(values, edges) does"
            raise refuse(f"categories in the feature {name!r}", "numbers that are not whole", remedy)
    return array.astype(np.int64)


def _columns_of_chunk(chunk: Chunk, names: tuple[str, ...], whole: bool) -> list[KnownColumn]:
    return columns_in(chunk.features, names, whole=whole)


def _united(left: list[KnownColumn], right: list[KnownColumn]) -> list[KnownColumn]:
    return [_both(a, b) for a, b in zip(left, right, strict=True)]


def _both(a: KnownColumn, b: KnownColumn) -> KnownColumn:
    if a._of_names != b._of_names:
        raise refuse("features of names or of numbers alone", "both in one column", "convert the column")
    both: Any = {*(a.values or ()), *(b.values or ())}
    return KnownColumn(a.name, None if a.values is None else tuple(sorted(both)))
