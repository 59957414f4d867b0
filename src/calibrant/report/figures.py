"""Figures with matplotlib's object interface alone: no pyplot, no rcParams, so nothing global changes.

Each drawing function takes numbers and an ``Axes`` and returns its ``Figure``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from calibrant.report.diagnosis import Curve, Diagram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Palette:
    """Colours by role. The defaults are legible on white, in grey print, and to colour-blind readers (blue, orange)."""

    ink: str = "#1b1f24"
    faint: str = "#767f89"
    grid: str = "#d9dee3"
    band: str = "#c9d3dd"
    good: str = "#1f6fb5"
    bad: str = "#c2410c"
    other: str = "#8a5a00"


LIGHT = Palette()


def new_figure(*, width: float = 3.5, height: float = 3.5) -> "Figure":
    """Return an empty figure of ``width`` × ``height`` inches, transparent, with no tie to any display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.patch.set_alpha(0)
    return figure


def reliability(diagram: Diagram, ax: "Axes", *, palette: Palette = LIGHT) -> "Figure":
    """Draw accuracy against confidence, with what a calibrated model would show behind it.

    Grey bars are the 95 % consistency bars (Bröcker and Smith 2007): where each dot would lie if the model were
    calibrated. Dots inside are filled circles, dots outside are diamonds in another colour.

    Args:
        diagram: From ``diagram_of``.
        ax: Where to draw.
        palette: Colours.

    Returns:
        The figure of ``ax``.
    """
    ax.plot([0, 1], [0, 1], color=palette.faint, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    width = 2.65 * ax.bbox.width / ax.figure.dpi  # in points: about half of a bin of 1/15
    for b in diagram.bins:
        span = ([b.confidence] * 2, [b.expect_low, b.expect_high])
        ax.plot(*span, color=palette.band, linewidth=width, solid_capstyle="butt", zorder=2)
    x, y = [b.confidence for b in diagram.bins], [b.accuracy for b in diagram.bins]
    ax.plot(x, y, color=palette.ink, linewidth=0.8, zorder=3)
    for off, marker, colour in ((False, "o", palette.good), (True, "D", palette.bad)):
        dots = [(b.confidence, b.accuracy) for b in diagram.bins if b.off is off]
        if dots:
            ax.plot(*zip(*dots, strict=True), marker, color=colour, markersize=4.5, zorder=4, clip_on=False)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="right")
    ax.yaxis.set_major_formatter(_percent)
    return finish(ax, palette)


def confidences(diagram: Diagram, ax: "Axes", *, palette: Palette = LIGHT) -> "Figure":
    """Draw how many rows fall in each bin of confidence, with mean confidence and accuracy as lines.

    Args:
        diagram: From ``diagram_of``.
        ax: Where to draw.
        palette: Colours.

    Returns:
        The figure of ``ax``.
    """
    left, width = [b.low for b in diagram.bins], [b.high - b.low for b in diagram.bins]
    share = [b.count / diagram.n for b in diagram.bins]
    ax.bar(left, share, width, align="edge", color=palette.good, alpha=0.55, edgecolor=palette.good, linewidth=0.6)
    ax.axvline(diagram.confidence, color=palette.ink, linewidth=1.2)
    ax.axvline(diagram.accuracy, color=palette.bad, linewidth=1.2, linestyle=(0, (2, 2)))
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="rows", yticks=[0, 0.5, 1])
    ax.xaxis.set_major_formatter(_percent)
    ax.yaxis.set_major_formatter(_percent)
    return finish(ax, palette)


def risk(curves: Sequence[tuple[str, Curve]], ax: "Axes", *, palette: Palette = LIGHT) -> "Figure":
    """Draw the error among the most confident share of the rows, one line a curve.

    Args:
        curves: (label, curve) pairs, at most three.
        ax: Where to draw.
        palette: Colours.

    Returns:
        The figure of ``ax``.
    """
    styles = [(palette.bad, (0, (4, 2))), (palette.good, "solid"), (palette.other, (0, (1, 1)))]
    for (label, curve), (colour, style) in zip(curves, styles, strict=False):
        ax.plot(curve.coverage, curve.risk, color=colour, linestyle=style, linewidth=1.5, label=label)
    ax.set(xlim=(0, 1), xlabel="share of rows answered, most confident first", ylabel="error among them")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(_percent)
    ax.yaxis.set_major_formatter(_percent)
    if len(curves) > 1:
        ax.legend(frameon=False, fontsize=8, labelcolor=palette.ink)
    return finish(ax, palette)


def reliability_figure(diagram: Diagram, *, palette: Palette = LIGHT) -> "Figure":
    """Return a new figure: the reliability diagram above the confidence histogram."""
    figure = new_figure(height=4.7)
    _pair(figure, diagram, (0.19, 0.755), palette=palette)
    return figure


def panel_figure(diagram: Diagram, *, palette: Palette = LIGHT) -> "Figure":
    """Return a new small figure: a reliability diagram without labels, to stand among others."""
    ax = new_figure(width=2.2, height=2.2).add_axes((0.23, 0.13, 0.68, 0.82))
    reliability(diagram, ax, palette=palette)
    ax.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], ylabel="")
    ax.xaxis.set_major_formatter(_percent)
    return finish(ax, palette)


def before_after_figure(before: Diagram, after: Diagram, *, palette: Palette = LIGHT) -> "Figure":
    """Return a new figure: two reliability diagrams side by side, each with its ECE, for a paper or a slide.

    Example:
        >>> from calibrant import Predictions
        >>> from calibrant.report.diagnosis import diagram_of
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> figure = before_after_figure(diagram_of(data), diagram_of(data))
        >>> figure.savefig("before-after.png", dpi=150)
    """
    figure = new_figure(width=7.2, height=4.9)
    figure.patch.set(alpha=1, facecolor="white")
    for left, title, diagram in ((0.09, "before", before), (0.59, "after", after)):
        _pair(figure, diagram, (left, 0.385), palette=palette)
        figure.axes[-2].set_title(f"{title}: ECE {100 * diagram.ece:.2f} %", fontsize=10, color=palette.ink)
    return figure


def risk_figure(curves: Sequence[tuple[str, Curve]], *, palette: Palette = LIGHT) -> "Figure":
    """Return a new figure of risk by coverage."""
    return risk(curves, new_figure(height=2.8).add_axes((0.19, 0.16, 0.755, 0.81)), palette=palette)


def _pair(figure: "Figure", diagram: Diagram, place: tuple[float, float], *, palette: Palette) -> None:
    """Draw a reliability diagram above its histogram at (left, width): fixed places, so that several line up."""
    left, width = place
    above = figure.add_axes((left, 0.33, width, 0.6))
    below = figure.add_axes((left, 0.1, width, 0.19), sharex=above)
    confidences(diagram, below, palette=palette)
    reliability(diagram, above, palette=palette)
    above.tick_params(labelbottom=False)


def _percent(value: float, _: float) -> str:
    return f"{100 * value:.3g} %"


def finish(ax: "Axes", palette: Palette) -> "Figure":
    """Give ``ax`` the grid, the ticks and the labels that all figures have, and return its figure."""
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
