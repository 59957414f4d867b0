"""Cells as numbers, lists and records: what text and nested values of a table write, before its names are looked at."""

import itertools
import json
import re
from typing import Any

from calibrant._core.files import pa
from calibrant.data.formats.columns import decoded, is_list, is_number, is_string
from calibrant.data.formats.kinds import one_hot
from calibrant.data.formats.roles import CLASS_FIELDS, SCORE_FIELDS, is_decided, plain_name

SCORED = {b"calibrant": b"scores by class"}  # of a column that was lists of {label, score}
_NUMBER = re.compile(r"\*?[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\*?", re.I)  # Weka marks the decision by a star
_VECTOR = {"type", "size", "indices", "values"}  # of Spark; indices are those of a sparse one
_SIGN = r" *[ ,;|] *"
_DECIMAL = r"-?(?:\d+\.\d+|\d+(?=e))(?:e[-+]?\d+)?"
_PARTED = re.compile(rf"{_DECIMAL}({_SIGN}{_DECIMAL})+", re.I)  # the probabilities of one cell
_OF_CLASS = rf"[^\s:=,;|]+ *[:=] *{_DECIMAL}"
_PAIRED = re.compile(rf"{_OF_CLASS}({_SIGN}{_OF_CLASS})+", re.I)  # each behind its class: "1:0.2 2:0.8"
_WRAPPED = re.compile(
    r"(?:\w+\.)*(?:tensor|array|DenseVector|float\d*)\((\[.*\]|-?\d[^,]*)(?:, *(?:dtype|device|grad_fn)=.*)?\)",
    re.DOTALL,
)  # as they print
_NUMBERED = re.compile(r"(\d+):(.+)")


def plain_cells(table: Any) -> Any:
    """Return a table with text such as "87 %", "[0.1 0.9]" and "{'cat': 0.1}" as numbers, lists and records.

    A record of several things, such as a decision beside its probabilities, becomes a column of each, Spark's vectors become lists,
    lists of {label, score} records of a score by class, and of two records of the same classes one with a single 1 becomes its class.
    """
    for at, name in enumerate(table.column_names):
        given = table.column(at)
        column = decoded(given)
        column = _of_text(column) if is_string(column.type) and len(column) else column
        if column is not given:
            table = table.set_column(at, name, column)
    for at, field in enumerate(table.schema):
        if pa.types.is_map(field.type):  # DuckDB's and Spark's: the class and its probability
            rows = [None if row is None else dict(row) for row in table.column(at).to_pylist()]
            keys = sorted({str(key) for row in rows if row is not None for key in row})
            cells = [None if row is None else {str(key): value for key, value in row.items()} for row in rows]
            kind = pa.struct([(key, field.type.item_type) for key in keys])
            table = table.set_column(at, field.name, pa.array(cells, kind)) if keys else table
    return _with_true_classes(_flat(table))


def _with_true_classes(table: Any) -> Any:
    """Return a table with the class of the 1 instead of records of zeros and a single 1, beside scores of the same classes."""
    keys = {one.name: {part.name for part in one.type} for one in table.schema if pa.types.is_struct(one.type)}
    made = {}
    for name, own in keys.items():
        if len(own) > 1 and list(keys.values()).count(own) == 2:
            parts = pa.Table.from_struct_array(table.column(name).combine_chunks())
            if true := one_hot(dict(zip(parts.column_names, parts.columns, strict=True))):
                made[name] = true
    if len(made) == 1:
        ((name, true),) = made.items()
        table = table.set_column(table.column_names.index(name), name, pa.array(true))
    return table


def _of_text(column: Any) -> Any:
    """Return a column of text as the numbers, lists, records or classes that all of its cells write, else as it is."""
    known = column.slice(0, 64).drop_null()
    first = (known[0].as_py() if len(known) else "").strip()
    made: list[Any] = []
    if (
        first.endswith("%")
        or (first[:1] in ("[", "{") and first[-1:] in ("]", "}"))
        or (first[:1] == "(" and first[-1:] == ")" and "," in first)  # a tuple
        or _WRAPPED.fullmatch(first)
        or _PARTED.fullmatch(first)
        or _PAIRED.fullmatch(first)
    ):
        made = [_cell(text) for text in column.to_pylist()]
    elif _NUMBER.fullmatch(first):  # a column that JSON keeps as text; whole numbers alone are ids or labels
        found = column.to_pylist()
        if all(text is None or _NUMBER.fullmatch(text.strip()) for text in found) and any(
            "." in (text or "") for text in found
        ):
            made = [None if text is None else float(text.strip().strip("*")) for text in found]
    elif _NUMBERED.fullmatch(first):  # "2:dog", where each number has one name
        pairs = [_NUMBERED.fullmatch(text or "") for text in column.to_pylist()]
        names = {(one[1], one[2]) for one in pairs if one}
        if all(pairs) and 1 < len({one for one, _ in names}) == len({one for _, one in names}) == len(names):
            made = [int(one[1]) for one in pairs if one]
    if all(value is None for value in made) or any(isinstance(value, str) for value in made):
        return column
    made = [_scored(value) for value in made]
    try:
        return pa.chunked_array([pa.array(made)])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return column  # cells of several kinds stay text


def _scored(cell: Any) -> Any:
    """Return a list of pairs, [["cat", 0.9], ["dog", 0.1]], as one of {label, score}, and any other cell as it is."""
    listed = cell if isinstance(cell, list) else []
    pairs = [one for one in listed if isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)]
    scored = bool(pairs) and len(pairs) == len(listed) and all(isinstance(one[1], float | int) for one in pairs)
    return [{"label": label, "score": float(score)} for label, score in pairs] if scored else cell


def _cell(text: str | None) -> Any:
    """Return what a cell of text writes, or the text where it writes nothing of that kind."""
    if text is None or not text.strip():
        return None
    text = text.strip()
    text = wrapped[1] if (wrapped := _WRAPPED.fullmatch(text)) else text
    text = f"[{','.join(re.split(_SIGN, text))}]" if _PARTED.fullmatch(text) else text
    if _PAIRED.fullmatch(text):
        pairs = [re.split(" *[:=] *", one) for one in re.findall(_OF_CLASS, text, re.IGNORECASE)]
        return {name: float(number) for name, number in pairs}
    text = f"[{text[1:-1].rstrip(', ')}]" if text[0] == "(" and text[-1] == ")" else text
    try:
        if text.endswith("%"):
            return float(text[:-1].strip().replace(",", ".")) / 100
        try:
            return json.loads(text)
        except json.JSONDecodeError:  # as Python and NumPy print dicts and arrays
            if text[0] == "{" and ":" not in text:  # Postgres' arrays
                text = f"[{text[1:-1]}]"
            text = re.sub(r"np\.\w+\(([^()]*)\)", r"\1", text)
            text = re.sub(r"(?<=[\d.])\)(?=\s*[,\]])", "]", re.sub(r"(?<=[\[,\s])\((?=['\"])", "[", text))  # tuples
            text = text.replace("'", '"')
            return json.loads(re.sub(r"(?<=[\d.])\s+(?=[-\d.])", ",", re.sub(r"(?<=\d)\.(?=[\s,\]])", ".0", text)))
    except (ValueError, RecursionError):
        return text


def _flat(table: Any) -> Any:
    """Return a table with the fields of records as columns, but for records of numbers, which are those of classes."""
    fields: list[Any] = []
    columns: list[Any] = []

    def add(name: str, column: Any, *, inner: bool = False) -> None:
        kind, metadata = column.type, None
        if is_list(kind) and not pa.types.is_floating(kind.value_type):
            if _is_single(column):
                column = pa.compute.list_flatten(column)
            elif pa.types.is_struct(kind.value_type) and (made := _by_class(column)) is not None:
                column, metadata = pa.chunked_array([made]), SCORED
        if pa.types.is_struct(column.type) and {one.name for one in column.type} == _VECTOR:
            parts = dict(zip((one.name for one in column.type), column.flatten(), strict=True))
            column = column if len(parts["indices"].drop_null()) else parts["values"]
        of_classes = (
            pa.types.is_struct(column.type)
            and column.type.num_fields
            and all(is_number(one.type) and not is_decided(one.name) for one in column.type)
        )
        if pa.types.is_struct(column.type) and not of_classes:  # of a record without fields nothing is left
            for field, part in zip(column.type, column.flatten(), strict=True):
                add(f"{name}.{field.name}", part, inner=True)
        # of the parts of records only those that differ say something of the rows
        elif not (inner and pa.types.is_string(column.type) and len(column) > 1 and len(column.unique()) == 1):
            fields.append(pa.field(name, column.type, metadata=metadata))
            columns.append(column)

    for name in table.column_names:
        add(name, table.column(name))
    return pa.table(columns, schema=pa.schema(fields, metadata=table.schema.metadata))


def _is_single(column: Any) -> bool:
    """Say whether each row is a list of one."""
    lengths = pa.compute.list_value_length(column)
    return bool(len(column) and not column.null_count and pa.compute.all(pa.compute.equal(lengths, 1)).as_py())


def scored_lists(column: Any) -> tuple[list[list[Any]], list[list[Any]]] | None:
    """Return the classes of each row, and their scores, of lists of {label, score}; None where they are no such lists."""
    kind = column.type
    if not is_list(kind) or not pa.types.is_struct(kind.value_type) or not len(column) or column.null_count:
        return None
    leaves = pa.Table.from_struct_array(column.combine_chunks().flatten()).flatten()  # "answer.label" of a record in it
    names = {name: plain_name(name).rpartition("_")[2] for name in leaves.column_names}
    label, score = (
        next((name for end in ends for name, last in names.items() if last == end), None)
        for ends in ((*CLASS_FIELDS, "id", "text"), SCORE_FIELDS)  # an annotator's options have the last two
    )
    numbers = [one.name for one in leaves.schema if pa.types.is_floating(one.type)]
    score = score or (numbers[0] if len(numbers) == 1 else None)
    if label is None or score is None or label == score:
        return None
    counts = pa.compute.list_value_length(column).to_pylist()
    parts = [iter(leaves.column(name).to_pylist()) for name in (label, score)]
    labels, scores = ([list(itertools.islice(part, count)) for count in counts] for part in parts)
    return labels, scores


def _by_class(column: Any) -> Any:
    """Return lists of {label, score} as records of a score by class, in the order of the classes' numbers or else of their names.

    None where they are no such lists, or some row has not all classes.
    """
    if (found := scored_lists(column)) is None:
        return None
    known = {one for row in found[0] for one in row}
    if None in known or len(known) < 2 or any(len(row) != len(known) or {*row} != known for row in found[0]):
        return None
    try:
        made = [{str(one): float(p) for one, p in zip(*row, strict=True)} for row in zip(*found, strict=True)]
    except (TypeError, ValueError):
        return None
    return pa.array(made, pa.struct([(str(one), pa.float64()) for one in sorted(known, key=_order(known))]))


def _order(known: set[Any]) -> Any:
    """Return by what classes are sorted: LABEL_10 comes after LABEL_9, not after LABEL_1."""
    numbered = all(isinstance(one, str) and re.fullmatch(r"LABEL_\d+", one) for one in known)
    return (lambda one: int(one[6:])) if numbered else str
