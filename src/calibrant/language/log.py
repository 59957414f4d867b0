"""The log of a language model, independent of the program that wrote it."""

import csv
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from calibrant._core.check import check_kind, check_sequence, refuse, shown
from calibrant._core.constraints import Fits, checked
from calibrant._core.paths import check_source
from calibrant._core.paths import shown as shown_path
from calibrant.data.record import check_selection
from calibrant.errors import Remedy
from calibrant.language._json import json_object, lines_of, read_log_text, refuse_file


@dataclass(frozen=True)
class Token:
    """One token of an answer, with the most probable tokens at its position.

    Args:
        text: As the server spells it, including a leading space.
        log_prob: Natural logarithm of its probability; −inf if the server returned none.
        top: Token → log-probability of the most probable tokens at this position; empty if none were requested.
    """

    text: str
    log_prob: float
    top: Mapping[str, float]


@dataclass(frozen=True)
class Option:
    """One answer option of a multiple-choice question, as scored by an evaluation harness.

    Args:
        text: The scored text, including a leading space.
        log_prob: Natural logarithm of its probability, given the question.
    """

    text: str
    log_prob: float


@dataclass(frozen=True)
class Response:
    """One answer of a language model.

    Args:
        id: The id that labels refer to.
        text: The answer.
        tokens: Its tokens; empty if the log has no log-probabilities.
        options: The scored options of a multiple-choice question; empty for free answers.
        target: The true answer in the log, or None.
        right: Whether the answer is correct according to the log, or None.
        features: Named features of the row, such as model and task.
        question: Id of the question, if there are several (dependent) answers to it; else None.
        samples: Further answers to the same question, sampled to see whether they agree; empty without.
        scores: Scorer → how sure it is of the answer, higher is surer; None without.
    """

    id: str
    text: str = ""
    tokens: tuple[Token, ...] = ()
    options: tuple[Option, ...] = ()
    target: str | None = None
    right: bool | None = None
    features: Mapping[str, str] | None = None
    question: str | None = None
    samples: tuple[str, ...] = ()
    scores: Mapping[str, float] | None = None

    @property
    def log_prob(self) -> float:
        """Σ log-probability of the tokens; −inf if one is missing."""
        return math.fsum(token.log_prob for token in self.tokens) if self.tokens else -math.inf


@dataclass(frozen=True)
class Log:
    """The answers of a log in order, with ``len``, iteration and slices as for a list.

    Args:
        responses: One per answer.
        source: The file, for messages.
    """

    responses: tuple[Response, ...]
    source: str = "the log"

    def __len__(self) -> int:
        return len(self.responses)

    def __iter__(self) -> Iterator[Response]:
        return iter(self.responses)

    def __getitem__(self, rows: Any) -> "Log":
        """Return the selected answers as a log (a slice, a boolean mask or row numbers)."""
        chosen = torch.arange(len(self))[check_selection(rows, count=len(self))]
        return Log(tuple(self.responses[row] for row in chosen.tolist()), self.source)

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of each answer."""
        return tuple(one.id for one in self.responses)


RIGHT = {"1", "1.0", "true", "right", "correct", "yes", "c"}
WRONG = {"0", "0.0", "false", "wrong", "incorrect", "no", "i"}


@checked
def read_labels(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return id → label of a table with the columns ``id`` and ``label``.

    Args:
        path: ``.csv`` or ``.tsv`` with a header, ``.jsonl`` with the fields ``id`` and ``label``, or ``.json`` with one object
            {id: label}.

    Raises:
        FileFormatError: If a row has no id or label, or an id has two labels.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("labels.csv").write_text("id,label\\nq1,A\\nq2,C\\n")
        >>> read_labels("labels.csv")
        {'q1': 'A', 'q2': 'C'}
    """
    place = check_source(path)
    suffix = place.suffix.lower()
    if suffix not in {".csv", ".tsv", ".jsonl", ".json"}:
        expected, got = "labels in .csv, .tsv, .jsonl or .json", place.suffix or "no suffix"
        raise refuse_file(shown_path(place), expected, got, "convert the file")
    found: dict[str, str] = {}
    for where, row in _labels_of_file(place, suffix):
        if row.get("id") in (None, "") or row.get("label") in (None, ""):
            got = ", ".join(f"{name}={value}" for name, value in row.items())
            raise refuse_file(where, "the fields id and label", got, "name the columns id and label")
        name, label = str(row["id"]), str(row["label"])
        if found.setdefault(name, label) != label:
            got = f"{found[name]!r} and {label!r} for {name!r}"
            raise refuse_file(where, "one label per id", got, "keep one of them")
    if not found:
        raise refuse_file(shown_path(place), "labels", "none", "check the file")
    return found


def _labels_of_file(place: Path, suffix: str) -> Any:
    """Yield (place, row with id and label)."""
    name = shown_path(place)
    if suffix == ".jsonl":
        yield from lines_of(place, what="labels (id, label)")
    elif suffix == ".json":
        table = json_object(place, what="labels as one object {id: label}", name="labels")
        yield from ((name, {"id": key, "label": value}) for key, value in table.items())
    else:
        rows = csv.DictReader(read_log_text(place).splitlines(), delimiter="\t" if suffix == ".tsv" else ",")
        yield from ((f"{name}, line {rows.line_num}", row) for row in rows)


def labels_of(log: Log, labels: Any) -> list[str] | None:
    """Return one label per answer as text, or None if ``labels`` is None.

    Args:
        log: The answers.
        labels: A list of one per answer, or a dict id → label, where the id of a question stands for all its answers.

    Raises:
        InputError: If an answer has no label.
    """
    if labels is None:
        return None
    if isinstance(labels, Mapping):
        table = {str(key): value for key, value in labels.items()}
        found = []
        for one in log:
            # labels may go by question, of which each sample is an answer
            key = one.id if one.id in table or one.question is None else one.question
            if key not in table:
                got = f"none for {one.id!r} of {log.source}"
                raise refuse("a label for every answer", got, "add it, or select the answers that have one")
            found.append(_text_of_field(table[key], one.id))
        return found
    rows = check_sequence(labels, name="labels")
    if len(rows) != len(log):
        raise refuse(f"{len(log)} labels", str(len(rows)), "pass one per answer, or a dict of ids")
    return [_text_of_field(value, one.id) for value, one in zip(rows, log, strict=True)]


def _text_of_field(value: Any, name: str) -> str:
    if not isinstance(value, str | int | float):
        remedy = "pass the option's name, or 1 for right and 0 for wrong"
        raise refuse("labels as text or numbers", f"{shown(value)} for {name!r}", remedy)
    return str(int(value)) if isinstance(value, bool) else str(value)


def option_numbers(log: Log, labels: Any, names: list[tuple[str, ...]]) -> Tensor | None:
    """Return the index (N,) of the true option of each answer, or None if neither ``labels`` nor the log has it.

    Args:
        log: The answers.
        labels: As in ``labels_of``; None takes the log's targets.
        names: The options of each answer.
    """
    given = labels_of(log, labels)
    truth: Sequence[str | None] = given if given is not None else [one.target for one in log]
    if all(one is None for one in truth):
        return None
    found = []
    for one, name, options in zip(log, truth, names, strict=True):
        if name is None or name.strip() not in options:
            remedy = Remedy("pass labels by the options' names", command="pass --labels by the options' names")
            expected = f"the true option of {one.id!r} among {', '.join(options)}"
            raise refuse(expected, "none" if name is None else repr(name), remedy)
        found.append(options.index(name.strip()))
    return torch.tensor(found)


def outcomes(log: Log, labels: Any) -> Tensor | None:
    """Return 1 for correct and 0 for incorrect answers (N,), or None if neither ``labels`` nor the log has it.

    Args:
        log: The answers.
        labels: As in ``labels_of``: 1 or 0, right or wrong, correct or incorrect, C or I, true or false, yes or no; None takes
            the log's scores.
    """
    given = labels_of(log, labels)
    if given is None:
        own = [one.right for one in log]
        if all(one is None for one in own):
            return None
        if None in own:
            rest = "or select the answers that have one"
            remedy = Remedy(f"pass labels, {rest}", command=f"pass --labels, {rest}")
            raise refuse("a score for every answer", f"none for {log.ids[own.index(None)]!r}", remedy)
        return torch.tensor([int(bool(one)) for one in own])
    return torch.tensor([_outcome(label, one) for label, one in zip(given, log, strict=True)])


def _outcome(label: str, one: Response) -> int:
    plain = label.strip().casefold()
    if plain not in RIGHT | WRONG:
        remedy = "write 1 for right and 0 for wrong"
        raise refuse("labels that say right or wrong (1 or 0)", f"{label!r} for {one.id!r}", remedy)
    return int(plain in RIGHT)


def features_of(log: Log) -> dict[str, list[str]]:
    """Return as columns the features that all answers have, their ids first."""
    rows = [{"id": one.id} | dict(one.features or {}) for one in log]
    return {name: [row[name] for row in rows] for name in rows[0] if all(name in row for row in rows)}


def groups_of(log: Log) -> list[str] | None:
    """Return the group of each answer, its question; None if each question has one answer."""
    if all(one.question is None for one in log):
        return None
    return [one.id if one.question is None else one.question for one in log]


def need_log(log: Any, *, name: str = "log") -> Log:
    """Return ``log`` if it is a log with answers.

    Raises:
        InputError: If it is not a log, or has no answers.
    """
    found = check_kind(log, Log, name=name, remedy="read one with read_openai, read_lm_eval or read_inspect")
    if not len(found) or not all(isinstance(one, Response) for one in found.responses):
        raise refuse(f"a {name} with answers", "none", "check how they were selected", argument=name)
    return found


Answers = Annotated[Log, Fits(need_log, "with answers")]
