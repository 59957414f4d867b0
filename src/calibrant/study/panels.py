"""The content of figures for studies and for the theory: numbers and their names, without any drawing code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from calibrant.binning import BinTable

Numbers = Sequence[float] | Tensor


@dataclass(frozen=True, eq=False)
class Line:
    """A curve y over x, in which NaN marks missing values; for several seeds also the minimum and maximum of y.

    Args:
        label: The label in the legend.
        x: Horizontal positions.
        y: Means over seeds.
        low: Minima over seeds, or empty.
        high: Maxima over seeds, or empty.
        style: "solid", "dashed", "dotted" or "none" (marks alone); empty to choose a style by the line's position.
        group: Index of the colour; None uses the line's position in its plot.
    """

    label: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    style: str = ""
    group: int | None = None


@dataclass(frozen=True, eq=False)
class Plot:
    """Curves on one pair of axes.

    Args:
        title: The title.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        lines: The curves, in the order of the legend.
        ticks: Dict from positions on the horizontal axis to the texts of their ticks; empty to show the positions.
        percent: Whether y are fractions that are shown in percent.
        diagonal: Length of a diagonal reference line (chance, or no change); 0 for none.
        level: Height of a horizontal reference line (no change), or None.
        marked: Whether every point has a mark.
        top: Upper end of the vertical axis, or None to choose it from the lines.
        log: Whether the vertical axis is logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    ticks: Mapping[float, str] = field(default_factory=dict)
    percent: bool = False
    diagonal: float = 0.0
    level: float | None = None
    marked: bool = False
    top: float | None = None
    log: bool = False


@dataclass(frozen=True, eq=False)
class Bars:
    """A histogram with bars stacked by group.

    Args:
        title: The title.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        edges: (B + 1,) edges of the bins.
        groups: Dict from labels to heights (B,), from bottom to top.
        top: Upper end of the vertical axis, or None to choose it from the bars.
    """

    title: str
    x_label: str
    y_label: str
    edges: Numbers
    groups: Mapping[str, Numbers]
    top: float | None = None


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram with a bar for each equal-width bin, darker where there are more samples.

    Args:
        title: The title.
        table: The sums of the bins.
    """

    title: str
    table: BinTable


@dataclass(frozen=True, eq=False)
class Isolines:
    """Contour lines of a function on the three-class simplex, and the point where the function is smallest.

    Args:
        title: The title.
        rows: (N, 3) points.
        values: (N,) values of the function at these points.
        levels: Dict from percentiles to the levels of the contour lines.
        minimum: (3,) the point where the function is smallest.
    """

    title: str
    rows: Tensor
    values: Tensor
    levels: Mapping[float, float]
    minimum: Tensor


@dataclass(frozen=True, eq=False)
class Arrows:
    """A map of the three-class simplex into itself, drawn as arrows.

    Args:
        title: The title.
        starts: (N, 3) points on the simplex.
        ends: (N, 3) images of these points under the map.
    """

    title: str
    starts: Tensor
    ends: Tensor


@dataclass(frozen=True, eq=False)
class Heat:
    """A function on the three-class simplex, drawn as colours.

    Args:
        title: The title.
        rows: (N, 3) points on the simplex.
        values: (N,) values of the function at these points.
        value_label: Label of the colour bar.
    """

    title: str
    rows: Tensor
    values: Tensor
    value_label: str


Panel = Plot | Bars | Reliability | Isolines | Arrows | Heat


@dataclass(frozen=True, eq=False)
class Drawing:
    """The content of one figure.

    Args:
        name: File name, without suffix.
        title: The heading.
        caption: What the figure shows, where it comes from, and any error of the printed version.
        panels: The panels, in reading order.
        columns: Number of panels in a row; 0 chooses it from the number of panels.
        facts: Dict from names to numbers worth quoting.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 0
    facts: Mapping[str, float] = field(default_factory=dict)
