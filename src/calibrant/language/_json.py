"""Read JSON and JSON lines written by other programs; every error names the file and the line."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from calibrant._core import files
from calibrant._core.check import brief
from calibrant._core.memory import memory_limit
from calibrant._core.paths import check_source, shown
from calibrant.errors import FileFormatError, Remedy

T = TypeVar("T", dict[str, Any], list[Any], str)
UNLIKELY = -9999.0  # the value that servers write for a missing log-probability


def refuse_file(place: str, expected: str, got: str, remedy: str | Remedy) -> FileFormatError:
    """Return the error for ``place`` (a file, or a file and a line)."""
    return FileFormatError(expected, brief(got), remedy, place=place)


def read_log_text(path: str | os.PathLike[str]) -> str:
    """Return a text file in UTF-8.

    Raises:
        FileFormatError: If it is missing, of another encoding, or larger than half of the memory.
    """
    place = check_source(path)
    if (size := place.stat().st_size) > memory_limit() // 4:
        raise refuse_file(shown(place), "a log that fits in memory", f"{size >> 20} MiB", "split it into several files")
    return files.read_text(place)


def lines_of(path: str | os.PathLike[str], *, what: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, object) for every non-empty line of a JSON-lines file.

    Raises:
        FileFormatError: If a line is not a JSON object, or the file has none; ``what`` names the format.
    """
    path = check_source(path)
    name, count = shown(path), 0
    for number, line in enumerate(read_log_text(path).splitlines(), start=1):
        if line.strip():
            count += 1
            place = f"{name}, line {number}"
            yield place, need(parsed_json(line, place, what=f"{what}, one JSON object per line"), dict, place, "a line")
    if not count:
        raise refuse_file(name, f"{what}, one JSON object per line", "an empty file", "check the path")


def table_columns(path: str | os.PathLike[str]) -> dict[str, list[Any]]:
    """Return name → values of a table: CSV, TSV, JSON lines, Parquet or Arrow."""
    from calibrant.data.formats.tables import batches_of

    found: dict[str, list[Any]] = {}
    for batch in batches_of(check_source(path)):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            found.setdefault(name, []).extend(column.to_pylist())
    return found


def parsed_json(text: str, place: str, *, what: str) -> Any:
    """Return the Python value of a JSON text; NaN and infinities are refused.

    Raises:
        FileFormatError: If it is not JSON.
    """

    def constant(name: str) -> float:
        raise ValueError(f"{name} in place of a number")

    try:
        return json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise refuse_file(
            place, what, f"{error or type(error).__name__}", "write the log again, or name its format"
        ) from error


def need(value: Any, kind: type[T], place: str, name: str) -> T:
    """Return ``value`` if it is of a kind that JSON has: an object (``dict``), a list or text."""
    if not isinstance(value, kind):
        words = {list: "a list", str: "text"}.get(kind, "an object")
        raise refuse_file(place, f"{name} as {words}", _kind_in_words(value), "check which program wrote the log")
    return value


def name_of(value: Any) -> str:
    """Return a name in a log (an id, a model) as valid Unicode text; lone surrogates become question marks."""
    return str(value).encode("utf-8", "replace").decode()


def need_log_prob(value: Any, place: str, name: str) -> float:
    """Return ``value``, a number ≤ 0 or its text, as a natural log-probability; −9999.0 (missing) becomes −inf."""
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not number <= 1e-3 or math.isinf(number):
        got = _kind_in_words(value) if value is None else repr(value)
        raise refuse_file(
            place, f"{name} as a natural logarithm ≤ 0", got, "log with logprobs, which servers leave out unless asked"
        )
    return -math.inf if number <= UNLIKELY else min(number, 0.0)


def _kind_in_words(value: Any) -> str:
    if value is None:
        return "none"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
