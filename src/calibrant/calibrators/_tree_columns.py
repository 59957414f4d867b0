"""Feature columns as trees read them: names by the code of their category, numbers as they are."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant.calibrators._groups import need_column
from calibrant.data.record import Column, Features
from calibrant.rows import RowSource

MOST_CATEGORIES = 255  # of one column: what a tree's split can part


@dataclass(frozen=True)
class TreeColumn:
    """One column.

    Args:
        name: Of the column.
        values: Its categories, ascending; None of a column of numbers.
    """

    name: str
    values: tuple[str, ...] | None

    def read(self, column: Column) -> tuple[Tensor, Tensor]:
        """Return the column (N,) float64 for trees, and which entries (N,) are known; NaN is known among numbers.

        Raises:
            InputError: If it is of names where fit had numbers, or the reverse, or holds infinite numbers.
        """
        numbers = isinstance(column, Tensor)
        if numbers == (self.values is not None):
            expected, got = ("numbers", "names") if not numbers else ("names", "numbers")
            raise refuse(f"{expected} in the feature {self.name!r} as in fit", got, "convert the column")
        if isinstance(column, Tensor):
            wide = column.cpu().double()
            if bool(torch.isinf(wide).any()):
                raise refuse(f"finite numbers or NaN in the feature {self.name!r}", "infinite ones", "clip the column")
            return wide, torch.ones(len(wide), dtype=torch.bool)
        known = np.asarray(self.values)
        place = np.searchsorted(known, column).clip(max=len(known) - 1)
        inside = known[place] == column
        return torch.from_numpy(place.astype(np.float64)), torch.from_numpy(inside)


def tree_columns(rows: RowSource, names: Sequence[str]) -> tuple[TreeColumn, ...]:
    """Return the columns ``names`` of the rows, with the categories of those that hold names.

    Raises:
        InputError: If a column is missing or has too many categories.
    """
    found = rows.fold(_categories, _united, tuple(names))
    made = tuple(TreeColumn(name, values) for name, values in zip(names, found, strict=True))
    for one in made:
        if one.values is not None and len(one.values) > MOST_CATEGORIES:
            remedy = "merge rare ones, leave that column out, or pass a number in its place"
            raise refuse(f"at most {MOST_CATEGORIES} names in the feature {one.name!r}", f"{len(one.values)}", remedy)
    return made


def read_columns(columns: Sequence[TreeColumn], features: Features) -> tuple[Tensor, Tensor]:
    """Return the columns (N, F) float64, and the rows (N,) of which every name was in the fit."""
    read = [one.read(need_column(features, one.name)) for one in columns]
    return torch.stack([values for values, _ in read], dim=1), torch.stack([known for _, known in read]).all(dim=0)


def to_buffer(columns: Sequence[TreeColumn]) -> Tensor:
    """Return the columns as JSON in bytes, a tensor that is saved with what was learned."""
    text = json.dumps([{"name": one.name, "values": one.values} for one in columns], ensure_ascii=False)
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def from_buffer(buffer: Tensor) -> tuple[TreeColumn, ...]:
    """Return the columns of ``to_buffer``.

    Raises:
        ValueError: If it is none: it may come from a file.
    """
    if not buffer.numel():
        return ()
    table = json.loads(bytes(buffer.to(torch.uint8).cpu().tolist()).decode())
    made = []
    for one in table:
        values = one["values"]
        if values is not None and (
            not values or not all(isinstance(v, str) for v in values) or sorted(set(values)) != values
        ):
            raise ValueError(f"names of {one['name']!r} that are not in order")
        made.append(TreeColumn(str(one["name"]), None if values is None else tuple(values)))
    return tuple(made)


def _categories(chunk: Any, names: tuple[str, ...]) -> tuple[tuple[str, ...] | None, ...]:
    columns = [need_column(chunk.features, name) for name in names]
    return tuple(None if isinstance(one, Tensor) else tuple(np.unique(one).tolist()) for one in columns)


def _united(left: Any, right: Any) -> Any:
    pairs = list(zip(left, right, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        raise refuse("features of names or of numbers alone", "both in one column", "convert the column")
    return tuple(None if a is None else tuple(sorted({*a, *b})) for a, b in pairs)
