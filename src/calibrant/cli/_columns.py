"""Columns that lie beside the rows of a file: a feature of the predictions, or any array or column of as many entries."""

from collections.abc import Sequence

import numpy as np

from calibrant._files import Array
from calibrant._formats import Named, read_columns
from calibrant.cli._options import Inputs
from calibrant.errors import InputError
from calibrant.predictions import BinaryPairs, Predictions


def column_of(
    named: Named, column: str, *, split: str, data: Predictions | BinaryPairs, inputs: Inputs, file: str
) -> Array:
    """Return the values (N,) of ``column`` beside the rows that are measured: a feature of theirs, or an array of the file.

    Raises:
        InputError: If the column is missing, or does not lie beside the rows.
    """
    features = data.features
    if features is not None and column in features:
        return np.asarray(features[column])
    values = np.asarray(read_columns(named, [column], split=split, file=file)[column])
    names = [prefix + name for prefix in (f"{split}_", "") for name in ("labels", "label")]
    labels = next((named.arrays[name] for name in names if name in named.arrays), None)
    if inputs.ignore_index is not None and labels is not None and labels.shape == values.shape:
        values = values[labels != inputs.ignore_index]
    if values.shape != (len(data),):
        raise InputError(
            f"expected one value of {column!r} a row ({len(data):,}), got shape {values.shape}; name a column of the rows"
        )
    return values


def column_names(by: Sequence[str] | None) -> list[str] | None:
    """Return the names that ``--by`` gives, with commas or repeated; None where it is left out.

    Raises:
        InputError: If a name is empty.
    """
    if by is None:
        return None
    names = [name.strip() for text in by for name in text.split(",")]
    if "" in names:
        raise InputError(f"expected names of columns for --by, got {', '.join(by)!r}; write --by age,region")
    return list(dict.fromkeys(names))
