"""Tables that predictions come from, and go back into: the columns that hold their scores, and the names of their classes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from calibrant._core.files import Array, pa
from calibrant.errors import InputError, Remedy, optional_package

What: TypeAlias = Literal["probs", "logits", "label", "top"]


@dataclass(frozen=True)
class Frame:
    """A table and where the scores stand in it.

    Args:
        table: As it was given: a frame of pandas, Polars or Arrow, or the Arrow table of a file.
        kind: "logits" or "probs"; or "conf", the confidences of decisions.
        columns: The columns of the scores: one a class, or one alone; or as they are called that stand in the parts of cells.
        single: Whether a row has one number, of class 1 of two.
        names: The classes as the columns call them; their numbers where they have no names.
        rows: (N,) the numbers of the table's rows that are meant; None is all.
        keys: What a cell of records calls the classes, in the order of the scores; the new cells are records, too.
        percentage: A cell, "87 %", where the scores are percentages that are text; "" of numbers from 0 to 100; None of fractions.
    """

    table: Any
    kind: str
    columns: tuple[str, ...]
    single: bool
    names: tuple[str, ...]
    rows: Array | None = None
    keys: tuple[str, ...] = ()
    percentage: str | None = None

    def __getitem__(self, rows: Any) -> "Frame":
        """Return some of these rows: a slice, a mask or their places (N,)."""
        return replace(self, rows=np.asarray(rows if self.rows is None else self.rows[rows]))

    @staticmethod
    def joined(parts: Sequence["Frame | None"]) -> "Frame | None":
        """Return the rows of all parts of one table in order; None where they are of several."""
        held = [(part, part.rows) for part in parts if part is not None and part.rows is not None]
        if len(held) < len(parts) or any(part.table is not held[0][0].table for part, _ in held):
            return None
        return replace(held[0][0], rows=np.concatenate([rows for _, rows in held]))

    def new_columns(
        self, probs: Array, logits: Array, *, what: str, suffix: str, instead: bool
    ) -> dict[str, list[Any]]:
        """Return columns of calibrated scores by name, in order.

        Args:
            probs: Calibrated probabilities (N, K).
            logits: Calibrated logits (N, K).
            what: "probs", "logits", "label" or "top".
            suffix: Of the new names, where they stand beside the old.
            instead: Whether they take the place, and the names, of the scores.

        Raises:
            InputError: If a new name is taken, or if parts of cells are to be replaced.
        """
        taken = getattr(self.table, "column_names", None) or list(self.table.columns)  # Arrow's columns are no names
        if instead and not {*self.columns} <= {*taken}:
            remedy = Remedy("leave instead out", command="leave --replace out")
            raise InputError("scores in columns of their own to replace", "scores in parts of cells", remedy)
        decided = what in ("label", "top")  # their names are Calibrant's, and may be those of other columns
        ending = "" if instead and not (decided and {"predicted", "confidence"} & set(taken)) else suffix
        if decided:
            found: dict[str, list[Any]] = {f"predicted{ending}": [self.names[one] for one in probs.argmax(axis=1)]}
            found |= {f"confidence{ending}": probs.max(axis=1).tolist()} if what == "top" else {}
        else:
            values = logits if what == "logits" else self._in_unit(probs)
            if self.single:  # as the table has it: p of class 1, or the log-odds
                values = values[:, 1:] if what != "logits" else logits[:, 1:] - logits[:, :1]
            names = [f"{name}{ending}" for name in self.columns]
            if len(names) == 1 and not self.single:
                cells = values.tolist()
                found = {names[0]: [dict(zip(self.keys, row, strict=True)) for row in cells] if self.keys else cells}
            else:
                found = dict(zip(names, values.T.tolist(), strict=True))
        gone = self.columns if instead else ()
        if known := [name for name in found if name in taken and name not in gone]:
            remedy = Remedy("name another ending by suffix", command="name another ending by --suffix")
            raise InputError("new names of columns", f"{known[0]!r}, which the table has", remedy)
        return found

    def _in_unit(self, probs: Array) -> Array:
        """Return probabilities as the table has its own: as they are, or as percentages, of text where these are."""
        if self.percentage is None:
            return probs
        if not self.percentage:
            return 100 * probs
        decimal = "," if "," in self.percentage else "."
        before, _, after = re.split(r"([\d.,]+)", self.percentage, maxsplit=1)
        cells = [f"{before}{100 * one:.9g}{after}".replace(".", decimal) for one in probs.ravel().tolist()]
        return np.array(cells, dtype=object).reshape(probs.shape)

    def with_columns(self, columns: dict[str, list[Any]], *, instead: bool) -> Any:
        """Return these rows of the table with the columns, in the library that the table is of; an index of pandas stays."""
        narwhals = optional_package("narwhals", extra="dataframes")
        frame = narwhals.from_native(self.table, eager_only=True)
        if self.rows is not None and not np.array_equal(self.rows, np.arange(len(frame))):
            frame = narwhals.from_native(_with_plain_text(self.table), eager_only=True)[self.rows.tolist()]
        made = [narwhals.new_series(name, values, backend=frame.implementation) for name, values in columns.items()]
        gone = [name for name in self.columns if instead and name not in columns]
        return frame.with_columns(*made).drop(gone).to_native()


def _with_plain_text(table: Any) -> Any:
    """Return an Arrow table with text of the one kind whose rows Arrow selects, and any other frame as it is."""
    if not isinstance(table, pa.Table):
        return table
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return table.cast(pa.schema([one.with_type(views.get(one.type, one.type)) for one in table.schema]))


def arrow_of(frame: Any) -> Any:
    """Return a frame of pandas or Polars as an Arrow table; an index of pandas is left out.

    Raises:
        InputError: If it is no frame.
    """
    narwhals = optional_package("narwhals", extra="dataframes")
    try:
        return narwhals.from_native(frame, eager_only=True).to_arrow()
    except TypeError as error:
        got = type(frame).__name__
        raise InputError("a file, or a frame of pandas, Polars or Arrow", got, "pass its path or the frame") from error


def table_of_rows(predictions: Any, names: Sequence[str] | None) -> Any:
    """Return probabilities, predicted class, confidence, label, weights and features of ``Predictions`` as an Arrow table."""
    names = [f"p{k}" for k in range(predictions.classes)] if names is None else names
    if len(names) != predictions.classes:
        raise InputError(f"{predictions.classes} column names", f"{len(names)}", "pass one per class")
    probs = predictions.probs
    data = {name: probs[:, k].cpu().numpy() for k, name in enumerate(names)}
    data["predicted"] = predictions.predicted.cpu().numpy()
    data["confidence"] = predictions.confidence.cpu().numpy()
    held = predictions.stored(text=True, label="label")
    data |= {name.removeprefix("feature:"): held[name] for name in held if name not in ("groups", "decision")}
    return pa.table(data)
