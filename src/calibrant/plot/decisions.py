"""The decision curve: the net benefit of acting on the probabilities, by threshold."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibrant._core.constraints import checked
from calibrant.data.predictions import Predictions
from calibrant.operate import net_benefit
from calibrant.operate.decide import NetBenefit
from calibrant.plot.arguments import AnyAxes
from calibrant.plot.pictures import Picture
from calibrant.plot.style import LIGHT, Palette, axes_of, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DecisionCurve", "decision_curve", "draw_decisions"]

_MOST = 0.5  # largest threshold drawn; a higher one, where a false positive costs more than a miss, is rare


@dataclass(frozen=True)
class DecisionCurve:
    """The net benefit at each threshold.

    Args:
        points: In ascending order of the threshold.
    """

    points: tuple[NetBenefit, ...]


@checked
def decision_curve(predictions: Predictions, ax: AnyAxes | None = None, *, positive: int = 1) -> Picture:
    """Draw the net benefit of acting where p ≥ t against t, with 95 % bounds, and those of always and never acting.

    Args:
        predictions: Labelled, of independent rows; ``operate.net_benefit`` computes the numbers.
        ax: Where to draw; None makes a figure.
        positive: The class to act on.

    Returns:
        The figure, with a ``DecisionCurve``.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_binary_probs([0.9, 0.8, 0.3, 0.1], [1, 1, 0, 0])
        >>> curve = decision_curve(data).numbers
        >>> [(point.threshold, round(point.model, 3)) for point in curve.points if round(point.threshold, 3) == 0.25]
        [(0.25, 0.417)]

    References:
        Vickers & Elkin 2006.
    """
    at = [one / 40 for one in range(1, round(40 * _MOST) + 1)]
    numbers = DecisionCurve(tuple(net_benefit(predictions, at=at, positive=positive)))
    chosen = axes_of(ax, height=3.2)
    return Picture(draw_decisions(numbers, chosen), chosen, numbers)


def draw_decisions(curve: DecisionCurve, ax: "Axes", *, palette: Palette = LIGHT) -> "Figure":
    """Draw a decision curve.

    Args:
        curve: Its numbers.
        ax: Where to draw.
        palette: Colours.

    Returns:
        The figure of ``ax``.
    """
    at = [point.threshold for point in curve.points]
    model, always = ([getattr(point, name) for point in curve.points] for name in ("model", "all"))
    ax.fill_between(
        at, [one.low for one in curve.points], [one.high for one in curve.points], color=palette.good, alpha=0.15, lw=0
    )
    ax.plot(at, model, color=palette.good, linewidth=1.6, label="act where p ≥ t")
    ax.plot(at, always, color=palette.bad, linewidth=1.2, linestyle=(0, (4, 3)), label="always act")
    ax.axhline(0, color=palette.faint, linewidth=1.2, linestyle=(0, (1, 2)), label="never act")
    top = max([*model, *always, 0.01])
    ax.set_xlim(0, max(at))
    ax.set_ylim(-0.25 * top, 1.15 * top)  # a rule far below 0 is of no interest
    ax.legend(frameon=False, fontsize=8, labelcolor=palette.ink, handlelength=3)
    return finish(ax, palette, x="threshold t", y="net benefit (true positives per row)", in_percent="x")
