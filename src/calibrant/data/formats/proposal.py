"""How a file is read whose names are not Calibrant's own: proposed as the layout that a person would state.

A proposal is certain where names, or a producer's mark, say what the numbers are *and* the values agree, and nothing else in the
table is said as well; it is then followed, and said. Values alone only decide which command a refusal prints.
"""

import fnmatch
import json
import re
import shlex
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.check import PROBABILITY_TOLERANCE
from calibrant._core.files import pa
from calibrant._core.paths import shown
from calibrant.data.formats.advice import Proposal, if_holds
from calibrant.data.formats.columns import ORDER_OF_NAMES, Classes, by_number, is_list, match_columns, spread_columns
from calibrant.data.formats.evidence import (
    Columns,
    are_halves,
    classes_alone,
    decides,
    explained,
    few,
    is_larger_side,
    is_measure,
    label_among,
    labels_among,
    models_apart,
    never_missed,
    same_classes,
    texts_in,
)
from calibrant.data.formats.kinds import (
    agree,
    as_probs,
    kind_of_values,
    needs_no_rest,
    needs_sums,
    of_one_event,
    one_hot,
    within,
)
from calibrant.data.formats.layout import KINDS, LABELS, SPLITS, Layout, stem_and_name
from calibrant.data.formats.reshaped import ONE_HOT, read_lists, read_pairs, read_rows_of_classes
from calibrant.data.formats.roles import (
    CLASS_FIELDS,
    LOGITS,
    PERHAPS,
    SCORE_FIELDS,
    Mark,
    called,
    is_decided,
    is_decision,
    is_no_label,
    mark_behind,
    mark_of,
    plain_name,
)
from calibrant.errors import FileFormatError, InputError, Remedy


def propose(table: Any, layout: Layout) -> Proposal | None:
    """Return how a table of other names is read, or None where its names are Calibrant's own, or hold no scores.

    Args:
        table: A ``pyarrow.Table``, with cells as ``plain_cells`` returns them.
        layout: What the user says; what it leaves open is proposed.
    """
    held = Columns(table)
    if layout.columns:
        return _with_label(Proposal(layout, held)) if layout.label is None else None
    # in the order of how much they prove, and the first that answers wins: values alone speak last
    readers: tuple[Callable[[Columns, Layout], Proposal | None], ...] = (_own, read_pairs, _by_values)
    if not layout.kind:
        readers = (read_lists, _own, read_rows_of_classes, _by_names, read_pairs, _of_event, _by_values)
    found = (reader(held, layout) for reader in readers)
    return next((_with_label(one) for one in found if one is not None), None)


def _own(held: Columns, layout: Layout) -> Proposal | None:
    """Return the reading of a table whose names are Calibrant's own: ``logits``, ``probs_0`` …."""
    spread = spread_columns(held.names)
    several = sum(mark_of(name) is not None for name in held.names) > 1
    few_each = several and all(len(group) == 1 for group in spread.values())  # one of many columns that are marked
    parts = [stem_and_name(name)[1] in KINDS and not held.is_record(name) for name in held.names]
    kinds = [name for name, own in zip(held.names, parts, strict=True) if own]
    # several columns of one number each are splits, or the classes of which each says the kind: choiceA_probs
    classes = len(kinds) > 1 and not any(held.is_nested(one) or held.is_text(one) for one in kinds)
    split = any(stem_and_name(one)[0].strip("_").casefold() in {"", *SPLITS} for one in kinds)
    return Proposal(layout, held) if (kinds and (split or not classes)) or (spread and not few_each) else None


def _by_names(held: Columns, layout: Layout) -> Proposal | None:
    """Return the reading of the one group of columns whose names say their kind, of h2o's, or of one column of lists."""
    floats = held.floats(layout)
    families = _marked(floats, mark_of) or _marked(floats, mark_behind)
    if held.names[0] == "predict":  # h2o: the decision, then the probability of every class
        families = families or {("probs", ""): [name for name in floats if name != "predict"]}
    for name in filter(held.is_nested, held.names):
        bare = re.sub(r"[_.]?(vector|dict|scores|values)$", "", name, flags=re.I)
        if called(bare, "event") or held.is_scored(name) or _has_labels(held, layout, name):
            families["probs", name] = [name]
        elif called(name, "logits") or (name == "predictions" and "label_ids" in held.names):  # the last are Trainer's
            families["logits", name] = [name]
    families = {key: by_number(own) for key, own in families.items() if len(own) > 1 or held.is_nested(own[0])}
    if len(families) > 1:  # logits beside their softmax give the same numbers
        held_by = [as_probs(kind, held.scores(own)) for (kind, _), own in families.items()]
        alike = all(
            one.shape == held_by[0].shape and np.allclose(one, held_by[0], atol=PROBABILITY_TOLERANCE)
            for one in held_by
        )
        families = dict(sorted(families.items(), reverse=True)[:1]) if alike else {}
    if len(families) != 1:
        return None
    (((kind, _), chosen),) = families.items()
    values = held.scores(chosen)
    if kind == "logits" and (models := models_apart(held, chosen, kind)):
        return _suggested(held, replace(layout, kind=kind), models[0], others=models[1:])
    if kind == "logits" and (alone := classes_alone(kind, chosen, values)) != chosen:
        return _suggested(held, replace(layout, kind=kind), alone)
    if agree(kind, values):
        made = Proposal(replace(layout, columns=tuple(chosen), kind=kind), held)
        # a_logit and b_logit may be two models' of one event, if no label is called a
        classes = kind == "probs" or mark_behind(chosen[0]) is None or _are_labels(held, layout, chosen)
        return made if classes else replace(made, certain=False)
    models = _called_as_labels(held, layout, chosen)
    if len(models) > 1:
        return _suggested(held, layout, models[0], others=models[1:])
    if kind == "probs" and not held.is_nested(chosen[0]):
        return _of_floats(held, layout, chosen)
    return _suggested(held, layout, chosen) if values.size else None


def _marked(names: Sequence[str], mark_in: Callable[[str], Mark | None]) -> dict[tuple[str, str], list[str]]:
    """Return the columns, by kind and by what they have in common, of which names say both; one alone is no group."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if mark := mark_in(name):
            found.setdefault((mark.kind, mark.head), []).append(name)
    return {key: own for key, own in found.items() if len(own) > 1}


def _are_labels(held: Columns, layout: Layout, chosen: Sequence[str]) -> bool:
    """Say whether columns are called as the labels' values are."""
    known = held.known(held.label_by_name(layout, chosen), len(chosen))
    return bool(known) and bool(Classes.of(chosen).spelling(map(str, known)))


def _has_labels(held: Columns, layout: Layout, name: str) -> bool:
    """Say whether a column holds records of numbers that sum to 1, a field for each value of the labels."""
    if not held.is_record(name):
        return False
    fields = {one.name for one in held.table.schema.field(name).type}
    known = held.known(held.label_by_name(layout, (name,)), len(fields))
    return bool(known) and {*map(str, known)} <= fields and needs_no_rest(held.scores([name]))


def _of_event(held: Columns, layout: Layout) -> Proposal | None:
    """Return the reading of the one column that is called a probability, of the event that it names or of class 1."""
    floats = held.floats(layout)
    chosen = [name for name in floats if called(name, "event") or mark_of(name)]
    if len(chosen) != 1 or not within(values := held.scores(chosen)):
        return None
    mark = None if called(chosen[0], "event") else mark_of(chosen[0])
    made = replace(layout, columns=(chosen[0],), kind="probs")
    if held.halves(chosen[0]):  # as confidences of decisions are: another column is the event's, or none
        events = [name for name in floats if name not in chosen and is_larger_side(values, held.scores([name]))]
        return Proposal(replace(made, columns=(events[0],)), held, certain=False) if len(events) == 1 else None
    if mark is None or layout.positive is not None:
        return Proposal(made, held, certain=mark is None)
    part = mark.part.strip(")]")
    for name in [layout.label] if layout.label else held.names:  # prob_yes beside labels yes and no
        if name not in floats and part in map(str, held.known(name, 2)):
            return Proposal(replace(made, positive=part, label=name), held)
    return Proposal(made, held, certain=False)


def _by_values(held: Columns, layout: Layout) -> Proposal | None:
    """Return the reading that values suggest of columns whose names do not say what they hold."""
    nested = [name for name in held.names if held.is_nested(name) and held.scores([name]).size]
    nested = [name for name in nested if len(nested) > 1 and needs_no_rest(held.scores([name]))] or nested
    # a column with one value in all rows, such as a threshold, holds no scores where others may
    floats = held.floats(layout)
    floats = [name for name in floats if held.varies(name)] or floats
    floats = [name for name in floats if not held.is_whole(name)] or floats
    if families := _called_as_labels(held, layout, floats):
        return _suggested(held, layout, families[0], others=families[1:])
    if not floats and len(nested) == 1:
        return _suggested(held, layout, nested) if held.scores(nested).size else None
    return _of_floats(held, layout, _alike(floats))


def _called_as_labels(held: Columns, layout: Layout, floats: Sequence[str]) -> list[list[str]]:
    """Return the groups of columns that are called as the labels' values are but for what all of a group share.

    So are ``mean_cat, mean_dog`` beside ``std_cat, std_dog``, of which the first alone sum to 1, and the columns of two models,
    which both do. The sums decide where one group has them.
    """
    label = held.label_by_name(layout, floats)
    values = list(map(str, held.known(label, len(floats))))
    for name in (
        filter(held.is_text, held.names) if label is None else ()
    ):  # the first that the columns are called after
        known = held.known(name, len(floats))
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
    return [one for one in found if needs_no_rest(held.scores(one))] or found[: len(found) == 1]


def _of_floats(held: Columns, layout: Layout, floats: Sequence[str]) -> Proposal | None:
    """Return the reading that values suggest of columns of decimals: as those of all classes, or of one of two each.

    Columns beside labels of two values that sum to 1 in no way and are not called after the labels are probabilities of an event
    each; the one that tells most of the labels goes first, and none that is called a bound or an error of another.
    """
    values = held.scores(floats)
    if not floats or not values.size:
        return None
    if models := models_apart(held, floats, layout.kind):
        return _suggested(held, layout, models[0], others=models[1:])
    chosen = list(floats) if layout.kind == "logits" else classes_alone("probs", floats, values)
    if len(chosen) == 1 or needs_no_rest(held.scores(chosen)):
        return _suggested(held, layout, chosen)
    label = held.label_by_name(layout, floats)
    flat = [name for name in held.names if name not in floats and not held.is_nested(name)]
    flat = [name for name in flat if (name == label if label else not called(name, "key"))]
    able = {name: held.array(name) for name in flat if few(held.array(name), len(floats))}
    # the label and what the columns are of it are one question: the column that all of them tell most of has two values, or more
    likely = max(able.values(), key=lambda one: explained(one, values), default=np.empty(0))
    named = any(Classes.of(chosen).spelling(texts_in(one)) for one in able.values())
    if not few(likely, 2) or named or layout.kind == "logits" or several_labels(held.table):
        return _suggested(held, layout, chosen)
    events = [name for name in floats if within(held.scores([name]))] or list(floats)
    bounds = [name for name in events if called(name, "bound")]
    bounded = [one for one in held.floats(layout) if any(name.startswith(one) and name != one for name in bounds)]
    events = [name for name in events if name not in bounds] or bounded or events
    told = {name: explained(likely, held.scores([name])) for name in events}
    first, *others = sorted(events, key=lambda name: -round(told[name], 2))
    return _suggested(held, layout, [first], others=[[name] for name in others[:3]])


def _alike(floats: Sequence[str]) -> list[str]:
    """Return the columns that differ only by the number at their end, in its order; else all."""
    groups: dict[str, list[str]] = {}
    for name in floats:
        if name[-1:].isdigit():
            groups.setdefault(name.rstrip("0123456789"), []).append(name)
    largest = max(groups.values(), key=len, default=[])
    return by_number(largest) if len(largest) > 1 else list(floats)


def _suggested(
    held: Columns, layout: Layout, columns: Sequence[str], *, others: Sequence[Sequence[str]] = ()
) -> Proposal:
    """Return the reading of columns that nothing names, with what a person decides before it is followed."""
    chosen = list(columns)
    if layout.kind != "logits":
        chosen = classes_alone("probs", chosen, held.scores(chosen))
    values = held.scores(chosen)
    values = values[:, 0] if values.shape[1] == 1 else values
    kind = layout.kind or kind_of_values(values)
    sums = layout.normalize or needs_sums(values, kind)
    said = called(chosen[0], "percentage")
    # no logits of one event are all above 0, and one of them above 20
    percent = values.ndim == 1 and of_one_event(values) and layout.kind != "logits" and bool(said or values.max() > 20)
    if percent:
        kind, sums = "probs", True
    made = replace(layout, columns=tuple(chosen), kind=kind or "probs", normalize=sums, one_vs_rest=kind is None)
    unsure = ""
    if others:
        beside = " or ".join(", ".join(one) for one in others)
        unsure = f"if the columns {', '.join(chosen)} are meant and not {beside}, "
    elif said and within(values):
        unsure = "if these are fractions of 1 and no percentages, "
    elif percent and not said:
        unsure = "if these are percentages, "
    elif values.ndim == 1 and are_halves(values) and layout.positive is None:
        unsure = (
            f"if {chosen[0]}, a half at least in every row, is a class's probability and not a decision's confidence, "
        )
    return Proposal(made, held, certain=False, unsure=unsure, beside=tuple(map(tuple, others)))


def _with_label(found: Proposal) -> Proposal:
    """Return a proposal with the column of the true classes, by its name, or for a suggestion by its values."""
    layout, held = found.layout, found.held
    if layout.label is not None or layout.labels is not None or not (found.certain or layout.columns):
        return found
    flat = [name for name in held.names if name not in layout.columns and not held.is_nested(name)]
    measures = [name for name in flat if plain_name(name) in PERHAPS and _may_measure(name)]
    measures += [
        name for name in flat if called(name, "truth") and held.array(name).dtype.kind in "iu"
    ]  # obs: 1, 2, 3 …
    gone = {*layout.columns, *(name for name in measures if is_measure(held.array(name), found.classes))}
    gone |= {*_echoes(found, [name for name in flat if name not in gone and not is_no_label(name)])}
    hot = one_hot_of(found)
    gone |= {*(hot[1] if hot else ())}
    names = [name for name in held.names if name not in gone]
    likely = _rivals(found, labels_among(names) or [])
    rivals = likely[1:]
    label = likely[0] if likely else held.mirrored(names, len(layout.columns))
    if label is None and hot:  # of a suggestion it is found again
        return replace(found, held=hot[0], layout=replace(layout, label=ONE_HOT)) if found.certain else found
    others: list[str] = []
    if not found.certain:
        free = [name for name in flat if name in names and not is_no_label(name)]
        others = [name for name in free if few(held.array(name), max(len(layout.columns), 2))]
    label = label or label_among(names, others)
    if label is None and others:
        scores = held.scores(layout.columns)
        likely = sorted(others, key=lambda name: -explained(held.array(name), scores))
        label, rivals = likely[0], likely[1:] or [""]
    if rivals:  # a guess, which the refusal says
        unsure = f"{found.unsure}{if_holds(str(label), [*filter(None, rivals)], 'labels')}, "
        found = replace(found, unsure=unsure, certain=False)
    label = _named(found, label, names) or label
    if label is None and layout.columns:
        return found
    found = replace(found, layout=replace(layout, label=label))
    return replace(found, certain=found.certain and not (layout.columns and found.other_side()))


def _rivals(found: Proposal, names: list[str]) -> list[str]:
    """Return the columns called as labels with other classes a row than the first of them, of which the scores tell most first."""
    held, chosen = found.held, found.layout.columns
    flat = [name for name in names if not held.is_nested(name) and few(held.array(name), max(len(chosen), 2))]
    if len(flat) < 2 or not {*chosen} <= {*held.names} or not chosen or flat[0] != names[0]:
        return names[:1]
    others = [name for name in flat[1:] if not same_classes(held.array(name), held.array(flat[0]))]
    scores = held.scores(chosen)
    return sorted([flat[0], *others], key=lambda name: -explained(held.array(name), scores))


def _may_measure(name: str) -> bool:
    return stem_and_name(name)[1] not in LABELS or name == "label_id"


def _named(found: Proposal, label: str | None, names: Sequence[str]) -> str | None:
    """Return the column of text that names the classes which the labels number; None where the file has the classes in an order."""
    table, chosen = found.table, found.layout.columns
    label = label or next((name for name in names if stem_and_name(name)[1] in LABELS), None)
    records = len(chosen) == 1 and chosen[0] in table.column_names and found.held.is_record(chosen[0])
    unordered = records or ORDER_OF_NAMES.items() <= (table.schema.metadata or {}).items()
    if label is None or not unordered or not pa.types.is_integer(table.schema.field(label).type):
        return None
    numbers = table.column(label).to_pylist()
    for name in names:
        if found.held.is_text(name) and not is_decision(name):
            text = table.column(name).to_pylist()
            paired = set(zip(numbers, text, strict=True))
            if None not in text and found.classes.spelling(text) and len(paired) == len(set(text)) == len(set(numbers)):
                return name
    return None


def one_hot_of(found: Proposal) -> tuple[Columns, list[str]] | None:
    """Return the table with a column of the true classes, where it has them as a 0 or a 1 for each class, and these columns."""
    table = found.table
    try:
        chosen = match_columns(found.layout.columns, table.column_names, Path())[0]
    except InputError:  # which is said where the columns are read
        return None
    whole = [field.name for field in table.schema if pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)]
    for spelling in Classes.of(chosen).spellings:
        ends = {name.removesuffix(spelling[0]) for name in whole if name.endswith(spelling[0])}
        for head in sorted(ends):
            group = [head + part for part in spelling]
            if set(group) <= set(whole) - set(chosen):
                if true := one_hot({name: table.column(name) for name in group}):
                    own = pa.array([name.removeprefix(head) for name in true])
                    return Columns(table.append_column(ONE_HOT, own)), group
    return None


def _echoes(found: Proposal, names: Sequence[str]) -> list[str]:
    """Return the columns that hold the class of the largest score in every row, and are decisions: a model this sure would miss some.

    Also where another column has the same classes and misses some. Decisions on scores that are not meant are no labels either.
    """
    held, chosen = found.held, found.layout.columns
    if not chosen or not set(chosen) <= set(held.names) or held.is_nested(chosen[0]):
        return []
    scores, beside = held.scores(chosen), [held.scores(one) for one in found.beside]
    able = [name for name in names if not called(name, "truth") and few(held.array(name), max(scores.shape[1], 2))]
    decided = [name for name in able if decides(held.array(name), scores)]
    if not decided and not beside:
        return []
    classes = {name: texts_in(held.array(name)) for name in able}
    missed = any(classes[name] == classes[one] for name in {*able} - {*decided} for one in decided)
    others = [name for name in able if any(decides(held.array(name), other) for other in beside)]
    return (decided if missed or never_missed(scores, found.layout.kind) else []) + others


def opened(table: Any) -> Any:
    """Return a table with the fields of records as columns: ``cats.toxic``."""
    while any(map(pa.types.is_struct, table.schema.types)):
        table = table.flatten()
    return table


def several_labels(table: Any) -> dict[str, str] | None:
    """Return the arguments that read columns of scores and of 1, 0 and -1 as several labels a row; None where names do not pair them."""
    held = Columns(opened(table))
    numbers = [name for name in held.names if held.is_number(name) or str(held.table.schema.field(name).type) == "bool"]
    floats = [name for name in numbers if held.is_float(name) and not held.is_whole(name)]
    groups: dict[tuple[str, str], dict[str, str]] = {}  # the patterns of both → label's own part → column of scores
    for name in numbers:
        values = held.table.column(name).unique()
        if name not in floats and len(values) < 4 and set(values.to_pylist()) <= {-1, 0, 1}:
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
    if sorted(fnmatch.filter(held.names, columns)) != sorted(chosen):
        return None
    return {"columns": columns, "label": label, "kind": "probs" if within(held.scores(chosen)) else "logits"}


def shortened(table: Any, said: Set[str | None]) -> Any:
    """Return a table with the fields of records under their own names, where what holds them says nothing of what they are.

    Args:
        table: With ``instance.label`` for the field of a record.
        said: Columns that keep their names: those of the file, and of the user's words.
    """
    held = Columns(table)
    names, ends = held.names, [name.rpartition(".")[2] for name in held.names]
    often = Counter(ends)
    # the class of a record that holds scores as well is a decision
    scored = {name.rpartition(".")[0] for name in names if held.is_nested(name) or held.is_float(name)}

    def own(name: str, end: str) -> bool:
        head, heads = name.rpartition(".")[0], [plain_name(one) for one in name.split(".")[:-1]]
        if head in scored and (plain_name(end) in PERHAPS or called(end, "truth")):
            return False
        if end in SCORE_FIELDS and any(f"{head}.{one}" in names for one in CLASS_FIELDS):
            return False
        kept = any(called(one, "event", "truth") or one in PERHAPS or re.fullmatch(LOGITS, one) for one in heads)
        scores = called(end, "ranked classes", "ranked scores", "event")
        alone = often[end] == 1 and heads and "" not in heads and name not in said
        return bool(alone and not kept and (scores or not any(map(is_decided, heads))))

    new = [end if own(name, end) else name for name, end in zip(names, ends, strict=True)]
    return table.rename_columns(new).replace_schema_metadata(table.schema.metadata)


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
    remedy = Remedy.making(command, shown(path), new)
    raise FileFormatError("predictions", f"a language model's log in {shown(path)}", remedy)


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
