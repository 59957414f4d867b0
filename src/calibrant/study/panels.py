"""The content of figures of studies and of the theory: numbers and their names, without any drawing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from calibrant.binning import BinTable

Numbers = Sequence[float] | Tensor


@dataclass(frozen=True, eq=False)
class Line:
    """A curve y over x, with NaN for missing values; for several seeds also the minimum and maximum of y.

    Args:
        label: The label in the legend.
        x: Horizontal positions.
        y: Means over seeds.
        low: Minima over seeds, or empty.
        high: Maxima over seeds, or empty.
        style: "solid", "dashed", "dotted" or "points"; empty for a style that differs from the plot's other lines.
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
        lines: In the order of the legend.
        ticks: For each position along x, the text of its tick, if it is not the position itself.
        percent: Whether y are fractions to be shown in per cent.
        diagonal: Length of the diagonal (chance, or no change) that is drawn; 0 for none.
        level: Height of the horizontal line that is drawn (no change), or None.
        marked: Whether every point has a mark.
        top: Upper end of the vertical axis, or None for that of the lines.
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
        groups: Label → heights (B,), from bottom to top.
        top: Upper end of the vertical axis, or None for that of the bars.
    """

    title: str
    x_label: str
    y_label: str
    edges: Numbers
    groups: Mapping[str, Numbers]
    top: float | None = None


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram of bars over bins of equal width, darker where there are more samples.

    Args:
        title: The title.
        table: The bins.
    """

    title: str
    table: BinTable


@dataclass(frozen=True, eq=False)
class Isolines:
    """Levels of a function on the three-class simplex, and the point where it is smallest.

    Args:
        title: The title.
        rows: (N, 3) points.
        values: (N,) values of the function at these points.
        levels: For each percentile, the level.
        minimum: (3,) the point where the function is smallest.
    """

    title: str
    rows: Tensor
    values: Tensor
    levels: Mapping[float, float]
    minimum: Tensor


@dataclass(frozen=True, eq=False)
class Arrows:
    """A map of the three-class simplex into itself, from ``starts`` (N, 3) to ``ends`` (N, 3)."""

    title: str
    starts: Tensor
    ends: Tensor


@dataclass(frozen=True, eq=False)
class Heat:
    """A function of ``rows`` (N, 3) on the three-class simplex, as colour."""

    title: str
    rows: Tensor
    values: Tensor
    value_label: str


Panel = Plot | Bars | Reliability | Isolines | Arrows | Heat


@dataclass(frozen=True, eq=False)
class Drawing:
    """The content of one figure.

    Args:
        name: Name of the file.
        title: The heading.
        caption: A text on what the figure shows, where it comes from, and any error of the printed version.
        panels: In reading order.
        columns: Number of panels in a row; 0 chooses by their number.
        facts: Numbers worth quoting, by name.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 0
    facts: Mapping[str, float] = field(default_factory=dict)
