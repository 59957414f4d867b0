"""Groups of rows, formed by the columns' categories, by bins of numbers, and by combinations of several columns."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import refuse
from calibrant.binning import EqualMass
from calibrant.data.checks import Data
from calibrant.data.record import Column, check_column

# what the rows of a group have in common: pairs of column and category
Names: TypeAlias = tuple[tuple[str, str], ...]

_MAX_GROUPS = 2000
_MAX_WHOLE = 20  # a column with at most so many distinct whole numbers is treated as categories


def groups_of(columns: Mapping[str, Column], *, depth: int, bins: int) -> list[tuple[Names, NDArray[np.int64]]]:
    """Return the names and row numbers of the groups formed by every combination of up to ``depth`` columns.

    Args:
        columns: Dict from names to columns (N,).
        depth: Largest number of columns in a combination, ≥ 1.
        bins: Number of equal-mass bins for a column of numbers.

    Raises:
        InputError: If there are too many groups.
    """
    single = {name: _categories(column, bins=bins) for name, column in columns.items()}
    found: list[tuple[Names, NDArray[np.int64]]] = []
    for chosen in (names for size in range(1, depth + 1) for names in combinations(single, size)):
        sizes = [len(single[name][1]) for name in chosen]
        if len(found) + max(sizes) > _MAX_GROUPS:
            expected, remedy = f"at most {_MAX_GROUPS:,} groups", "name fewer columns, or lower depth or bins"
            raise refuse(expected, f"more, by {' and '.join(chosen)}", remedy)
        code = np.ravel_multi_index([single[name][0] for name in chosen], sizes)
        kept, code = np.unique(code, return_inverse=True)
        for at, places in enumerate(zip(*np.unravel_index(kept, sizes), strict=True)):
            group = tuple((name, single[name][1][place]) for name, place in zip(chosen, places, strict=True))
            found.append((group, np.flatnonzero(code == at)))
    return found


def feature_columns(data: Data, features: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Column]:
    """Return the columns that ``features`` names or contains, or all columns of ``data`` if it is None."""
    own = dict(data.features or {})
    if isinstance(features, Mapping):
        found = {
            str(name): check_column(values, name=f"the feature {name!r}", rows=len(data))
            for name, values in features.items()
        }
    else:
        names = list(own if features is None else features)
        if missing := [name for name in names if name not in own]:
            got = ", ".join(map(repr, sorted(own))) or "none"
            expected = f"the feature {missing[0]!r} among the columns of the predictions"
            raise refuse(expected, got, "pass a dict of columns")
        found = {name: own[name] for name in names}
    if not found:
        raise refuse("at least one column", "none", "pass features here, or when making the predictions")
    return found


def _categories(column: Column, *, bins: int) -> tuple[NDArray[np.int64], list[str]]:
    """Return the number (N,) of each row's category, and the names of the categories."""
    values = column.numpy() if isinstance(column, Tensor) else column
    real = values.dtype.kind == "f"
    missing = np.isnan(values) if real else np.zeros(len(values), dtype=bool)
    if values.dtype.kind == "U" or len(np.unique(values[~missing])) <= (bins if real else _MAX_WHOLE):
        known, code = np.unique(np.where(missing, "missing", values.astype(str)), return_inverse=True)
        return code, known.tolist()
    # missing values get their own code, after the last bin
    code = np.full(len(values), bins, dtype=np.int64)
    code[~missing] = EqualMass(bins).assign(torch.from_numpy(values[~missing]).double()).numpy()
    kept, code = np.unique(code, return_inverse=True)
    ends = [f"{values[code == at].min():.6g} to {values[code == at].max():.6g}" for at in range(len(kept))]
    return code, ["missing" if part == bins else end for part, end in zip(kept, ends, strict=True)]
