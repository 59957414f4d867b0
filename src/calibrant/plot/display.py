"""Reliability diagrams with scikit-learn's interface: ``CalibrationDisplay.from_predictions`` and ``.from_estimator``."""

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast

import numpy as np

from calibrant._core.check import as_array, refuse, shown
from calibrant._core.constraints import Count, PublicCalls, checked
from calibrant.binning import Binning, EqualWidth
from calibrant.data.checks import Data
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.plot.arguments import AnyAxes, Label, PlainRows
from calibrant.plot.diagrams import Diagram, IsotonicDiagram
from calibrant.plot.pictures import Kind, reliability, reliability_numbers
from calibrant.plot.style import COLOURS, DASHES, LIGHT, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BINS = 15
Strategy = Literal["quantile", "uniform"]


class Look(TypedDict, total=False):
    """How both constructors draw."""

    n_bins: Count | Binning | None
    strategy: Strategy | None
    name: Label | None
    ax: AnyAxes | None


@dataclass(eq=False, repr=False)
class CalibrationDisplay(metaclass=PublicCalls):
    """A reliability diagram of a classifier, with the interface of scikit-learn's ``CalibrationDisplay``.

    Create it with ``from_predictions`` or ``from_estimator``; ``plot`` draws it again into other axes.

    Args:
        data: Pairs or predictions.
        name: Name of the model, shown as the title.
        event: Name of the event whose probability is shown (two classes).
        kind: As in ``reliability``.
        bins: As in ``reliability``.

    Attributes:
        numbers_: The numbers drawn: an ``IsotonicDiagram`` for two classes, a ``Diagram`` for more.
        ax_: The axes, after ``plot``.
        figure_: Their figure, after ``plot``.
    """

    data: PlainRows
    _: KW_ONLY
    name: Label | None = None
    event: Label = ""
    kind: Kind | None = None
    bins: Count | Binning = BINS
    numbers_: Diagram | IsotonicDiagram = field(init=False)
    ax_: "Axes" = field(init=False)
    figure_: "Figure" = field(init=False)

    def plot(self, ax: AnyAxes | None = None, *, name: Label | None = None) -> Self:
        """Draw the diagram.

        Args:
            ax: Where to draw; None makes a figure. In the axes of another display, a legend names the models.
            name: Name of the model; None is the display's ``name``.

        Returns:
            Itself, with ``ax_``, ``figure_`` and ``numbers_`` set.
        """
        title = name or self.name
        others = curves_in(ax)
        if ax is not None and others:
            self.numbers_ = reliability_numbers(self.data, kind=self.kind, bins=self.bins)
            self.ax_, self.figure_ = ax, cast("Figure", ax.figure)
            draw_beside(self.numbers_, ax, name=title or f"model {len(others) + 1}")
            return self
        picture = reliability(self.data, ax, kind=self.kind, bins=self.bins, event=self.event)
        self.ax_, self.figure_, self.numbers_ = picture.ax, picture.figure, picture.numbers
        mark_curve(self.ax_, title or "model 1")
        if title:
            self.ax_.set_title(title, fontsize=10)
        return self

    @classmethod
    @checked
    def from_predictions(
        cls, y_true: Any, y_prob: Any, *, classes: Any = None, pos_label: Any = None, **look: Unpack[Look]
    ) -> Self:
        """Draw the diagram of probabilities.

        Args:
            y_true: (n,) labels of any kind.
            y_prob: (n,) probabilities of the positive class, or (n, K), one column per class.
            classes: The labels in the order of the columns of ``y_prob``; None is the sorted distinct labels of ``y_true``,
                one per column.
            pos_label: For (n,) probabilities: the positive label; None is the larger of two (1 of 0 and 1).
            n_bins: How many bins to draw, also for two classes, or a binning; None draws the isotonic diagram for two
                classes, else 15 bins.
            strategy: As in scikit-learn: bins of equal mass (``"quantile"``) or width (``"uniform"``), also for two classes;
                None is equal mass.
            name: Name of the model, shown as the title, or in the legend in the axes of another display.
            ax: Where to draw; None makes a figure.

        Raises:
            InputError: If labels and columns do not match, or values are not probabilities.

        Examples:
            >>> display = CalibrationDisplay.from_predictions([0, 1, 1, 0], [0.2, 0.9, 0.6, 0.4])
            >>> display.ax_.get_ylabel()
            'frequency of class 1'
        """
        probs = as_array(y_prob, name="y_prob")
        data, event = _data_of(_sortable_labels(y_true, probs), probs, classes, pos_label)
        n_bins, strategy = look.get("n_bins"), look.get("strategy")
        kind: Kind | None = None if n_bins is None and strategy is None else "bins"
        made = cls(data, name=look.get("name"), event=event, kind=kind, bins=_bins_by_strategy(n_bins, strategy))
        return made.plot(look.get("ax"))

    @classmethod
    @checked
    def from_estimator(cls, estimator: Any, X: Any, y: Any, *, pos_label: Any = None, **look: Unpack[Look]) -> Self:
        """Draw the diagram of a fitted classifier's ``predict_proba`` on data it was not fitted on.

        Args:
            estimator: With ``predict_proba`` and ``classes_``.
            X: (n, d) features.
            y: (n,) labels.
            pos_label: For two classes: the positive label; None is the second of ``classes_``.
            n_bins: As in ``from_predictions``.
            strategy: As there.
            name: As in ``from_predictions``; None is the estimator's class.
            ax: Where to draw; None makes a figure.

        Raises:
            InputError: If the estimator has no ``predict_proba``.
        """
        if not hasattr(estimator, "predict_proba") or not hasattr(estimator, "classes_"):
            raise InputError(
                "a fitted classifier with predict_proba",
                f"{type(estimator).__name__}",
                "calibrate its decision function with CalibratedClassifier first",
            )
        classes = np.asarray(estimator.classes_)
        probs = as_array(_predicted_probabilities(estimator, X), name="predict_proba(X)")
        look["name"] = look.get("name") or type(estimator).__name__
        if len(classes) == 2:
            positive = classes[1] if pos_label is None else _one_label(pos_label)
            column = int(np.flatnonzero(classes == positive)[0]) if np.isin(positive, classes) else -1
            if column < 0:
                raise InputError(f"pos_label among {classes.tolist()}", f"{shown(pos_label)}", "name one of them")
            return cls.from_predictions(y, probs[:, column], pos_label=positive, **look)
        return cls.from_predictions(y, probs, classes=classes, pos_label=pos_label, **look)


def _bins_by_strategy(n_bins: int | Binning | None, strategy: str | None) -> int | Binning:
    if strategy is None:
        return BINS if n_bins is None else n_bins
    if isinstance(n_bins, Binning):
        raise refuse("n_bins as a number with strategy", shown(n_bins), "leave strategy out")
    bins, uniform = BINS if n_bins is None else n_bins, strategy == "uniform"
    return EqualWidth(bins) if uniform else bins


def _predicted_probabilities(estimator: Any, X: Any) -> Any:
    try:
        return estimator.predict_proba(X)
    except CalibrantError:
        raise
    except (ValueError, TypeError) as error:  # raised by the classifier for features it does not accept
        reason = " ".join(str(error).split())[:200]
        raise refuse(
            f"X that {type(estimator).__name__} can predict", f"{reason!r}", "pass features as in its fit"
        ) from error


def _sortable_labels(y_true: Any, probs: Any) -> Any:
    """Return sortable labels (n,), one per row of ``probs``."""
    labels = as_array(y_true, name="y_true")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biufUSO":
        raise refuse("y_true as one label per row", shown(labels), "pass numbers or names (n,)")
    if probs.ndim not in (1, 2) or len(probs) != len(labels):
        raise refuse(
            f"probabilities ({len(labels)},) or ({len(labels)}, K)", f"shape {probs.shape}", "pass one row per label"
        )
    kinds = {type(label) for label in labels.tolist()} if labels.dtype == object else set()
    if len(kinds) > 1 or not all(issubclass(kind, str | int | float) for kind in kinds):
        got = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise refuse("labels of one type, numbers or names", got, "pass all names or all numbers")
    return labels


def _data_of(labels: Any, probs: Any, classes: Any, pos_label: Any) -> tuple[Data, str]:
    found = np.unique(labels)
    if probs.ndim == 1 and classes is not None:
        remedy = "name the positive label by pos_label, or pass all columns"
        raise refuse("classes beside one column of probabilities per class", "one column", remedy, argument="classes")
    if probs.ndim > 1 and pos_label is not None:
        remedy = "pass the column of that label alone, or leave pos_label out"
        raise refuse(
            "pos_label beside one column of probabilities", f"shape {probs.shape}", remedy, argument="pos_label"
        )
    if probs.ndim == 1:
        positive = _positive(found, pos_label)
        return BinaryPairs.from_probs(probs, (labels == positive).astype(np.int64)), f"class {positive}"
    order = found if classes is None else as_array(classes, name="classes")
    if order.ndim != 1 or len(order) != probs.shape[1]:
        raise refuse(
            f"one column of probabilities per class ({order.size})",
            f"shape {probs.shape}",
            "name the columns' labels by classes=",
        )
    ranks = {label: rank for rank, label in enumerate(order.tolist())}
    if not set(found.tolist()) <= set(ranks):
        raise refuse(f"labels among {order.tolist()}", "others", "name the columns' labels by classes= in their order")
    codes = np.array([ranks[label] for label in labels.tolist()], dtype=np.int64)
    return Predictions.from_probs(probs, codes), f"class {order[-1]}"


def _one_label(label: Any) -> Any:
    if not isinstance(label, str | int | float | np.generic):
        raise refuse("pos_label as one label", shown(label), "name the positive label")
    return label


def _positive(found: Any, pos_label: Any) -> Any:
    if pos_label is not None:
        _one_label(pos_label)
        if len(found) > 1 and pos_label not in found.tolist():
            raise refuse(f"pos_label among {found[:5].tolist()}", shown(pos_label), "name one of them")
        return pos_label
    if not np.isin(found, [0, 1]).all() and not np.isin(found, [-1, 1]).all():
        raise refuse(
            "labels 0 and 1 (or -1 and 1) with one probability per row",
            f"{found[:5].tolist()}",
            "name the positive one by pos_label",
        )
    return 1


_CURVE = "display-curve"


def curves_in(ax: "Axes | None") -> "list[Line2D]":
    """Return the curves of displays already drawn in an axes.

    Args:
        ax: The axes, or None.
    """
    return [] if ax is None else [line for line in ax.get_lines() if line.get_gid() == _CURVE]


def mark_curve(ax: "Axes", name: str) -> None:
    """Mark the last curve drawn as that of a display.

    Args:
        ax: Its axes.
        name: Name of the model.
    """
    line = ax.get_lines()[-1]
    line.set_gid(_CURVE)
    line.set_label(name)


def draw_beside(numbers: Diagram | IsotonicDiagram, ax: "Axes", *, name: str) -> None:
    """Draw one more curve into an axes with displays, and replace their bands and texts by a legend.

    Args:
        numbers: The numbers of the curve.
        ax: The axes.
        name: Name of the model.
    """
    place = len(curves_in(ax))
    if place == 1:
        _make_plain(ax, dotted=isinstance(numbers, Diagram))
    look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
    if isinstance(numbers, IsotonicDiagram):
        ax.plot(numbers.p, numbers.recalibrated, linewidth=1.8, zorder=3, **look)
    else:
        look |= {"marker": MARKERS[place % len(MARKERS)], "markersize": 5, "linewidth": 1.4, "clip_on": False}
        ax.plot([b.confidence for b in numbers.bins], [b.accuracy for b in numbers.bins], zorder=3, **look)
        start = min(ax.get_xlim()[0], *(min(b.confidence, b.accuracy) for b in numbers.bins))
        ax.set(xlim=(start, 1), ylim=(start, 1))
    mark_curve(ax, name)
    ax.legend(handles=curves_in(ax), frameon=False, fontsize=8, labelcolor=LIGHT.ink, loc="upper left", handlelength=3)


def _make_plain(ax: "Axes", *, dotted: bool) -> None:
    """Remove the artists that explain only the first curve: its band, dots, texts and title."""
    [first] = curves_in(ax)
    for artist in [*ax.collections, *ax.texts, *(line for line in ax.get_lines() if line.get_color() == LIGHT.band)]:
        artist.remove()
    first.set(color=COLOURS[0], linewidth=1.4 if dotted else 1.8)
    if dotted:
        first.set(marker=MARKERS[0], markersize=5, clip_on=False)
    ax.set_title("")
