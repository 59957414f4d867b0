"""Proposals of how a file is read, and the arguments and sentences that say them."""

import fnmatch
import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant._core.files import Array
from calibrant.data.formats.columns import Classes, by_number, is_text
from calibrant.data.formats.evidence import Columns, explained, label_among, speaks_of_smaller
from calibrant.data.formats.kinds import kind_of_values, needs_no_rest, needs_sums
from calibrant.data.formats.labels import can_label, in_order, is_single, likely_positive, spelled
from calibrant.data.formats.layout import KINDS, LABELS, REST, SCORES, Layout, stem_and_name
from calibrant.data.formats.roles import PERHAPS, called, is_decided, is_no_label, plain_name
from calibrant.errors import Remedy


@dataclass(frozen=True)
class Proposal:
    """A layout, the columns that it reads, whether it is certain, and the words that say it."""

    layout: Layout
    held: Columns
    certain: bool = True
    unsure: str = ""  # what a person decides before the command is run
    decided: str = ""  # what is said of decisions and their confidences, which have no columns of scores
    beside: tuple[tuple[str, ...], ...] = ()  # other groups of columns that could be the scores

    @property
    def table(self) -> Any:
        """The table that the layout reads."""
        return self.held.table

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
    def classes(self) -> Classes:
        """What the columns of scores, or the fields of one of records, say of the classes."""
        chosen = self.layout.columns
        records = len(chosen) == 1 and chosen[0] in self.held.names and self.held.is_record(chosen[0])
        return Classes.of([one.name for one in self.table.schema.field(chosen[0]).type] if records else chosen)

    @property
    def remedy(self) -> Remedy:
        """The arguments that would read the file; what they leave open is refused, and said, where labels are matched."""
        layout, held, known = self.layout, self.held, self.layout.columns
        said: dict[str, str | bool] = {}
        for name in ("columns", "label", "kind", "positive", "normalize"):
            if value := getattr(layout, name):
                said[name] = _pattern_of(value, held.names) if name == "columns" else value
        if layout.one_vs_rest:
            said = said | {"kind": "one-vs-rest"}
            del said["normalize"]
        unsure = self.unsure
        single = len(known) == 1 and not (known[0] in held.names and held.is_nested(known[0]))
        decided, confident = any(map(is_decided, held.names)), single and called(known[0], "confidence")
        if single and not unsure and (decided or confident):
            needed = "add their true classes as a column label" if decided else "add a column correct of 1 and 0"
            needed = needed if confident else "call their column confidence"
            unsure = f"if these are confidences of decisions, {needed}; else "
        if other := self.other_side():
            said, unsure = said | {"positive": other}, f"{unsure}if {known[0]} speaks of {other!r}, "
        return Remedy.read(**said).after(unsure)

    def other_side(self) -> str:
        """Return the smaller of two numbers as labels, where its rows have the larger scores, one a row: prob_no_default beside default."""
        layout, held = self.layout, self.held
        if len(layout.columns) != 1 or layout.positive or not {layout.label, *layout.columns} <= {*held.names}:
            return ""
        if held.is_nested(layout.columns[0]):
            return ""
        smaller = speaks_of_smaller(held.array(str(layout.label)), held.scores(layout.columns)[:, 0])
        return "" if smaller is None else spelled(smaller)


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


def if_holds(name: str, others: Sequence[str], what: str) -> str:
    """Return the case that one column and none of the others holds ``what``: "if y and not target holds the labels"."""
    rest = f" and not {' or '.join(others[:3])}" if others else ""
    return f"if {name}{rest} holds the {what}"


def candidates(arrays: Mapping[str, Array]) -> list[str]:
    """Return the arrays that can hold scores: those of floats with a class axis, else those of floats."""
    floats = [
        name
        for name, array in arrays.items()
        if array.dtype.kind == "f" and not called(name, "truth") and plain_name(name) not in PERHAPS
    ]
    return [name for name in floats if arrays[name].ndim > 1] or floats


def for_arrays(arrays: Mapping[str, Array]) -> Remedy | None:
    """Return the remedy to read kind='logits' of the array that can hold the scores, of several the likeliest; or None."""
    found = candidates(arrays)
    if not found:
        return None
    # probabilities of all classes are no embedding, and of others the narrowest is likely none
    whole = {name for name in found if arrays[name].ndim == 2 and needs_no_rest(arrays[name])}
    found.sort(key=lambda name: (name not in whole, arrays[name].size))
    values = arrays[found[0]]
    rows = [name for name in arrays if arrays[name].shape[:1] == values.shape[:1]]  # names of classes are fewer
    label = label_among(rows, [name for name in rows if arrays[name].dtype.kind in "iuU"])
    kind = kind_of_values(values)
    said: dict[str, str | bool] = {} if label is None else {"label": label}
    said |= {"normalize": True} if kind is not None and needs_sums(values, kind) else {}
    said |= {"columns": found[0]} if found[1:] else {}
    unsure = f"{if_holds(found[0], found[1:], 'scores')}, " if found[1:] else ""
    return Remedy.read(**said, kind=kind or REST).after(unsure)


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
            if not column.startswith(stem) or is_no_label(own):
                continue
            nameless = classes.numbers or not classes.spellings
            unnamed = kind in KINDS and values.ndim == 1 and is_text(values) and nameless
            matches = can_label(values, scores, arrays.get(f"{stem}pred"), layout, classes)
            if matches or (unnamed and in_order(values, scores) is not None):
                found.setdefault(own, (kind, values, scores))
    # decisions tell nothing, whatever they are called; of their own rows alone they may be all that is there
    told = {name: explained(*found[name][1:]) for name in found}
    named = label_among([name for name in found if told[name]] or list(found), ())
    text = [name for name, (_, values, _) in found.items() if is_text(values)]
    likely = [named] if named else sorted(text or list(found), key=lambda name: -told[name])
    if not likely:
        return None
    kind, values, scores = found[likely[0]]
    said, unsure = {"label": likely[0]}, if_holds(likely[0], likely[1:], "labels")
    if is_text(values) and not is_single(scores):
        spelling = classes.spelling({*values.tolist()}, given=layout.class_names)
        if not spelling and (ordered := in_order(values, scores, **said)):
            return ordered.after(f"{unsure} and {ordered.before.removeprefix('if ')}")
    elif kind in KINDS and is_text(values) and layout.positive is None:
        said["positive"] = likely_positive(values, scores)
        unsure += f" and the score is the probability of {said['positive']!r}"
    return Remedy.read(**said).after(f"{unsure}, ")
