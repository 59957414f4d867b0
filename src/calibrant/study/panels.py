"""What the figures of studies and of the theory are made of: numbers and their names, nothing drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from calibrant.binning import BinTable

Numbers = Sequence[float] | Tensor


@dataclass(frozen=True, eq=False)
class Line:
    """y over x, NaN if missing; for several seeds also the minimum and maximum of y.

    Args:
        label: Its label in the legend.
        x: Horizontal positions.
        y: Means over seeds.
        low: Minima over seeds, or empty.
        high: Maxima over seeds, or empty.
        style: "solid", "dashed", "dotted" or "points"; empty to differ from the other lines of the plot.
        group: Index of its colour; None for the place of the line in its plot.
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
        ticks: Position along x → text, of ticks that do not show their position.
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
    """Levels of a function on the three-class simplex, and the point where it is least.

    Args:
        title: The title.
        rows: (N, 3) points.
        values: (N,) the function there.
        levels: Percentile → the level.
        minimum: (3,) the point.
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
        title: Its heading.
        caption: What it shows, where it comes from, and what the printed version has wrong.
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
