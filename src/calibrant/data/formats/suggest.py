"""The arguments that would read a file whose names do not say what they hold, for the sentence that refuses it."""

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.check import PROBABILITY_TOLERANCE
from calibrant._core.files import Array
from calibrant.data.formats.columns import column_array, numbers_of
from calibrant.data.formats.kinds import are_percentages
from calibrant.data.formats.layout import LABELS, SCORES, TOLERANCE, stem_and_name
from calibrant.errors import Remedy

_PREDICTED = {"y_pred", "y_hat", "predicted_label", "predicted_class", "pred_label", "pred_class", "pred_labels"}
_TRUTHS = {"y", "y_true", "target", "targets", "true", "truth", "gold", "class", "true_label", "label_id", "answer"}


def for_table(table: Any, path: Path) -> Remedy | None:
    """Return the remedy to read columns='p*', label='y', kind='probs', as far as the columns allow it, or None."""
    chosen, others, values = _candidate_scores(table, path)
    if not chosen:
        return None
    pattern = _pattern_of(chosen, table.column_names)
    return _joined(pattern, _label_among(table.column_names, others), values)


def one_vs_rest_columns(table: Any, path: Path) -> bool:
    """Say whether the columns that seem to hold the classes' scores are ``are_one_vs_rest``."""
    return are_one_vs_rest(_candidate_scores(table, path)[2])


def _candidate_scores(table: Any, path: Path) -> tuple[list[str], list[str], Array]:
    """Return the columns that seem to hold the classes' scores, those that hold no scores, and the scores (N, K) or (N,)."""
    import pyarrow as pa

    types = dict(zip(table.column_names, table.schema.types, strict=True))
    lists = [name for name, kind in types.items() if pa.types.is_nested(kind)]
    floats = [name for name, kind in types.items() if pa.types.is_floating(kind)]
    others = [name for name in types if name not in lists and name not in floats]
    chosen = _class_columns(floats) or (lists[:1] if len(lists) == 1 else [])
    if not chosen:
        return [], others, np.empty(0)
    columns = [column_array(table.column(name), name, path, strict=False) for name in chosen]
    values = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    if values.dtype.kind == "f":  # rows with empty cells are refused when the suggestion is followed
        values = values[~np.isnan(values).reshape(len(values), -1).any(axis=1)]
    return chosen, others, values


def for_pairs(names: Sequence[str]) -> str:
    """Return what to do where a column holds predicted classes, before the advice for other files; or nothing."""
    if not any(name.lower() in _PREDICTED for name in names):
        return ""
    return "if these are confidences of predicted classes, rename the columns to confidence, prediction, label; else "


def for_arrays(arrays: Mapping[str, Array]) -> Remedy | None:
    """Return the remedy to read kind='logits' where one array can hold the scores, or None."""
    found = candidates(arrays)
    if len(found) != 1:
        return None
    label = _label_among(list(arrays), [name for name in arrays if arrays[name].dtype.kind in "iuU"])
    return _joined(None, label, arrays[found[0]])


def label_among(arrays: Mapping[str, Array]) -> str | None:
    """Return what is called as labels often are (y, target, gold …) beside scores without labels, as long as they; or None."""
    found = set()
    for scores, values in arrays.items():
        stem, kind = stem_and_name(scores)
        if kind in SCORES and not any(stem + label in arrays for label in LABELS):
            found |= {
                name.removeprefix(stem)
                for name, other in arrays.items()
                if name.removeprefix(stem).lower() in _TRUTHS and other.shape[:1] == values.shape[:1]
            }
    return min(found) if len(found) == 1 else None


def candidates(arrays: Mapping[str, Array]) -> list[str]:
    """Return the arrays that can hold scores: those of floats with a class axis, else those of floats."""
    floats = [name for name, array in arrays.items() if array.dtype.kind == "f"]
    return [name for name in floats if arrays[name].ndim > 1] or floats


def _class_columns(floats: Sequence[str]) -> list[str]:
    """Return the columns that differ only by the number at their end, in its order; else all."""
    groups: dict[str, list[str]] = {}
    for name in floats:
        if name[-1:].isdigit():
            groups.setdefault(name.rstrip("0123456789"), []).append(name)
    largest = max(groups.values(), key=len, default=[])
    if len(largest) > 1:
        numbers = numbers_of(largest)
        return [name for _, name in sorted(zip(numbers, largest, strict=True))] if numbers else largest
    return list(floats)


def _pattern_of(chosen: Sequence[str], names: Sequence[str]) -> str:
    first, last = min(chosen), max(chosen)
    alike = next((place for place, sign in enumerate(first) if last[place : place + 1] != sign), len(first))
    prefix = first[:alike].rstrip("0123456789")
    if (
        len(chosen) > 1
        and prefix
        and [name for name in names if fnmatch.fnmatchcase(name, prefix + "*")] == list(chosen)
    ):
        return prefix + "*"
    return ",".join(chosen)


def are_one_vs_rest(values: Array) -> bool:
    """Say whether rows (N, K) lie between 0 and 1 without summing to 1, as the sigmoids of one-vs-rest classifiers do."""
    if values.ndim != 2 or values.shape[1] < 2 or not values.size or values.dtype.kind != "f":
        return False
    if not ((values >= 0).all() and (values <= 1).all()):
        return False
    return bool((np.abs(values.sum(axis=1) - 1) > TOLERANCE).any())


def _label_among(names: Sequence[str], others: Sequence[str]) -> str | None:
    if any(stem_and_name(name)[1] in LABELS for name in names):
        return None
    named = [name for name in names if name.lower() in _TRUTHS]
    return named[0] if named else others[0] if len(others) == 1 else None


def _joined(pattern: str | None, label: str | None, values: Array) -> Remedy | None:
    if values.dtype.kind not in "fiu":
        return None
    inside = bool(values.size and (values >= 0).all() and (values <= 1).all())
    sums = values.sum(axis=-1) if values.ndim > 1 else np.ones(1)
    off = float(np.abs(sums - 1).max()) if values.size else 0.0
    if are_one_vs_rest(values):
        return None
    kind = "probs" if (inside and off <= TOLERANCE) or are_percentages(values) else "logits"
    said: dict[str, str | bool] = {"columns": pattern} if pattern else {}
    if label:
        said["label"] = label
    said["kind"] = kind
    if inside and kind == "probs" and off > PROBABILITY_TOLERANCE:
        said["normalize"] = True
    return Remedy.read(**said)
