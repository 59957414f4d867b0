"""What a report is made of: the models that it is on, and the parts of its page."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

from calibrant._core.notebook import to_html
from calibrant.calibrators import Calibrator, MultiLabelCalibrator
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluate.compare import same_weights
from calibrant.plot.diagrams import is_event, labelled_rows
from calibrant.plot.pictures import checked_names

LONGEST_NAME = 60  # characters of a calibrator's repr within a sentence; a longer one is shortened to its class name


@dataclass(frozen=True, eq=False)
class Model:
    """One model's predictions on the rows it is evaluated on, before and after calibration.

    Args:
        name: Name of the model.
        before: Labelled predictions.
        after: The same rows calibrated; None reports on the uncalibrated model only.
        calibrator: The fitted calibrator that produced ``after``, or its name, or None.
        source: File the rows came from: the report prints its name, and its commands the path as given.
        split: Name of the split.
        class_names: K names, or None for the class indices.
        reference: The same rows through plain temperature scaling, fitted where ``calibrator`` was; None leaves that
            comparison out.
        argument: The file and the options that read it as arguments of the command line, for the commands that the report
            recommends; empty takes the source.
        by: Columns whose groups are looked at: names of features of ``before``, or a dict of columns (N,); None takes all its
            features, an empty list none.
        whole: Whether the file has no other split that a calibrator could be fitted on.

    Raises:
        InputError: If rows lack labels, or those before and after differ in number or weights.

    Examples:
        >>> from calibrant import Predictions
        >>> Model("mine", Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        Model('mine', 2 rows)
    """

    name: str
    before: Data
    after: Data | None = None
    calibrator: Calibrator | str | None = None
    source: str = ""
    split: str = ""
    class_names: Sequence[str] | None = None
    reference: Data | None = None
    argument: str = ""
    by: Sequence[str] | Mapping[str, Any] | None = None
    whole: bool = False

    _repr_html_ = to_html

    def __post_init__(self) -> None:
        labelled_rows(self.before)
        if isinstance(self.before, Predictions):
            checked_names(self.class_names, classes=self.before.classes)
        if self.after is None:
            return
        labelled_rows(self.after)
        if len(self.after) != len(self.before):
            expected, got = (
                f"equally many rows before and after for {self.name}",
                f"{len(self.before)} and {len(self.after)}",
            )
            raise InputError(expected, got, "calibrate the same predictions")
        if not same_weights(self.before, self.after):
            raise InputError(f"the same weights before and after for {self.name}", "others", "use calibrated_by")

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {len(self.before)} rows)"

    @property
    def calibrated_with(self) -> str | None:
        """The calibrator as text."""
        return as_text(self.calibrator)

    @property
    def calibrated_in_short(self) -> str:
        """The calibrator's repr, or its class name if the repr is long or a record of what was tried."""
        name = self.calibrated_with or "calibration"
        return name if len(name) <= LONGEST_NAME and not name.startswith("AutoCalibrator(") else name.split("(")[0]

    @property
    def features(self) -> Mapping[str, Any]:
        """The columns beside the rows: those that ``by`` holds, else the features of the predictions."""
        return self.by if isinstance(self.by, Mapping) else self.before.features or {}

    @property
    def file(self) -> str:
        """The file's own name, without the folders that lead to it."""
        return PurePath(self.source).name or self.source

    def class_name(self, index: int) -> str:
        """Return the name of class ``index``, or its index; of two classes without names "class 1", which is the event."""
        if self.class_names is not None:
            return str(self.class_names[index])
        return f"class {index}" if is_event(self.before) else str(index)


@dataclass(frozen=True)
class Table:
    """A table of text.

    Args:
        title: Its caption.
        header: Column names.
        rows: Cells; every row has as many as the header.
        note: How to read it.
        links: Where the first cells lead to, such as "#model-1"; empty leads nowhere.

    Raises:
        InputError: If a row has another number of cells.
    """

    kind: ClassVar[str] = "table"
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    links: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                expected = f"{len(self.header)} cells in every row of {self.title!r}"
                raise InputError(expected, f"{len(row)}", "fill the row")


@dataclass(frozen=True)
class Claims:
    """Sentences under a heading, one a line.

    Args:
        title: The heading, or "".
        lines: The sentences.
    """

    kind: ClassVar[str] = "claims"
    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """A figure in the page's own colours; made by ``report.figures``.

    Args:
        caption: What it shows.
        svg: The SVG element, printed as it is.
    """

    kind: ClassVar[str] = "picture"
    caption: str
    svg: str


# a paragraph is text, and a figure that was drawn elsewhere its caption and address
Block: TypeAlias = Table | Claims | Picture | str | tuple[str, str]


@dataclass(frozen=True)
class Section:
    """A part of a page below its first screen.

    Args:
        title: Its heading, or what unfolds it; empty for none.
        blocks: What it shows, in order.
        folded: Whether it is folded away on screen.
    """

    title: str
    blocks: Sequence[Block]
    folded: bool = True


@dataclass(frozen=True)
class Page:
    """What is shown of one model: the first screen, and the sections below.

    Args:
        name: Of the model.
        verdict: What is wrong.
        advice: What to do.
        words: The facts behind it.
        pictures: Beside each other.
        how: How to read them.
        sections: In order.
    """

    name: str
    verdict: Any
    advice: Any
    words: Sequence[str]
    pictures: Sequence[Picture]
    how: str
    sections: Sequence[Section]


def table_of_states(
    title: str,
    subject: str,
    rows: Sequence[tuple[Any, ...]],
    *,
    states: int,
    more: Sequence[str] = ("if calibrated", "what to do"),
    note: str = "",
) -> Table:
    """Return the table of figures before and after calibration, or of one state alone.

    Args:
        title: Its caption.
        subject: Heading of what its rows are of.
        rows: Label, (value, interval) of each state, and a cell of each of ``more``.
        states: 1 or 2.
        more: Headings of the last columns.
        note: How to read it.
    """
    when = ("before", "after") if states > 1 else ("value",)
    header = [subject, *(cell for name in when for cell in (name, "95 %")), *more]
    return Table(title, header, [[label, *chain.from_iterable(pairs), *last] for label, pairs, *last in rows], note)


def as_text(calibrator: Calibrator | MultiLabelCalibrator | str | None) -> str | None:
    """Return the repr of a calibrator in one line, or the name passed instead of one."""
    return calibrator if calibrator is None or isinstance(calibrator, str) else in_one_line(calibrator)


def in_one_line(calibrator: Calibrator | MultiLabelCalibrator) -> str:
    """Return the repr of ``calibrator`` on one line; torch prints submodules on lines of their own.

    Examples:
        >>> from calibrant.calibrators import Chain, Identity
        >>> in_one_line(Chain(Identity(), Identity()))
        'Chain(Identity(), Identity())'
    """
    if isinstance(calibrator, MultiLabelCalibrator):
        return repr(calibrator)
    children = [*calibrator.children()]
    parts = [part for child in children for part in (child if isinstance(child, nn.ModuleList) else [child])]
    inside = calibrator.extra_repr() or ", ".join(in_one_line(part) for part in parts if isinstance(part, Calibrator))
    return f"{type(calibrator).__name__}({inside})"


def fingerprint(data: Data) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of the numbers, labels and weights, in order."""
    if isinstance(data, Predictions):
        columns = [data.logits if data.given_probs is None else data.given_probs, data.labels]
    else:
        columns = [data.p, data.y]
    digest = hashlib.sha256()
    for column in [*columns, data.weights]:
        if column is not None:
            # dtype and shape too: the same bytes as other numbers are other data
            plain = column.detach().cpu().contiguous()
            digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
            digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
