"""The public plots: each takes predictions and returns a ``Picture``, the figure with the numbers it shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from calibrant._core.check import check_choice
from calibrant.binning import Binning, EqualMass, EqualWidth
from calibrant.data.checks import Data, require_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics import ECE
from calibrant.plot.diagrams import (
    BINS,
    LEVEL,
    Curve,
    Diagram,
    IsotonicDiagram,
    diagram_of,
    is_event,
    isotonic_diagram,
    risk_curve,
)
from calibrant.plot.drawing import draw_diagram, draw_diagrams, draw_histogram, draw_isotonic, draw_risk
from calibrant.plot.style import LIGHT, axes_of, finish
from calibrant.statistics import null_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["bins", "isotonic"]


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure and the numbers it shows.

    Args:
        figure: The matplotlib figure; ``picture.figure.savefig("name.pdf")`` writes it.
        ax: The axes drawn into.
        numbers: The numbers drawn, as a dataclass, or as a dictionary from name to dataclass for several models.
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
    """Draw a reliability diagram with the region expected if calibrated.

    For two classes (or pairs of an event) it is the isotonic (CORP) curve of the event's probability; for more classes,
    accuracy against confidence of the top label in bins of equal mass, with dot areas proportional to the rows.

    Args:
        predictions: Labelled, at least one row.
        ax: Where to draw; None makes a figure.
        kind: ``"bins"`` or ``"isotonic"``; None is isotonic for two classes, else bins.
        bins: Bins of equal mass, ≥ 1, or a binning such as ``EqualWidth(10)``.
        event: Name of the event that class 1 stands for, for the axis labels.

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
    numbers = reliability_numbers(predictions, kind=kind, bins=bins)
    chosen = axes_of(ax)
    if isinstance(numbers, Diagram):
        return Picture(draw_diagram(numbers, chosen), chosen, numbers)
    named = "class 1" if isinstance(predictions, Predictions) and predictions.classes == 2 else ""
    return Picture(draw_isotonic(numbers, chosen, event=event or named), chosen, numbers)


def reliability_numbers(
    predictions: Data, *, kind: Kind | None = None, bins: int | Binning = BINS
) -> Diagram | IsotonicDiagram:
    """Return the numbers that ``reliability`` draws; its arguments."""
    chosen = kind and check_choice(kind, name="kind", choices=("bins", "isotonic"))
    if (chosen or ("isotonic" if is_event(predictions) else "bins")) == "isotonic":
        return isotonic_diagram(predictions)
    return diagram_of(predictions, binning=bins if isinstance(bins, Binning) else EqualMass(bins))


def compare(models: Mapping[str, Data], ax: "Axes | None" = None, *, bins: int = BINS) -> Picture:
    """Draw the reliability diagrams of several models, or of one before and after calibration, in one plot.

    Args:
        models: Name → labelled predictions.
        ax: Where to draw; None makes a figure.
        bins: Bins of equal mass, ≥ 1.

    Returns:
        The figure, with one ``Diagram`` per name.

    Raises:
        InputError: If there are none, or one has no rows.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[1.4, 0.0, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> compare({"before": data, "after": data})
        Picture(before, after)
    """
    numbers = {name: diagram_of(data, binning=EqualMass(bins)) for name, data in _named(models).items()}
    chosen = axes_of(ax)
    return Picture(draw_diagrams(list(numbers.items()), chosen), chosen, numbers)


def risk_coverage(models: Data | Mapping[str, Data], ax: "Axes | None" = None) -> Picture:
    """Draw the risk-coverage curve: the error among the most confident rows, by the fraction of rows predicted.

    Args:
        models: Labelled predictions, or name → predictions.
        ax: Where to draw; None makes a figure.

    Returns:
        The figure, with a ``Curve``, or one ``Curve`` per name.

    Raises:
        InputError: If there are none, or one has no rows.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[2.0, 0.0], [0.5, 0.0]], [0, 1])
        >>> risk_coverage(data).numbers
        Curve(coverage=[0.5, 1.0], risk=[0.0, 0.5])
    """
    several = isinstance(models, Mapping)
    named = _named(models) if isinstance(models, Mapping) else {"": models}
    curves = {name: risk_curve(data) for name, data in named.items()}
    chosen = axes_of(ax, height=3.2)
    numbers: Curve | dict[str, Curve] = curves if several else curves[""]
    return Picture(draw_risk(list(curves.items()), chosen), chosen, numbers)


def confidence_histogram(
    predictions: Data, ax: "Axes | None" = None, *, bins: int = BINS, binning: Binning | None = None
) -> Picture:
    """Draw the histogram of confidence, with mean confidence and accuracy.

    Args:
        predictions: Labelled, at least one row.
        ax: Where to draw; None makes a figure.
        bins: Bins of equal width, ≥ 1.
        binning: A binning to use instead of ``bins``.

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
    numbers = diagram_of(predictions, binning=EqualWidth(bins) if binning is None else binning)
    chosen = axes_of(ax, height=3.2)
    return Picture(draw_histogram(numbers, chosen), chosen, numbers)


def classwise(
    predictions: Predictions,
    ax: "Axes | None" = None,
    *,
    class_names: Sequence[str] | None = None,
    most: int = 20,
) -> Picture:
    """Draw the calibration error of every class against the rest, the worst first, with the limit if calibrated.

    Args:
        predictions: Labelled, over K classes.
        ax: Where to draw; None makes a figure.
        class_names: K names; None is the class indices.
        most: Classes shown, ≥ 1.

    Returns:
        The figure, with the list of ``ClassError`` of all classes.

    Raises:
        InputError: If class names are not K, or there are only pairs.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[1.4, 0.0, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> classwise(data).numbers[0].name
        '2'
    """
    numbers = class_errors(predictions, class_names=class_names)
    shown = numbers[:most]
    places = range(len(shown))
    chosen = axes_of(ax, height=1.2 + 0.24 * len(shown))
    bars = chosen.barh(places, [one.limit for one in shown], height=0.62, color=LIGHT.band, zorder=2)
    for bar in bars:
        bar.set(edgecolor=LIGHT.faint, linewidth=0.6)
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
    """One class against the rest.

    Args:
        name: Name of the class.
        n: Rows with this label.
        ece: Calibration error of the class's probability.
        limit: The 97.5 % limit if calibrated: a calibrated model's error stays below it in 97.5 % of samples.
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
    """Return every class's calibration error in 15 bins of equal width, the largest first.

    Args:
        predictions: Labelled.
        class_names: K names; None is the class indices.

    Raises:
        InputError: If class names are not K, or there are no rows.
    """
    data = require_predictions(predictions, what="classwise")
    data.require_labels()
    names = checked_names(class_names, classes=data.classes) or [str(k) for k in range(data.classes)]
    metric, found = ECE(EqualWidth(BINS)), []
    for k, name in enumerate(names):
        pairs = data.one_vs_rest(k)
        weight = pairs.row_weights / pairs.row_weights.sum()
        probability, frequency = float(pairs.p.double() @ weight), float(pairs.y.double() @ weight)
        limit = null_band(metric, pairs, level=LEVEL).high
        found.append(ClassError(name, int(pairs.y.sum()), metric(pairs), limit, probability, frequency))
    return sorted(found, key=lambda one: -one.ece)


def checked_names(class_names: Sequence[str] | None, *, classes: int) -> list[str] | None:
    """Return K names of classes as text, or None for their indices.

    Raises:
        InputError: If there are not K names.
    """
    if class_names is not None and len(class_names) != classes:
        raise InputError(f"{classes} class names", f"{len(class_names)}", "name every class")
    return None if class_names is None else [str(name) for name in class_names]


def _named(models: Mapping[str, Data]) -> Mapping[str, Data]:
    if not isinstance(models, Mapping) or not models:
        got = "none" if isinstance(models, Mapping) else f"a {type(models).__name__}"
        raise InputError("models as names and predictions, at least one", got, 'pass {"before": a, "after": b}')
    return models
