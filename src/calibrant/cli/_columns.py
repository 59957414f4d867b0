"""Columns beside the predictions of a file, for groups."""

from collections.abc import Sequence

from calibrant._files import Array, read_arrays
from calibrant.errors import InputError


def read_columns(path: str, columns: Sequence[str], *, split: str, shown: str) -> dict[str, Array]:
    """Return the ``columns`` (N,) of ``split`` in the file at ``path``: ``test_region`` or ``region`` for "region".

    Args:
        path: A predictions file.
        columns: Names.
        split: The split that is read.
        shown: What messages call the file.

    Raises:
        InputError: If a column is missing.
    """
    if not columns:
        return {}
    arrays = read_arrays(path)
    found = {}
    for column in columns:
        name = next((name for name in (f"{split}_{column}", column) if name in arrays), None)
        if name is None:
            raise InputError(
                f"expected the column {column!r} in {shown}, got {', '.join(sorted(arrays))}; name one of these with --by"
            )
        found[column] = arrays[name]
    return found
