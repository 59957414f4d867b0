"""The style of all figures: colours by role, line styles, and axes in percent.

Neither pyplot nor rcParams is used, so no global state changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Palette:
    """Colours by role.

    The defaults are legible on white and in greyscale, and distinct for readers with deuteranopia; markers and dashes
    carry the same information.

    Args:
        ink: Text and main lines.
        faint: Ticks, frames, notes.
        grid: Grid lines.
        band: The region expected if calibrated.
        good: Inside the band; after calibration.
        bad: Outside the band; before calibration.
    """

    ink: str = "#1b1f24"
    faint: str = "#5b6570"
    grid: str = "#d9dee3"
    band: str = "#c9d3dd"
    good: str = "#1f6fb5"
    bad: str = "#c2410c"


LIGHT = Palette()

# Line colours in order, after Okabe and Ito (2008), darkened for thin lines on white; a test simulates deuteranopia.
COLOURS = ("#0b5fa5", "#d9730d", "#1b1f24", "#56b4e9", "#8f3b00", "#009e73", "#b5651d", "#a64d93")
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def new_figure(*, width: float = 4.2, height: float = 4.2) -> "Figure":
    """Return an empty figure of ``width`` × ``height`` inches, without pyplot's window management.

    Args:
        width: Width in inches, > 0.
        height: Height in inches, > 0.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set(alpha=1, facecolor="white")
    return figure


def axes_of(ax: "Axes | None", *, height: float = 4.2) -> "Axes":
    """Return ``ax``, or the axes of a new figure if it is None."""
    return new_figure(width=4.2, height=height).add_subplot() if ax is None else ax


def percent_tick(value: float, _: float = 0) -> str:
    """Return a fraction as a tick label.

    Args:
        value: The fraction.
    """
    return f"{100 * value:.3g} %"


def finish(
    ax: "Axes", palette: Palette = LIGHT, *, x: str | None = None, y: str | None = None, in_percent: Sequence[str] = ()
) -> "Figure":
    """Return the figure of ``ax`` after applying the common grid, ticks and labels.

    Args:
        ax: The axes that were drawn into.
        palette: Colours.
        x: Label of the horizontal axis; None does not change it.
        y: Label of the vertical axis; None does not change it.
        in_percent: ``"x"``, ``"y"`` or both: the axes whose fractions are labelled in percent.
    """
    if x is not None:
        ax.set_xlabel(x)
    if y is not None:
        ax.set_ylabel(y)
    for name in in_percent:
        (ax.xaxis if name == "x" else ax.yaxis).set_major_formatter(percent_tick)
    ax.set_facecolor("none")
    ax.grid(True, color=palette.grid, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(colors=palette.faint, labelcolor=palette.ink, labelsize=8, length=3)
    for spine in ax.spines.values():
        spine.set_color(palette.faint)
        spine.set_linewidth(0.6)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set(color=palette.ink, fontsize=9)
    return cast("Figure", ax.figure)
