"""Several displays in one axes: each curve has a colour, dash and marker, and a legend replaces bands and texts."""

from typing import TYPE_CHECKING, Any

from calibrant.plot.corp import IsotonicDiagram
from calibrant.plot.diagrams import Diagram
from calibrant.plot.style import COLOURS, DASHES, LIGHT, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["curves_in", "draw_beside", "mark_curve"]

_CURVE = "display-curve"


def curves_in(ax: "Axes | None") -> "list[Line2D]":
    """Return the curves of displays already drawn in an axes.

    Args:
        ax: The axes, or None.
    """
    return [] if ax is None else [line for line in ax.get_lines() if line.get_gid() == _CURVE]


def mark_curve(ax: "Axes", name: str) -> None:
    """Mark the last curve drawn as that of a display.

    Args:
        ax: Its axes.
        name: Name of the model.
    """
    line = ax.get_lines()[-1]
    line.set_gid(_CURVE)
    line.set_label(name)


def draw_beside(numbers: Diagram | IsotonicDiagram, ax: "Axes", *, name: str) -> None:
    """Draw one more curve into an axes with displays, and replace their bands and texts by a legend.

    Args:
        numbers: The numbers of the curve.
        ax: The axes.
        name: Name of the model.
    """
    place = len(curves_in(ax))
    if place == 1:
        _make_plain(ax, dotted=isinstance(numbers, Diagram))
    look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
    if isinstance(numbers, IsotonicDiagram):
        ax.plot(numbers.p, numbers.recalibrated, linewidth=1.8, zorder=3, **look)
    else:
        look |= {"marker": MARKERS[place % len(MARKERS)], "markersize": 5, "linewidth": 1.4, "clip_on": False}
        ax.plot([b.confidence for b in numbers.bins], [b.accuracy for b in numbers.bins], zorder=3, **look)
        start = min(ax.get_xlim()[0], *(min(b.confidence, b.accuracy) for b in numbers.bins))
        ax.set(xlim=(start, 1), ylim=(start, 1))
    mark_curve(ax, name)
    ax.legend(handles=curves_in(ax), frameon=False, fontsize=8, labelcolor=LIGHT.ink, loc="upper left", handlelength=3)


def _make_plain(ax: "Axes", *, dotted: bool) -> None:
    """Remove the artists that explain only the first curve: its band, dots, texts and title."""
    [first] = curves_in(ax)
    for artist in [*ax.collections, *ax.texts, *(line for line in ax.get_lines() if line.get_color() == LIGHT.band)]:
        artist.remove()
    first.set(color=COLOURS[0], linewidth=1.4 if dotted else 1.8)
    if dotted:
        first.set(marker=MARKERS[0], markersize=5, clip_on=False)
    ax.set_title("")
