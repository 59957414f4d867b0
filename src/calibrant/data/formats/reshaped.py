"""Tables whose rows or cells are not those of scores by class: decisions with confidences, the first few classes, a row a class."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from calibrant._core.files import Array, pa
from calibrant.data.formats.advice import Proposal, if_holds
from calibrant.data.formats.cells import scored_lists
from calibrant.data.formats.columns import ORDER_OF_NAMES, Classes
from calibrant.data.formats.evidence import Columns, agrees, label_among, labels_among, same_classes
from calibrant.data.formats.kinds import agree, needs_no_rest, of_one_event, within
from calibrant.data.formats.labels import can_label
from calibrant.data.formats.layout import TOLERANCE, Layout
from calibrant.data.formats.roles import (
    CLASS_FIELDS,
    MELTED,
    SCORE_FIELDS,
    called,
    is_decided,
    is_decision,
    is_no_label,
    mark_of,
    plain_name,
    subject_of,
)

ONE_HOT = "the column of 1"  # of the true classes, a column each: what a reading says of them
_PERCENT = re.compile(r"[\s_]*(?:%|\(%\)|\(?(?:pct|percent|percentage)\)?)$", re.IGNORECASE)  # at the end of a name
_OWN_PAIRS = ("conf", "confidence", "pred", "predicted", "prediction", "predictions", "label", "labels")


def read_lists(held: Columns, layout: Layout) -> Proposal | None:
    """Return the classes of two columns of lists, beside their scores, as a column each; of the first few the first alone."""
    inner = [[one for one in held.lists if called(one, f"ranked {what}")] for what in ("classes", "scores")]
    if len(inner[0]) > 1:  # ids beside names of the same classes
        inner[0] = _named_as_labels(held, layout, inner[0])
    if any(len(names) != 1 for names in inner):
        held, inner = _first_few(held, layout) or (held, _ranks(held, layout))
    if not inner:
        return None
    classes, scores = (
        list(zip(*(held.table.column(one).to_pylist() for one in names), strict=True))
        if len(names) > 1
        else held.table.column(names[0]).to_pylist()
        for names in inner
    )
    if any(not row or not other or len(row) != len(other) for row, other in zip(classes, scores, strict=True)):
        return None
    rest = held.table.drop_columns([name for names in inner for name in names])
    known = sorted({str(one) for row in classes for one in row})
    if 1 < len(known) == len(classes[0]) and all(len(set(row)) == len(row) == len(known) for row in classes):
        cells = [dict(zip(map(str, row), other, strict=True)) for row, other in zip(classes, scores, strict=True)]
        values = np.array([[row[name] for name in known] for row in cells])
        return _spread(rest, layout, inner[1][0].rstrip("0123456789_."), known, values)
    best = [max(range(len(row)), key=row.__getitem__) for row in scores]
    for name, rows in zip(("pred", "conf"), (classes, scores), strict=True):
        rest = rest.append_column(name, pa.array([row[at] for row, at in zip(rows, best, strict=True)]))
    return read_pairs(Columns(rest), layout)


def _named_as_labels(held: Columns, layout: Layout, names: list[str]) -> list[str]:
    """Return the columns of lists that call classes as the labels do; without labels those of other text than numbers."""
    known = {*map(str, held.known(held.label_by_name(layout, names)))}
    cells = {name: {str(one) for row in held.table.column(name).to_pylist() for one in row or ()} for name in names}
    if known:
        return [name for name, own in cells.items() if known <= own]
    return [name for name, own in cells.items() if not any(one.isdigit() for one in own)]


def _first_few(held: Columns, layout: Layout) -> tuple[Columns, list[list[str]]] | None:
    """Return the table with the one column of lists of {label, score}, of some classes each, as two of lists, beside named labels."""
    found = {name: lists for name in held.names if (lists := scored_lists(held.table.column(name))) is not None}
    if len(found) != 1 or (layout.labels is None and held.label_by_name(layout, [*found]) is None):
        return None
    ((name, lists),) = found.items()
    table = held.table.drop_columns([name])
    for end, cells in zip(("labels", "scores"), lists, strict=True):
        own = [[one if end == "scores" else str(one) for one in row] for row in cells]
        table = table.append_column(f"{name}.{end}", pa.array(own))
    return Columns(table), [[f"{name}.labels"], [f"{name}.scores"]]


def _ranks(held: Columns, layout: Layout) -> list[list[str]]:
    """Return the columns of the classes of each row, and of their scores, where these are ranked: label_1, score_1, label_2 …"""
    floats = set(held.floats(layout))
    groups: dict[tuple[bool, str, tuple[str, str]], dict[int, str]] = {}
    for name in held.names:
        if matched := re.fullmatch(r"(\D*)(\d+)(\D*)", name):
            key = (name in floats, str(held.table.schema.field(name).type), (matched[1], matched[3]))
            groups.setdefault(key, {})[int(matched[2])] = name
    found: list[list[list[str]]] = []
    for (first, classes), (second, scores) in product(groups.items(), groups.items()):
        if first[0] or first[1] == "bool" or not second[0] or scores.keys() != classes.keys() or len(scores) < 2:
            continue
        order = sorted(classes)
        values = held.scores([scores[at] for at in order])
        parts = [held.table.column(classes[at]).to_pylist() for at in order]
        falling = len(values) == len(held.table) and within(values) and bool((np.diff(values, axis=1) <= 0).all())
        # the first few classes, the likeliest first, or all of them in any order
        whole = (falling and bool((values.sum(axis=1) <= 1 + TOLERANCE).all())) or needs_no_rest(values)
        if whole and all(len(set(row)) == len(row) for row in zip(*parts, strict=True)):
            found.append([[classes[at] for at in order], [scores[at] for at in order]])
    return found[0] if len(found) == 1 else []


def _spread(table: Any, layout: Layout, name: str, classes: Sequence[str], values: Array) -> Proposal | None:
    """Return a table with scores (N, K) as a column each of the classes, or None where they are not what their name says.

    Rounded probabilities are such where the user says ``normalize``, which is proposed.
    """
    kind = "logits" if called(name, "logits") else "probs"
    if not agree(kind, values):
        if kind == "logits" or not needs_no_rest(values):
            return None
        if not layout.normalize:
            own = None if layout.label == ONE_HOT else layout.label  # which is found again
            return Proposal(replace(layout, normalize=True, label=own), Columns(table), certain=False)
    chosen = [f"{name}_{one}" for one in classes]
    for at, column in enumerate(chosen):
        table = table.append_column(column, pa.array(values[:, at]))
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **ORDER_OF_NAMES})
    return Proposal(replace(layout, columns=tuple(chosen), kind=kind), Columns(table))


def read_pairs(held: Columns, layout: Layout) -> Proposal | None:
    """Return decisions with their confidences, of the first class of several too, as conf, pred and label; or None.

    Where they are said to be right or not, that is the label of the decision 1.
    """
    held = _in_fractions(held)
    names = held.names
    conf = [
        name
        for name in names
        if held.is_number(name) and (called(name, "confidence") or called(name.rpartition(".")[2], "confidence"))
    ]
    free = [name for name in names if name not in conf and not called(plain_name(name), "key")]
    plain = {plain_name(name) for name in names}
    pred = [name for name in free if is_decided(name)] or [name for name in free if subject_of(name) in plain - {""}]
    pred = [name for name in pred if not held.is_float(name) or held.is_whole(name)]
    judging = conf
    if not conf and any(plain_name(name) in ("correct", "is_correct") for name in free):  # no event is called so
        judging = [name for name in held.floats(layout) if plain_name(name) in SCORE_FIELDS]
    if len(judging) == 1 and not pred and (judged := _judged(held, layout, judging[0])):
        return judged
    fields: list[str] = []
    if conf and not pred and layout.labels is not None:  # labels are elsewhere: a class beside a confidence is decided
        fields = [one for one in names if plain_name(one) in CLASS_FIELDS and held.known(one) and one not in conf]
        alike = all(same_classes(held.array(one), held.array(fields[0])) for one in fields)
        pred = sorted(fields, key=held.is_text, reverse=True)[:1] if alike else []
    if not conf and not pred:
        decided = {name: score for name in names if (score := _scored_class(held, name))}
        pred, conf = list(decided), list(decided.values())
    free = [name for name in names if name not in (*pred, *conf, *fields)]
    known = held.label_by_name(layout, (*pred, *conf, *fields)) or held.mirrored(free, len(layout.columns))
    if not conf and known in names and len(pred) == 1:
        # one number beside decisions among three classes or more is the decision's confidence, whatever it is called
        floats, several = held.floats(layout), len(held.known(known)) > 2
        conf = floats if several or (len(floats) == 1 and _of_decisions(held, floats[0], pred[0])) else []
    if len(conf) != 1 or len(pred) != 1 or not within(held.scores(conf)):
        return None
    sides = {*held.known(pred[0]), *held.known(known)}
    # a threshold parts two decisions by the score of an event, which lies below a half in some row; no confidence does
    if len(sides) == 2 and held.scores(conf).min() < 0.5 - TOLERANCE and held.parted(conf[0], pred[0]):
        return None
    if known is None and layout.labels is None:
        own = (held.array(conf[0]), held.array(pred[0]), layout, Classes())
        flat = [one for one in free if not is_no_label(one) and not held.is_nested(one)]
        likely = [name for name in flat if can_label(held.array(name), *own) and agrees(held.array(name), own[1])]
        return Proposal(replace(layout, label=likely[0]), held, certain=False) if len(likely) == 1 else None
    classes = held.known(pred[0])
    able = [one for one in labels_among(free) or () if not {*held.known(one)}.isdisjoint(classes)]
    rivals = [one for one in able if known in able and not same_classes(held.array(one), held.array(str(known)))]
    if rivals and not layout.label:
        unsure = f"{if_holds(str(known), rivals, 'labels')}, "
        return Proposal(replace(layout, label=known), held, certain=False, unsure=unsure)
    if len(sides) == 2 and known is not None and conf[0] not in ("conf", "confidence"):
        two = _of_two(held, replace(layout, label=known), conf[0], pred[0], sorted(sides, key=str))
        if two is not None:
            return two
    new = {conf[0]: "conf", pred[0]: "pred", **({} if known is None else {known: "label"})}
    table = held.table.select([name for name in names if name in new or name not in new.values()])
    table = table.rename_columns([new.get(name, name) for name in table.column_names])
    said = f"read {conf[0]} as the confidence of {pred[0]}{'' if known is None else f', {known} as the label'}"
    decided_words = said if any(name not in _OWN_PAIRS for name in new) else ""
    return Proposal(replace(layout, label=None, kind=None), Columns(table), decided=decided_words)


def _in_fractions(held: Columns) -> Columns:
    """Return a table whose confidences, where names say that they are percentages, are fractions under their names without the sign."""
    table = held.table
    for name in held.names:
        plain = _PERCENT.sub("", name)
        if plain != name and plain not in held.names and called(plain, "confidence") and held.is_number(name):
            if of_one_event(held.scores([name])[:, 0]):
                at = table.column_names.index(name)
                table = table.set_column(at, plain, pa.compute.divide(table.column(name), 100.0))
    return held if table is held.table else Columns(table)


def _of_two(held: Columns, layout: Layout, conf: str, pred: str, sides: Sequence[Any]) -> Proposal | None:
    """Return the probabilities of both classes, which a confidence in one of two determines; None for less than a half."""
    values, first = held.scores([conf])[:, 0], held.array(pred) == sides[0]
    if len(values) != len(first) or values.min() < 0.5:
        return None
    probs = np.where(first, values, 1 - values)
    rest = held.table.select([name for name in held.names if name not in (conf, pred, "decision")])
    if bool((values == 0.5).any()):  # of which the larger says nothing
        rest = rest.append_column("decision", pa.array(np.where(first, 0, 1)))
    return _spread(rest, replace(layout, kind=None), conf, list(map(str, sides)), np.stack([probs, 1 - probs], axis=1))


def _judged(held: Columns, layout: Layout, conf: str) -> Proposal | None:
    """Return confidences of decisions of which a column says whether they are right: the decision 1 each, which is true or not."""
    flags = [name for name in held.names if called(name, "right") and set(held.known(name, 2)) == {0, 1}]
    right = [name for name in flags if not held.table.column(name).null_count]
    if len(right) != 1 or not within(held.scores([conf])):
        return None
    found = {
        "conf": held.table.column(conf),
        "pred": pa.array(np.ones(len(held.table), dtype=np.int64)),
        "label": pa.compute.cast(held.table.column(right[0]), pa.int64()),
    }
    gone = {*found, "labels", conf, right[0]}
    kept = {name: held.table.column(name) for name in held.names if name not in gone}
    said = f"read {conf} as the confidence of decisions, {right[0]} as whether they are right"
    return Proposal(replace(layout, label=None, kind=None), Columns(pa.table(kept | found)), decided=said)


def _of_decisions(held: Columns, score: str, pred: str) -> bool:
    """Say whether scores can only be the confidences of one of two decisions: a half at least, for both of them alike."""
    values = held.scores([score])
    halves = within(values) and bool(values.min() >= 0.5 - TOLERANCE)
    return halves and len(held.known(pred, 2)) == 2 and not held.parted(score, pred)


def _scored_class(held: Columns, name: str) -> str:
    """Return the score of a class: ``answer.score`` of ``answer.label``, or of ``answer`` beside it; else nothing.

    Not of one of two values beside it, as ``churn.prob`` may be the probability of an event that ``churn`` says.
    """
    head, dot, end = name.rpartition(".")
    inner = dot and plain_name(end) in CLASS_FIELDS
    if not dot and plain_name(name) in CLASS_FIELDS:
        # label and score beside gold, as a pipeline's answers are laid beside truths
        true = [one for one in held.names if called(one, "truth") and one != name and not held.is_nested(one)]
        known = set(held.known(true[0])) if len(true) == 1 else set()
        scores = [one for one in held.names if plain_name(one) in SCORE_FIELDS and held.is_float(one)]
        alike = known and known >= set(held.known(name)) != set()
        return scores[0] if alike and len(scores) == 1 and held.scores(scores).min() >= 1 / len(known) else ""
    if not inner and (not held.is_text(name) or len(held.known(name)) < 3):
        return ""
    parts = (f"{head if inner else name}{sign}{part}" for part in SCORE_FIELDS for sign in "._")
    return next((one for one in parts if one in held.names), "")


def read_rows_of_classes(held: Columns, layout: Layout) -> Proposal | None:
    """Return a table with a row for each class of each key as one row a key; None where it is no such table."""
    names, table = {name.strip().casefold(): name for name in held.names}, held.table
    probs = [
        name for name in held.floats(layout) if called(name, "event") or name.casefold() in ("score", "confidence")
    ]
    classes_in = [name for name in held.names if called(name.strip(), "class")]
    text = [name for name in held.names if str(table.schema.field(name).type) == "string" and name not in classes_in]
    molten = next((pair for pair in MELTED if {*pair} <= names.keys()), None)
    columns = [names[one] for one in molten] if molten and not probs and not classes_in else []
    if columns:  # prob_cat, prob_dog … in rows, or the classes of a column of truths
        parts = list(map(str, table.column(columns[0]).unique().to_pylist()))
        marks = [mark_of(one) for one in parts]
        true = layout.label or label_among(held.names, ())
        if all(one and one.kind == "probs" for one in marks) or {*held.known(true, len(parts))} == {*parts}:
            classes_in, probs = columns[:1], columns[1:]
    keys = [name for name in held.names if called(name, "key") and not called(name, "model") and name not in classes_in]
    if not keys and len(classes_in) == 1:  # what has every class once
        keys = [name for name in text if len(table.group_by([name, classes_in[0]]).aggregate([])) == len(table)]
    keys = keys or (text if len(text) == 1 else [])
    if len(probs) == 1 and not classes_in and keys:  # a column that has every class once for each key
        pairs = {name: len(table.group_by([keys[0], name]).aggregate([])) for name in text if name != keys[0]}
        classes_in = [name for name, count in pairs.items() if count == len(table) and not is_decision(name)]
    if len(probs) != 1 or len(classes_in) != 1 or not keys:
        return None
    models = [name for name in held.names if called(name, "model") and name not in (keys[0], classes_in[0])][:1]
    key, column, *model = (
        np.asarray(table.column(name).to_pylist(), dtype=object).astype(str)
        for name in (keys[0], classes_in[0], *models)
    )
    classes, code = np.unique(column, return_inverse=True)
    if model and len(np.unique(key)) * len(classes) != len(key):  # of several models, each with a row for each class
        key = np.char.add(np.char.add(model[0], "\0"), key)
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    if len(first) == len(key) or len(first) * len(classes) != len(key):
        return None
    place = np.argsort(np.argsort(first))[row]  # keys in the order of their first row
    values = np.full((len(first), len(classes)), np.nan)
    values[place, code] = held.array(probs[0])
    others = [name for name in held.names if name not in (probs[0], classes_in[0])]
    rest = table.select(others).take(np.sort(first))
    for name in others if layout.label is None else [one for one in others if one == layout.label]:
        flags = np.asarray(table.column(name).to_pylist(), dtype=object)
        # a flag of the true class: a 1 in one of each key's rows
        if np.isin(flags, (0, 1)).all() and (np.bincount(place, flags.astype(float)) == 1).all():
            true = column[flags.astype(bool)][np.argsort(place[flags.astype(bool)])]
            rest = rest.drop_columns([name]).append_column(ONE_HOT, pa.array(true))
            layout = replace(layout, label=ONE_HOT)
            break
    marked = [mark.part for one in classes.tolist() if (mark := mark_of(one))]
    spelled = marked if columns and len(set(marked)) == len(classes) else classes.tolist()
    return _spread(rest, layout, probs[0], spelled, values)
