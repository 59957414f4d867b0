"""Reliability diagrams with scikit-learn's interface: ``CalibrationDisplay.from_predictions`` and ``.from_estimator``.

A display draws the same diagram as ``plot.reliability``; several displays in the same axes show only their curves.
"""

from dataclasses import KW_ONLY, dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from calibrant._core.check import check_choice
from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.plot.diagrams import BINS, Diagram, IsotonicDiagram
from calibrant.plot.drawing import draw_diagonal
from calibrant.plot.pictures import Kind, reliability
from calibrant.plot.style import COLOURS, DASHES, LIGHT, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CURVE = "calibrant-curve"  # the id that identifies a display's curve among the lines of its axes


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
        figure_: The figure, after ``plot``.

    Examples:
        >>> display = CalibrationDisplay.from_predictions([0, 1, 1, 0], [0.2, 0.9, 0.6, 0.4], name="my model")
        >>> display.ax_.get_xlabel() != ""
        True
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
            ax: The axes to draw in; None creates a figure. If another display is already in these axes, a legend is added.
            name: Name of the model; None uses the display's ``name``.

        Returns:
            The display itself, whose ``ax_``, ``figure_`` and ``numbers_`` are now set.
        """
        others = [] if ax is None else [line for line in ax.get_lines() if line.get_gid() == _CURVE]
        picture = reliability(self.data, ax, kind=self.kind, bins=self.bins, event=self.event)
        self.ax_, self.figure_, self.numbers_ = picture.ax, picture.figure, picture.numbers
        title, curve = name or self.name, self.ax_.get_lines()[-1]
        curve.set(gid=_CURVE, label=title or f"model {len(others) + 1}")
        if not others:
            self.ax_.set_title(title or "", fontsize=10)
            return self
        # bands, dots and texts make sense for a single model only
        curves, dotted = [*others, curve], isinstance(self.numbers_, Diagram)
        for artist in [*self.ax_.collections, *self.ax_.texts, *self.ax_.get_lines()]:
            if artist not in curves:
                artist.remove()
        for line, colour, dash, marker in zip(curves, cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False):
            line.set(color=colour, linestyle=dash, marker=marker if dotted else "", markersize=5, linewidth=1.6)
        start = min(float(np.min(line.get_xydata())) for line in curves) if dotted else 0.0
        draw_diagonal(self.ax_, start)
        self.ax_.set(title="", xlim=(start, 1), ylim=(start, 1))
        self.ax_.legend(handles=curves, loc="upper left", frameon=False, fontsize=8, labelcolor=LIGHT.ink)
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
        """Draw a reliability diagram from labels and probabilities.

        Args:
            y_true: (n,) labels of any type.
            y_prob: (n,) probabilities of the positive class, or (n, K) with one column per class.
            classes: The labels in the order of the columns of ``y_prob``; None uses the sorted distinct labels in
                ``y_true``.
            pos_label: The positive label, for (n,) probabilities; None uses 1 if the labels are 0 and 1, or −1 and 1.
            n_bins: Number of bins, ≥ 1; None draws the isotonic diagram for two classes, and 15 bins for more.
            strategy: Bins of equal mass (``"quantile"``) or width (``"uniform"``); None uses equal mass.
            name: Name of the model, shown as the title, or in the legend if another display is in the same axes.
            ax: The axes to draw in; None creates a figure.

        Returns:
            The display.

        Raises:
            InputError: If labels and columns do not match, or values are not probabilities.

        Examples:
            >>> display = CalibrationDisplay.from_predictions([0, 1, 1, 0], [0.2, 0.9, 0.6, 0.4])
            >>> display.ax_.get_ylabel()
            'frequency of class 1'
        """
        labels, probs = np.asarray(y_true).reshape(-1), np.asarray(y_prob)
        known = np.unique(labels).tolist()
        data: Data
        if probs.ndim == 1:
            event = 1 if pos_label is None else pos_label
            usual = pos_label is None and ({*known} <= {0, 1} or {*known} <= {-1, 1})
            if event not in known and not usual:
                raise InputError(f"pos_label among {known}", repr(event), "name the positive label")
            data = Pairs.from_probs(probs, (labels == event).astype(np.int64))
        else:
            order = known if classes is None else np.asarray(classes).tolist()
            if probs.shape[1:] != (len(order),) or not {*known} <= {*order}:
                expected = f"one column of probabilities per class, for the labels {known}"
                raise InputError(expected, f"shape {probs.shape}", "pass the columns' labels as classes, in order")
            data, event = Predictions.from_probs(probs, [order.index(one) for one in labels.tolist()]), order[-1]
        wide = check_choice(strategy or "quantile", name="strategy", choices=("quantile", "uniform")) == "uniform"
        bins, kind = (EqualWidth if wide else EqualMass)(n_bins or BINS), "bins" if n_bins or strategy else None
        return cls(data, name=name, event=f"class {event}", kind=kind, bins=bins).plot(ax)  # type: ignore[arg-type]

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, pos_label: Any = None, name: str | None = None, **look: Any
    ) -> Self:
        """Draw a reliability diagram of a fitted classifier on data that it was not fitted on.

        Args:
            estimator: A fitted classifier with ``predict_proba`` and ``classes_``; wrap others in ``CalibratedClassifier`` first.
            X: (n, d) features.
            y: (n,) labels.
            pos_label: The positive label, for two classes; None uses the second of ``classes_``.
            name: Name of the model; None uses the name of the estimator's class.
            look: ``n_bins``, ``strategy`` and ``ax``, as in ``from_predictions``.

        Returns:
            The display.

        Raises:
            ValueError: If ``pos_label`` is not among the classes.
        """
        classes, probs = estimator.classes_.tolist(), estimator.predict_proba(X)
        look["name"] = name or type(estimator).__name__
        if len(classes) > 2:
            return cls.from_predictions(y, probs, classes=classes, **look)
        positive = classes[1] if pos_label is None else pos_label
        return cls.from_predictions(y, probs[:, classes.index(positive)], pos_label=positive, **look)
