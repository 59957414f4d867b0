"""Tables of a judge's scores, and of the labels that people gave to some of its rows."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import IS_TEXT, Each, Number, checked
from calibrant._core.files import hash_arrays, read_text
from calibrant._core.paths import shown as place_shown
from calibrant._core.paths import write_whole
from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError, InputError, Remedy
from calibrant.language._json import table_columns
from calibrant.language.log import RIGHT, WRONG, Log

Floats = NDArray[np.float64]
Columns = dict[str, list[Any]]

_YES = RIGHT | {"a", "first", "model_a", "win"}
_NO = WRONG | {"b", "second", "model_b", "loss"}
_TIE = {"tie", "tie (bothbad)", "both", "draw", "p"}
_OF_ONE = {"c", "i", "p"}  # correct, incorrect, partly: grades of one answer
_KEYS = ("id", "system", "first", "second")
_FORMAT = "calibrant judge rows 1"


@dataclass(frozen=True)
class Judged:
    """Rows that a judge scored.

    Args:
        columns: Name → column: id, system or first and second, question if there is one, and whatever else stands there.
        judge: (N, J) scores in [0, 1].
        swapped: (N, 1) of the same event, from answers in the other order; None without it.
        scale: Lowest and highest score, of ratings.
        source: Where they come from, for messages.
    """

    columns: Columns
    judge: Floats
    swapped: Floats | None
    scale: tuple[float, float] | None
    source: str

    @classmethod
    def of_log(cls, log: Log, predictions: Predictions, *, compared: bool = False) -> "Judged":
        """Return the rows of a judge's log, as ``yes_no``, ``rating``, ``verbalized`` or ``pairwise`` made predictions of them.

        Args:
            log: The judge's answers.
            predictions: Of them.
            compared: Whether class 0 is the first of two answers, as ``pairwise`` has it.
        """
        columns = {name: torch.as_tensor(values).tolist() if isinstance(values, torch.Tensor) else list(values)
                   for name, values in (predictions.features or {}).items()}  # fmt: skip
        columns["id"] = [one.id if one.question is None else one.question for one in log]
        # of class 1: correct, or the second of two answers
        log_odds = (predictions.logits[:, 1] - predictions.logits[:, 0]).double().cpu()
        if not compared:
            return cls(columns, log_odds.sigmoid().numpy()[:, None], None, None, log.source)
        # Both orders' mean and half difference give back each of them; class 0 is the first answer.
        place = torch.as_tensor(columns.pop("place_effect", [0.0] * len(log_odds)), dtype=torch.float64)
        judge, swapped = ((-(log_odds + sign * place)).sigmoid().numpy()[:, None] for sign in (1, -1))
        return cls(
            columns, judge, swapped if "place_effect" in (predictions.features or {}) else None, None, log.source
        )

    @property
    def systems(self) -> Any:
        """(N,) the system of each row, two of comparisons, or None."""
        if "first" in self.columns and "second" in self.columns:
            return self.columns["first"], self.columns["second"]
        return self.columns.get("system")

    @property
    def questions(self) -> list[Any] | None:
        """(N,) the question of each row: systems that answer one question are compared on it; None if each has one row."""
        found = self.columns.get("question", self.columns["id"])
        return list(map(str, found)) if len(set(map(str, found))) < len(found) else None

    def column(self, name: str) -> NDArray[Any]:
        """Return a column.

        Raises:
            InputError: If there is none of that name.
        """
        if name not in self.columns:
            raise InputError(f"a column of {self.source} ({', '.join(self.columns)})", repr(name), "name one of these")
        return np.asarray(self.columns[name])

    def with_columns(self, path: str | os.PathLike[str]) -> "Judged":
        """Return the rows with the columns of a table that has one line for each id."""
        table = table_columns(path)
        _need_columns(table, ("id",), path)
        place = {str(name): at for at, name in enumerate(table["id"])}
        if lost := [name for name in self.columns["id"] if str(name) not in place]:
            raise InputError(f"a line of every row in {place_shown(path)}", f"none for {shown(lost[0])}", "add it")
        rows = [place[str(name)] for name in self.columns["id"]]
        added = {name: [values[row] for row in rows] for name, values in table.items() if name != "id"}
        return replace(self, columns=self.columns | added)

    def samples_merged(self) -> "Judged":
        """Return one row for each answer: several scores of one are samples of the judge, whose mean is its score."""
        names = [name for name in _KEYS if name in self.columns]
        keys = list(zip(*(map(str, self.columns[name]) for name in names), strict=True))
        first: dict[tuple[str, ...], int] = {}
        code = np.array([first.setdefault(key, len(first)) for key in keys])
        if len(first) == len(keys):
            return self
        rows = np.unique(code, return_index=True)[1]
        # a judge that is sampled several times is one judge, whose score is the mean of its samples
        count = np.bincount(code)[:, None]
        judge, swapped = (
            None if one is None else np.column_stack([np.bincount(code, column) for column in one.T]) / count
            for one in (self.judge, self.swapped)
        )
        assert judge is not None
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, judge=judge, swapped=swapped)

    def human(self, path: str | os.PathLike[str]) -> tuple[Floats, Floats | None]:
        """Return what people say of the rows (N, A), −1 where they say nothing, and the labelled rows' probabilities, if they are there.

        The table has the columns id and label, and system where an id has answers of several systems; a row that occurs again is
        another annotator's, and an empty label is none. The column inclusion is that of ``calibrant sample``; of a table that
        ``write_rows`` wrote the file beside it counts instead. Drawn rows without a label are taken to lack it by chance.

        Raises:
            FileFormatError: If a column is missing.
            InputError: If a label is of a row that the judge did not score, or no label.
        """
        lines, table = self._labelled_lines(path)
        given: dict[int, list[float]] = {}
        for row, line in lines:
            # several people may have labelled one row: each is a column
            text = table["label"][line]
            given.setdefault(row, []).append(value_of(text, self._sides(row), self.scale, place_shown(path)))
        # −1 where a row has fewer labels than another
        found = np.full((len(self.judge), max(map(len, given.values()), default=1)), -1.0)
        for row, values in given.items():
            found[row, : len(values)] = values
        if os.path.exists(_state_of(path)):
            return found, self.drawn_before(path)
        if "inclusion" not in table or not lines:
            return found, None
        answered = len({row for row, _ in lines}) / len({row for row, _ in self._labelled_lines(path, empty=True)[0]})
        chance = np.full(len(self.judge), np.nan)
        for row, line in lines:
            one = table["inclusion"][line]
            chance[row] = one * answered if isinstance(one, int | float) else math.nan  # which the audit refuses
        return found, chance

    def _labelled_lines(
        self, path: str | os.PathLike[str], *, empty: bool = False
    ) -> tuple[list[tuple[int, int]], Columns]:
        """Return the row and the line of each label of a table, ``empty`` ones too or not, and its columns."""
        table = table_columns(path)
        _need_columns(table, ("id", "label"), path)
        names = [name for name in _KEYS if name in self.columns and name in table]
        place = _row_of_key([list(map(str, self.columns[name])) for name in names], self.source)
        lines = []
        for line, text in enumerate(table["label"]):
            if not empty and (text is None or not str(text).strip()):
                continue
            key = tuple(str(table[name][line]) for name in names)
            if key not in place:
                raise InputError(
                    "labels of rows that the judge scored", f"one of {', '.join(key)}", "leave it out, or add its score",
                    place=place_shown(path),
                )  # fmt: skip
            lines.append((place[key], line))
        return lines, table

    def write_rows(
        self, path: str | os.PathLike[str], rows: NDArray[np.int64], inclusion: Floats, *, before: Floats,
        human: str | os.PathLike[str] | None = None, hidden: Sequence[str] = ("score", "swapped"),
    ) -> None:  # fmt: skip
        """Write a table to fill in: the labels that are known, then ``rows`` without one; with ids, text, and probabilities.

        Beside it the probabilities of all rows are kept, as the next draw needs them: ``to-label.csv`` has ``to-label.rows.json``.

        Args:
            path: CSV.
            rows: That people shall label.
            inclusion: (N,) as ``judge_rows`` returns it.
            before: (N,) the probability to have been drawn before, as ``even_before`` has it of rows drawn evenly.
            human: The table of the labels known.
            hidden: Columns that a labeller shall not see.
        """
        own = (*hidden, "inclusion", "label")
        names = [name for name, values in self.columns.items()
                 if name in _KEYS or (name not in own and all(isinstance(one, str) for one in values))]  # fmt: skip
        lines: list[tuple[int, Any]] = []
        if human is not None:
            known, table = self._labelled_lines(human)
            lines = [(row, table["label"][line]) for row, line in known]
        lines += [(int(row), "") for row in rows]
        content = io.StringIO()
        written = csv.writer(content, lineterminator="\n")
        written.writerow([*names, "inclusion", "label"])
        written.writerows(
            [*(self.columns[name][row] for name in names), repr(float(inclusion[row])), label] for row, label in lines
        )
        kept = {
            "format": _FORMAT, "digest": self._digest(), "inclusion": inclusion.tolist(), "before": before.tolist(),
            "rows": rows.tolist(), "known": sorted({row for row, line in lines if line != ""}),
        }  # fmt: skip
        write_whole(_state_of(path), json.dumps(kept))  # first, as a table without it has no next batch
        write_whole(path, content.getvalue())

    def drawn_before(self, path: str | os.PathLike[str]) -> Floats:
        """Return the probability (N,) of every row to have been drawn for a table that ``write_rows`` wrote, and labelled.

        Raises:
            FileFormatError: If the file beside the table is not there, or of other scores.
            InputError: If a row has a label that was not drawn.
        """
        beside = _state_of(path)
        try:
            kept = json.loads(read_text(beside)) if os.path.exists(beside) else {}
            same = (kept["format"], kept["digest"]) == (_FORMAT, self._digest())
            either, before = (np.array(kept[name], np.float64) for name in ("inclusion", "before"))
            new, known = set(kept["rows"]), set(kept["known"])
        except (ValueError, TypeError, KeyError):
            same = False
        if not same:
            raise FileFormatError(
                f"{place_shown(beside)}, which keeps how the rows were drawn", "none of these scores",
                "put it beside the table again, or draw anew",
            )  # fmt: skip
        labelled = {row for row, _ in self._labelled_lines(path)[0]}
        if other := sorted(labelled - new - known):
            raise InputError("labels of rows that were drawn", f"one of {self.columns['id'][other[0]]}", "leave it out",
                             place=place_shown(path))  # fmt: skip
        if not (missing := len(new - labelled)):
            return either
        # of the last draw a part was labelled, by chance: the row's probability in that draw falls by as much
        last = 1 - (1 - either) / np.where(before < 1, 1 - before, 1)
        return np.asarray(1 - (1 - before) * (1 - last * (1 - missing / len(new))))

    def _digest(self) -> str:
        return hash_arrays(json.dumps([list(map(str, self.columns["id"])), self.judge.tolist()]), {})

    def _sides(self, row: int) -> tuple[str, str] | None:
        sides = self.systems
        return (str(sides[0][row]), str(sides[1][row])) if isinstance(sides, tuple) else None


@checked
def read_judged(
    path: str | os.PathLike[str],
    *,
    scores: Annotated[Sequence[str], Each(IS_TEXT, least=1)] = ("score",),
    scale: Annotated[tuple[float, float], Each(Number())] | None = None,
) -> Judged:
    """Return the rows of a table of a judge's scores.

    Its columns are ``id``; ``system``, or ``first`` and ``second`` for comparisons; the scores; ``swapped``, the judge's verdict
    on a comparison whose answers were shown in the other order, in words of that order ("A" is then the second system); and any
    others. Several lines of one answer are samples of the judge, which are averaged.

    Args:
        path: CSV, TSV, JSON lines, Parquet or Arrow.
        scores: Columns, one for each judge: in [0, 1], ratings with ``scale``, or words (yes, no, A, B, tie, a system's name).
        scale: Lowest and highest rating.

    Raises:
        FileFormatError: If a column is missing.
        InputError: If a score is none.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("judged.csv").write_text("id,first,second,score,swapped\\nq1,new,old,A,B\\nq2,new,old,B,B\\n")
        >>> found = read_judged("judged.csv")
        >>> found.judge[:, 0].tolist(), found.swapped[:, 0].tolist()  # the second verdict depends on the order
        ([1.0, 0.0], [1.0, 1.0])
    """
    if scale is not None and not (len(scale) == 2 and scale[0] < scale[1]):
        raise refuse("scale as (lowest, highest)", shown(scale), "write (1, 5)", argument="scale")
    columns = table_columns(path)
    _need_columns(columns, ("id", *scores), path, scores=scores)
    place = place_shown(path)
    sides: list[tuple[str, str] | None] = [None] * len(columns["id"])
    if "first" in columns and "second" in columns:
        sides = [(str(a), str(b)) for a, b in zip(columns["first"], columns["second"], strict=True)]
    judge = np.column_stack(
        [[value_of(one, side, scale, place) for one, side in zip(columns[name], sides, strict=True)] for name in scores]
    )
    swapped = None
    if "swapped" in columns:
        # A system's name means the same in both orders; a place, or a number, is that of the order that was shown.
        turned = zip(columns["swapped"], sides, strict=True)
        swapped = np.array(
            [[float(str(one) == side[0]) if side and str(one) in side else 1 - value_of(one, None, scale, place)]
             for one, side in turned]
        )  # fmt: skip
    if swapped is not None and len(scores) > 1:
        raise InputError(
            "one judge with the column swapped", f"{len(scores)}", "leave out the column, or all but one score"
        )
    return Judged(columns, judge, swapped, scale, place).samples_merged()


def value_of(
    value: Any, sides: tuple[str, str] | None, scale: tuple[float, float] | None, place: str
) -> float:  # fmt: skip
    """Return a score or label in [0, 1]: 1 for right, or for the first of two.

    Raises:
        InputError: If it is none.
    """
    text = "" if value is None else str(value).strip()
    plain = text.casefold()
    if sides is not None and text in sides:
        return float(text == sides[0])
    low, high = scale or (0.0, 1.0)
    try:
        number = (float(text) - low) / (high - low)
        remedy = Remedy("pass the lowest and highest as scale=", command="name the lowest and highest with --ratings")
    except ValueError:
        number, remedy = -1.0, Remedy("correct it, or leave it out" if text else "leave the row out")
    # of two answers a C is a tie to some and a third to others
    if scale is None and not (sides is not None and plain in _OF_ONE):
        number = 1.0 if plain in _YES else 0.0 if plain in _NO else 0.5 if plain in _TIE else number
    if not 0 <= number <= 1:
        expected = (
            "a score or label in [0, 1], yes or no, A, B or tie"
            if scale is None
            else f"a rating from {low:g} to {high:g}"
        )
        raise InputError(expected, repr(text), remedy, place=place)
    return number


def _state_of(path: str | os.PathLike[str]) -> str:
    return str(Path(path).with_suffix(".rows.json"))


def _row_of_key(keys: Sequence[Sequence[str]], source: str) -> Mapping[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for row, key in enumerate(zip(*keys, strict=True)):
        if found.setdefault(key, row) != row:
            raise InputError(
                f"labels that name the system too, as {source} has several answers to {key[0]}",
                "the column id alone", "add the column system to the labels",
            )  # fmt: skip
    return found


def _need_columns(
    table: Columns, names: Sequence[str], path: str | os.PathLike[str], *, scores: Sequence[str] = ()
) -> None:
    if lost := [name for name in names if name not in table]:
        so = f"name the column so: {lost[0]}"
        other = Remedy(f"{so}, or pass your column's name as scores", command=f"{so}, or name yours by --scores")
        raise FileFormatError(
            f"the columns {' and '.join(names)} in {place_shown(path)}", ", ".join(table) or "no rows",
            other if lost[0] in scores else so,
        )  # fmt: skip
    if not table[names[0]]:
        raise FileFormatError(f"rows in {place_shown(path)}", "none", "check the file")
