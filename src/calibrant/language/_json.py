"""Read JSON and JSON lines written by other programs; every error names the file and the line."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from calibrant._core import files
from calibrant._core.check import brief
from calibrant._core.memory import memory_limit
from calibrant._core.paths import check_source, shown
from calibrant.errors import FileFormatError, Remedy

T = TypeVar("T", dict[str, Any], list[Any], str)
_KINDS = {
    dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number",
    type(None): "none",
}  # fmt: skip
UNLIKELY = -9999.0  # the value that servers write for a missing log-probability


def refuse_file(place: str, expected: str, got: str, remedy: str | Remedy) -> FileFormatError:
    """Return the error for ``place`` (a file, or a file and a line)."""
    return FileFormatError(expected, brief(got), remedy, place=place)


def read_log_text(place: Path) -> str:
    """Return a text file in UTF-8.

    Raises:
        FileFormatError: If it is of another encoding, or larger than half of the memory.
    """
    if (size := place.stat().st_size) > memory_limit() // 4:
        raise refuse_file(shown(place), "a log that fits in memory", f"{size >> 20} MiB", "split it into several files")
    return files.read_text(place)


def lines_of(path: Path, *, what: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, object) for every non-empty line of a JSON-lines file.

    Raises:
        FileFormatError: If a line is not a JSON object, or the file has none; ``what`` names the format.
    """
    name, what = shown(path), f"{what}, one JSON object per line"
    lines = [(number, line) for number, line in enumerate(read_log_text(path).splitlines(), start=1) if line.strip()]
    if not lines:
        raise refuse_file(name, what, "an empty file", "check the path")
    for number, line in lines:
        place = f"{name}, line {number}"
        yield place, _parsed_object(line, place, what=what, name="a line")


def json_object(path: Path, *, what: str, name: str) -> dict[str, Any]:
    """Return the object that a JSON file holds; ``what`` names the format, and ``name`` the object.

    Raises:
        FileFormatError: If it holds something else.
    """
    return _parsed_object(read_log_text(path), shown(path), what=what, name=name)


def table_columns(path: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """Return name → values of a table: CSV, TSV, JSON lines, Parquet or Arrow."""
    from calibrant.data.formats.tables import batches_of

    found: dict[str, list[Any]] = {}
    for batch in batches_of(check_source(path)):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            found.setdefault(name, []).extend(column.to_pylist())
    return found


def _parsed_object(text: str, place: str, *, what: str, name: str) -> dict[str, Any]:
    def constant(written: str) -> float:
        raise ValueError(f"{written} in place of a number")

    try:
        found = json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise refuse_file(
            place, what, f"{error or type(error).__name__}", "write the log again, or name its format"
        ) from error
    return need(found, dict, place, name)


def need(value: Any, kind: type[T], place: str, name: str) -> T:
    """Return ``value`` if it is of a kind that JSON has: an object (``dict``), a list or text."""
    if not isinstance(value, kind):
        got, remedy = _KINDS.get(type(value), type(value).__name__), "check which program wrote the log"
        raise refuse_file(place, f"{name} as {_KINDS[kind]}", got, remedy)
    return value


def name_of(value: Any) -> str:
    """Return a name in a log (an id, a model) as valid Unicode text; lone surrogates become question marks."""
    return str(value).encode("utf-8", "replace").decode()


def need_log_prob(value: Any, place: str, name: str) -> float:
    """Return ``value``, a number ≤ 0 or its text, as a natural log-probability; −9999.0 (missing) becomes −inf."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number <= 1e-3 or math.isinf(number):
        got = "none" if value is None else repr(value)
        raise refuse_file(
            place, f"{name} as a natural logarithm ≤ 0", got, "log with logprobs, which servers leave out unless asked"
        )
    return -math.inf if number <= UNLIKELY else min(number, 0.0)
