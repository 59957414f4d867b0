"""The content of a study's figures: numbers with names, not drawings."""

from dataclasses import dataclass

from calibrant.predictions import Predictions

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """y over x, NaN if missing; for several seeds also the minimum and maximum of y.

    Args:
        label: In the legend.
        x: Places.
        y: Means over seeds.
        low: Least over seeds, or empty.
        high: Largest, or empty.
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
        title: Above it.
        x_label: Below it.
        y_label: Beside it.
        lines: In the order of the legend.
        ticks: (place, text) along x where places are not the numbers themselves.
        percent: Whether y are fractions that people read in per cent.
        diagonal: Whether the diagonal is drawn, for chance.
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
        title: Above it.
        x_label: Below it.
        y_label: Beside it.
        edges: (B + 1,) of the bins.
        groups: (label, heights (B,)) from the bottom, which is an order from early to late.
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
        title: Above it.
        predictions: Labelled.
    """

    title: str
    predictions: Predictions


Panel = Plot | Bars | Reliability


@dataclass(frozen=True, eq=False)
class Drawing:
    """The content of one figure of a study.

    Args:
        name: Of the file.
        title: Its heading.
        caption: What it stands for and what it was made from.
        panels: In reading order.
        columns: Panels beside each other.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int
