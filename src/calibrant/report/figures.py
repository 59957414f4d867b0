"""Composed figures of a report: plots of ``calibrant.plot`` at fixed positions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.plot.diagrams import Diagram
from calibrant.plot.drawing import draw_diagram, draw_histogram, draw_risk, lower_limit
from calibrant.plot.risk import Curve
from calibrant.plot.style import LIGHT, Palette, finish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["before_after_figure", "panel_figure", "reliability_figure", "risk_figure"]


def reliability_figure(
    diagram: Diagram, histogram: Diagram | None = None, *, palette: Palette = LIGHT, start: float | None = None
) -> "Figure":
    """Return a new figure: the reliability diagram above the histogram of confidence.

    Args:
        diagram: In bins of equal mass.
        histogram: In bins of equal width; None leaves it out.
        palette: Colours.
        start: Where the axes of the diagram begin.
    """
    figure = _bare(4.3, 5.5 if histogram else 4.2)
    place = (0.165, 0.335, 0.795, 0.795 * 4.3 / 5.5) if histogram else (0.165, 0.13, 0.795, 0.795 * 4.3 / 4.2)
    draw_diagram(diagram, figure.add_axes(place), palette=palette, start=start)
    if histogram is not None:
        below = figure.add_axes((0.165, 0.09, 0.795, 0.155))
        draw_histogram(histogram, below, palette=palette)
    return figure


def panel_figure(diagram: Diagram, *, palette: Palette = LIGHT, x: str, y: str) -> "Figure":
    """Return a new small figure: a reliability diagram for a grid of panels.

    Args:
        diagram: The diagram to draw.
        palette: Colours.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
    """
    ax = _bare(2.6, 2.6).add_axes((0.24, 0.21, 0.7, 0.7))
    draw_diagram(diagram, ax, palette=palette, start=0.0, words=False)
    ax.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    return finish(ax, palette, x=x, y=y, in_percent="xy")


def before_after_figure(before: Diagram, after: Diagram, *, palette: Palette = LIGHT) -> "Figure":
    """Return a new figure: two reliability diagrams side by side on one scale, each with its ECE, for a paper or a slide.

    Args:
        before: From ``plot.diagram_of``.
        after: Likewise.
        palette: Colours.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.plot import diagram_of
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> figure = before_after_figure(diagram_of(data), diagram_of(data))
        >>> figure.savefig("before-after.png", dpi=150)
    """
    figure = _bare(8.0, 4.2)
    figure.patch.set(alpha=1, facecolor="white")
    start = lower_limit(before, after)
    for left, title, diagram in ((0.08, "before", before), (0.575, "after", after)):
        ax = figure.add_axes((left, 0.13, 0.385, 0.385 * 8.0 / 4.2))
        draw_diagram(diagram, ax, palette=palette, start=start)
        ax.set_title(f"{title}: ECE {100 * diagram.ece:.2f} %", fontsize=10, color=palette.ink)
    return figure


def risk_figure(curves: Sequence[tuple[str, Curve]], *, palette: Palette = LIGHT) -> "Figure":
    """Return a new figure of risk against coverage.

    Args:
        curves: (name, curve) pairs, at most three.
        palette: Colours.
    """
    ax = _bare(4.3, 2.9).add_axes((0.165, 0.17, 0.795, 0.79))
    colours = (palette.bad, palette.good, palette.other) if len(curves) > 1 else (palette.good,)
    return draw_risk(curves, ax, palette=palette, colours=colours)


def _bare(width: float, height: float) -> "Figure":
    """Return an empty figure without a layout engine, so that fixed positions line up, on a transparent background."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.patch.set_alpha(0)
    return figure
