"""The input of a report (a model's predictions before and after calibration) and the building blocks of its page."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from calibrant._core.notebook import to_html
from calibrant.calibrators import Calibrator, MultiLabelCalibrator
from calibrant.data.checks import Data
from calibrant.data.multilabel import MultiLabel
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.evaluate.compare import same_weights
from calibrant.plot.diagrams import is_event, labelled_rows
from calibrant.plot.pictures import check_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AnyCalibrator: TypeAlias = Calibrator | MultiLabelCalibrator


@dataclass(frozen=True, eq=False)
class Model:
    """One model's predictions on the rows it is evaluated on, before and after calibration.

    Args:
        name: Name of the model.
        before: Labelled predictions, pairs, or predictions of several labels per row.
        after: The same rows after calibration; None reports only on the uncalibrated model.
        calibrator: The fitted calibrator that produced ``after``, or its name, or None.
        source: The file that contains the rows. The report shows its name, and the commands in the report use its path.
        split: Name of the split; "" or "all" if these are all rows of the file, so that a calibrator must be fitted on
            another file.
        class_names: K names, or None for the class indices.
        options: The options for reading the file, such as {"columns": "p_*"}, for the commands in the report.
        by: Names of the features of ``before`` that define groups; None uses all features, and an empty list uses none.

    Raises:
        InputError: If labels are missing, or the rows before and after calibration differ in number or weights.

    Examples:
        >>> from calibrant import Predictions
        >>> Model("mine", Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0]))
        Model('mine', 2 rows)
    """

    name: str
    before: Data | MultiLabel
    after: Data | MultiLabel | None = None
    calibrator: AnyCalibrator | str | None = None
    source: str = ""
    split: str = ""
    class_names: Sequence[str] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    by: Sequence[str] | None = None

    _repr_html_ = to_html

    def __post_init__(self) -> None:
        for data in (self.before, self.after):
            if isinstance(data, MultiLabel):
                data.require_labels()
            elif data is not None:
                labelled_rows(data)
        if isinstance(self.before, Predictions):
            check_names(self.class_names, classes=self.before.classes)
        if self.after is not None and not same_weights(self.before, self.after):  # type: ignore[arg-type]
            got = f"{len(self.before)} and {len(self.after)} rows, or different weights"
            raise InputError(
                f"the same rows and weights before and after calibration for {self.name}", got, "use calibrated_by"
            )

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {len(self.before)} rows)"

    @property
    def calibrated_with(self) -> str | None:
        """The calibrator as text, or None."""
        return self.calibrator if isinstance(self.calibrator, str | None) else in_one_line(self.calibrator)

    @property
    def method(self) -> str:
        """The class of the calibrator, or the name that was passed instead; "" without a calibrator."""
        return (self.calibrated_with or "").split("(")[0].rstrip()

    @property
    def file(self) -> str:
        """The file's name without its folders."""
        return PurePath(self.source).name

    @property
    def whole(self) -> bool:
        """Whether these are all rows of the file."""
        return self.split in ("", "all")

    def class_name(self, index: int) -> str:
        """Return the name of a class.

        A class without a name is shown as its index, or as "class 1" if it is the event of a two-class model.

        Args:
            index: The class index.
        """
        if self.class_names is not None:
            return str(self.class_names[index])
        return str(index) if isinstance(self.before, MultiLabel) or not is_event(self.before) else f"class {index}"


@dataclass(frozen=True)
class Table:
    """A table of text.

    Args:
        title: The caption.
        header: Column names.
        rows: Rows of cells; every row has as many cells as the header.
        note: An explanation below the table.
        links: Link targets of the first cells, such as "#model-1"; empty for no link.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    links: Sequence[str] = ()


@dataclass(frozen=True)
class Claims:
    """Sentences under a heading, one per line.

    Args:
        title: The heading, or "".
        lines: The sentences.
    """

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """A figure that the page shows in its own colours, made by ``report.figures``.

    Args:
        caption: The caption.
        figure: The figure, drawn in the colours of ``report.figures.PLACEHOLDERS``.
        titles: For each dot in order, a text with its numbers.
    """

    caption: str
    figure: "Figure"
    titles: Sequence[str] = ()


# a str is a paragraph; a pair (caption, data URL) is a figure that was drawn elsewhere
Block: TypeAlias = Table | Claims | Picture | str | tuple[str, str]


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Args:
        title: The heading, which unfolds a folded section; "" for none.
        blocks: The content, in order.
        folded: Whether it is collapsed on screen.
    """

    title: str
    blocks: Sequence[Block]
    folded: bool = True


def in_one_line(calibrator: AnyCalibrator) -> str:
    """Return the repr of ``calibrator`` on one line; PyTorch prints submodules on separate lines.

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


def fingerprint(data: Data | MultiLabel) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of the numbers, labels and weights, in order."""
    if isinstance(data, Pairs):
        columns = [data.p, data.y]
    else:
        columns = [data.logits if data.given_probs is None else data.given_probs, data.require_labels()]
    digest = hashlib.sha256()
    for column in [*columns, *([] if data.weights is None else [data.weights])]:
        # include dtype and shape, because the same bytes can be different numbers
        plain = column.detach().cpu().contiguous()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
