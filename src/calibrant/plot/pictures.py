"""The public plots: each takes predictions and returns a ``Picture``, the figure with the numbers it shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from calibrant._core.constraints import Count, checked
from calibrant._core.constraints import Kind as OfKind
from calibrant.binning import AnyBinning, Binning, EqualMass, EqualWidth
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics import ECE
from calibrant.plot.arguments import AnyAxes, ClassRows, Label, PlainClassRows, Rows, check_class_names
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["bins", "isotonic"]
Models = Annotated[Mapping[str, Data], OfKind(Mapping, 'pass {"before": a, "after": b}', "names and predictions")]


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


@checked
def reliability(
    predictions: Rows,
    ax: AnyAxes | None = None,
    *,
    kind: Kind | None = None,
    bins: Count | Binning = 15,
    event: Label = "",
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
    if isinstance(numbers, IsotonicDiagram):
        named = "class 1" if isinstance(predictions, Predictions) and predictions.classes == 2 else ""
        figure = draw_isotonic(numbers, chosen, event=event or named)
    else:
        figure = draw_diagram(numbers, chosen)
    return Picture(figure, chosen, numbers)


@checked
def reliability_numbers(
    predictions: Rows, *, kind: Kind | None = None, bins: Count | Binning = 15
) -> Diagram | IsotonicDiagram:
    """Return the numbers that ``reliability`` draws.

    Args:
        predictions: As in ``reliability``.
        kind: As in ``reliability``.
        bins: As in ``reliability``.
    """
    if (kind or ("isotonic" if is_event(predictions) else "bins")) == "isotonic":
        return isotonic_diagram(predictions)
    return diagram_of(predictions, binning=bins if isinstance(bins, Binning) else EqualMass(bins))


@checked
def compare(models: Models, ax: AnyAxes | None = None, *, bins: Count = 15) -> Picture:
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
    binning = EqualMass(bins)
    numbers = {name: diagram_of(data, binning=binning) for name, data in _drawable_models(models).items()}
    chosen = axes_of(ax)
    return Picture(draw_diagrams(list(numbers.items()), chosen), chosen, numbers)


@checked
def risk_coverage(models: Data | Mapping[str, Data], ax: AnyAxes | None = None) -> Picture:
    """Draw the risk-coverage curve: the error among the most confident rows, by the fraction of rows predicted.

    Args:
        models: Labelled predictions, or name → predictions.
        ax: Where to draw; None makes a figure.

    Returns:
        The figure, with a ``Curve``, or one ``Curve`` per name.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[2.0, 0.0], [0.5, 0.0]], [0, 1])
        >>> risk_coverage(data).numbers
        Curve(coverage=[0.5, 1.0], risk=[0.0, 0.5])
    """
    named = models if isinstance(models, Mapping) else {"": models}
    curves = {name: risk_curve(data) for name, data in _drawable_models(named).items()}
    chosen = axes_of(ax, height=3.2)
    numbers: Curve | dict[str, Curve] = curves if isinstance(models, Mapping) else curves[""]
    return Picture(draw_risk(list(curves.items()), chosen), chosen, numbers)


@checked
def confidence_histogram(
    predictions: Rows, ax: AnyAxes | None = None, *, bins: Count = 15, binning: AnyBinning | None = None
) -> Picture:
    """Draw the histogram of confidence, with mean confidence and accuracy.

    Args:
        predictions: Labelled, at least one row.
        ax: Where to draw; None makes a figure.
        bins: Bins of equal width, ≥ 1.
        binning: A binning to use instead of ``bins``.

    Returns:
        The figure, with a ``Diagram``.

    Examples:
        >>> from calibrant import Pairs
        >>> data = Pairs.from_probs([0.9] * 10, [1] * 6 + [0] * 4)
        >>> confidence_histogram(data).numbers.accuracy
        0.6
    """
    numbers = diagram_of(predictions, binning=EqualWidth(bins) if binning is None else binning)
    chosen = axes_of(ax, height=3.2)
    return Picture(draw_histogram(numbers, chosen), chosen, numbers)


@checked
def classwise(
    predictions: ClassRows,
    ax: AnyAxes | None = None,
    *,
    class_names: Sequence[str] | None = None,
    most: Count = 20,
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
    numbers: list[ClassError] = class_errors(predictions, class_names=class_names)
    shown = numbers[:most]
    chosen = axes_of(ax, height=1.2 + 0.24 * len(shown))
    return Picture(draw_classes(shown, chosen, of=len(numbers)), chosen, numbers)


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


@checked
def class_errors(predictions: PlainClassRows, *, class_names: Sequence[str] | None = None) -> list[ClassError]:
    """Return every class's calibration error in 15 bins of equal width, the largest first.

    Args:
        predictions: Labelled.
        class_names: K names; None is the class indices.

    Raises:
        InputError: If class names are not K, or there are no rows.
    """
    classes = predictions.classes
    names = check_class_names(class_names, classes=classes)
    metric = ECE(EqualWidth(BINS))
    found = []
    for k in range(classes):
        pairs = predictions.one_vs_rest(k)
        table = metric.table(pairs)
        found.append(
            ClassError(
                name=str(k) if names is None else names[k],
                n=int(pairs.y.sum()),
                ece=table.error(),
                limit=metric.null_of(table, level=LEVEL).high,
                probability=float(pairs.p.mean()),
                frequency=float(pairs.y.mean()),
            )
        )
    return sorted(found, key=lambda one: -one.ece)


def draw_classes(errors: Sequence[ClassError], ax: "Axes", *, of: int) -> "Figure":
    """Draw the error of each class as a dot on a bar that ends at its limit if calibrated.

    Args:
        errors: The classes shown, the largest error first.
        ax: Where to draw.
        of: Number of all classes.

    Returns:
        The figure of ``ax``.
    """
    places = list(range(len(errors)))
    ax.barh(
        places,
        [one.limit for one in errors],
        height=0.62,
        color=LIGHT.band,
        edgecolor=LIGHT.faint,
        linewidth=0.6,
        zorder=2,
    )
    for off, marker, colour in ((False, "o", LIGHT.good), (True, "D", LIGHT.bad)):
        dots = [(one.ece, place) for place, one in enumerate(errors) if (one.ece > one.limit) is off]
        if dots:
            ax.plot(*zip(*dots, strict=True), marker, color=colour, markersize=5, zorder=3)
    ax.set_yticks(places, labels=[one.name for one in errors])
    ax.set_ylim(len(errors) - 0.4, -0.6)
    ax.set_xlim(left=0)
    worst = "" if len(errors) == of else f"the {len(errors)} worst of {of} classes; "
    ax.set_title(f"{worst}grey: up to the 97.5 % limit if calibrated", fontsize=8, color=LIGHT.faint)
    return finish(ax, x="ECE of the class's probability", y="class", in_percent="x")


def _drawable_models(models: Mapping[str, Data]) -> Mapping[str, Data]:
    if not models:
        raise InputError("at least one model to draw", "none", "pass a name and its predictions")
    return models
