"""A plot of one metric's values over epochs."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant._core.constraints import checked
from calibrant.plot.arguments import AnyAxes
from calibrant.plot.style import LIGHT, Palette, axes_of, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_values"]


@checked
def draw_values(
    values: Sequence[float],
    ax: AnyAxes | None = None,
    *,
    name: str,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    palette: Palette = LIGHT,
) -> tuple["Figure", "Axes"]:
    """Draw the values of one metric in order as dots, the last labelled with its value.

    Args:
        values: At least one.
        ax: Where to draw; None makes a figure.
        name: Name of the metric, the label of the vertical axis.
        bounds: Bounds of the metric; the axis begins at the lower one if it is finite.
        palette: Colours.

    Returns:
        The figure and its axes.

    Examples:
        >>> figure, ax = draw_values([0.2, 0.1], name="ECE")
        >>> ax.get_xlabel()
        'epoch'
    """
    from matplotlib.ticker import MaxNLocator

    chosen = axes_of(ax, height=3.2)
    places = range(1, len(values) + 1)
    chosen.plot(places, values, "o-", color=palette.good, linewidth=1.5, markersize=5)
    chosen.annotate(
        f"{values[-1]:.4g}", (len(values), values[-1]), (0, 6), textcoords="offset points", ha="center", fontsize=8
    )
    if math.isfinite(bounds[0]):
        chosen.set_ylim(bottom=bounds[0], top=1.15 * max(values) if max(values) > 0 and bounds[0] == 0 else None)
    if len(values) == 1:
        chosen.set_xlim(0, 2)
    chosen.xaxis.set_major_locator(MaxNLocator(integer=True))
    return finish(chosen, palette, x="epoch", y=name), chosen
