"""The content of a study's figures as numbers, without drawing."""

from dataclasses import dataclass

from calibrant.data.predictions import Predictions

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """y over x, NaN if missing; for several seeds also the minimum and maximum of y.

    Args:
        label: Its label in the legend.
        x: Horizontal positions.
        y: Means over seeds.
        low: Minima over seeds, or empty.
        high: Maxima over seeds, or empty.
    """

    label: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()


@dataclass(frozen=True)
class Plot:
    """Curves on one pair of axes.

    Args:
        title: The title.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        lines: In the order of the legend.
        ticks: (position, text) of ticks along x that do not show their position.
        percent: Whether y are fractions to be shown in per cent.
        diagonal: Whether the diagonal (chance) is drawn.
        marked: Whether every point has a mark.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...] = ()
    percent: bool = False
    diagonal: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Bars:
    """A histogram with bars stacked by group.

    Args:
        title: The title.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        edges: (B + 1,) edges of the bins.
        groups: (label, heights (B,)) from bottom to top.
    """

    title: str
    x_label: str
    y_label: str
    edges: Numbers
    groups: tuple[tuple[str, Numbers], ...]


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram.

    Args:
        title: The title.
        predictions: Labelled.
    """

    title: str
    predictions: Predictions


Panel = Plot | Bars | Reliability


@dataclass(frozen=True, eq=False)
class Drawing:
    """The content of one figure of a study.

    Args:
        name: Name of the file.
        title: Its heading.
        caption: Its title, source, settings and number of seeds.
        panels: In reading order.
        columns: Number of panels in a row.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int
