"""How a file is read whose names are not Calibrant's own: proposed as the layout that a person would state.

A proposal is certain where names, or a producer's mark, say what the numbers are *and* the values agree; it is then followed,
and said. Values alone only decide which command a refusal prints.
"""

import fnmatch
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.check import PROBABILITY_TOLERANCE
from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.columns import column_array, is_list, numbers_of, spread_columns
from calibrant.data.formats.join import is_key
from calibrant.data.formats.kinds import are_percentages
from calibrant.data.formats.layout import KINDS, LABELS, SCORES, TOLERANCE, Layout, stem_and_name
from calibrant.errors import FileFormatError, Remedy

_LOGITS = "logits?|raw_?formula_?val"  # the second is CatBoost's
_PROBS = r"p|pr|probs?|proba|probabilit(?:y|ies)|softmax|\.pred"  # the last is tidymodels'
# "prob_cat", "P(1)", "pred_proba_cat", "Probability:Class=cat", "p0": words before, the mark of the kind, and the class
_MARKED = re.compile(
    rf"(?P<head>(?:.*[_.\s:-])??(?:(?P<logits>{_LOGITS})|(?:{_PROBS})))(?:[_.\s:(\[=]+|-(?!\d)|(?=\d))(?P<part>.+)",
    re.I,
)
_ALONE = re.compile(r"(?:.*[_.\s])?(?:prob|proba|probability|probs|probabilities|softmax)|p", re.I)
_DECIDED = re.compile(
    r"predict(ed|ion|ions)?|pred|guess|y_(hat|pred)|\.pred_class|pred(icted)?_(label|labels|class|name)|"
    r"top_?1_?(class|label|name|pred(iction)?)",
    re.I,
)
_CONFIDENCE = re.compile(r"conf(idence)?|(max|top_?1|top|pred(icted)?)_?(prob(ability)?|conf(idence)?|score)", re.I)
_TOP_CLASSES = re.compile(r"top(_?k|_?\d+)?_(classes|labels|names|indices|ids)", re.I)
_TOP_PROBS = re.compile(r"top(_?k|_?\d+)?_(probs|probabilities|scores)", re.I)
_CLASS_COLUMN = {"class", "class_name", "category", "class_id", "level"}  # of a table with a row for each class
# what the true class is called; the names further behind are also given to other things
_TRUTHS = (
    *("y_true", "true_label", "true_class", "truth", "ground_truth", "gold", "gold_label", "actual", "observed", "obs"),
    *("target", "targets", "true", "y", "label_id", "answer", "class"),
)


@dataclass(frozen=True)
class Proposal:
    """A layout, the table that it reads, whether it is certain, and the words that say it."""

    layout: Layout
    table: Any
    certain: bool = True

    @property
    def words(self) -> str:
        """What a proposal that is followed says."""
        chosen, what = self.layout.columns, {"logits": "logits", "probs": "probabilities"}[self.layout.kind or "probs"]
        names = ", ".join(chosen if len(chosen) < 7 else [*chosen[:3], "…", chosen[-1]])
        label = f", {self.layout.label} as the label" if self.layout.label and not self.layout.labels else ""
        return f"read {names} as {what}{label}"

    @property
    def remedy(self) -> Remedy:
        """The arguments that would read the file."""
        said: dict[str, str | bool] = {}
        for name in ("columns", "label", "kind", "positive", "normalize"):
            if value := getattr(self.layout, name):
                said[name] = _pattern_of(value, self.table.column_names) if name == "columns" else value
        if self.layout.one_vs_rest:
            said = said | {"kind": "one-vs-rest"}
            del said["normalize"]
        pairs = "if these are confidences of decisions, call their column confidence; else "
        decided = len(self.layout.columns) == 1 and any(_DECIDED.fullmatch(name) for name in self.table.column_names)
        return Remedy.read(**said).after(pairs if decided else "")


def propose(table: Any, layout: Layout) -> Proposal | None:
    """Return how a table of other names is read, or None where its names are Calibrant's own, or hold no scores.

    Args:
        table: A ``pyarrow.Table``, with cells as ``plain_cells`` returns them.
        layout: What the user says; what it leaves open is proposed.
    """
    names = list(table.column_names)
    if layout.columns:
        return _with_label(Proposal(layout, table), certain_scores=True) if layout.label is None else None
    if layout.kind is None and (pairs := _top_lists(table, layout)) is not None:
        return pairs
    spread = spread_columns(names)
    few = (
        all(len(group) == 1 for group in spread.values()) and len([one for one in names if _MARKED.fullmatch(one)]) > 1
    )
    if (spread and not few) or any(stem_and_name(name)[1] in KINDS and not _records(table, name) for name in names):
        label = None if layout.label or layout.labels else label_among(names, ())
        return Proposal(replace(layout, label=label), table) if label else None
    if layout.kind is None and (found := _long(table, layout) or _marked(table, layout)):
        return _with_label(found, certain_scores=found.certain)
    if (pairs := _pairs(table, layout)) is not None:
        return pairs
    if layout.kind is None and (found := _event(table, layout)):
        return _with_label(found, certain_scores=found.certain)
    unsaid = _unsaid(table, layout)
    return None if unsaid is None else _with_label(unsaid, certain_scores=False)


def refuse_log(table: Any, layout: Layout, path: Path) -> None:
    """Refuse a language model's log with the command that makes predictions of it.

    Raises:
        FileFormatError: If the table's columns are those of such a log.
    """
    names = set(table.column_names)
    if {"doc_id", "arguments"} <= names and names & {"resps", "filtered_resps"}:
        source, more = "lm-eval", ""
    elif {"custom_id", "response"} <= names or ("choices" in names and "probs" not in names):
        column = table.column("response" if "response" in names else "choices")
        answers = sorted({text.strip() for text in _answers(column.slice(0, 256).to_pylist())})
        source, more = "openai", f" --options {shlex.quote(','.join(answers))}" if 1 < len(answers) <= 12 else ""
        more += "" if layout.labels is None else f" --labels {shlex.quote(str(layout.labels))}"
    elif {"eval", "samples"} <= names:
        source, more = "inspect", ""
    else:
        return
    new = str(path.with_suffix(".npz"))
    command = f"calibrant ingest {shlex.quote(str(path))} {shlex.quote(new)} --from {source}{more}"
    raise FileFormatError(
        "predictions",
        f"a language model's log in {shown(path)}",
        Remedy(f"run: {command}, and read {new}", command=f"run: {command}", instead=(shown(path), new)),
    )


def _answers(found: Any) -> Iterator[str]:
    """Yield the texts of the messages in nested values."""
    if isinstance(found, dict):
        message = found.get("message")
        if isinstance(message, dict) and isinstance(message.get("content"), str):
            yield message["content"]
        found = list(found.values())
    for one in found if isinstance(found, list) else []:
        yield from _answers(one)


def plain_cells(table: Any) -> Any:
    """Return a table with text such as "87 %", "[0.1 0.9]" and "{'cat': 0.1}" as numbers, lists and records."""
    import pyarrow as pa

    for at, name in enumerate(table.column_names):
        column = table.column(name)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)) or not len(column):
            continue
        first = (column.slice(0, 64).drop_null()[0].as_py() if len(column.slice(0, 64).drop_null()) else "").strip()
        if first.endswith("%") or (first[:1] in ("[", "{") and first[-1:] in ("]", "}")):
            made = [_cell(text) for text in column.to_pylist()]
            if any(value is not None for value in made) and not any(isinstance(value, str) for value in made):
                try:
                    table = table.set_column(at, name, pa.array(made))
                except (pa.ArrowInvalid, pa.ArrowTypeError):
                    continue  # cells of several kinds stay text
    return table


def _cell(text: str | None) -> Any:
    """Return what a cell of text writes, or the text where it writes nothing of that kind."""
    if text is None or not text.strip():
        return None
    text = text.strip()
    try:
        if text.endswith("%"):
            return float(text[:-1].strip().replace(",", ".")) / 100
        try:
            return json.loads(text)
        except json.JSONDecodeError:  # as Python and NumPy print dicts and arrays
            text = re.sub(r"np\.float\d+\(([^()]*)\)", r"\1", text).replace("'", '"')
            return json.loads(re.sub(r"(?<=[\d.])\s+(?=[-\d.])", ",", re.sub(r"(?<=\d)\.(?=[\s,\]])", ".0", text)))
    except (ValueError, RecursionError):
        return text


def for_arrays(arrays: Mapping[str, Array]) -> Remedy | None:
    """Return the remedy to read kind='logits' where one array can hold the scores, or None."""
    found = candidates(arrays)
    if len(found) != 1:
        return None
    values = arrays[found[0]]
    label = label_among(list(arrays), [name for name in arrays if arrays[name].dtype.kind in "iuU"])
    kind = _kind_by_values(values)
    said: dict[str, str | bool] = {} if label is None else {"label": label}
    if kind is None:
        return Remedy.read(**said, kind="one-vs-rest")
    return Remedy.read(**said, kind=kind, **({"normalize": True} if _needs_sums(values, kind) else {}))


def kind_of_name(name: str) -> str | None:
    """Return the kind that the name of an array says, as ``y_prob`` does, or None."""
    return "probs" if _ALONE.fullmatch(name) else None


def candidates(arrays: Mapping[str, Array]) -> list[str]:
    """Return the arrays that can hold scores: those of floats with a class axis, else those of floats."""
    floats = [name for name, array in arrays.items() if array.dtype.kind == "f" and name.casefold() not in _TRUTHS]
    return [name for name in floats if arrays[name].ndim > 1] or floats


def label_among(names: Sequence[str], others: Sequence[str]) -> str | None:
    """Return the column that seems to hold the true classes: by its name, else the only one among ``others``."""
    plain = {name.strip().casefold(): name for name in names}
    if any(stem_and_name(name)[1] in LABELS and not _DECIDED.fullmatch(name) for name in names if name not in _TRUTHS):
        return None
    named = next((plain[name] for name in (*_TRUTHS, *LABELS) if name in plain), None)
    return named or (others[0] if len(others) == 1 else None)


def unnamed_label(arrays: Mapping[str, Array]) -> str | None:
    """Return what seems to hold the labels of scores without any: as long as they, called so or with few values; or None."""
    found: dict[str, None] = {}
    for scores, values in arrays.items():
        stem, kind = stem_and_name(scores)
        if kind not in SCORES or any(stem + label in arrays for label in LABELS):
            continue
        rows = {
            name.removeprefix(stem): other
            for name, other in arrays.items()
            if stem_and_name(name)[1] not in (*SCORES, "decision", "groups", "group")
            and other.shape[:1] == values.shape[:1]
            and other.ndim == 1
        }
        most = values.shape[1] if values.ndim == 2 else 2
        few = [name for name, other in rows.items() if _few_values(other, most) and not _DECIDED.fullmatch(name)]
        if (label := label_among(list(rows), few)) is not None:
            found[label] = None
    return next(iter(found)) if len(found) == 1 else None


def are_one_vs_rest(values: Array) -> bool:
    """Say whether rows (N, K) lie between 0 and 1 without summing to 1, as the sigmoids of one-vs-rest classifiers do."""
    if values.ndim != 2 or values.shape[1] < 2 or not values.size or values.dtype.kind != "f":
        return False
    return _within(values) and bool((np.abs(values.sum(axis=1) - 1) > TOLERANCE).any())


def _few_values(values: Array, most: int) -> bool:
    """Say whether a column can hold classes: text, whole numbers or booleans of at most ``most`` values."""
    if values.dtype.kind not in "iubOUS":
        return False
    return len({str(one) for one in values.tolist() if one is not None}) in range(1, most + 1)


def _floats(table: Any, layout: Layout) -> list[str]:
    """Return the columns of decimal numbers that are not called as labels are."""
    import pyarrow as pa

    no = {layout.label, *LABELS}
    return [
        field.name
        for field in table.schema
        if (pa.types.is_floating(field.type) or pa.types.is_decimal(field.type))
        and field.name not in no
        and field.name.strip().casefold() not in _TRUTHS[:10]
    ]


def _values(table: Any, names: Sequence[str]) -> Array:
    """Return columns of numbers as (N, K) without rows that have empty cells: those are refused when they are read."""
    parts = [column_array(table.column(name), name, Path(), strict=False) for name in names]
    if any(part.dtype.kind not in "fiu" for part in parts):
        return np.empty((0, len(names)))
    values = parts[0] if len(parts) == 1 and parts[0].ndim == 2 else np.stack(parts, axis=1)
    return values[~np.isnan(values).any(axis=1)] if values.dtype.kind == "f" else values


def _within(values: Array) -> bool:
    return bool(values.size and (values >= 0).all() and (values <= 1).all())


def _agree(kind: str, values: Array) -> bool:
    """Say whether values (N, K) can be what their names say."""
    if kind == "logits":
        return bool(values.size and not _within(values))
    return _within(values) and bool((np.abs(values.sum(axis=1) - 1) <= PROBABILITY_TOLERANCE).all())


def _kind_by_values(values: Array) -> str | None:
    """Return the kind that values suggest, or None for those of one-vs-rest classifiers."""
    if are_one_vs_rest(values):
        return None
    return "probs" if _within(values) or are_percentages(values) else "logits"


def _needs_sums(values: Array, kind: str) -> bool:
    return kind == "probs" and values.ndim == 2 and values.shape[1] > 1 and not _agree(kind, values)


def _suggested(table: Any, layout: Layout, chosen: Sequence[str], values: Array) -> Proposal:
    kind = layout.kind or _kind_by_values(values)
    made = replace(
        layout,
        columns=tuple(chosen),
        kind=kind or "probs",
        normalize=layout.normalize or kind is None or _needs_sums(values, kind),
        one_vs_rest=kind is None,
    )
    return Proposal(made, table, certain=False)


def _marked(table: Any, layout: Layout) -> Proposal | None:
    """Return the reading of the one group of columns whose names say their kind, of h2o's, or of one column of lists."""
    families: dict[tuple[str, str], list[str]] = {}
    for name in _floats(table, layout):
        if matched := _MARKED.fullmatch(name):
            families.setdefault(("logits" if matched["logits"] else "probs", matched["head"].casefold()), []).append(
                name
            )
    if table.column_names[0] == "predict":  # h2o: the decision, then the probability of every class
        others = [name for name in _floats(table, layout) if name != "predict"]
        families = families or {("probs", ""): others}
    for name in table.column_names:
        if _nested(table, name) and _ALONE.fullmatch(re.sub(r"_?(vector|dict|scores)$", "", name, flags=re.I)):
            families[("probs", name)] = [name]
        elif _nested(table, name) and re.fullmatch(f"(?:.*_)?(?:{_LOGITS})", name, re.I):
            families[("logits", name)] = [name]
        elif _labelled(table, name):
            families[("probs", name)] = [name]
    families = {key: by_number(names) for key, names in families.items() if len(names) > 1 or _nested(table, names[0])}
    if len(families) != 1:
        return None
    ((kind, _), chosen) = next(iter(families.items()))
    values = _inner(table, chosen[0]) if _nested(table, chosen[0]) else _values(table, chosen)
    if _agree(kind, values):
        return Proposal(replace(layout, columns=tuple(chosen), kind=kind), table)
    return _suggested(table, layout, chosen, values) if values.size else None


def _nested(table: Any, name: str) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(table.schema.field(name).type))


def _records(table: Any, name: str) -> bool:
    """Say whether a column holds a record of its classes in each row, or lists of {label, score}."""
    import pyarrow as pa

    return bool(pa.types.is_struct(table.schema.field(name).type)) or _labelled(table, name)


def _labelled(table: Any, name: str) -> bool:
    """Say whether a column holds lists of {label, score}, as pipelines of transformers and BigQuery write them."""
    import pyarrow as pa

    kind = table.schema.field(name).type
    if not is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name for field in kind.value_type}
    return bool({"label", "class"} & fields) and bool({"score", "prob"} & fields)


def _inner(table: Any, name: str) -> Array:
    """Return the values (N, K) of a column of lists or of records; of lists of {label, score} a row's scores."""
    import pyarrow as pa

    column = table.column(name)
    kind = column.type
    if pa.types.is_struct(kind):
        flat = table.select([name]).flatten()
        return (
            _values(flat, flat.column_names) if all(_is_number(one.type) for one in flat.schema) else np.empty((0, 0))
        )
    if _labelled(table, name):
        field = "score" if "score" in {one.name for one in kind.value_type} else "prob"
        rows = [[one[field] for one in row] for row in column.drop_null().to_pylist()]
        return np.array(rows) if len({len(row) for row in rows}) == 1 else np.empty((0, 0))
    if not is_list(kind) or not _is_number(kind.value_type):
        return np.empty((0, 0))
    values = column_array(column, name, Path(), strict=False)
    return values if values.ndim == 2 else np.empty((0, 0))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _event(table: Any, layout: Layout) -> Proposal | None:
    """Return the reading of the one column that is called a probability, of the event that it names or of class 1."""
    floats = _floats(table, layout)
    chosen = [name for name in floats if _ALONE.fullmatch(name) or _MARKED.fullmatch(name)]
    if len(chosen) != 1 or not _within(_values(table, chosen)):
        return None
    matched = _MARKED.fullmatch(chosen[0])
    made = replace(layout, columns=(chosen[0],), kind="probs")
    if matched is None or layout.positive is not None:
        return Proposal(made, table, certain=matched is None)
    for name in [layout.label] if layout.label else table.column_names:  # prob_yes beside labels yes and no
        cells = [] if name in floats else [str(one) for one in table.column(name).drop_null().unique().to_pylist()]
        if len(cells) == 2 and matched["part"].strip(")]") in cells:
            return Proposal(replace(made, positive=matched["part"].strip(")]"), label=name), table)
    return Proposal(made, table, certain=False)


def _top_lists(table: Any, layout: Layout) -> Proposal | None:
    """Return the most probable of the classes that two columns of lists hold, with its probability; or None."""
    import pyarrow as pa

    lists = [name for name in table.column_names if is_list(table.schema.field(name).type)]
    inner = [[name for name in lists if mark.fullmatch(name)] for mark in (_TOP_CLASSES, _TOP_PROBS)]
    if any(len(names) != 1 for names in inner):
        return None
    both = [table.column(names[0]).to_pylist() for names in inner]
    if any(not row or not other or len(row) != len(other) for row, other in zip(*both, strict=True)):
        return None
    best = [max(range(len(row)), key=row.__getitem__) for row in both[1]]
    table = table.drop_columns([names[0] for names in inner])
    for name, rows in zip(("pred", "conf"), both, strict=True):
        table = table.append_column(name, pa.array([row[at] for row, at in zip(rows, best, strict=True)]))
    return _pairs(table, layout)


def _pairs(table: Any, layout: Layout) -> Proposal | None:
    """Return decisions with their confidences, of the first class of several too, as conf, pred and label; or None."""
    import pyarrow as pa
    import pyarrow.compute

    columns = {name: table.column(name) for name in table.column_names}
    floats = [name for name in columns if _is_number(columns[name].type)]
    conf = [name for name in floats if _CONFIDENCE.fullmatch(name)]
    pred = [name for name in columns if _DECIDED.fullmatch(name) and name not in conf]
    if not conf and (truth := layout.label or label_among(list(columns), ())) in columns:
        # one number beside decisions among three classes or more is the decision's confidence, whatever it is called
        several = pa.compute.count_distinct(columns[truth]).as_py() > 2
        conf = [name for name in _floats(table, layout) if name in columns] if several else []
    if len(conf) != 1 or len(pred) != 1 or not _within(_values(pa.table(columns), conf)):
        return None
    label = layout.label or label_among(list(columns), ())
    known = layout.label or next((name for name in LABELS if name in columns), label)
    if known is None and layout.labels is None:
        return None
    names = {conf[0]: "conf", pred[0]: "pred", **({} if known is None else {known: "label"})}
    kept = {
        names.get(name, name): values
        for name, values in columns.items()
        if names.get(name) or name not in names.values()
    }
    return Proposal(replace(layout, label=None, kind=None), pa.table(kept))


def _long(table: Any, layout: Layout) -> Proposal | None:
    """Return a table with a row for each class of each key as one row a key; None where it is no such table."""
    import pyarrow as pa

    names = {name.strip().casefold(): name for name in table.column_names}
    probs = [name for name in _floats(table, layout) if _ALONE.fullmatch(name) or name.casefold() == "score"]
    held = [names[name] for name in names if name in _CLASS_COLUMN]
    keys = [name for name in table.column_names if is_key(name) and name not in held]
    if len(probs) != 1 or len(held) != 1 or not keys:
        return None
    key, column = (np.asarray(table.column(name).to_pylist(), dtype=object).astype(str) for name in (keys[0], held[0]))
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    classes, code = np.unique(column, return_inverse=True)
    if len(first) == len(key) or len(first) * len(classes) != len(key):
        return None
    place = np.argsort(np.argsort(first))[row]  # keys in the order of their first row
    values = np.full((len(first), len(classes)), np.nan)
    values[place, code] = column_array(table.column(probs[0]), probs[0], Path(), strict=False)
    if not _agree("probs", values):
        return None
    others = [name for name in table.column_names if name not in (probs[0], held[0])]
    wide = table.select(others).take(np.sort(first))
    chosen = [f"{probs[0]}_{name}" for name in classes]
    for at, name in enumerate(chosen):
        wide = wide.append_column(name, pa.array(values[:, at]))
    return Proposal(replace(layout, columns=tuple(chosen), kind="probs"), wide)


def _unsaid(table: Any, layout: Layout) -> Proposal | None:
    """Return the reading that values suggest of columns whose names do not say what they hold."""
    import pyarrow as pa

    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    floats = _floats(table, layout)
    chosen = _alike(floats) or (nested if len(nested) == 1 else [])
    if not chosen:
        return None
    values = _inner(table, chosen[0]) if chosen == nested else _values(table, chosen)
    if not values.size:
        return None
    return _suggested(table, layout, chosen, values[:, 0] if values.shape[1] == 1 else values)


def _with_label(found: Proposal, *, certain_scores: bool) -> Proposal | None:
    """Return a proposal with the column of the true classes, by its name, or for a suggestion by its values."""
    layout = found.layout
    if layout.label is not None or layout.labels is not None:
        return found
    names = [name for name in found.table.column_names if name not in layout.columns]
    others: list[str] = []
    if not certain_scores:
        arrays = {
            name: column_array(found.table.column(name), name, Path(), strict=False)
            for name in names
            if not _nested(found.table, name)
        }
        most = max(len(layout.columns), 2)
        others = [name for name, values in arrays.items() if _few_values(values, most) and not _DECIDED.fullmatch(name)]
    label = label_among(names, others)
    return replace(found, layout=replace(layout, label=label))


def _alike(floats: Sequence[str]) -> list[str]:
    """Return the columns that differ only by the number at their end, in its order; else all."""
    groups: dict[str, list[str]] = {}
    for name in floats:
        if name[-1:].isdigit():
            groups.setdefault(name.rstrip("0123456789"), []).append(name)
    largest = max(groups.values(), key=len, default=[])
    return by_number(largest) if len(largest) > 1 else list(floats)


def by_number(names: Sequence[str]) -> list[str]:
    """Return columns that differ by a number alone in its order, which is the classes', and others as they are."""
    numbers = numbers_of(names)
    return [name for _, name in sorted(zip(numbers, names, strict=True))] if numbers else list(names)


def _pattern_of(chosen: Sequence[str], names: Sequence[str]) -> str:
    """Return the pattern that names these columns and no others, else their names with commas."""
    first, last = min(chosen), max(chosen)
    alike = next((place for place, sign in enumerate(first) if last[place : place + 1] != sign), len(first))
    prefix = first[:alike].rstrip("0123456789")
    pattern = prefix + "*"
    if len(chosen) > 1 and prefix and by_number([n for n in names if fnmatch.fnmatchcase(n, pattern)]) == list(chosen):
        return pattern
    return ",".join(chosen)
