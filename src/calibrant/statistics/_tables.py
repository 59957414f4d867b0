"""Argument check of bin tables."""

from typing import Any

from calibrant._core.check import refuse, shown
from calibrant.binning import BinTable


def need_table(table: Any) -> BinTable:
    """Return ``table`` if it is a bin table of at least one row."""
    if not isinstance(table, BinTable) or table.total <= 0:
        raise refuse("a bin table of at least one row", shown(table), "make one with EqualWidth(15).table(p, y)")
    return table
