"""Feature columns as a calibrator knows them from its fit: by their categories, or as numbers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant.data.record import Column, Features, check_column


@dataclass(frozen=True)
class KnownColumn:
    """A column of the fitting rows.

    Args:
        name: Of the column.
        values: Its categories, ascending: all names, or all whole numbers; None of a column of numbers.
    """

    name: str
    values: tuple[str, ...] | tuple[int, ...] | None = None

    @classmethod
    def of(cls, name: str, features: Features) -> "KnownColumn":
        """Return the column ``name`` of the features with its categories."""
        return cls(name, tuple(np.unique(_entries(need_column(features, name), name)).tolist()))

    def __len__(self) -> int:
        return len(self.values or ())

    def codes(self, features: Features, rows: int | None = None) -> Tensor:
        """Return the code (N,) of each entry, and the number of categories for those that are none of them."""
        entries, known = _entries(self._read(features, rows), self.name), np.asarray(self.values)
        place = np.searchsorted(known, entries).clip(max=len(known) - 1)
        return torch.from_numpy(np.where(known[place] == entries, place, len(known)).astype(np.int64))

    def numbers(self, features: Features, rows: int | None = None) -> Tensor:
        """Return the column (N,) in float64.

        Raises:
            InputError: If it is missing, of names, of another length, or not finite.
        """
        values = torch.as_tensor(self._read(features, rows)).double()
        if not bool(torch.isfinite(values).all()):
            raise refuse(
                f"finite numbers in the feature {self.name!r}", "NaN or inf", "drop those rows, or fill the column"
            )
        return values

    def _read(self, features: Features, rows: int | None) -> Column:
        column = need_column(features, self.name, rows)
        of_names = isinstance((self.values or (0,))[0], str)
        if of_names == isinstance(column, Tensor):
            expected, got = ("names", "numbers") if of_names else ("numbers", "names")
            remedy = "convert the column to what it was in the fit; GroupScaling goes by names"
            raise refuse(f"{expected} in the feature {self.name!r}", got, remedy)
        return column


def need_column(features: Any, name: str, rows: int | None = None) -> Column:
    """Return the column ``name`` of the features, of so many rows, or of any number.

    Raises:
        InputError: If it is not there, or of another length.
    """
    if not isinstance(features, Mapping):
        raise refuse("features as a dict of name → column", shown(features), 'pass a dict such as {"region": regions}')
    if name not in features:
        got = ", ".join(map(repr, sorted(features))) or "none"
        raise refuse(f"the feature {name!r}", got, f"pass it by this name (in a file: feature:{name})")
    column = check_column(features[name], name=f"the feature {name!r}")
    if rows is not None and len(column) != rows:
        raise refuse(f"features of {rows} rows", str(len(column)), "pass the features of the same rows")
    return column


def check_column_names(value: Any) -> tuple[str, ...] | None:
    """Return distinct names of columns as a tuple, or None as it is."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
        raise refuse("columns as a list of names", shown(value), 'write ["region", "sex"]')
    if not value or len(set(value)) < len(value):
        remedy = "name each once, or leave columns out"
        raise refuse("distinct columns, at least one", shown(value), remedy)
    return tuple(value)


def as_bytes(value: Any) -> Tensor:
    """Return ``value`` as JSON in bytes, a tensor that is saved with what was learned; nothing of nothing."""
    return torch.tensor(list(json.dumps(value, ensure_ascii=False).encode()) if value else [], dtype=torch.uint8)


def from_bytes(buffer: Tensor) -> Any:
    """Return the value of ``as_bytes``; an empty list of nothing."""
    return json.loads(bytes(buffer.to(torch.uint8).cpu().tolist()).decode()) if buffer.numel() else []


def to_buffer(columns: Sequence[KnownColumn]) -> Tensor:
    """Return the columns as JSON in bytes."""
    return as_bytes([{"name": one.name, "values": one.values} for one in columns])


def from_buffer(buffer: Tensor) -> tuple[KnownColumn, ...]:
    """Return the columns of ``to_buffer``."""
    table = from_bytes(buffer)
    return tuple(KnownColumn(one["name"], None if one["values"] is None else tuple(one["values"])) for one in table)


def _entries(column: Column, name: str) -> Any:
    if not isinstance(column, Tensor):
        return column
    array = column.cpu().numpy()
    if array.dtype.kind == "f" and not bool((np.isfinite(array) & (array == np.round(array))).all()):
        remedy = "cut the column into bins, as numpy.digitize(values, edges) does"
        raise refuse(f"categories in the feature {name!r}", "numbers that are not whole", remedy)
    return array.astype(np.int64)
