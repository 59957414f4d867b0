"""Every file format people have, read as the named arrays that ``calibrant.data.splits`` makes predictions of, and written.

``layout`` says what the user knows about a file; ``tensors`` and ``tables`` open files; ``columns`` finds the classes among
the columns of a table; ``labels`` matches text to classes; ``reading`` and ``writing`` join them.
"""

from calibrant.data.formats.layout import ARRAYS, READABLE, SPLITS, TABLES, Layout
from calibrant.data.formats.reading import (
    Named,
    hold_labels_alone,
    is_array_folder,
    normalized_note,
    read_columns,
    read_named,
)
from calibrant.data.formats.same_table import read_confidence_table, read_score_table, write_same_table
from calibrant.data.formats.tables import batches_of, table_files
from calibrant.data.formats.writing import WRITABLE, convert_tables, of_kind, two_columns, write_named

__all__ = [
    "ARRAYS",
    "READABLE",
    "SPLITS",
    "TABLES",
    "WRITABLE",
    "Layout",
    "Named",
    "batches_of",
    "convert_tables",
    "hold_labels_alone",
    "is_array_folder",
    "normalized_note",
    "of_kind",
    "read_columns",
    "read_confidence_table",
    "read_named",
    "read_score_table",
    "table_files",
    "two_columns",
    "write_named",
    "write_same_table",
]
