"""Functions that draw numbers into given axes, shared by the public plots, the report and the studies."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from calibrant.plot.diagrams import Curve, Diagram, IsotonicDiagram
from calibrant.plot.style import COLOURS, DASHES, LIGHT, MARKERS, Palette, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS = "dots"  # the id of the dots of a diagram, to which the report attaches the numbers of their bins
_LARGEST = 110.0  # area in points² of the dot of the bin with the most rows
_SMALLEST = 9.0  # least area in points²


def lower_limit(*diagrams: Diagram) -> float:
    """Return the common lower limit of both axes: a multiple of 10 %, at most 80 %, below every number drawn."""
    lowest = min((diagram.lowest for diagram in diagrams), default=0.0)
    return min(math.floor(10 * lowest + 1e-9) / 10, 0.8)


def draw_diagram(
    diagram: Diagram, ax: "Axes", *, palette: Palette = LIGHT, start: float | None = None, words: bool = True
) -> "Figure":
    """Draw accuracy against confidence, with 95 % consistency bars (expected if calibrated) behind the dots.

    The area of a dot is proportional to the rows in its bin. A grey bar covers the accuracies of 95 % of samples of a
    calibrated model; dots inside their bar are circles, dots outside are diamonds in another colour.

    Args:
        diagram: From ``diagram_of``.
        ax: Where to draw.
        palette: Colours.
        start: Where both axes begin, in [0, 1); None is ``lower_limit(diagram)``.
        words: Whether to label the over- and the under-confident side.

    Returns:
        The figure of ``ax``.
    """
    from matplotlib.patheffects import withStroke

    start = lower_limit(diagram) if start is None else start
    _diagonal(ax, start, palette)
    if words:
        look: dict[str, Any] = {"fontsize": 7.5, "color": palette.faint, "transform": ax.transAxes}
        ax.text(0.03, 0.97, "under-confident", ha="left", va="top", **look)
        ax.text(0.97, 0.03, "over-confident", ha="right", va="bottom", **look)
    # the grey alone has too little contrast to be seen by all
    outline = [withStroke(linewidth=8.2, foreground=palette.faint)]
    low, high = [b.expect_low for b in diagram.bins], [b.expect_high for b in diagram.bins]
    look = {"color": palette.band, "linewidth": 7, "zorder": 2, "path_effects": outline}
    ax.vlines([b.confidence for b in diagram.bins], low, high, **look)
    x, y = [b.confidence for b in diagram.bins], [b.accuracy for b in diagram.bins]
    ax.plot(x, y, color=palette.ink, linewidth=0.8, zorder=3)
    draw_dots(diagram, ax, palette=palette)
    _square(ax, start)
    return finish(ax, palette, x="confidence", y="accuracy", in_percent="xy")


def draw_dots(diagram: Diagram, ax: "Axes", *, palette: Palette = LIGHT) -> None:
    """Draw the dot of every bin: its area is proportional to the rows; a diamond lies outside what is expected if calibrated."""
    from matplotlib.markers import MarkerStyle

    largest = max((b.count for b in diagram.bins), default=1)
    x, y = [b.confidence for b in diagram.bins], [b.accuracy for b in diagram.bins]
    # a diamond looks larger
    areas = [max(_LARGEST * b.count / largest, _SMALLEST) * (0.7 if b.off else 1.0) for b in diagram.bins]
    colours = [palette.bad if b.off else palette.good for b in diagram.bins]
    look: dict[str, Any] = {"edgecolor": palette.ink, "linewidth": 0.5, "zorder": 4, "clip_on": False}
    dots = ax.scatter(x, y, s=areas, color=colours, **look)
    shapes = [MarkerStyle("D" if b.off else "o") for b in diagram.bins]
    dots.set_paths([shape.get_path().transformed(shape.get_transform()) for shape in shapes])
    dots.set_gid(DOTS)


def draw_diagrams(named: Sequence[tuple[str, Diagram]], ax: "Axes") -> "Figure":
    """Draw several reliability diagrams as lines in one plot, each with its own colour, dash and marker."""
    start = lower_limit(*(diagram for _, diagram in named))
    _diagonal(ax, start, LIGHT)
    looks = zip(cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False)
    for (name, diagram), (colour, dash, marker) in zip(named, looks, strict=False):
        x, y = [b.confidence for b in diagram.bins], [b.accuracy for b in diagram.bins]
        label = f"{name}: ECE(EqualMass) {100 * diagram.ece:.2f} %"
        ax.plot(x, y, color=colour, linestyle=dash, marker=marker, markersize=5, linewidth=1.4, label=label, zorder=3)
    _square(ax, start)
    ax.legend(frameon=False, fontsize=8, labelcolor=LIGHT.ink, loc="lower right", handlelength=3)
    return finish(ax, x="confidence", y="accuracy", in_percent="xy")


def draw_isotonic(
    diagram: IsotonicDiagram, ax: "Axes", *, palette: Palette = LIGHT, event: str = "", words: bool = True
) -> "Figure":
    """Draw the isotonic diagram: the curve, its consistency band, and the decomposition of the Brier score.

    Args:
        diagram: From ``isotonic_diagram``.
        ax: Where to draw.
        palette: Colours.
        event: Name of the event for the axis labels; "" is "the event".
        words: Whether to print the decomposition and what the band is.

    Returns:
        The figure of ``ax``.
    """
    band = ax.fill_between(diagram.band_p, diagram.band_low, diagram.band_high, zorder=1)
    band.set(facecolor=palette.band, edgecolor=palette.faint, linewidth=0.6)
    _diagonal(ax, 0.0, palette)
    ax.plot(diagram.p, diagram.recalibrated, color=palette.good, linewidth=1.8, zorder=3)
    if words:
        names = ("miscalibration", "discrimination", "uncertainty")
        parts = "\n".join(f"{name} {getattr(diagram, name):.4f}" for name in names)
        ax.text(0.03, 0.97, parts, transform=ax.transAxes, va="top", fontsize=7.5, color=palette.ink)
        note = "grey: expected if calibrated (95 %)"
        ax.text(0.97, 0.03, note, transform=ax.transAxes, ha="right", fontsize=7.5, color=palette.faint)
    _square(ax, 0.0)
    what = event or "the event"
    return finish(ax, palette, x=f"predicted probability of {what}", y=f"frequency of {what}", in_percent="xy")


def draw_histogram(diagram: Diagram, ax: "Axes", *, palette: Palette = LIGHT) -> "Figure":
    """Draw the fraction of rows in each of a diagram's bins of equal width, with mean confidence and accuracy as vertical lines."""
    left, width = [b.low for b in diagram.bins], [b.high - b.low for b in diagram.bins]
    mass = [b.count / diagram.n for b in diagram.bins]
    ax.bar(left, mass, width, align="edge", color=palette.band, edgecolor=palette.faint, linewidth=0.6)
    ax.axvline(diagram.confidence, color=palette.good, linewidth=1.4)
    ax.axvline(diagram.accuracy, color=palette.bad, linewidth=1.4, linestyle=(0, (3, 2)))
    # the text stands in the widest of three rooms, where no line crosses it: left of both, between them, or right of both
    low, high = sorted((diagram.confidence, diagram.accuracy))
    rooms = ((low, 0.02, "left"), (high - low, (low + high) / 2, "center"), (1 - high, 0.98, "right"))
    _, at, side = max(rooms)
    lines = (("mean", diagram.confidence, palette.good), ("accuracy", diagram.accuracy, palette.bad))
    for row, (text, value, colour) in enumerate(lines):
        height = 0.93 - row * 12 * ax.figure.dpi / 72 / ax.bbox.height  # one line of text is 12 points high
        shown = f"{text} {100 * value:.1f} %"
        ax.text(at, height, shown, transform=ax.transAxes, ha=side, va="top", fontsize=7.5, color=colour)
    ax.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 0.5, 1])
    return finish(ax, palette, x="confidence", y="fraction of rows", in_percent="xy")


def draw_risk(
    curves: Sequence[tuple[str, Curve]], ax: "Axes", *, palette: Palette = LIGHT, colours: Sequence[str] = COLOURS
) -> "Figure":
    """Draw risk (error) against coverage, one line per (name, curve)."""
    for (name, curve), colour, dash in zip(curves, cycle(colours), cycle(DASHES), strict=False):
        ax.plot(curve.coverage, curve.risk, color=colour, linestyle=dash, linewidth=1.6, label=name)
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=0)
    if len(curves) > 1:
        ax.legend(frameon=False, fontsize=8, labelcolor=palette.ink, handlelength=3)
    return finish(ax, palette, x="coverage (most confident rows)", y="error at this coverage", in_percent="xy")


def _diagonal(ax: "Axes", start: float, palette: Palette) -> None:
    ax.plot([start, 1], [start, 1], color=palette.faint, linewidth=1, linestyle=(0, (4, 3)), zorder=1)


def _square(ax: "Axes", start: float) -> None:
    """Give both axes the range [``start``, 1] and the same ticks."""
    step = 0.25 if start == 0 else 0.2 if start <= 0.3 else 0.1 if start <= 0.6 else 0.05
    ticks = [start + step * i for i in range(math.floor((1 - start) / step + 1e-9) + 1)]
    ax.set(xlim=(start, 1), ylim=(start, 1), xticks=ticks, yticks=ticks)
    ax.set_aspect("equal", adjustable="box")
