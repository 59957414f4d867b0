"""What the theory's figures are made of: numbers and their names, nothing drawn."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

Style = Literal["line", "dashed", "dotted", "points"]


@dataclass(frozen=True)
class Curve:
    """y over x. ``group`` shares a colour among curves that belong together."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Style = "line"
    group: int = 0


@dataclass(frozen=True)
class Plot:
    """Curves over one pair of axes."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_y: bool = False
    diagonal: bool = False
    y_range: tuple[float, float | None] | None = None


@dataclass(frozen=True)
class Isolines:
    """Levels of a function on the three-class simplex, and the point where it is least."""

    title: str
    rows: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    percentiles: tuple[float, ...]
    levels: tuple[float, ...]
    minimum: tuple[float, ...]


@dataclass(frozen=True)
class Arrows:
    """A map of the three-class simplex into itself, from ``starts`` to ``ends``."""

    title: str
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Heat:
    """A function on the three-class simplex, as colour."""

    title: str
    rows: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    value_label: str


Panel = Plot | Isolines | Arrows | Heat


@dataclass(frozen=True)
class FigureNumbers:
    """All that a figure shows: its panels, what to say of it, and the numbers worth quoting.

    Args:
        name: As ``figure_numbers`` takes it.
        source: The figure it reproduces.
        caption: What it shows, and what the printed version has wrong.
        panels: In reading order.
        facts: Name to number.

    Examples:
        >>> FigureNumbers("bounds", "Figure 3", "Two bounds.", (), {"T": 0.2}).facts
        {'T': 0.2}
    """

    name: str
    source: str
    caption: str
    panels: tuple[Panel, ...]
    facts: dict[str, float]

    def plain(self) -> dict[str, Any]:
        """Return JSON data; each panel says its ``kind``."""
        panels = [{"kind": type(panel).__name__.lower(), **asdict(panel)} for panel in self.panels]
        return {**asdict(self), "panels": panels}


def floats(values: Tensor | Iterable[float]) -> tuple[float, ...]:
    """Return ``values`` as Python floats."""
    listed = values.tolist() if isinstance(values, Tensor) else list(values)
    return tuple(float(value) for value in listed)


def float_rows(values: Tensor) -> tuple[tuple[float, ...], ...]:
    """Return a matrix as tuples of Python floats."""
    return tuple(floats(row) for row in values)
