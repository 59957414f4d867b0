"""How a file is read whose names are not Calibrant's own: proposed as the layout that a person would state.

A proposal is certain where names, or a producer's mark, say what the numbers are *and* the values agree; it is then followed,
and said. Values alone only decide which command a refusal prints.
"""

import fnmatch
import glob
import json
import re
import shlex
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.files import Array
from calibrant._core.paths import shown
from calibrant.data.formats.cells import CLASS_FIELDS, SCORE_FIELDS, SCORED, scored_lists
from calibrant.data.formats.columns import (
    ORDER_OF_NAMES,
    Classes,
    by_number,
    column_array,
    is_list,
    is_number,
    is_string,
    is_text,
    match_columns,
    spread_columns,
)
from calibrant.data.formats.join import is_key, is_model
from calibrant.data.formats.kinds import agree, kind_of_values, needs_no_rest, needs_sums, of_one_event, within
from calibrant.data.formats.labels import (
    RIGHT,
    can_label,
    from_zero,
    in_order,
    is_decided,
    is_single,
    likely_positive,
    plain_name,
    spelled,
    subject_of,
)
from calibrant.data.formats.layout import KINDS, LABELS, REST, SCORES, SPLITS, TOLERANCE, Layout, stem_and_name
from calibrant.errors import FileFormatError, InputError, Remedy

_LOGITS = "logits?|raw_?formula_?val|log_?prob(?:s|a|abilit(?:y|ies))?"  # the second is CatBoost's; log p is a logit
_PROBS = r"p|pr|probs?|proba|probabilit(?:y|ies)|posterior|conf(?:idence)?|softmax|\.pred"  # the last is tidymodels'
# "prob_cat", "P(1)", "pred_proba_cat", "Probability:Class=cat", "p0": words before, the mark of the kind, and the class
_MARKED = re.compile(
    rf"(?P<head>(?:(?:.*[_.\s:-])??|\(')(?:(?P<logits>{_LOGITS})|(?:{_PROBS})))(?:[_.\s:(\[=]+|', '|-(?!\d)|(?=\d))(?P<part>.+)",
    re.I,
)
_ALONE = re.compile(r"(?:.*[_.\s])?(?:prob|proba|probability|probs|probabilities|softmax)|p", re.I)
# The names below are those of ``plain_name``.
_RANKED = re.compile(r"top_?\d+_.*")  # of the first few classes, which are no true ones
_CONFIDENCE = re.compile(r"conf(idence)?|(max|top_?1|top|pred(icted|ictions?)?)_?(prob(ability)?|conf(idence)?|score)")
_LISTED = (  # lists of classes beside lists of their scores
    re.compile(r"(top(_?k|_?\d+)?_)?(classes|labels|names|indices|ids)"),
    re.compile(rf"(top(_?k|_?\d+)?_)?(probs|probabilities|scores|confidences|{_LOGITS})", re.I),
)
_PERCENT = re.compile(r"%|(?<![a-z])(pct|percent|percentage)(?![a-z])", re.I)
# Of a table with a row for each class.
_CLASS_COLUMN = {"class", "class_name", "category", "class_id", "level", "candidate", "option"}
_MELTED = ("variable", "value")  # the names that pandas and Polars give where none are chosen
# What the true class is called, and names that are also given to other things, in the order of how often that is so.
_TRUE = re.compile(
    r"y_(true|test)|truth|ground_truth|gold|actual|observed|obs|_from_|"
    r"(true|actual|observed|gold|gt|real|ground_truth|expected|reference)_(y|labels?|class(es)?|category|target)"
)
_NO_LABEL = re.compile(r"(.*_)?(fold|split|cluster|groups?|decision|seed|weights?)|feature:.*")
_SUMMARIES = {"max", "min", "margin", "gap", "entropy", "mean", "std", "sum", "top", "top1"}
_BOUNDS = {"lower", "upper", "low", "high", "lcl", "ucl", "se", "sd", "std", "stderr", "error"}
_ENOUGH_ROWS = 20  # in which a coin falls on one side throughout in one of a million tables
_EXPECTED_ERRORS = 14.0  # of which a calibrated model makes none in fewer than e^-14 of tables: one in a million
_ERRORS_OF_MEANS = 4.0  # beyond which scores of the two labels lie on the other side in one of 30,000 tables of a model that knows nothing
ONE_HOT = "the column of 1"  # of the true classes, a column each: what a reading says of them
_PERHAPS = (*LABELS, "target", "targets", "true", "y", "label_id", "answer", "accept", "class", "y_train", "y_val")


@dataclass(frozen=True)
class Proposal:
    """A layout, the table that it reads, whether it is certain, and the words that say it."""

    layout: Layout
    table: Any
    certain: bool = True
    unsure: str = ""  # what a person decides before the command is run
    decided: str = ""  # what is said of decisions and their confidences, which have no columns of scores
    beside: tuple[tuple[str, ...], ...] = ()  # other groups of columns that could be the scores

    @property
    def words(self) -> str:
        """What a proposal that is followed says; nothing of columns that are called as Calibrant's own."""
        if not self.layout.columns:
            return self.decided
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
        decided = len(self.layout.columns) == 1 and any(map(is_decided, self.table.column_names))
        unsure = self.unsure or (pairs if decided else "")
        texts, known = self._unmatched(), self.layout.columns
        if self.layout.label in self.table.column_names and len(known) > 1:
            label = column_array(self.table.column(self.layout.label), "", Path(), strict=False)
            if numbered := from_zero(label, Classes.of(known).numbers, **said):
                return numbered.after(unsure + numbered.before)
        if not texts:
            if other := self.other_side():
                said["positive"] = other
                unsure += f"if {known[0]} speaks of {other!r}, "
            return Remedy.read(**said).after(unsure)
        if len(known) > 1:
            held = column_array(self.table.column(self.layout.label), "", Path(), strict=False)
            if likely := in_order(held, _values(self.table, known), **said):
                return likely.after(unsure + likely.before)
            order = f"write {', '.join(texts[:4])}{' …' if texts[4:] else ''} in the order of the columns, one a line, into names.txt and "
            found = Remedy.read(**said, class_names="names.txt").after(unsure + order)
            return replace(found, python=found.python.replace("'names.txt'", repr(texts)))
        if len(texts) != 2:
            return Remedy.read(**said).after(unsure)
        said["positive"] = likely_positive(self.table.column(self.layout.label).to_numpy(), _values(self.table, known))
        return Remedy.read(**said).after(f"{unsure}if {known[0]} speaks of {said['positive']!r}, ")

    def other_side(self) -> str:
        """Return the smaller of two numbers as labels, where its rows have the larger scores, one a row: prob_no_default beside default."""
        layout, table = self.layout, self.table
        if len(layout.columns) != 1 or layout.positive or not {layout.label, *layout.columns} <= {*table.column_names}:
            return ""
        name = layout.columns[0]
        labels = column_array(table.column(layout.label), "", Path(), strict=False)
        scores = np.empty(0) if _nested(table, name) else _values(table, [name])[:, 0]
        known = sorted({*labels.tolist()}) if labels.dtype.kind in "biuf" and labels.shape == scores.shape else []
        if len(known) != 2:
            return ""
        low, high = (scores[labels == one].astype(np.float64) for one in known)
        error = np.sqrt(low.var() / len(low) + high.var() / len(high))
        return spelled(known[0]) if low.mean() - high.mean() > _ERRORS_OF_MEANS * error else ""

    def _unmatched(self) -> list[str]:
        """Return the labels that are text and that neither the columns' names nor the layout say the classes of."""
        layout, table, label = self.layout, self.table, self.layout.label
        said = layout.positive or layout.class_names or layout.labels or not layout.columns
        if said or label is None or not {label, *layout.columns} <= set(table.column_names):
            return []
        values = column_array(table.column(label), label, Path(), strict=False)
        one = len(layout.columns) == 1 and _nested(table, layout.columns[0])
        texts = sorted(set(values.tolist())) if is_text(values) and not one else []
        return [] if len(texts) > max(len(layout.columns), 2) or Classes.of(layout.columns).spelling(texts) else texts


def propose(table: Any, layout: Layout) -> Proposal | None:
    """Return how a table of other names is read, or None where its names are Calibrant's own, or hold no scores.

    Args:
        table: A ``pyarrow.Table``, with cells as ``plain_cells`` returns them.
        layout: What the user says; what it leaves open is proposed.
    """
    if layout.columns:
        return _with_label(Proposal(layout, table)) if layout.label is None else None
    # in the order of how much they prove, and the first that answers wins: values alone (``_unsaid``) speak last
    readers = (_own, _pairs, _unsaid) if layout.kind else (_listed, _own, _long, _marked, _pairs, _event, _unsaid)
    found = (reader(table, layout) for reader in readers)
    return next((_with_label(one) for one in found if one is not None), None)


def _own(table: Any, layout: Layout) -> Proposal | None:
    """Return the reading of a table whose names are Calibrant's own: ``logits``, ``probs_0`` …."""
    names = list(table.column_names)
    spread = spread_columns(names)
    several = sum(_MARKED.fullmatch(name) is not None for name in names) > 1
    few = several and all(len(group) == 1 for group in spread.values())  # one of many columns that are marked
    called = [name for name in names if stem_and_name(name)[1] in KINDS and not _records(table, name)]
    # several columns of one number each are splits, or the classes of which each says the kind: choiceA_probs
    classes = len(called) > 1 and not any(_nested(table, one) or _is_string(table, one) for one in called)
    own = called and (
        not classes or any(stem_and_name(one)[0].strip("_").casefold() in {"", *SPLITS} for one in called)
    )
    return Proposal(layout, table) if own or (spread and not few) else None


def refuse_log(table: Any, layout: Layout, path: Path) -> None:
    """Refuse a language model's log with the command that makes predictions of it.

    Raises:
        FileFormatError: If the table's columns are those of such a log.
    """
    names = set(table.column_names)
    if {"doc_id", "arguments"} <= names and names & {"resps", "filtered_resps"}:
        source, more = "lm-eval", ""
    elif {"custom_id", "response"} <= names or ("choices" in names and "probs" not in names and not _options(table)):
        column = table.column("response" if "response" in names else "choices")
        answers = sorted({text.strip() for text in _answers(column.slice(0, 256).to_pylist())})
        source, more = "openai", f" --options {shlex.quote(','.join(answers))}" if 1 < len(answers) <= 12 else ""
        more += "" if layout.labels is None else f" --labels {shlex.quote(str(layout.labels))}"
    elif {"eval", "samples"} <= names:
        samples = json.loads(table.column("samples")[0].as_py())
        count = max((len(one.get("choices") or ()) for one in samples), default=0)
        letters = ",".join(string.ascii_uppercase[:count]) if "top_logprobs" in str(samples[:1]) else ""
        source, more = "inspect", f" --options {letters}" if 1 < count <= 26 and letters else ""
    else:
        return
    new = str(path.with_suffix(".npz"))
    command = f"calibrant ingest {shlex.quote(str(path))} {shlex.quote(new)} --from {source}{more}"
    raise FileFormatError(
        "predictions",
        f"a language model's log in {shown(path)}",
        Remedy(f"run: {command}, and read {new}", command=f"run: {command}", instead=(shown(path), new)),
    )


def _options(table: Any) -> bool:
    """Say whether the choices are those of a question, texts, and no answers."""
    kind = table.schema.field("choices").type
    return bool(is_list(kind) and str(kind.value_type) in ("string", "large_string"))


def _answers(found: Any) -> Iterator[str]:
    """Yield the texts of the messages in nested values."""
    if isinstance(found, dict):
        message = found.get("message")
        if isinstance(message, dict) and isinstance(message.get("content"), str):
            yield message["content"]
        found = list(found.values())
    for one in found if isinstance(found, list) else []:
        yield from _answers(one)


def for_arrays(arrays: Mapping[str, Array]) -> Remedy | None:
    """Return the remedy to read kind='logits' where one array can hold the scores, or None."""
    found = candidates(arrays)
    if len(found) != 1:
        return None
    values = arrays[found[0]]
    label = label_among(list(arrays), [name for name in arrays if arrays[name].dtype.kind in "iuU"])
    kind = kind_of_values(values)
    said: dict[str, str | bool] = {} if label is None else {"label": label}
    said |= {"normalize": True} if kind is not None and needs_sums(values, kind) else {}
    return Remedy.read(**said, kind=kind or REST)


def candidates(arrays: Mapping[str, Array]) -> list[str]:
    """Return the arrays that can hold scores: those of floats with a class axis, else those of floats."""
    floats = [
        name
        for name, array in arrays.items()
        if array.dtype.kind == "f" and not _is_truth(name) and plain_name(name) not in _PERHAPS
    ]
    return [name for name in floats if arrays[name].ndim > 1] or floats


def _is_truth(name: str) -> bool:
    return _TRUE.fullmatch(plain_name(name)) is not None


def label_among(names: Sequence[str], others: Sequence[str]) -> str | None:
    """Return the column that seems to hold the true classes: by its name, else the only one among ``others``."""
    free = [name for name in names if not _is_decision(name) and not _RANKED.fullmatch(plain_name(name))]
    if any(stem_and_name(name)[1] in LABELS and not _is_truth(name) for name in free):
        return None  # it is called as Calibrant calls it
    plain = {plain_name(name): name for name in reversed(free)}
    known = [name for name in free if _TRUE.fullmatch(plain_name(name))] + [
        plain[one] for one in _PERHAPS if one in plain
    ]
    return known[0] if known else (others[0] if len(others) == 1 else None)


def unnamed_labels(arrays: Mapping[str, Array], layout: Layout, classes: Classes) -> Remedy | None:
    """Return the arguments that seem to name the labels of scores without any, or None where no column can hold them.

    A column that is called as true classes are goes before text that names classes, and that before booleans and whole
    numbers, which other columns hold as well (a flag, a count); among equals the one of which one score a row tells most. The
    words before the arguments say that it is a guess.
    """
    found: dict[
        str, tuple[str, Array, Array]
    ] = {}  # column without its split → the scores' kind, its values, the scores
    for name, scores in arrays.items():
        stem, kind = stem_and_name(name)
        if kind not in SCORES or scores.ndim > 2 or any(stem + label in arrays for label in LABELS):
            continue
        for column, values in arrays.items():
            own = column.removeprefix(stem)
            if not column.startswith(stem) or _is_other(own):
                continue
            unnamed = kind in KINDS and is_text(values) and (classes.numbers or not classes.spellings)
            matches = can_label(values, scores, arrays.get(f"{stem}pred"), layout, classes)
            if matches or (unnamed and in_order(values, scores) is not None):
                found.setdefault(own, (kind, values, scores))
    # decisions tell nothing, whatever they are called; of their own rows alone they may be all that is there
    named = label_among([name for name in found if _explained(*found[name][1:])] or list(found), ())
    text = [name for name, (_, values, _) in found.items() if is_text(values)]
    likely = [named] if named else sorted(text or list(found), key=lambda name: -_explained(*found[name][1:]))
    if not likely:
        return None
    kind, values, scores = found[likely[0]]
    others = f" and not {' or '.join(likely[1:4])}" if likely[1:] else ""
    said, unsure = {"label": likely[0]}, f"if {likely[0]}{others} holds the labels"
    if is_text(values) and not is_single(scores):
        spelled = classes.spelling({*values.tolist()}, given=layout.class_names)
        if not spelled and (ordered := in_order(values, scores, **said)):
            return ordered.after(f"{unsure} and {ordered.before.removeprefix('if ')}")
    elif kind in KINDS and is_text(values) and layout.positive is None:
        said["positive"] = likely_positive(values, scores)
        unsure += f" and the score is the probability of {said['positive']!r}"
    return Remedy.read(**said).after(f"{unsure}, ")


def _explained(values: Array, scores: Array) -> float:
    """Return the part of the scores' variance that lies between the values of a column; 0 of a decision, or if rows were left out."""
    if len(values) != len(scores) or _decides(values, scores):
        return 0.0
    each = scores.reshape(len(scores), -1).astype(np.float64)
    table = each - each.mean(axis=0)
    _, code, count = np.unique(values.astype(str), return_inverse=True, return_counts=True)
    gaps = np.stack([np.bincount(code, column) for column in table.T]) / count
    return float((count * gaps**2).sum() / max(float((table**2).sum()), 1e-300))


def _decides(values: Array, scores: Array) -> bool:
    """Say whether a column (N,) has one value for each class of the largest score (N, K), or on each side of a threshold of (N,)."""
    each = scores.reshape(len(scores), -1)
    if values.shape != scores.shape[:1] or not len(values):
        return False
    texts = values.astype(str)
    if each.shape[1] == 1:
        return len(values) >= _ENOUGH_ROWS and _one_threshold(texts, each)
    best, tied = each.argmax(axis=1), (each == each.max(axis=1, keepdims=True)).sum(axis=1) > 1
    pairs = {*zip(best[~tied].tolist(), texts[~tied].tolist(), strict=True)}
    return len(pairs) == len({one for one, _ in pairs}) > 1


def _one_threshold(texts: Array, scores: Array) -> bool:
    """Say whether texts (N,) are two, and the scores (N, 1) of one are none below those of the other."""
    sides = sorted((scores[texts == one].min(), scores[texts == one].max()) for one in np.unique(texts)[:3])
    return len(sides) == 2 and bool(sides[0][1] <= sides[1][0])


def _is_other(name: str) -> bool:
    """Say whether a column is called as keys, decisions, folds or weights are, and not as true classes."""
    return _is_decision(name) or is_key(name) or any(mark.fullmatch(plain_name(name)) for mark in (_NO_LABEL, _RANKED))


def _is_decision(name: str) -> bool:
    """Say whether a column is called as decisions are, on something of its own name too: ``predicted_species``."""
    return is_decided(name) or bool(subject_of(name))


def _is_whole(values: Array) -> bool:
    """Say whether decimals are whole numbers: counts, or labels of a table with gaps."""
    return values.dtype.kind == "f" and bool(np.array_equal(values, np.trunc(values)))


def _few_values(values: Array, most: int) -> bool:
    """Say whether a column can hold classes: text, whole numbers or booleans of two to ``most`` values."""
    if values.dtype.kind not in "iubOUS" and not _is_whole(values):
        return False
    return len({str(one) for one in values.tolist() if one is not None}) in range(2, most + 1)


def _floats(table: Any, layout: Layout) -> list[str]:
    """Return the columns of decimal numbers that are not called as labels are."""
    no = {layout.label, *LABELS}
    free = [
        one
        for one in table.schema
        if one.name not in no and not _is_truth(one.name) and not is_key(plain_name(one.name))
    ]
    floats = [one.name for one in free if _is_float(table, one.name)]
    return floats or [one.name for one in free if is_number(one.type) and _PERCENT.search(one.name)]


def _values(table: Any, names: Sequence[str]) -> Array:
    """Return columns of numbers as (N, K) without rows that have empty cells: those are refused when they are read."""
    parts = [column_array(table.column(name), name, Path(), strict=False) for name in names]
    if any(part.dtype.kind not in "fiu" for part in parts):
        return np.empty((0, len(names)))
    values = parts[0] if len(parts) == 1 and parts[0].ndim == 2 else np.stack(parts, axis=1)
    return values[~np.isnan(values).any(axis=1)] if values.dtype.kind == "f" else values


def _classes_alone(kind: str | None, chosen: list[str], values: Array) -> tuple[list[str], Array]:
    """Return the columns without one or two that sum up the others (``prob_max``, ``prob_margin``), and their values.

    Of probabilities these are the ones without which rows sum to 1; of logits those called so, or the largest in every row.
    """
    if kind == "logits":
        best, tied = values.max(axis=1, keepdims=True), len(values) > 1 and values.shape[1] > 2
        # a class that is the largest in every row, and never alone, repeats the others
        twice = tied and bool(((values == best).sum(axis=1) > 1).all())
        largest = (values == best).all(axis=0) if twice else np.zeros(len(chosen), dtype=bool)
        called = [plain_name(name).rpartition("_")[2] in _SUMMARIES for name in chosen]
        kept = [at for at in range(len(chosen)) if not called[at] and not largest[at]]
    else:
        width = values.shape[1] if values.ndim == 2 else 0
        inside = [at for at in range(width) if within(values[:, at])]
        sets = [gone for count in (0, 1, 2) for gone in combinations(inside, count)] if 2 < width < 30 else []
        few = values[:256]  # a set that these rows refuse, as nearly all are, is not tried on all rows
        left = ([at for at in inside if at not in gone] for gone in sets if len(inside) - len(gone) > 1)
        sums = [one for one in left if all(needs_no_rest(rows[:, one]) for rows in (few, values))]
        kept = sums[0] if len(sums) == 1 else list(range(width))
    alone = 1 < len(kept) < len(chosen)
    return ([chosen[at] for at in kept], values[:, kept]) if alone else (chosen, values)


def _suggested(
    table: Any, layout: Layout, chosen: Sequence[str], values: Array, *, others: Sequence[Sequence[str]] = ()
) -> Proposal:
    if layout.kind != "logits":
        chosen, values = _classes_alone("probs", list(chosen), values)
    kind = layout.kind or kind_of_values(values)
    sums = layout.normalize or needs_sums(values, kind)
    percent = values.ndim == 1 and of_one_event(values) and layout.kind != "logits"
    percent = percent and bool(
        _PERCENT.search(chosen[0]) or values.max() > 20
    )  # no logit of one event is, and none below 0
    if percent:
        kind, sums = "probs", True
    made = replace(layout, columns=tuple(chosen), kind=kind or "probs", normalize=sums, one_vs_rest=kind is None)
    unsure, called = "", _PERCENT.search(chosen[0]) is not None
    if others:
        beside = " or ".join(", ".join(one) for one in others)
        unsure = f"if the columns {', '.join(chosen)} are meant and not {beside}, "
    elif called and within(values):
        unsure = "if these are fractions of 1 and no percentages, "
    elif percent and not called:
        unsure = "if these are percentages, "
    elif values.ndim == 1 and _are_halves(values) and layout.positive is None:
        unsure = (
            f"if {chosen[0]}, a half at least in every row, is a class's probability and not a decision's confidence, "
        )
    return Proposal(made, table, certain=False, unsure=unsure, beside=tuple(map(tuple, others)))


def _marked(table: Any, layout: Layout) -> Proposal | None:
    """Return the reading of the one group of columns whose names say their kind, of h2o's, or of one column of lists."""
    families: dict[tuple[str, str], list[str]] = {}
    for name in _floats(table, layout):
        if matched := _MARKED.fullmatch(name):
            key = ("logits" if matched["logits"] else "probs", matched["head"].casefold())
            families.setdefault(key, []).append(name)
    if table.column_names[0] == "predict":  # h2o: the decision, then the probability of every class
        families = families or {("probs", ""): [name for name in _floats(table, layout) if name != "predict"]}
    for name in table.column_names:
        bare = re.sub(r"[_.]?(vector|dict|scores|values)$", "", name, flags=re.I)
        if _nested(table, name) and (
            _ALONE.fullmatch(bare) or _labelled(table, name) or _of_labels(table, layout, name)
        ):
            families[("probs", name)] = [name]
        elif _nested(table, name) and re.fullmatch(f"(?:.*_)?(?:{_LOGITS})", name, re.I):
            families[("logits", name)] = [name]
    families = {key: by_number(names) for key, names in families.items() if len(names) > 1 or _nested(table, names[0])}
    if len(families) != 1:
        return None
    ((kind, _), chosen) = next(iter(families.items()))
    values = _inner(table, chosen[0]) if _nested(table, chosen[0]) else _values(table, chosen)
    alone = chosen
    if kind == "logits" and values.ndim == 2 and values.shape[1] == len(chosen):
        alone = _classes_alone(kind, chosen, values)[0]
    if alone != chosen:
        return _suggested(table, replace(layout, kind=kind), alone, _values(table, alone))
    if agree(kind, values):
        return Proposal(replace(layout, columns=tuple(chosen), kind=kind), table)
    models = _by_labels(table, layout, chosen)
    if len(models) > 1:
        return _suggested(table, layout, models[0], _values(table, models[0]), others=models[1:])
    if kind == "probs" and not _nested(table, chosen[0]):
        return _of_floats(table, layout, chosen)
    return _suggested(table, layout, chosen, values) if values.size else None


def _by_labels(table: Any, layout: Layout, floats: Sequence[str]) -> list[list[str]]:
    """Return the groups of columns that are called as the labels' values are but for what all of a group share.

    So are ``mean_cat, mean_dog`` beside ``std_cat, std_dog``, of which the first alone sum to 1, and the columns of two models,
    which both do. The sums decide where one group has them.
    """
    label = _label_by_name(table, layout, floats)
    text = [name for name in table.column_names if _is_string(table, name)] if label is None else []
    values = [str(one) for one in _known(table, label, len(floats))]
    for name in text:  # not said which: the first that the columns are called after
        known = _known(table, name, len(floats))
        values = values or (known if all(any(one in column for column in floats) for one in known) else [])
    if len(values) < 2:
        return []
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for name in floats:
        for value in values:
            for part in re.finditer(re.escape(value), name):
                groups.setdefault((name[: part.start()], name[part.end() :]), {})[value] = name
    found = [[name for name in floats if name in one.values()] for one in groups.values() if len(one) == len(values)]
    found = [one for one in found if len(one) == len(values) < len(floats)]
    return [one for one in found if needs_no_rest(_values(table, one))] or found[: len(found) == 1]


def _label_by_name(table: Any, layout: Layout, used: Sequence[str]) -> str | None:
    """Return the column that the user, or its name, says to hold the labels, beside those that are ``used``; or None."""
    free = [name for name in table.column_names if name not in used]
    return layout.label or label_among(free, ()) or next((name for name in LABELS if name in free), None)


def _known(table: Any, name: str | None, most: int) -> list[Any]:
    """Return the distinct values of a column, if they are two to ``most``; else nothing."""
    if name is None or name not in table.column_names or _nested(table, name):
        return []
    values = table.column(name).unique().drop_null().to_pylist()
    return values if 1 < len(values) <= most else []


def _is_string(table: Any, name: str) -> bool:
    return is_string(table.schema.field(name).type)


def _is_float(table: Any, name: str) -> bool:
    import pyarrow as pa

    kind = table.schema.field(name).type
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _nested(table: Any, name: str) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(table.schema.field(name).type))


def _records(table: Any, name: str) -> bool:
    """Say whether a column holds a record of its classes in each row."""
    import pyarrow as pa

    return bool(pa.types.is_struct(table.schema.field(name).type))


def _labelled(table: Any, name: str) -> bool:
    """Say whether a column held lists of {label, score}, as pipelines of transformers and BigQuery write them."""
    return SCORED.items() <= (table.schema.field(name).metadata or {}).items()


def _of_labels(table: Any, layout: Layout, name: str) -> bool:
    """Say whether a column holds records of numbers that sum to 1, a field for each value of the labels."""
    if not _records(table, name):
        return False
    fields = [one.name for one in table.schema.field(name).type]
    known = _known(table, _label_by_name(table, layout, (name,)), len(fields))
    return bool(known) and {*map(str, known)} <= {*fields} and needs_no_rest(_inner(table, name))


def _inner(table: Any, name: str) -> Array:
    """Return the values (N, K) of a column of lists or of records."""
    import pyarrow as pa

    column = table.column(name)
    kind = column.type
    if pa.types.is_struct(kind):
        flat = table.select([name]).flatten()
        numbers = all(is_number(one.type) for one in flat.schema)
        return _values(flat, flat.column_names) if numbers else np.empty((0, 0))
    if not is_list(kind) or not is_number(kind.value_type):
        return np.empty((0, 0))
    values = column_array(column, name, Path(), strict=False)
    return values if values.ndim == 2 else np.empty((0, 0))


def _event(table: Any, layout: Layout) -> Proposal | None:
    """Return the reading of the one column that is called a probability, of the event that it names or of class 1."""
    floats = _floats(table, layout)
    chosen = [name for name in floats if _ALONE.fullmatch(name) or _MARKED.fullmatch(name)]
    if len(chosen) != 1 or not within(values := _values(table, chosen)):
        return None
    matched = _MARKED.fullmatch(chosen[0])
    made = replace(layout, columns=(chosen[0],), kind="probs")
    if _are_halves(values):  # as confidences of decisions are: another column is the event's, or none
        events = [name for name in floats if name not in chosen and _is_larger_side(values, _values(table, [name]))]
        return Proposal(replace(made, columns=(events[0],)), table, certain=False) if len(events) == 1 else None
    if matched is None or layout.positive is not None:
        return Proposal(made, table, certain=matched is None)
    for name in [layout.label] if layout.label else table.column_names:  # prob_yes beside labels yes and no
        cells = [] if name in floats else [str(one) for one in table.column(name).drop_null().unique().to_pylist()]
        if len(cells) == 2 and matched["part"].strip(")]") in cells:
            return Proposal(replace(made, positive=matched["part"].strip(")]"), label=name), table)
    return Proposal(made, table, certain=False)


def _are_halves(values: Array) -> bool:
    """Say whether probabilities are a half or more in every row, as confidences of one of two decisions are."""
    return len(values) >= _ENOUGH_ROWS and within(values) and bool(values.min() >= 0.5 - TOLERANCE)


def _is_larger_side(confidences: Array, event: Array) -> bool:
    """Say whether confidences are in every row the larger of an event's probability and of its complement."""
    if len(event) != len(confidences) or not within(event):
        return False
    return bool(np.allclose(np.maximum(event, 1 - event), confidences, rtol=0, atol=TOLERANCE))


def _listed(table: Any, layout: Layout) -> Proposal | None:
    """Return the classes of two columns of lists, beside their scores, as a column each; of the first few the first alone."""
    import pyarrow as pa

    lists = [name for name in table.column_names if is_list(table.schema.field(name).type)]
    inner = [[name for name in lists if mark.fullmatch(plain_name(name))] for mark in _LISTED]
    if any(len(names) != 1 for names in inner):
        table, inner = _first_few(table, layout) or (table, _ranks(table, layout))
    if not inner:
        return None
    classes, scores = (
        list(zip(*(table.column(one).to_pylist() for one in names), strict=True))
        if len(names) > 1
        else table.column(names[0]).to_pylist()
        for names in inner
    )
    if any(not row or not other or len(row) != len(other) for row, other in zip(classes, scores, strict=True)):
        return None
    rest = table.drop_columns([name for names in inner for name in names])
    known = sorted({str(one) for row in classes for one in row})
    if 1 < len(known) == len(classes[0]) and all(len(set(row)) == len(row) == len(known) for row in classes):
        held = [dict(zip(map(str, row), other, strict=True)) for row, other in zip(classes, scores, strict=True)]
        return _wide(
            rest,
            layout,
            inner[1][0].rstrip("0123456789_"),
            known,
            np.array([[row[name] for name in known] for row in held]),
        )
    best = [max(range(len(row)), key=row.__getitem__) for row in scores]
    for name, rows in zip(("pred", "conf"), (classes, scores), strict=True):
        rest = rest.append_column(name, pa.array([row[at] for row, at in zip(rows, best, strict=True)]))
    return _pairs(rest, layout)


def _first_few(table: Any, layout: Layout) -> tuple[Any, list[list[str]]] | None:
    """Return the table with the one column of lists of {label, score}, of some classes each, as two of lists, beside named labels."""
    import pyarrow as pa

    found = {name: lists for name in table.column_names if (lists := scored_lists(table.column(name))) is not None}
    if len(found) != 1 or (layout.labels is None and _label_by_name(table, layout, [*found]) is None):
        return None
    ((name, lists),) = found.items()
    table = table.drop_columns([name])
    for end, cells in zip(("labels", "scores"), lists, strict=True):
        table = table.append_column(
            f"{name}.{end}", pa.array([[one if end == "scores" else str(one) for one in row] for row in cells])
        )
    return table, [[f"{name}.labels"], [f"{name}.scores"]]


def _ranks(table: Any, layout: Layout) -> list[list[str]]:
    """Return the columns of the classes of each row, and of their scores, where these are ranked: label_1, score_1, label_2 …"""
    floats = set(_floats(table, layout))
    groups: dict[tuple[bool, str, tuple[str, str]], dict[int, str]] = {}
    for name in table.column_names:
        if matched := re.fullmatch(r"(\D*)(\d+)(\D*)", name):
            key = (name in floats, str(table.schema.field(name).type), (matched[1], matched[3]))
            groups.setdefault(key, {})[int(matched[2])] = name
    found: list[list[list[str]]] = []
    for classes in (one for key, one in groups.items() if not key[0] and key[1] != "bool"):
        for scores in (one for key, one in groups.items() if key[0] and one.keys() == classes.keys() and len(one) > 1):
            order = sorted(classes)
            values = _values(table, [scores[at] for at in order])
            parts = [table.column(classes[at]).to_pylist() for at in order]
            falling = len(values) == len(table) and within(values) and bool((np.diff(values, axis=1) <= 0).all())
            whole = falling and bool((values.sum(axis=1) <= 1 + TOLERANCE).all())
            if whole and all(len(set(row)) == len(row) for row in zip(*parts, strict=True)):
                found.append([[classes[at] for at in order], [scores[at] for at in order]])
    return found[0] if len(found) == 1 else []


def _wide(table: Any, layout: Layout, name: str, classes: Sequence[str], values: Array) -> Proposal | None:
    """Return a table with scores (N, K) as a column each of the classes, or None where they are not what their name says.

    Rounded probabilities are such where the user says ``normalize``, which is proposed.
    """
    import pyarrow as pa

    kind = "logits" if re.fullmatch(f"(?:.*_)?(?:{_LOGITS})", name, re.I) else "probs"
    if not agree(kind, values):
        if kind == "logits" or not needs_no_rest(values):
            return None
        if not layout.normalize:
            own = None if layout.label == ONE_HOT else layout.label  # which is found again
            return Proposal(replace(layout, normalize=True, label=own), table, certain=False)
    chosen = [f"{name}_{one}" for one in classes]
    for at, column in enumerate(chosen):
        table = table.append_column(column, pa.array(values[:, at]))
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **ORDER_OF_NAMES})
    return Proposal(replace(layout, columns=tuple(chosen), kind=kind), table)


def _pairs(table: Any, layout: Layout) -> Proposal | None:
    """Return decisions with their confidences, of the first class of several too, as conf, pred and label; or None.

    Where they are said to be right or not, that is the label of the decision 1.
    """
    import pyarrow.compute

    columns = list(table.column_names)
    conf = [
        name
        for name in columns
        if is_number(table.schema.field(name).type)
        and any(_CONFIDENCE.fullmatch(plain_name(one)) for one in (name, name.rpartition(".")[2]))
    ]
    pred = [name for name in columns if is_decided(name) and name not in conf and not is_key(plain_name(name))]
    pred = [name for name in pred if not _is_float(table, name) or _is_whole(_values(table, [name]))]
    if len(conf) == 1 and not pred and (judged := _judged(table, layout, conf[0])):
        return judged
    if not conf and not pred:
        decided = {name: score for name in columns if (score := _scored_class(table, name))}
        pred, conf = list(decided), list(decided.values())
    free = [name for name in columns if name not in (*pred, *conf)]
    known = _label_by_name(table, layout, (*pred, *conf)) or _mirrored(table, free, layout)
    if not conf and known in columns and len(pred) == 1:
        # one number beside decisions among three classes or more is the decision's confidence, whatever it is called
        several = pyarrow.compute.count_distinct(table.column(known)).as_py() > 2
        floats = _floats(table, layout)
        conf = floats if several or (len(floats) == 1 and _of_decisions(table, floats[0], pred[0])) else []
    if (
        len(conf) != 1
        or len(pred) != 1
        or not within(_values(table, conf))
        or _of_event(table, conf[0], pred[0], known)
    ):
        return None
    if known is None and layout.labels is None:
        held = {name: column_array(table.column(name), name, Path(), strict=False) for name in columns}
        own = (held[conf[0]], held[pred[0]], layout, Classes())
        free = [name for name in columns if name not in (conf[0], pred[0]) and not _is_other(name)]
        likely = [name for name in free if is_text(held[name]) and can_label(held[name], *own)]
        return Proposal(replace(layout, label=likely[0]), table, certain=False) if len(likely) == 1 else None
    names = {conf[0]: "conf", pred[0]: "pred", **({} if known is None else {known: "label"})}
    table = table.select([name for name in columns if name in names or name not in names.values()])
    renamed = table.rename_columns([names.get(name, name) for name in table.column_names])
    foreign = [
        old for old, new in names.items() if old not in (new, new + "s", "confidence", "predicted", "prediction")
    ]
    said = f"read {conf[0]} as the confidence of {pred[0]}{'' if known is None else f', {known} as the label'}"
    return Proposal(replace(layout, label=None, kind=None), renamed, decided=said if foreign else "")


def _judged(table: Any, layout: Layout, conf: str) -> Proposal | None:
    """Return confidences of decisions of which a column says whether they are right: the decision 1 each, which is true or not."""
    import pyarrow as pa
    import pyarrow.compute

    right = [name for name in table.column_names if RIGHT.fullmatch(plain_name(name)) and _is_flag(table, name)]
    if len(right) != 1 or not within(_values(table, [conf])):
        return None
    found = {
        "conf": table.column(conf),
        "pred": pa.array(np.ones(len(table), dtype=np.int64)),
        "label": pyarrow.compute.cast(table.column(right[0]), pa.int64()),
    }
    gone = {*found, "labels", conf, right[0]}
    kept = {name: table.column(name) for name in table.column_names if name not in gone}
    said = f"read {conf} as the confidence of decisions, {right[0]} as whether they are right"
    return Proposal(replace(layout, label=None, kind=None), pa.table(kept | found), decided=said)


def _is_flag(table: Any, name: str) -> bool:
    return not table.column(name).null_count and set(_known(table, name, 2)) == {0, 1}


def _of_event(table: Any, score: str, pred: str, truth: str | None) -> bool:
    """Say whether a score speaks of one of two decisions: a threshold parts them, and it lies below a half in some row.

    Of a decision's own confidence neither is so: that of two classes is a half at least, whichever is decided.
    """
    known = {*_known(table, pred, len(table)), *_known(table, truth, len(table))}
    return len(known) == 2 and _values(table, [score]).min() < 0.5 - TOLERANCE and _parts(table, score, pred)


def _of_decisions(table: Any, score: str, pred: str) -> bool:
    """Say whether scores can only be the confidences of one of two decisions: a half at least, for both of them alike."""
    values = _values(table, [score])
    halves = bool(values.size) and within(values) and bool(values.min() >= 0.5 - TOLERANCE)
    return halves and len(_known(table, pred, 2)) == 2 and not _parts(table, score, pred)


def _parts(table: Any, score: str, pred: str) -> bool:
    """Say whether a threshold of a score parts two decisions."""
    held, values = column_array(table.column(pred), pred, Path(), strict=False), _values(table, [score])
    return len(held) == len(values) and _one_threshold(held.astype(str), values)


def _scored_class(table: Any, name: str) -> str:
    """Return the score of a class: ``answer.score`` of ``answer.label``, or of ``answer`` beside it; else nothing.

    Not of one of two values beside it, as ``churn.prob`` may be the probability of an event that ``churn`` says.
    """
    head, dot, end = name.rpartition(".")
    inner = dot and plain_name(end) in CLASS_FIELDS
    if not dot and plain_name(name) in CLASS_FIELDS:
        # label and score beside gold, as a pipeline's answers are laid beside truths
        true = [one for one in table.column_names if _is_truth(one) and one != name and not _nested(table, one)]
        known = set(_known(table, true[0], len(table))) if len(true) == 1 else set()
        scores = [one for one in table.column_names if plain_name(one) in SCORE_FIELDS and _is_float(table, one)]
        alike = known and known >= set(_known(table, name, len(table))) != set()
        return scores[0] if alike and len(scores) == 1 and _values(table, scores).min() >= 1 / len(known) else ""
    if not inner and (not _is_string(table, name) or len(table.column(name).unique()) < 3):
        return ""
    return next(
        (one for part in SCORE_FIELDS if (one := f"{head if inner else name}.{part}") in table.column_names), ""
    )


def _long(table: Any, layout: Layout) -> Proposal | None:
    """Return a table with a row for each class of each key as one row a key; None where it is no such table."""
    import pyarrow as pa

    names = {name.strip().casefold(): name for name in table.column_names}
    scores = {"score", "confidence"}
    probs = [name for name in _floats(table, layout) if _ALONE.fullmatch(name) or name.casefold() in scores]
    held = [names[name] for name in names if name in _CLASS_COLUMN]
    text = [field.name for field in table.schema if pa.types.is_string(field.type) and field.name not in held]
    keys = [name for name in table.column_names if is_key(name) and not is_model(name) and name not in held]
    keys = keys or (text if len(text) == 1 else [])
    if len(probs) == 1 and not held and keys:  # a column that has every class once for each key
        pairs = {name: len(table.group_by([keys[0], name]).aggregate([])) for name in text if name != keys[0]}
        held = [name for name, count in pairs.items() if count == len(table) and not _is_decision(name)]
    if (
        not probs and not held and set(_MELTED) <= names.keys()
    ):  # prob_cat, prob_dog … in rows, or the classes of a column of truths
        parts = [str(one) for one in table.column(names[_MELTED[0]]).unique().to_pylist()]
        said = [_MARKED.fullmatch(one) for one in parts]
        true = layout.label or label_among(table.column_names, ())
        if all(one is not None and not one["logits"] for one in said) or set(_known(table, true, len(parts))) == {
            *parts
        }:
            held, probs = [names[_MELTED[0]]], [names[_MELTED[1]]]
    if len(probs) != 1 or len(held) != 1 or not keys:
        return None
    models = [name for name in table.column_names if is_model(name) and name not in (keys[0], held[0])][:1]
    key, column, *model = (
        np.asarray(table.column(name).to_pylist(), dtype=object).astype(str) for name in (keys[0], held[0], *models)
    )
    classes, code = np.unique(column, return_inverse=True)
    if model and len(np.unique(key)) * len(classes) != len(key):  # of several models, each with a row for each class
        key = np.char.add(np.char.add(model[0], "\0"), key)
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    if len(first) == len(key) or len(first) * len(classes) != len(key):
        return None
    place = np.argsort(np.argsort(first))[row]  # keys in the order of their first row
    values = np.full((len(first), len(classes)), np.nan)
    values[place, code] = column_array(table.column(probs[0]), probs[0], Path(), strict=False)
    others = [name for name in table.column_names if name not in (probs[0], held[0])]
    rest = table.select(others).take(np.sort(first))
    for name in others if layout.label is None else [one for one in others if one == layout.label]:
        flags = np.asarray(table.column(name).to_pylist(), dtype=object)
        # a flag of the true class: a 1 in one of each key's rows
        if np.isin(flags, (0, 1)).all() and (np.bincount(place, flags.astype(float)) == 1).all():
            true = column[flags.astype(bool)][np.argsort(place[flags.astype(bool)])]
            rest = rest.drop_columns([name]).append_column(ONE_HOT, pa.array(true))
            layout = replace(layout, label=ONE_HOT)
            break
    parts = [matched["part"] for one in classes.tolist() if (matched := _MARKED.fullmatch(one))]
    spelled = parts if held[0].casefold() == _MELTED[0] and len(set(parts)) == len(classes) else classes.tolist()
    return _wide(rest, layout, probs[0], spelled, values)


def _unsaid(table: Any, layout: Layout) -> Proposal | None:
    """Return the reading that values suggest of columns whose names do not say what they hold."""
    import pyarrow as pa

    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    sums = [name for name in nested if len(nested) > 1 and needs_no_rest(_inner(table, name))]
    nested = sums or nested
    # A column with one value in all rows, such as a threshold, holds no scores.
    floats = [name for name in _floats(table, layout) if len(table.column(name).unique()) > 1 or len(table) == 1]
    floats = [name for name in floats if not _is_whole(_values(table, [name]))] or floats
    if families := _by_labels(table, layout, floats):
        return _suggested(table, layout, families[0], _values(table, families[0]), others=families[1:])
    if not floats and len(nested) == 1:
        values = _inner(table, nested[0])
        return (
            _suggested(table, layout, nested, values[:, 0] if values.shape[1] == 1 else values) if values.size else None
        )
    return _of_floats(table, layout, _alike(floats))


def _of_floats(table: Any, layout: Layout, floats: Sequence[str]) -> Proposal | None:
    """Return the reading that values suggest of columns of decimals: as those of all classes, or of one of two each.

    Columns beside labels of two values that sum to 1 in no way and are not called after the labels are probabilities of an event
    each; the one that tells most of the labels goes first, and none that is called a bound or an error of another.
    """
    chosen, values = list(floats), _values(table, floats) if floats else np.empty((0, 0))
    if not values.size:
        return None
    if layout.kind != "logits":
        chosen, values = _classes_alone("probs", chosen, values)
    if len(chosen) == 1 or needs_no_rest(values):
        return _suggested(table, layout, chosen, values[:, 0] if len(chosen) == 1 else values)
    label = _label_by_name(table, layout, floats)
    held = {
        name: column_array(table.column(name), name, Path(), strict=False)
        for name in table.column_names
        if name not in floats and not _nested(table, name) and (name == label if label else not is_key(name))
    }
    held = {name: one for name, one in held.items() if _few_values(one, len(floats))}
    sides = {len(set(map(str, one.tolist()))) for one in held.values()}
    named = any(Classes.of(chosen).spelling(map(str, one.tolist())) for one in held.values())
    if sides != {2} or named or layout.kind == "logits" or several_labels(table):
        return _suggested(table, layout, chosen, values)
    events = [name for name in floats if within(_values(table, [name]))] or list(floats)
    bounds = [name for name in events if plain_name(name).rpartition("_")[2] in _BOUNDS]
    bounded = [one for one in _floats(table, layout) if any(name.startswith(one) and name != one for name in bounds)]
    events = [name for name in events if name not in bounds] or bounded or events
    told = {name: max(_explained(one, _values(table, [name])) for one in held.values()) for name in events}
    first, *others = sorted(events, key=lambda name: -round(told[name], 2))
    return _suggested(table, layout, [first], _values(table, [first])[:, 0], others=[[name] for name in others[:3]])


def _with_label(found: Proposal) -> Proposal:
    """Return a proposal with the column of the true classes, by its name, or for a suggestion by its values."""
    layout = found.layout
    if layout.label is not None or layout.labels is not None or not (found.certain or layout.columns):
        return found
    names = [name for name in found.table.column_names if name not in layout.columns and not _is_measure(found, name)]
    echoes = _echoes(found, [name for name in names if not _nested(found.table, name) and not _is_other(name)])
    names = [name for name in names if name not in echoes]
    others: list[str] = []
    if not found.certain:
        flat = [name for name in names if not _nested(found.table, name) and not _is_other(name)]
        held = {name: column_array(found.table.column(name), name, Path(), strict=False) for name in flat}
        others = [name for name, values in held.items() if _few_values(values, max(len(layout.columns), 2))]
    label = label_among(names, ()) or _mirrored(found.table, names, layout)
    one_hot = _one_hot(found) if label is None and layout.columns else None
    if one_hot is not None and found.certain:
        return replace(found, table=one_hot, layout=replace(layout, label=ONE_HOT))
    if one_hot is not None:  # which is found again
        return found
    label = label or label_among(names, others)
    if label is None and others:  # a guess, which the refusal says
        scores = _values(found.table, layout.columns)
        label, *more = sorted(others, key=lambda name: -_explained(held[name], scores))
        others_said = f" and not {' or '.join(more[:3])}" if more else ""
        found = replace(found, unsure=f"{found.unsure}if {label}{others_said} holds the labels, ")
    label = _named(found, label, names) or label
    if label is None and layout.columns:
        return found
    found = replace(found, layout=replace(layout, label=label))
    return replace(found, certain=found.certain and not (layout.columns and found.other_side()))


def opened(table: Any) -> Any:
    """Return a table with the fields of records as columns: ``cats.toxic``."""
    import pyarrow as pa

    while any(map(pa.types.is_struct, table.schema.types)):
        table = table.flatten()
    return table


def several_labels(table: Any) -> dict[str, str] | None:
    """Return the arguments that read columns of scores and of 1, 0 and -1 as several labels a row; None where names do not pair them."""
    table = opened(table)
    numbers = [one.name for one in table.schema if is_number(one.type) or str(one.type) == "bool"]
    whole = [name for name in numbers if not _is_float(table, name) or _is_whole(_values(table, [name]))]
    floats = [name for name in numbers if name not in {*whole}]
    groups: dict[tuple[str, str], dict[str, str]] = {}  # the patterns of both → label's own part → column of scores
    for name in whole:
        if set(table.column(name).unique().to_pylist()) <= {-1, 0, 1}:
            words = re.findall(r"[^_.\s:-]+|[_.\s:-]+", name)  # toxic, or y_toxic, or toxic_true
            parts = [("*", name), ("".join([*words[:2], "*"]), "".join(words[2:]))]
            for label, own in [*parts, ("".join(["*", *words[-2:]]), "".join(words[:-2]))]:
                for one in floats if own else ():
                    if found := re.fullmatch(rf"(|.*[_.\s:-]){re.escape(own)}(|[_.\s:-].*)", one):
                        groups.setdefault((f"{found[1]}*{found[2]}", label), {})[own] = one
    most = max(map(len, groups.values()), default=0)
    likely = [patterns for patterns, pairs in groups.items() if len(pairs) == most > 1]
    if not likely:
        return None
    columns, label = likely[0]
    chosen = list(groups[columns, label].values())
    if sorted(fnmatch.filter(table.column_names, columns)) != sorted(chosen):
        return None
    return {"columns": columns, "label": label, "kind": "probs" if within(_values(table, chosen)) else "logits"}


def _mirrored(table: Any, names: Sequence[str], layout: Layout) -> str | None:
    """Return the one column of few values that another is called a decision on: ``species`` beside ``predicted_species``."""
    subjects = {subject_of(name) for name in table.column_names} - {""}
    if any(stem_and_name(name)[1] in LABELS for name in names):
        return None
    likely = []
    for name in names:
        plain = plain_name(name)
        if (
            (plain in subjects or plain.partition("_")[2] in subjects)
            and not _is_other(name)
            and not _nested(table, name)
        ):
            values = column_array(table.column(name), name, Path(), strict=False)
            likely += [name] if _few_values(values, max(len(layout.columns), 20)) else []
    return likely[0] if len(likely) == 1 else None


def _named(found: Proposal, label: str | None, names: Sequence[str]) -> str | None:
    """Return the column of text that names the classes which the labels number; None where the file has the classes in an order."""
    import pyarrow as pa

    table, chosen = found.table, found.layout.columns
    label = label or next((name for name in names if stem_and_name(name)[1] in LABELS), None)
    records = len(chosen) == 1 and chosen[0] in table.column_names and _records(table, chosen[0])
    unordered = records or ORDER_OF_NAMES.items() <= (table.schema.metadata or {}).items()
    if label is None or not unordered or not pa.types.is_integer(table.schema.field(label).type):
        return None
    classes = _classes_of(found)
    numbers = table.column(label).to_pylist()
    for name in names:
        if not pa.types.is_string(table.schema.field(name).type) or _is_decision(name):
            continue
        text = table.column(name).to_pylist()
        paired = set(zip(numbers, text, strict=True))
        if None not in text and classes.spelling(text) and len(paired) == len(set(text)) == len(set(numbers)):
            return name
    return None


def shortened(table: Any, said: Set[str | None]) -> Any:
    """Return a table with the fields of records under their own names, where what holds them says nothing of what they are.

    Args:
        table: With ``instance.label`` for the field of a record.
        said: Columns that keep their names: those of the file, and of the user's words.
    """
    names = list(table.column_names)
    ends = [name.rpartition(".")[2] for name in names]
    often = Counter(ends)
    # the class of a record that holds scores as well is a decision
    scored = {name.rpartition(".")[0] for name in names if _nested(table, name) or _is_float(table, name)}

    def own(name: str, end: str) -> bool:
        head = name.rpartition(".")[0]
        if head in scored and (plain_name(end) in _PERHAPS or _is_truth(end)):
            return False
        if end in SCORE_FIELDS and any(f"{head}.{one}" in names for one in CLASS_FIELDS):
            return False
        heads = [plain_name(one) for one in name.split(".")[:-1]]
        kept = any(
            _ALONE.fullmatch(one) or _TRUE.fullmatch(one) or one in _PERHAPS or re.fullmatch(_LOGITS, one)
            for one in heads
        )
        scores = any(mark.fullmatch(plain_name(end)) for mark in _LISTED) or _ALONE.fullmatch(end)
        alone = often[end] == 1 and heads and "" not in heads and name not in said
        return bool(alone and not kept and (scores or not any(map(is_decided, heads))))

    return table.rename_columns([end if own(name, end) else name for name, end in zip(names, ends, strict=True)])


def _one_hot(found: Proposal) -> Any:
    """Return the table with a column of the true classes, where it has them as a 0 or a 1 for each class; else None."""
    import pyarrow as pa

    table = found.table
    try:
        chosen = match_columns(found.layout.columns, table.column_names, Path())[0]
    except InputError:  # which is said where the columns are read
        return None
    whole = [field.name for field in table.schema if pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)]
    for spelling in Classes.of(chosen).spellings:
        ends = {name.removesuffix(spelling[0]) for name in whole if name.endswith(spelling[0]) and name != spelling[0]}
        for head in sorted(ends):
            group = [head + part for part in spelling]
            if set(group) <= set(whole) - set(chosen):
                cells = {name: np.asarray(table.column(name).to_pylist(), dtype=object) for name in group}
                if true := one_hot(cells):
                    return table.append_column(ONE_HOT, pa.array([name.removeprefix(head) for name in true]))
    return None


def one_hot(columns: Mapping[str, Array]) -> list[str]:
    """Return which of the columns has the 1 in each row, or nothing where they are no zeros with a single 1."""
    names, cells = list(columns), np.stack([np.asarray(one, dtype=object) for one in columns.values()], axis=1)
    single = np.isin(cells, (0, 1)).all() and (cells.sum(axis=1) == 1).all()
    return [names[at] for at in cells.argmax(axis=1)] if single else []


def _echoes(found: Proposal, names: Sequence[str]) -> list[str]:
    """Return the columns that hold the class of the largest score in every row, and are decisions: a model this sure would miss some.

    Also where another column has the same classes and misses some. Decisions on scores that are not meant are no labels either.
    """
    table, chosen = found.table, found.layout.columns
    if not chosen or not set(chosen) <= set(table.column_names) or _nested(table, chosen[0]):
        return []
    held = {name: column_array(table.column(name), name, Path(), strict=False) for name in names}
    scores, beside = _values(table, chosen), [_values(table, one) for one in found.beside]
    held = {
        name: one for name, one in held.items() if _few_values(one, max(scores.shape[1], 2)) and not _is_truth(name)
    }
    decided = [name for name, one in held.items() if _decides(one, scores)]
    if not decided and not beside:
        return []
    classes = {name: {*map(str, one.tolist())} for name, one in held.items()}
    missed = any(classes[name] == classes[one] for name in held.keys() - {*decided} for one in decided)
    if scores.shape[1] == 1:
        scores = np.concatenate(
            [np.zeros_like(scores) if found.layout.kind == "logits" else 1 - scores, scores], axis=1
        )
    if found.layout.kind == "logits":
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = float((1 - scores.max(axis=1) / scores.sum(axis=1)).sum())
    others = [name for name, one in held.items() if any(_decides(one, other) for other in beside)]
    return (decided if missed or expected > _EXPECTED_ERRORS else []) + others


def _classes_of(found: Proposal) -> Classes:
    """Return what the columns of scores, or the fields of one of records, say of the classes."""
    table, chosen = found.table, found.layout.columns
    records = len(chosen) == 1 and chosen[0] in table.column_names and _records(table, chosen[0])
    return Classes.of([one.name for one in table.schema.field(chosen[0]).type] if records else chosen)


def _is_measure(found: Proposal, name: str) -> bool:
    """Say whether a column called as labels may be holds no class: fractions, a number of its own in every row, one text in all."""
    if plain_name(name) not in _PERHAPS or (stem_and_name(name)[1] in LABELS and name != "label_id"):
        return False
    values = column_array(found.table.column(name), name, Path(), strict=False)
    if is_text(values) and len(values) >= _ENOUGH_ROWS and len(set(values.tolist())) == 1:
        return not any(values[0] in one for one in (found.layout.columns, *_classes_of(found).spellings))
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not len(values):
        return False
    known = np.unique(values[np.isfinite(values)])
    counts = len(known) == len(values) > max(len(found.layout.columns), 2)
    return bool(counts or (known != np.trunc(known)).any())


def _alike(floats: Sequence[str]) -> list[str]:
    """Return the columns that differ only by the number at their end, in its order; else all."""
    groups: dict[str, list[str]] = {}
    for name in floats:
        if name[-1:].isdigit():
            groups.setdefault(name.rstrip("0123456789"), []).append(name)
    largest = max(groups.values(), key=len, default=[])
    return by_number(largest) if len(largest) > 1 else list(floats)


def _pattern_of(chosen: Sequence[str], names: Sequence[str]) -> str:
    """Return the pattern that names these columns and no others, else their names with commas."""
    first, last = min(chosen), max(chosen)
    alike = next((place for place, sign in enumerate(first) if last[place : place + 1] != sign), len(first))
    prefix = first[:alike].rstrip("0123456789")
    prefix = "" if prefix.strip() != prefix or "," in prefix else prefix
    pattern = prefix + "*"
    if len(chosen) > 1 and prefix and by_number([n for n in names if fnmatch.fnmatchcase(n, pattern)]) == list(chosen):
        return pattern
    # what parts the names in a list, and what is cut from their ends, is any sign
    odd = [re.sub(r"^\s|,|\s$", "?", glob.escape(name)) if re.search(r"^\s|,|\s$", name) else name for name in chosen]
    return ",".join(odd)
