"""The columns of a table as named arrays: one column a class, one list column, or names that say what they hold."""

import fnmatch
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.check import reads_as_number
from calibrant._core.files import Array, pa, refuse_beyond_memory
from calibrant._core.paths import shown
from calibrant.data.formats.layout import CLASS_NAMES, LABELS, NAME_KIND, SCORES, Layout, stem_and_name, suffix_of
from calibrant.errors import FileFormatError, InputError, Remedy

_ROLES = re.compile("|".join([*SCORES, *LABELS, "label_ids|groups?|pred|decision|confidence|predictions?"]))
_SPREAD = re.compile(r"((?:[^_]+_)*?)(logits?|probs?)_(\d+)")
_UNTITLED = re.compile(r"column[A-Z]+")  # as columns of a file without a title are called, which name no classes
_REPEATED = re.compile(r"(.*) \(\d+\)")  # as the second of two columns of one name is called
_NULLS = ("NULL", "NA", "N/A", "NaN", "nan", "<NA>", "None", "\\N")  # as databases, R and pandas write no value
ORDER_OF_NAMES = {b"calibrant.order": b"names"}  # of a table whose class columns were made of rows or lists
NAMES_OF_CLASSES = "calibrant.class_names"  # beside a table whose scores are lists: a JSON list of text
_HEADERS = {".csv": 1, ".tsv": 1, ".jsonl": 0}  # lines above the first row


@dataclass(frozen=True)
class Classes:
    """What the columns say of the classes.

    Args:
        spellings: The classes as labels may call them: the part under a pattern's ``*``, the columns' names, and these
            without what they have in common: ("big_cat", "big_dog"), ("cat", "dog"); or nothing.
        numbers: Their numbers; or nothing.
        ordered: Whether the file has them in an order; not where a row's cells name them, in an order of its own.
    """

    spellings: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[int, ...] = ()
    ordered: bool = True

    @classmethod
    def of(cls, columns: Sequence[str], *parts: tuple[str, ...]) -> "Classes":
        """Return what the columns, one a class, say; ``parts`` come before what is made of their names."""
        untitled = all(map(_UNTITLED.fullmatch, columns))
        spellings = {} if untitled else dict.fromkeys([*parts, *_spellings(columns)])
        return cls(tuple(spellings), numbers_of(columns)) if len(columns) > 1 else cls()

    def spelling(self, labels: Iterable[str], *, given: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the first spelling that has every one of ``labels``, those ``given`` before the columns'; or nothing.

        One that has them exactly goes before one that has them in another case, or with other spaces around them.
        """
        known, wanted = [one for one in (given, *self.spellings) if one], set(labels)
        if self.spellings:  # P_targetCAT, where no sign stands before the class
            longest = max(self.spellings, key=lambda one: len(one[0]))
            start, end = len(shared(longest)), len(shared([name[::-1] for name in longest]))
            known.append(tuple(name[start : len(name) - end] for name in longest))
        alike = [one for one in known if len(set(map(folded, one))) == len(one) and all(one)]
        exact = next((one for one in known if wanted <= set(one)), ())
        return exact or next((one for one in alike if set(map(folded, wanted)) <= set(map(folded, one))), ())


def folded(name: str) -> str:
    """Return a class's name without what spreadsheets and databases change: case, spaces around it, composed accents."""
    return unicodedata.normalize("NFC", name).strip().casefold()


def _spellings(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the columns' names without ever more of the words that all begin with, and without what all end in."""
    before, after = shared(columns), shared([name[::-1] for name in columns])[::-1]
    cuts = [
        0,
        *(one.end() for one in re.finditer(r"[_.\s:(\[='\"-]", before)),
    ]  # classes may begin with such signs: __label__cat
    ends = [0, *(len(after) - one.start() for one in re.finditer(r"[_.\s:)\]'\"-]", after))]
    # the most cut off first: labels say "cat" where columns say "p_big_cat", and seldom "big_cat"
    found = [tuple(name[cut : len(name) - end] for name in columns) for cut in reversed(cuts) for end in reversed(ends)]
    return [one for one in found if all(one) and len(set(one)) == len(columns)]


def shared(names: Sequence[str]) -> str:
    """Return what all names begin with."""
    alike = takewhile(lambda signs: len(set(signs)) == 1, zip(*names, strict=False))
    return "".join(signs[0] for signs in alike)


def arrays_of_table(table: Any, layout: Layout, path: Path, *, first: int = 0) -> tuple[dict[str, Array], Classes]:
    """Return the arrays of a table, its class columns joined under the name of their kind, and what names its classes.

    Args:
        table: A ``pyarrow.Table``.
        layout: What the user says of it.
        path: Its file, or folder.
        first: The number of its first row there, for a table that is read in pieces.

    Raises:
        InputError: If the columns that the layout names are missing, or hold no numbers.
        FileFormatError: If a column that is used has empty cells, or lists of several lengths.
    """
    names = list(table.column_names)
    spread: dict[str, list[str]]
    if layout.columns:
        chosen, parts = match_columns(layout.columns, names, path)
        spread = {layout.kind or "": chosen}
        classes = Classes.of(chosen, *([parts] if "*" in layout.columns[0] else []))
    else:
        spread = spread_columns(names)
        classes = Classes(numbers=numbers_of(next(iter(spread.values()), [])))
    used = {name for group in spread.values() for name in group}
    for name in names:
        twice = _REPEATED.fullmatch(name)
        part = name in used or name == layout.label or (twice and stem_and_name(twice[1])[1] in (*SCORES, *LABELS))
        if part and twice and twice[1] in names and layout.label not in (name, twice[1]):
            if name not in used and table.column(name).equals(table.column(twice[1])):
                continue  # the same labels once more
            keep_first = Remedy.read(label=twice[1]).after("if the first is meant, ")
            remedy = Remedy("rename one of them") if name in used else keep_first
            raise FileFormatError("distinct column names", f"{twice[1]!r} twice in {shown(path)}", remedy)
    arrays: dict[str, Array] = {}
    for kind, group in spread.items():
        if not kind:
            raise InputError(f"the kind of the columns {_some(group)} in {shown(path)}", "none", NAME_KIND)
        arrays[kind], own = _scores(table, group, path, first)
        classes = own if own.spellings else classes
    if ORDER_OF_NAMES.items() <= (table.schema.metadata or {}).items():
        classes = replace(classes, ordered=False)
    for name in names:
        if name in used or name in arrays:
            continue
        # only columns with a part in the predictions must be whole: an empty remark refuses no file
        role = _ROLES.fullmatch(stem_and_name(name)[1]) is not None or name == layout.label
        column = table.column(name)
        if stem_and_name(name)[1] in LABELS or name == layout.label:
            column = _without_blanks(column, classes)
            role = role and layout.missing is None
            if role and column.null_count < len(column):
                drop = Remedy.read(missing="drop").after("fill in the values, or leave these rows out: ")
                refuse_empty(column, name, path, first=first, remedy=drop)
        arrays[name] = column_array(column, name, path, strict=role, first=first)
    kept = _names_beside(table)
    if kept and not classes.spellings and not {*CLASS_NAMES} & arrays.keys():
        arrays["class_names"] = np.array(kept)
    return arrays, classes


def _names_beside(table: Any) -> list[str]:
    """Return the names of classes that a file of ours keeps beside its table; anything else there is none."""
    try:
        found = json.loads((table.schema.metadata or {}).get(NAMES_OF_CLASSES.encode(), b"[]"))
    except ValueError:
        return []
    return list(map(str, found)) if isinstance(found, list) else []


def _without_blanks(column: Any, classes: Classes) -> Any:
    """Return a column of text with its empty cells null as those of numbers are: "", and NULL or NA where no class is called so."""
    column = decoded(column)
    if not is_string(column.type):
        return column
    named = {folded(name) for one in classes.spellings for name in one}
    blank = ["", *(_NULLS if named and named.isdisjoint(map(folded, _NULLS)) else ())]
    empty = pa.compute.is_in(column, value_set=pa.array(blank, column.type))
    return pa.compute.if_else(empty, pa.scalar(None, column.type), column)


def score_columns(names: Sequence[str], layout: Layout, path: Path) -> tuple[str, ...] | None:
    """Return the columns of the scores, or None where a table has several groups of them, or none."""
    if layout.columns:
        return tuple(match_columns(layout.columns, names, path)[0])
    groups = list(spread_columns(names).values()) + [[name] for name in names if name in ("logits", "probs")]
    return tuple(groups[0]) if len(groups) == 1 else None


def match_columns(patterns: Sequence[str], names: Sequence[str], path: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the columns that ``patterns`` name, under a pattern by their numbers or in the file's order, and what its ``*`` is.

    Raises:
        InputError: If one names nothing.
    """
    known = {*names}
    chosen: dict[str, None] = {}
    parts: list[str] = []
    for pattern in patterns:
        found = [pattern] if pattern in known else by_number(fnmatch.filter(names, pattern))
        if not found:
            raise InputError(f"the columns {pattern!r} in {shown(path)}", f"{_some(names)}", "name some of these")
        chosen |= dict.fromkeys(found)
        parts += [_under_star(pattern, name) for name in found]
    return list(chosen), tuple(parts if len(parts) == len(chosen) else chosen)


def column_array(column: Any, name: str, path: Path, *, strict: bool = True, first: int = 0) -> Array:
    """Return a column as an array: numbers (N,), text (N,) as objects, or lists of one length (N, K).

    Args:
        column: A ``pyarrow.ChunkedArray``.
        name: What messages call it.
        path: As there.
        strict: Refuse empty cells and lists of several lengths, which a column that is only kept may have.
        first: The number of its first row in the file.
    """
    column = decoded(column)
    if strict:
        refuse_empty(column, name, path, first=first)
    if is_list(column.type) and (strict or not column.null_count):
        matrix = _matrix(column, name, path, strict=strict)
        if matrix is not None:
            return matrix
        if strict:
            expected, got = "lists of one length, one entry a class", f"several lengths in the column {name!r}"
            raise FileFormatError(expected, f"{got} of {shown(path)}", "write a row for every class")
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    found: Array = column.to_numpy(zero_copy_only=False)
    if strict and stem_and_name(name)[1] in SCORES and found.dtype == object:
        return _parsed(found, name, path)
    return found


def decoded(column: Any) -> Any:
    """Return a column of a dictionary's values, or of views of text, as the values or the text themselves.

    Raises:
        FileFormatError: If the values, repeated as the rows do, are larger than the memory.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    plain = pa.string() if kind == pa.string_view() else kind
    if pa.types.is_dictionary(column.type):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        values = [part.dictionary.cast(plain) for part in chunks]
        if is_string(plain):  # one long text may stand in every row
            longest = [pa.compute.max(pa.compute.binary_length(part)).as_py() or 0 for part in values]
            size = sum(one * len(part) for one, part in zip(longest, chunks, strict=True))
            refuse_beyond_memory(size, Path("the table"))
            plain = pa.large_string() if size >= 1 << 31 else plain
        parts = [part.cast(plain).take(rows.indices) for part, rows in zip(values, chunks, strict=True)]
        return pa.chunked_array(parts, plain)
    return column if plain == kind else column.cast(plain)


def is_string(kind: Any) -> bool:
    """Say whether an Arrow type is one of text, but for views of it."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_text(values: Array) -> bool:
    """Say whether an array holds text."""
    return values.dtype.kind in "US" or (values.dtype == object and all(isinstance(one, str) for one in values.flat))


def _scores(table: Any, group: Sequence[str], path: Path, first: int) -> tuple[Array, Classes]:
    """Return the scores (N, K), or (N,) of one column of numbers, and the classes that lists of {label, score} name."""
    if len(group) == 1:
        column = table.column(group[0])
        if is_list(column.type) and pa.types.is_struct(column.type.value_type):  # those that became no records
            expected = f"a score for each class in every row of the column {group[0]!r} of {shown(path)}"
            raise InputError(expected, "some classes only", "write all of them (top_k=None in a pipeline)")
        if pa.types.is_struct(column.type):
            column = column.combine_chunks()
            names = tuple(field.name for field in column.type)
            refuse_empty(column, group[0], path, first=first)
            inner = pa.table(list(column.flatten()), names=list(names))
            return _scores(inner, names, path, first)[0], replace(Classes.of(names), ordered=False)
        values = column_array(column, group[0], path, first=first)
        return (_parsed(values, group[0], path) if values.dtype == object else values), Classes()
    columns = [column_array(table.column(name), name, path, first=first) for name in group]
    for name, values in zip(group, columns, strict=True):
        if values.dtype.kind not in "fiu" or values.ndim != 1:
            _refuse_text(table.column(name), name, path, first=first)
    stacked = np.stack(columns, axis=1)
    return (stacked if stacked.dtype.kind == "f" else stacked.astype(np.float64)), Classes()


def spread_columns(names: Sequence[str]) -> dict[str, list[str]]:
    """Return kind → columns for those called ``logits_0``, ``logits_1`` …, or ``probs_0`` …, with a split before them or not."""
    found: dict[str, list[str]] = {}
    for name in names:
        if matched := _SPREAD.fullmatch(name):
            kind = matched[2] if matched[2].endswith("s") else matched[2] + "s"
            found.setdefault(matched[1] + kind, []).append(name)
    return {kind: by_number(group) for kind, group in found.items() if kind not in names}


def by_number(names: Sequence[str]) -> list[str]:
    """Return columns that differ by a number alone in its order, which is the classes', and others in the file's order."""
    numbers = numbers_of(names)
    return [name for _, name in sorted(zip(numbers, names, strict=True))] if numbers else list(names)


def numbers_of(names: Sequence[str]) -> tuple[int, ...]:
    """Return the number by which these names differ, or nothing unless they are one name with different numbers there, or its plural."""
    parts = [re.split(r"(\d+)", re.sub(r"(?<=\d)( [a-z]{3,}?)s$", r"\1", name)) for name in names]  # 1 star, 2 stars
    if len(parts) < 2 or len({(len(one), *one[::2]) for one in parts}) > 1:
        return ()
    varied = [at for at in range(1, len(parts[0]), 2) if len({one[at] for one in parts}) > 1]
    numbers = tuple(int(one[varied[0]]) for one in parts) if len(varied) == 1 else ()
    return numbers if len(set(numbers)) == len(names) else ()


def _under_star(pattern: str, name: str) -> str:
    before, star, after = pattern.partition("*")
    simple = star and not any(sign in before + after for sign in "*?[")
    return name.removeprefix(before).removesuffix(after) if simple else name


def is_number(kind: Any) -> bool:
    """Say whether an Arrow type is one of numbers."""
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _matrix(column: Any, name: str, path: Path, *, strict: bool) -> Array | None:
    """Return a list column as (N, K), None where the lists differ in length, or one has a null that is not refused."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    lengths = pa.compute.unique(pa.compute.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or lengths[0] is None:
        return np.empty((0, 0)) if not lengths else None
    flat = column.flatten()
    if flat.null_count and not strict:
        return None
    if flat.null_count:
        raise FileFormatError(
            "a number in every list (columns without nulls)",
            f"empty ones in the column {name!r} of {shown(path)}",
            "fill or drop them",
        )
    if is_list(flat.type):
        inner = _matrix(flat, name, path, strict=strict)
        return None if inner is None else inner.reshape(len(column), lengths[0], *inner.shape[1:])
    values: Array = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), lengths[0])


def _parsed(values: Array, name: str, path: Path) -> Array:
    """Return lists that a CSV file keeps as text, "[0.1, 0.9]", as (N, K)."""
    try:
        rows = [json.loads(text) for text in values.tolist()]
        found = np.array(rows, dtype=np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FileFormatError(
            f"numbers, or lists such as [0.1, 0.9], in the column {name!r} of {shown(path)}",
            f"{str(values[0])[:40]!r}",
            "write one column a class",
        ) from error
    return found


def _some(names: Sequence[str]) -> str:
    shown_names = [str(name) for name in names]
    return ", ".join(shown_names if len(shown_names) <= 12 else [*shown_names[:9], "…", *shown_names[-2:]])


def refuse_empty(
    column: Any,
    name: str,
    path: Path,
    *,
    first: int = 0,
    remedy: str | Remedy = "fill in the values or drop these rows",
) -> None:
    """Raise if a column has empty cells, naming the first.

    Args:
        column: A ``pyarrow.ChunkedArray`` or ``pyarrow.Array``.
        name: Its name.
        path: Its file.
        first: The number of its first row in the file, for a table that is read in pieces.
        remedy: What to do about it.

    Raises:
        FileFormatError: If there is one.
    """
    if not column.null_count:
        return
    row = first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
    others = f" and {column.null_count - 1:,} more" if column.null_count > 1 else ""
    got = f"an empty cell in the column {name!r} at {_place(row, path)} of {shown(path)}{others} (columns without nulls are needed)"
    raise FileFormatError("a value in every row", got, remedy)


def _refuse_text(column: Any, name: str, path: Path, *, first: int = 0) -> None:
    """Raise for a class column that holds something else than numbers, naming the first cell that is none."""
    cells = column.to_pylist()
    row = next((row for row, cell in enumerate(cells) if not reads_as_number(cell)), None)
    where = "" if row is None else f" ({str(cells[row])[:40]!r} at {_place(first + row, path)})"
    remedy = "correct the cells, or name the columns of the classes alone"
    raise InputError("numbers in the class columns", f"{column.type} in {name!r} of {shown(path)}{where}", remedy)


def _place(row: int, path: Path) -> str:
    """Return "row 6 (line 8)": rows count from 0, lines of one text file from 1 with its header."""
    above = None if path.is_dir() else _HEADERS.get(suffix_of(path))
    return f"row {row}" if above is None else f"row {row} (line {row + above + 1})"
