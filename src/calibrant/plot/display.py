"""Reliability diagrams with scikit-learn's interface: ``CalibrationDisplay.from_predictions`` and ``.from_estimator``."""

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np

from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.plot.diagrams import Diagram, IsotonicDiagram
from calibrant.plot.pictures import Kind, reliability, reliability_numbers
from calibrant.plot.style import COLOURS, DASHES, LIGHT, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BINS = 15
_CURVE = "calibrant-curve"  # the id of a display's curve among the lines of its axes


@dataclass(eq=False, repr=False)
class CalibrationDisplay:
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

    data: Data
    _: KW_ONLY
    name: str | None = None
    event: str = ""
    kind: Kind | None = None
    bins: int | Binning = BINS
    numbers_: Diagram | IsotonicDiagram = field(init=False)
    ax_: "Axes" = field(init=False)
    figure_: "Figure" = field(init=False)

    def plot(self, ax: "Axes | None" = None, *, name: str | None = None) -> Self:
        """Draw the diagram.

        Args:
            ax: Where to draw; None makes a figure. In the axes of another display, a legend names the models.
            name: Name of the model; None is the display's ``name``.

        Returns:
            Itself, with ``ax_``, ``figure_`` and ``numbers_`` set.
        """
        title, others = name or self.name, _curves_in(ax)
        if ax is not None and others:
            self.numbers_ = reliability_numbers(self.data, kind=self.kind, bins=self.bins)
            self.ax_, self.figure_ = ax, cast("Figure", ax.figure)
            _draw_beside(self.numbers_, ax, others)
        else:
            picture = reliability(self.data, ax, kind=self.kind, bins=self.bins, event=self.event)
            self.ax_, self.figure_, self.numbers_ = picture.ax, picture.figure, picture.numbers
            self.ax_.set_title(title or "", fontsize=10)
        curve = self.ax_.get_lines()[-1]
        curve.set_gid(_CURVE)
        curve.set_label(title or f"model {len(others) + 1}")
        if others:
            look: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": LIGHT.ink, "handlelength": 3}
            self.ax_.legend(handles=[*others, curve], loc="upper left", **look)
        return self

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        classes: Any = None,
        pos_label: Any = None,
        n_bins: int | None = None,
        strategy: Literal["quantile", "uniform"] | None = None,
        name: str | None = None,
        ax: "Axes | None" = None,
    ) -> Self:
        """Draw the diagram of probabilities.

        Args:
            y_true: (n,) labels of any kind.
            y_prob: (n,) probabilities of the positive class, or (n, K), one column per class.
            classes: The labels in the order of the columns of ``y_prob``; None is the sorted distinct labels of ``y_true``.
            pos_label: For (n,) probabilities: the positive label; None is 1, of 0 or −1 and 1.
            n_bins: How many bins to draw; None draws the isotonic diagram for two classes, else 15 bins.
            strategy: Bins of equal mass (``"quantile"``) or width (``"uniform"``); None is equal mass.
            name: Name of the model, shown as the title, or in the legend in the axes of another display.
            ax: Where to draw; None makes a figure.

        Raises:
            InputError: If labels and columns do not match, or values are not probabilities.

        Examples:
            >>> display = CalibrationDisplay.from_predictions([0, 1, 1, 0], [0.2, 0.9, 0.6, 0.4])
            >>> display.ax_.get_ylabel()
            'frequency of class 1'
        """
        if strategy not in (None, "quantile", "uniform"):
            raise InputError("strategy to be quantile or uniform", repr(strategy), "choose one")
        labels, probs = np.asarray(y_true).reshape(-1), np.asarray(y_prob)
        found = np.unique(labels)
        data: Data
        if probs.ndim == 1:
            positive = 1 if pos_label is None else pos_label
            usual = {*found.tolist()} <= {0, 1} or {*found.tolist()} <= {-1, 1}
            if positive not in found and not (pos_label is None and usual):
                raise InputError(f"pos_label among {found.tolist()}", repr(positive), "name the positive label")
            data, event = Pairs.from_probs(probs, (labels == positive).astype(np.int64)), positive
        else:
            order = (found if classes is None else np.asarray(classes)).tolist()
            if probs.shape[1:] != (len(order),) or not set(found.tolist()) <= set(order):
                expected = f"one column of probabilities per class, for the labels {found.tolist()}"
                raise InputError(expected, f"shape {probs.shape}", "name the columns' labels by classes, in order")
            ranks = {label: rank for rank, label in enumerate(order)}
            data, event = Predictions.from_probs(probs, [ranks[one] for one in labels.tolist()]), order[-1]
        drawn: Kind | None = None if n_bins is None and strategy is None else "bins"
        bins = (EqualWidth if strategy == "uniform" else EqualMass)(n_bins or BINS)
        return cls(data, name=name, event=f"class {event}", kind=drawn, bins=bins).plot(ax)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, pos_label: Any = None, name: str | None = None, **look: Any
    ) -> Self:
        """Draw the diagram of a fitted classifier's ``predict_proba`` on data it was not fitted on.

        Args:
            estimator: With ``predict_proba`` and ``classes_``.
            X: (n, d) features.
            y: (n,) labels.
            pos_label: For two classes: the positive label; None is the second of ``classes_``.
            name: Name of the model; None is the estimator's class.
            look: ``n_bins``, ``strategy`` and ``ax``, as in ``from_predictions``.

        Raises:
            InputError: If the estimator has no ``predict_proba``.
        """
        if not hasattr(estimator, "predict_proba"):
            remedy = "calibrate its decision function with CalibratedClassifier first"
            raise InputError("a fitted classifier with predict_proba", type(estimator).__name__, remedy)
        classes, probs = estimator.classes_.tolist(), estimator.predict_proba(X)
        look["name"] = name or type(estimator).__name__
        if len(classes) > 2:
            return cls.from_predictions(y, probs, classes=classes, **look)
        positive = classes[1] if pos_label is None else pos_label
        if positive not in classes:
            raise InputError(f"pos_label among {classes}", repr(positive), "name one of them")
        return cls.from_predictions(y, probs[:, classes.index(positive)], pos_label=positive, **look)


def _curves_in(ax: "Axes | None") -> "list[Line2D]":
    """Return the curves of displays in ``ax``, in the order they were drawn."""
    return [] if ax is None else [line for line in ax.get_lines() if line.get_gid() == _CURVE]


def _draw_beside(numbers: Diagram | IsotonicDiagram, ax: "Axes", others: "list[Line2D]") -> None:
    """Draw one more curve into axes with displays; bands, dots and texts, which explain the first alone, go."""
    dotted = isinstance(numbers, Diagram)
    if len(others) == 1:
        bands = [line for line in ax.get_lines() if line.get_color() == LIGHT.band]
        for artist in (*ax.collections, *ax.texts, *bands):
            artist.remove()
        others[0].set(color=COLOURS[0], linewidth=1.4, marker=MARKERS[0] if dotted else "", markersize=5)
        ax.set_title("")
    place = len(others)
    look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
    if isinstance(numbers, IsotonicDiagram):
        ax.plot(numbers.p, numbers.recalibrated, linewidth=1.8, zorder=3, **look)
        return
    look |= {"marker": MARKERS[place % len(MARKERS)], "markersize": 5, "linewidth": 1.4, "clip_on": False}
    ax.plot([b.confidence for b in numbers.bins], [b.accuracy for b in numbers.bins], zorder=3, **look)
    start = min(ax.get_xlim()[0], *(min(b.confidence, b.accuracy) for b in numbers.bins))
    ax.set(xlim=(start, 1), ylim=(start, 1))
