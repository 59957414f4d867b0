"""The evidence in a table for the roles of its columns: types, values, and how columns agree with one another."""

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.files import Array, pa
from calibrant.data.formats.cells import SCORED
from calibrant.data.formats.columns import Classes, column_array, is_list, is_number, is_string, is_text
from calibrant.data.formats.kinds import as_probs, is_whole, needs_no_rest, two_columns, within
from calibrant.data.formats.layout import LABELS, TOLERANCE, Layout, stem_and_name
from calibrant.data.formats.roles import PERHAPS, called, is_decision, plain_name, subject_of

_ENOUGH_ROWS = 20  # in which a coin falls on one side throughout in one of a million tables
_EXPECTED_ERRORS = 14.0  # of which a calibrated model makes none in fewer than e^-14 of tables: one in a million
# beyond which scores of the two labels lie on the other side in one of 30,000 tables of a model that knows nothing
_ERRORS_OF_MEANS = 4.0


class Columns:
    """The columns of a table with what they show; each is read once."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.names: list[str] = list(table.column_names)
        self._arrays: dict[str, Array] = {}

    def array(self, name: str) -> Array:
        """Return a column as it is: numbers or text (N,), lists (N, K)."""
        if name not in self._arrays:
            self._arrays[name] = column_array(self.table.column(name), name, Path(), strict=False)
        return self._arrays[name]

    def scores(self, names: Sequence[str]) -> Array:
        """Return columns of numbers, or one of lists or records, as (N, K) without rows that have empty cells.

        Those are refused when they are read. Empty where a column holds no numbers.
        """
        if len(names) == 1 and self.is_nested(names[0]):
            return self._inner(names[0])
        parts = [self.array(name) for name in names]
        if not parts or any(part.dtype.kind not in "fiu" for part in parts):
            return np.empty((0, len(names)))
        values = np.stack(parts, axis=1)
        return values[~np.isnan(values).any(axis=1)] if values.dtype.kind == "f" else values

    def _inner(self, name: str) -> Array:
        kind = self._type(name)
        if pa.types.is_struct(kind):
            flat = self.table.select([name]).flatten()
            numbers = all(is_number(one.type) for one in flat.schema)
            return Columns(flat).scores(flat.column_names) if numbers else np.empty((0, 0))
        values = self.array(name) if is_list(kind) and is_number(kind.value_type) else np.empty((0, 0))
        return values if values.ndim == 2 else np.empty((0, 0))

    def _type(self, name: str) -> Any:
        return self.table.schema.field(name).type

    def is_text(self, name: str) -> bool:
        return is_string(self._type(name))

    def is_number(self, name: str) -> bool:
        return is_number(self._type(name))

    def is_float(self, name: str) -> bool:
        return bool(pa.types.is_floating(self._type(name)) or pa.types.is_decimal(self._type(name)))

    def is_nested(self, name: str) -> bool:
        return bool(pa.types.is_nested(self._type(name)))

    def is_record(self, name: str) -> bool:
        """Say whether a column holds a record of its classes in each row."""
        return bool(pa.types.is_struct(self._type(name)))

    def is_scored(self, name: str) -> bool:
        """Say whether a column held lists of {label, score}, as pipelines of transformers and BigQuery write them."""
        return SCORED.items() <= (self.table.schema.field(name).metadata or {}).items()

    def is_whole(self, name: str) -> bool:
        """Say whether numbers are whole: counts, or labels of a table with gaps, which are decimals."""
        return self.is_number(name) and (not self.is_float(name) or is_whole(self.scores([name])))

    def known(self, name: str | None, most: int | None = None) -> list[Any]:
        """Return the distinct values of a column, if they are two to ``most``; else nothing."""
        if name not in self.names or self.is_nested(name):
            return []
        values = (
            self.table.column(name).unique().drop_null()
        )  # of ids and scores as many as rows, which Python would hold
        return values.to_pylist() if 1 < len(values) <= (len(self.table) if most is None else most) else []

    def varies(self, name: str) -> bool:
        """Say whether a column of numbers has more than one value."""
        values = self.scores([name])
        return bool(values.size and values.min() < values.max())

    @cached_property
    def lists(self) -> list[str]:
        return [name for name in self.names if is_list(self._type(name))]

    def floats(self, layout: Layout) -> list[str]:
        """Return the columns of decimals, or else of percentages, that are not called as labels or keys are."""
        no = {layout.label, *LABELS}
        free = [one for one in self.names if one not in no and not called(one, "truth", "key")]
        floats = [one for one in free if self.is_float(one)]
        return floats or [one for one in free if self.is_number(one) and called(one, "percentage")]

    def label_by_name(self, layout: Layout, used: Sequence[str]) -> str | None:
        """Return the column that the user, or its name, says to hold the labels, beside those that are ``used``; or None."""
        free = [name for name in self.names if name not in used]
        return layout.label or label_among(free, ()) or next((name for name in LABELS if name in free), None)

    def mirrored(self, names: Sequence[str], most: int) -> str | None:
        """Return the one column of at most ``most`` values that another is called a decision on: ``kind`` beside ``predicted_kind``."""
        subjects = {subject_of(name) for name in self.names} - {""}
        if any(stem_and_name(name)[1] in LABELS for name in names):
            return None
        plain = {name: plain_name(name) for name in names if not is_decision(name) and not self.is_nested(name)}
        likely = [name for name, own in plain.items() if {own, own.partition("_")[2]} & subjects]
        likely = [
            name for name in likely if not called(name, "key", "part", "rank") and few(self.array(name), max(most, 20))
        ]
        first = [name for name in likely[1:] if not np.array_equal(self.array(name), self.array(likely[0]))]
        return likely[0] if likely and not first else None

    def halves(self, name: str) -> bool:
        """Say whether probabilities are a half or more in every row, as confidences of one of two decisions are."""
        return are_halves(self.scores([name])[:, 0])

    def parted(self, score: str, decision: str) -> bool:
        """Say whether a threshold of a score parts two decisions."""
        values, held = self.scores([score]), self.array(decision)
        return len(held) == len(values) and _one_threshold(codes_of(held)[0], values)


def label_among(names: Sequence[str], others: Sequence[str]) -> str | None:
    """Return the column that seems to hold the true classes: by its name, else the only one among ``others``."""
    found = labels_among(names)
    if found is None:  # it is called as Calibrant calls it
        return None
    return found[0] if found else (others[0] if len(others) == 1 else None)


def labels_among(names: Sequence[str]) -> list[str] | None:
    """Return the columns that are called as true classes, else those that may be; None where one is called ``label``."""
    free = [name for name in names if not is_decision(name) and not called(name, "rank")]
    true = [name for name in free if called(name, "truth")]
    if any(stem_and_name(name)[1] in LABELS and name not in true for name in free):
        return None
    plain = {plain_name(name): name for name in reversed(free)}
    return true or [plain[one] for one in PERHAPS if one in plain]


def same_classes(first: Array, second: Array) -> bool:
    """Say whether two columns (N,) part the rows alike, as classes and their numbers do."""
    (one, distinct), (other, more) = codes_of(first), codes_of(second)
    return len(distinct) == len(more) == len(np.unique(one * len(more) + other))


def few(values: Array, most: int) -> bool:
    """Say whether a column can hold classes: text, whole numbers or booleans of two to ``most`` values."""
    if (values.dtype.kind not in "iubOUS" and not is_whole(values)) or values.ndim != 1:
        return False
    return len(texts_in(values[:1000])) <= most and len(texts_in(values)) in range(2, most + 1)


def codes_of(values: Array) -> tuple[Array, list[Any]]:
    """Return the place (N,) of each cell among the distinct cells of a column, and these.

    Text is not made of them: as an array of it, a cell of 100 MB would take as much in every row.
    """
    if values.dtype.kind in "biuf":
        distinct, code = np.unique(values, return_inverse=True)
        return code, distinct.tolist()
    cells = values.tolist()
    if any(isinstance(one, dict | list) for one in cells):
        cells = list(map(str, cells))
    table: dict[Any, int] = {}
    return np.fromiter((table.setdefault(one, len(table)) for one in cells), np.int64, len(cells)), list(table)


def texts_in(values: Array) -> set[str]:
    """Return the distinct cells of a column as text, without empty ones."""
    return {str(one) for one in codes_of(values)[1] if one is not None}


def are_halves(values: Array) -> bool:
    """Say whether probabilities (N,) are a half or more in every row, as confidences of one of two decisions are."""
    return len(values) >= _ENOUGH_ROWS and within(values) and bool(values.min() >= 0.5 - TOLERANCE)


def is_larger_side(confidences: Array, event: Array) -> bool:
    """Say whether confidences are in every row the larger of an event's probability and of its complement."""
    if len(event) != len(confidences) or not within(event):
        return False
    return bool(np.allclose(np.maximum(event, 1 - event), confidences, rtol=0, atol=TOLERANCE))


def explained(values: Array, scores: Array) -> float:
    """Return the part of the scores' variance that lies between the values of a column; 0 of a decision, or if rows were left out."""
    if len(values) != len(scores) or decides(values, scores):
        return 0.0
    each = scores.reshape(len(scores), -1).astype(np.float64)
    table = each - each.mean(axis=0)
    code, _ = codes_of(values)
    count = np.bincount(code)
    gaps = np.stack([np.bincount(code, column) for column in table.T]) / count
    return float((count * gaps**2).sum() / max(float((table**2).sum()), 1e-300))


def decides(values: Array, scores: Array) -> bool:
    """Say whether a column (N,) has one value for each class of the largest score (N, K), or on each side of a threshold of (N,)."""
    each = scores.reshape(len(scores), -1)
    if values.shape != scores.shape[:1] or not len(values):
        return False
    code, distinct = codes_of(values)
    if each.shape[1] == 1:
        return len(values) >= _ENOUGH_ROWS and _one_threshold(code, each)
    best, tied = each.argmax(axis=1), (each == each.max(axis=1, keepdims=True)).sum(axis=1) > 1
    pairs = np.unique(best[~tied] * len(distinct) + code[~tied])
    return len(pairs) == len(np.unique(pairs // len(distinct))) > 1


def agrees(values: Array, decisions: Array) -> bool:
    """Say whether a column (N,) is what was decided in more rows than chance explains, and not in all, as true classes are."""
    code, distinct = codes_of(np.concatenate([values, decisions]))
    own, other = np.split(code, 2)
    parts = (np.bincount(one, minlength=len(distinct)) / len(own) for one in (own, other))
    chance = float(np.prod([*parts], axis=0).sum())
    share = float((own == other).mean())
    return share < 1 and share - chance > _ERRORS_OF_MEANS * np.sqrt(chance * (1 - chance) / len(own))


def _one_threshold(code: Array, scores: Array) -> bool:
    """Say whether codes (N,) are 0 and 1, and the scores (N, 1) of one are none below those of the other, some above."""
    if code.max(initial=0) != 1:
        return False
    sides = sorted((scores[code == one].min(), scores[code == one].max()) for one in (0, 1))
    return bool(sides[0][1] <= sides[1][0] and sides[0][0] < sides[1][1])


def speaks_of_smaller(labels: Array, scores: Array) -> Any:
    """Return the smaller of two numbers as labels (N,), where its rows have the larger scores (N,); else None."""
    known = sorted({*labels.tolist()}) if labels.dtype.kind in "biuf" and labels.shape == scores.shape else []
    if len(known) != 2:
        return None
    low, high = (scores[labels == one].astype(np.float64) for one in known)
    error = np.sqrt(low.var() / len(low) + high.var() / len(high))
    return known[0] if low.mean() - high.mean() > _ERRORS_OF_MEANS * error else None


def never_missed(scores: Array, kind: str | None) -> bool:
    """Say whether a model of these scores (N, K) would miss some labels: a column of their largest is then a decision, and no label."""
    kind = "logits" if kind == "logits" else "probs"
    probs = as_probs(kind, two_columns(scores, kind))
    return float((1 - probs.max(axis=1) / probs.sum(axis=1)).sum()) > _EXPECTED_ERRORS


def is_measure(values: Array, classes: Classes) -> bool:
    """Say whether a column called as labels may be holds no class: fractions, a number of its own in every row, one text in all."""
    if is_text(values) and len(values) >= _ENOUGH_ROWS and len(set(values.tolist())) == 1:
        return not any(values[0] in one for one in classes.spellings)
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not len(values):
        return False
    known = np.unique(values[np.isfinite(values)])
    counts = len(known) == len(values) > max(len(classes.numbers), *map(len, classes.spellings), 2)
    return bool(counts or (known != np.trunc(known)).any())


def classes_alone(kind: str | None, chosen: Sequence[str], values: Array) -> list[str]:
    """Return the columns of scores (N, K) without one or two that sum up the others (``prob_max``, ``prob_margin``).

    Of probabilities these are the ones without which rows sum to 1; of logits those called so, or the largest in every row.
    """
    width = values.shape[1] if values.ndim == 2 else 0
    if width != len(chosen):
        return list(chosen)
    kept = list(range(width))
    if kind == "logits":
        best, tied = values.max(axis=1, keepdims=True), len(values) > 1 and width > 2
        # a class that is the largest in every row, and never alone, repeats the others
        twice = tied and bool(((values == best).sum(axis=1) > 1).all())
        largest = (values == best).all(axis=0) if twice else np.zeros(width, dtype=bool)
        kept = [at for at in kept if not called(chosen[at], "summary") and not largest[at]]
    elif 2 < width < 30:
        inside = [at for at in kept if within(values[:, at])]
        sets = [gone for count in (0, 1, 2) for gone in combinations(inside, count)]
        few_rows = values[:256]  # a set that these rows refuse, as nearly all are, is not tried on all rows
        left = ([at for at in inside if at not in gone] for gone in sets if len(inside) - len(gone) > 1)
        sums = [one for one in left if all(needs_no_rest(rows[:, one]) for rows in (few_rows, values))]
        kept = sums[0] if len(sums) == 1 else kept
    return [chosen[at] for at in kept] if len(kept) > 1 else list(chosen)


def models_apart(held: Columns, names: Sequence[str], kind: str | None) -> list[list[str]]:
    """Return the columns of several models in one table: those called as others but for one ending, or that sum to 1 a group.

    Args:
        held: The table.
        names: Columns of scores, in the order of the file.
        kind: "logits", which have no sums, or anything else.

    Returns:
        At least two groups; none where the columns are of one model, as far as these tell.
    """
    known = {*names}
    for ending in (other.removeprefix(names[0]) for other in names[1:] if other.startswith(names[0])):
        first = [one for one in names if one + ending in known]
        second = [one + ending for one in first]
        apart = len(first) > 1 and len(first) + len(second) == len(names) and known.issubset({*first, *second})
        if apart and (kind == "logits" or all(needs_no_rest(held.scores(one)) for one in (first, second))):
            return [first, second]
    values = held.scores(names)
    if kind == "logits" or values.ndim != 2 or values.shape[1] != len(names):
        return []
    for size in (size for size in range(2, len(names) // 2 + 1) if len(names) % size == 0):
        starts = range(0, len(names), size)
        # groups that the first rows refuse, as nearly all are, are not tried on all rows
        if all(needs_no_rest(rows[:, at : at + size]) for rows in (values[:256], values) for at in starts):
            return [list(names[at : at + size]) for at in starts]
    return []
