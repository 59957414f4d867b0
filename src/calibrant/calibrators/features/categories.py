"""Categories of feature columns: what they are in the fitting rows, and the codes of any rows by them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant.data.record import Column, Features, check_column
from calibrant.errors import Remedy
from calibrant.rows import Chunk, RowSource

MOST_GROUPS = 1000
_KINDS = ("names", "numbers")


@dataclass(frozen=True)
class Categories:
    """The categories of one column.

    Args:
        name: Of the column.
        values: Ascending: all names, or all whole numbers.
    """

    name: str
    values: tuple[str, ...] | tuple[int, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def kind(self) -> str:
        """Whether these are "names" or "numbers"."""
        return _KINDS[not isinstance(self.values[0], str)]

    def codes(self, column: Column) -> Tensor:
        """Return the code (N,) of each entry, and the number of categories for those that are none of them."""
        entries = _entries(column, self.name)
        if (entries.dtype.kind == "U") != (self.kind == "names"):
            got = "names" if entries.dtype.kind == "U" else "numbers"
            raise refuse(f"{self.kind} in the feature {self.name!r} as in fit", got, "convert the column")
        known = np.asarray(self.values)
        place = np.searchsorted(known, entries).clip(max=len(known) - 1)
        return torch.from_numpy(np.where(known[place] == entries, place, len(known)).astype(np.int64))


def categories_of(rows: RowSource, names: Sequence[str]) -> list[Categories]:
    """Return the categories of the columns ``names`` in the rows.

    Raises:
        InputError: If a column is missing, holds numbers that are not whole, or the columns have too many categories.
    """
    found = rows.fold(_distinct, _united, tuple(names))
    made = [Categories(name, values) for name, values in zip(names, found, strict=True)]
    if (count := sum(map(len, made))) > MOST_GROUPS:
        largest = max(made, key=len)
        remedy = "leave that column out, or cut it into fewer categories"
        raise refuse(f"at most {MOST_GROUPS} groups in all", f"{count}, {len(largest)} of {largest.name!r}", remedy)
    return made


def codes_of(columns: Sequence[Categories], features: Features) -> Tensor:
    """Return the group (N, C) of each row in each column, numbered through all columns; their number in all for unknown ones."""
    total, start, found = sum(map(len, columns)), 0, []
    for one in columns:
        code = one.codes(need_column(features, one.name))
        found.append(torch.where(code < len(one), code + start, total))
        start += len(one)
    return torch.stack(found, dim=1)


def to_buffer(columns: Sequence[Categories]) -> Tensor:
    """Return the columns as JSON in bytes, a tensor that is saved with what was learned."""
    text = json.dumps([{"name": one.name, "values": list(one.values)} for one in columns], ensure_ascii=False)
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def from_buffer(buffer: Tensor) -> list[Categories]:
    """Return the columns of ``to_buffer``.

    Raises:
        ValueError: If it is none: it may come from a file.
    """
    if not buffer.numel():
        return []
    table = json.loads(bytes(buffer.to(torch.uint8).cpu().tolist()).decode())
    made = [Categories(str(one["name"]), tuple(one["values"])) for one in table]
    for one in made:
        kinds = {type(value) for value in one.values}
        rising = all(bool(a < b) for a, b in pairwise(one.values)) if kinds in ({str}, {int}) else False  # type: ignore[operator]
        if not rising:
            raise ValueError(f"categories of {one.name!r} that are not in order")
    return made


def check_names(value: Any) -> tuple[str, ...] | None:
    """Return the names of columns as a tuple, or None for all."""
    if value is None:
        return None
    if (
        isinstance(value, str)
        or not isinstance(value, list | tuple)
        or not all(isinstance(v, str) and v for v in value)
    ):
        raise refuse("columns as a list of names", shown(value), 'write ["region", "sex"]')
    if not value or len(set(value)) < len(value):
        raise refuse(
            "distinct columns, at least one",
            shown(value),
            Remedy(
                "name each once, or leave columns out for all", command="name each once, or write all for all features"
            ),
        )
    return tuple(value)


def by_name(name: str) -> Remedy:
    """Return the remedy for a feature of ``fit`` that is missing where the calibrator is applied."""
    return Remedy(
        f"pass it by the name it had in fit (in a file: feature:{name})",
        command=f"call that column feature:{name}, as when the calibrator was fitted",
    )


def need_column(features: Mapping[str, Any], name: str) -> Column:
    """Return the column ``name`` of the features.

    Raises:
        InputError: If it is not there.
    """
    if not isinstance(features, Mapping):
        raise refuse("features as a dict of name → column", shown(features), 'pass a dict such as {"region": regions}')
    if name not in features:
        got = ", ".join(map(repr, sorted(features))) or "none"
        raise refuse(f"the feature {name!r}", got, by_name(name))
    return check_column(features[name], name=f"the feature {name!r}")


def feature_names(chunk: Chunk) -> tuple[str, ...]:
    """Return the names of the columns beside a chunk."""
    return tuple(chunk.features)


def same_names(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of both.

    Raises:
        InputError: If they differ.
    """
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


def _distinct(chunk: Chunk, names: tuple[str, ...]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(np.unique(_entries(need_column(chunk.features, name), name)).tolist()) for name in names)


def _united(left: Any, right: Any) -> Any:
    pairs = list(zip(left, right, strict=True))
    if any(isinstance(a[0], str) != isinstance(b[0], str) for a, b in pairs if a and b):
        raise refuse("features of names or of numbers alone", "both in one column", "convert the column")
    return tuple(tuple(sorted({*a, *b})) for a, b in pairs)
