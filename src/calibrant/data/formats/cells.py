"""Where a column of a table has a cell that is empty, or that holds no number: its row, and its line in a text file."""

from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.paths import shown
from calibrant.errors import FileFormatError, InputError

_HEADERS = {".csv": 1, ".tsv": 1, ".jsonl": 0}  # lines above the first row


def refuse_empty(column: Any, name: str, path: Path, *, first: int = 0) -> None:
    """Raise if a column has empty cells, naming the first.

    Args:
        column: A ``pyarrow.ChunkedArray`` or ``pyarrow.Array``.
        name: Its name.
        path: Its file.
        first: The number of its first row in the file, for a table that is read in pieces.

    Raises:
        FileFormatError: If there is one.
    """
    if not column.null_count:
        return
    row = first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
    others = f" and {column.null_count - 1:,} more" if column.null_count > 1 else ""
    raise FileFormatError(
        "a value in every row",
        (
            f"an empty cell in the column {name!r} at {_place(row, path)} of {shown(path)}{others} (columns "
            "without nulls are needed)"
        ),
        "fill in the values or drop these rows",
    )


def refuse_text(column: Any, name: str, path: Path, *, first: int = 0) -> None:
    """Raise for a class column that holds something else than numbers, naming the first cell that is none.

    Args:
        column: As in ``refuse_empty``.
        name: As there.
        path: As there.
        first: As there.

    Raises:
        InputError: Always.
    """
    cells = column.to_pylist()
    rows = [row for row, cell in enumerate(cells) if not _is_number(cell)]
    where = f" ({str(cells[rows[0]])[:40]!r} at {_place(first + rows[0], path)})" if rows else ""
    raise InputError(
        "numbers in the class columns",
        f"{column.type} in {name!r} of {shown(path)}{where}",
        "correct the cells, or name the columns of the classes alone",
    )


def _place(row: int, path: Path) -> str:
    """Return "row 6 (line 8)": rows count from 0, lines of one text file from 1 with its header."""
    above = None if path.is_dir() else _HEADERS.get(path.suffix.lower())
    return f"row {row}" if above is None else f"row {row} (line {row + above + 1})"


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
