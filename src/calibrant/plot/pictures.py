"""The public plots. Each function returns a ``Picture``: a figure with the numbers it shows.

Parts that the report also draws are in ``plot.drawing``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant import metrics
from calibrant._core.check import check_choice
from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.data.checks import Data, require_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.plot.diagrams import BINS, LEVEL, diagram_of, is_event, isotonic_diagram
from calibrant.plot.drawing import draw_diagonal, draw_diagram, draw_histogram, draw_isotonic, lower_limit, set_square
from calibrant.plot.style import COLOURS, DASHES, LIGHT, MARKERS, axes_of, finish
from calibrant.statistics import null_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["bins", "isotonic"]
POINTS = 200  # number of points of a risk-coverage curve; more would not be visible


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure and the numbers it shows.

    Args:
        figure: The matplotlib figure; ``picture.figure.savefig("name.pdf")`` writes it.
        ax: The axes that were drawn in.
        numbers: The numbers drawn, as a dataclass or, for several models, as a dictionary from names to dataclasses.
    """

    figure: "Figure"
    ax: "Axes"
    numbers: Any

    def __repr__(self) -> str:
        inside = ", ".join(self.numbers) if isinstance(self.numbers, dict) else type(self.numbers).__name__
        return f"Picture({inside})"

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG, for notebooks."""
        import io

        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=120)
        return file.getvalue()


def reliability(
    predictions: Data,
    ax: "Axes | None" = None,
    *,
    kind: Kind | None = None,
    bins: int | Binning = BINS,
    event: str = "",
) -> Picture:
    """Draw a reliability diagram with the region that is expected if the model is calibrated.

    For two classes (or pairs of an event), the diagram is the isotonic (CORP) curve of the event's probability. For
    more classes, it shows accuracy against confidence in bins of equal mass, with dot areas proportional to the number
    of rows.

    Args:
        predictions: Labelled predictions or pairs with at least one row.
        ax: The axes to draw in; None creates a figure.
        kind: ``"bins"`` or ``"isotonic"``; None uses isotonic for two classes, otherwise bins.
        bins: Number of bins of equal mass, ≥ 1, or a binning such as ``EqualWidth(10)``.
        event: Name of the event (class 1) in the axis labels.

    Returns:
        The figure, with a ``Diagram`` or an ``IsotonicDiagram`` as its numbers.

    Raises:
        InputError: If there are no rows or no labels.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[1.4, 0.0, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> picture = reliability(data)
        >>> picture.ax.get_xlabel(), picture.numbers.n
        ('confidence', 100)

    References:
        Bröcker & Smith 2007; Dimitriadis, Gneiting & Jordan 2021.
    """
    usual = "isotonic" if is_event(predictions) else "bins"
    if check_choice(kind or usual, name="kind", choices=("bins", "isotonic")) == "bins":
        diagram = diagram_of(predictions, binning=bins if isinstance(bins, Binning) else EqualMass(bins))
        chosen = axes_of(ax)
        return Picture(draw_diagram(diagram, chosen), chosen, diagram)
    numbers, chosen = isotonic_diagram(predictions), axes_of(ax)
    named = "class 1" if isinstance(predictions, Predictions) and predictions.classes == 2 else ""
    return Picture(draw_isotonic(numbers, chosen, event=event or named), chosen, numbers)


def compare(models: Mapping[str, Data], ax: "Axes | None" = None, *, bins: int = BINS) -> Picture:
    """Draw the reliability diagrams of several models, or of one model before and after calibration, in one plot.

    Args:
        models: A dict from names to labelled predictions.
        ax: The axes to draw in; None creates a figure.
        bins: Number of bins of equal mass, ≥ 1.

    Returns:
        The figure, with one ``Diagram`` per name.

    Raises:
        InputError: If any of the predictions have no rows or no labels.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[1.4, 0.0, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> compare({"before": data, "after": data})
        Picture(before, after)
    """
    numbers = {name: diagram_of(data, binning=EqualMass(bins)) for name, data in models.items()}
    chosen, start = axes_of(ax), lower_limit(*numbers.values())
    draw_diagonal(chosen, start)
    looks = zip(cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False)
    for (name, diagram), (colour, dash, marker) in zip(numbers.items(), looks, strict=False):
        x, y = [b.confidence for b in diagram.bins], [b.accuracy for b in diagram.bins]
        look: dict[str, Any] = {"color": colour, "linestyle": dash, "marker": marker, "markersize": 5, "linewidth": 1.4}
        chosen.plot(x, y, **look, label=f"{name}: ECE(EqualMass) {100 * diagram.ece:.2f} %", zorder=3)
    set_square(chosen, start)
    chosen.legend(frameon=False, fontsize=8, labelcolor=LIGHT.ink, loc="lower right", handlelength=3)
    return Picture(finish(chosen, x="confidence", y="accuracy", in_percent="xy"), chosen, numbers)


def risk_coverage(models: Data | Mapping[str, Data], ax: "Axes | None" = None) -> Picture:
    """Draw the risk-coverage curve: the error rate among the most confident rows, against the fraction of rows kept.

    Args:
        models: Labelled predictions without weights, or a dict from names to such predictions.
        ax: The axes to draw in; None creates a figure.

    Returns:
        The figure, with a ``metrics.RiskCoverage``, or one per name.

    Raises:
        InputError: If any of the predictions have no rows or no labels, or have weights.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[2.0, 0.0], [0.5, 0.0]], [0, 1])
        >>> risk_coverage(data).numbers.risk.tolist()
        [0.0, 0.5]
    """
    named = {"": models} if isinstance(models, Data) else models
    curves, chosen = {name: metrics.risk_coverage(data) for name, data in named.items()}, axes_of(ax, height=3.2)
    for (name, curve), colour, dash in zip(curves.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        at = np.unique(np.linspace(0, len(curve.risk) - 1, POINTS).round().astype(int))
        coverage, risk = (values.cpu().numpy()[at] for values in (curve.coverage, curve.risk))
        chosen.plot(coverage, risk, color=colour, linestyle=dash, linewidth=1.6, label=name)
    chosen.set_xlim(0, 1)
    chosen.set_ylim(bottom=0)
    if len(curves) > 1:
        chosen.legend(frameon=False, fontsize=8, labelcolor=LIGHT.ink, handlelength=3)
    figure = finish(chosen, x="coverage (most confident rows)", y="error at this coverage", in_percent="xy")
    return Picture(figure, chosen, curves.get("", curves))


def confidence_histogram(predictions: Data, ax: "Axes | None" = None, *, bins: int | Binning = BINS) -> Picture:
    """Draw a histogram of the confidence, with lines at the mean confidence and the accuracy.

    Args:
        predictions: Labelled predictions or pairs with at least one row.
        ax: The axes to draw in; None creates a figure.
        bins: Number of bins of equal width, ≥ 1, or a binning.

    Returns:
        The figure, with a ``Diagram``.

    Raises:
        InputError: If there are no rows or no labels.

    Examples:
        >>> from calibrant import Pairs
        >>> data = Pairs.from_probs([0.9] * 10, [1] * 6 + [0] * 4)
        >>> confidence_histogram(data).numbers.accuracy
        0.6
    """
    numbers = diagram_of(predictions, binning=bins if isinstance(bins, Binning) else EqualWidth(bins))
    chosen = axes_of(ax, height=3.2)
    return Picture(draw_histogram(numbers, chosen), chosen, numbers)


def classwise(
    predictions: Predictions,
    ax: "Axes | None" = None,
    *,
    class_names: Sequence[str] | None = None,
    most: int = 20,
) -> Picture:
    """Draw the one-vs-rest calibration error of each class, the largest first.

    Grey bars end at the limit that the error of a calibrated model stays below in 97.5 % of samples.

    Args:
        predictions: Labelled predictions over K classes.
        ax: The axes to draw in; None creates a figure.
        class_names: K class names; None uses the class indices.
        most: Largest number of classes to show, ≥ 1.

    Returns:
        The figure, with a list of one ``ClassError`` per class.

    Raises:
        InputError: If there are not K class names, or the data are pairs.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[1.4, 0.0, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> classwise(data).numbers[0].name
        '2'
    """
    numbers = class_errors(predictions, class_names=class_names)
    shown = numbers[:most]
    places, chosen = range(len(shown)), axes_of(ax, height=1.2 + 0.24 * len(shown))
    limits: dict[str, Any] = {"color": LIGHT.band, "edgecolor": LIGHT.faint, "linewidth": 0.6, "zorder": 2}
    chosen.barh(places, [one.limit for one in shown], height=0.62, **limits)
    for off, marker, colour in ((False, "o", LIGHT.good), (True, "D", LIGHT.bad)):
        dots = [(one.ece, place) for place, one in enumerate(shown) if (one.ece > one.limit) is off]
        if dots:
            chosen.plot(*zip(*dots, strict=True), marker, color=colour, markersize=5, zorder=3)
    chosen.set_yticks(places, labels=[one.name for one in shown])
    chosen.set(xlim=(0, None), ylim=(len(shown) - 0.4, -0.6))
    worst = "" if len(shown) == len(numbers) else f"the {len(shown)} worst of {len(numbers)} classes; "
    chosen.set_title(f"{worst}grey: up to the 97.5 % limit if calibrated", fontsize=8, color=LIGHT.faint)
    return Picture(finish(chosen, x="ECE of the class's probability", y="class", in_percent="x"), chosen, numbers)


@dataclass(frozen=True)
class ClassError:
    """The calibration error of one class against the rest.

    Args:
        name: Name of the class.
        n: Number of rows with this label.
        ece: Calibration error of the class's probability.
        limit: The value below which a calibrated model's error stays in 97.5 % of samples.
        probability: Mean probability of the class.
        frequency: Frequency of the class.
    """

    name: str
    n: int
    ece: float
    limit: float
    probability: float
    frequency: float


def class_errors(predictions: Predictions, *, class_names: Sequence[str] | None = None) -> list[ClassError]:
    """Return the calibration error of each class in 15 bins of equal width, the largest first.

    Args:
        predictions: Labelled predictions.
        class_names: K class names; None uses the class indices.

    Raises:
        InputError: If there are not K class names, or no rows.
    """
    data = require_predictions(predictions, what="classwise")
    data.require_labels()
    check_names(class_names, classes=data.classes)
    metric, found = metrics.ECE(EqualWidth(BINS)), []
    for k, name in enumerate(class_names or range(data.classes)):
        pairs = data.one_vs_rest(k)
        weight = pairs.row_weights / pairs.row_weights.sum()
        probability, frequency = float(pairs.p.double() @ weight), float(pairs.y.double() @ weight)
        limit = null_band(metric, pairs, level=LEVEL).high
        found.append(ClassError(str(name), int(pairs.y.sum()), metric(pairs), limit, probability, frequency))
    return sorted(found, key=lambda one: -one.ece)


def check_names(class_names: Sequence[str] | None, *, classes: int) -> None:
    """Check that the number of class names, if any are given, is the number of classes."""
    if class_names is not None and len(class_names) != classes:
        raise InputError(f"{classes} class names", f"{len(class_names)}", "name every class")
