"""Functions that draw into given axes, shared by the public plots and the report.

Each function returns the figure, or adds its part to axes that another function completes.
"""

import math
from typing import TYPE_CHECKING, Any

from calibrant.plot.diagrams import Diagram, IsotonicDiagram
from calibrant.plot.style import LIGHT, Palette, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS = "dots"  # the id of a diagram's dots, to which the report attaches the numbers of their bins
_LARGEST = 110.0  # area in points² of the dot for the bin with the most rows
_SMALLEST = 9.0  # smallest area in points²


def lower_limit(*diagrams: Diagram) -> float:
    """Return the common lower limit of both axes: a multiple of 10 %, at most 80 %, below all drawn numbers."""
    lowest = min((diagram.lowest for diagram in diagrams), default=0.0)
    return min(math.floor(10 * lowest + 1e-9) / 10, 0.8)


def draw_diagram(
    diagram: Diagram, ax: "Axes", *, palette: Palette = LIGHT, start: float | None = None, words: bool = True
) -> "Figure":
    """Draw accuracy against confidence, with 95 % consistency bars (expected if calibrated) behind the dots.

    The area of a dot is proportional to the number of rows in its bin. A grey bar covers the accuracies of 95 % of
    samples from a calibrated model. Dots inside their bar are circles; dots outside are diamonds in another colour.

    Args:
        diagram: The result of ``diagram_of``.
        ax: The axes to draw in.
        palette: Colours.
        start: The lower limit of both axes, in [0, 1); None uses ``lower_limit(diagram)``.
        words: Whether to label the over- and the under-confident side.

    Returns:
        The figure of ``ax``.
    """
    from matplotlib.patheffects import withStroke

    start = lower_limit(diagram) if start is None else start
    draw_diagonal(ax, start, palette)
    if words:
        look: dict[str, Any] = {"fontsize": 7.5, "color": palette.faint, "transform": ax.transAxes}
        ax.text(0.03, 0.97, "under-confident", ha="left", va="top", **look)
        ax.text(0.97, 0.03, "over-confident", ha="right", va="bottom", **look)
    # the outline adds contrast, because not everybody can see the grey alone
    outline = [withStroke(linewidth=8.2, foreground=palette.faint)]
    low, high = [b.expect_low for b in diagram.bins], [b.expect_high for b in diagram.bins]
    look = {"color": palette.band, "linewidth": 7, "zorder": 2, "path_effects": outline}
    ax.vlines([b.confidence for b in diagram.bins], low, high, **look)
    x, y = [b.confidence for b in diagram.bins], [b.accuracy for b in diagram.bins]
    ax.plot(x, y, color=palette.ink, linewidth=0.8, zorder=3)
    draw_dots(diagram, ax, palette=palette)
    set_square(ax, start)
    return finish(ax, palette, x="confidence", y="accuracy", in_percent="xy")


def draw_dots(diagram: Diagram, ax: "Axes", *, palette: Palette = LIGHT) -> None:
    """Draw a dot for every bin, with an area proportional to its rows; diamonds lie outside the range if calibrated."""
    from matplotlib.markers import MarkerStyle

    largest = max((b.count for b in diagram.bins), default=1)
    x, y = [b.confidence for b in diagram.bins], [b.accuracy for b in diagram.bins]
    # smaller factor for diamonds, which look larger
    areas = [max(_LARGEST * b.count / largest, _SMALLEST) * (0.7 if b.off else 1.0) for b in diagram.bins]
    colours = [palette.bad if b.off else palette.good for b in diagram.bins]
    look: dict[str, Any] = {"edgecolor": palette.ink, "linewidth": 0.5, "zorder": 4, "clip_on": False}
    dots = ax.scatter(x, y, s=areas, color=colours, **look)
    shapes = [MarkerStyle("D" if b.off else "o") for b in diagram.bins]
    dots.set_paths([shape.get_path().transformed(shape.get_transform()) for shape in shapes])
    dots.set_gid(DOTS)


def draw_isotonic(
    diagram: IsotonicDiagram, ax: "Axes", *, palette: Palette = LIGHT, event: str = "", words: bool = True
) -> "Figure":
    """Draw the isotonic diagram: the curve, its consistency band, and the decomposition of the Brier score.

    Args:
        diagram: The result of ``isotonic_diagram``.
        ax: The axes to draw in.
        palette: Colours.
        event: Name of the event in the axis labels; "" uses "the event".
        words: Whether to print the decomposition and an explanation of the band.

    Returns:
        The figure of ``ax``.
    """
    band = ax.fill_between(diagram.band_p, diagram.band_low, diagram.band_high, zorder=1)
    band.set(facecolor=palette.band, edgecolor=palette.faint, linewidth=0.6)
    draw_diagonal(ax, 0.0, palette)
    ax.plot(diagram.p, diagram.recalibrated, color=palette.good, linewidth=1.8, zorder=3)
    if words:
        names = ("miscalibration", "discrimination", "uncertainty")
        parts = "\n".join(f"{name} {getattr(diagram, name):.4f}" for name in names)
        ax.text(0.03, 0.97, parts, transform=ax.transAxes, va="top", fontsize=7.5, color=palette.ink)
        note = "grey: expected if calibrated (95 %)"
        ax.text(0.97, 0.03, note, transform=ax.transAxes, ha="right", fontsize=7.5, color=palette.faint)
    set_square(ax, 0.0)
    what = event or "the event"
    return finish(ax, palette, x=f"predicted probability of {what}", y=f"frequency of {what}", in_percent="xy")


def draw_histogram(
    diagram: Diagram, ax: "Axes", *, palette: Palette = LIGHT, x: str = "confidence", y: str = "accuracy"
) -> "Figure":
    """Draw a histogram of a diagram's equal-width bins, with vertical lines at the means of ``x`` and ``y``."""
    left, width = [b.low for b in diagram.bins], [b.high - b.low for b in diagram.bins]
    mass = [b.count / diagram.n for b in diagram.bins]
    ax.bar(left, mass, width, align="edge", color=palette.band, edgecolor=palette.faint, linewidth=0.6)
    ax.axvline(diagram.confidence, color=palette.good, linewidth=1.4)
    ax.axvline(diagram.accuracy, color=palette.bad, linewidth=1.4, linestyle=(0, (3, 2)))
    # above the axes, where no line crosses the words
    words: dict[str, Any] = {"transform": ax.transAxes, "fontsize": 7.5, "va": "bottom"}
    ax.text(0, 1.03, f"mean {100 * diagram.confidence:.1f} %", color=palette.good, **words)
    ax.text(1, 1.03, f"{y} {100 * diagram.accuracy:.1f} %", color=palette.bad, ha="right", **words)
    ax.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 0.5, 1])
    return finish(ax, palette, x=x, y="fraction of rows", in_percent="xy")


def draw_diagonal(ax: "Axes", start: float, palette: Palette = LIGHT) -> None:
    """Draw the diagonal, on which both axes are equal, from ``start`` to 1."""
    ax.plot([start, 1], [start, 1], color=palette.faint, linewidth=1, linestyle=(0, (4, 3)), zorder=1)


def set_square(ax: "Axes", start: float) -> None:
    """Give both axes the range [``start``, 1] and the same ticks."""
    step = 0.25 if start == 0 else 0.2 if start <= 0.3 else 0.1 if start <= 0.6 else 0.05
    ticks = [start + step * i for i in range(math.floor((1 - start) / step + 1e-9) + 1)]
    ax.set(xlim=(start, 1), ylim=(start, 1), xticks=ticks, yticks=ticks)
    ax.set_aspect("equal", adjustable="box")
