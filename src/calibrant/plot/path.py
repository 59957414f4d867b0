"""Log-loss by temperature: the numbers and the plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from calibrant._core.constraints import Positive, checked
from calibrant._core.numerics import row_chunks
from calibrant.calibrators import TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.plot.arguments import PlainClassRows
from calibrant.plot.style import LIGHT, Palette, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["TemperaturePath", "draw_path", "path_of"]

_DEFAULT = torch.logspace(-3, 3, 61, base=2.0, dtype=torch.float64).tolist()


@dataclass(frozen=True)
class TemperaturePath:
    """Log-loss by temperature.

    Args:
        temperatures: Increasing, > 0.
        losses: Mean log-loss in nats at each.
        best: The temperature with the smallest log-loss.
        best_loss: The log-loss at ``best``.
        loss: The log-loss at T = 1, before calibration.
    """

    temperatures: Sequence[float]
    losses: Sequence[float]
    best: float
    best_loss: float
    loss: float


@checked
def path_of(predictions: PlainClassRows, *, temperatures: Sequence[Positive] | None = None) -> TemperaturePath:
    """Return the mean log-loss of the logits divided by each temperature, and the best temperature.

    Args:
        predictions: Labelled.
        temperatures: Each > 0; None is 61 from 1/8 to 8.

    Raises:
        InputError: If one is not positive, or there are no rows.
    """
    chosen = sorted(_DEFAULT if temperatures is None else temperatures)
    fitted = TemperatureScaling().fit(predictions.logits, predictions.need_labels())
    best = float(fitted.temperature)
    points = [_loss(predictions, t) for t in (*chosen, best, 1.0)]
    return TemperaturePath(chosen, points[:-2], best, points[-2], points[-1])


def _loss(predictions: Predictions, temperature: float) -> float:
    labels, total = predictions.need_labels(), 0.0
    for rows in row_chunks(len(predictions), predictions.classes, device=predictions.logits.device):
        scaled = predictions.logits[rows].double() / temperature
        total += float(torch.nn.functional.cross_entropy(scaled, labels[rows], reduction="sum"))
    return total / len(predictions)


def draw_path(path: TemperaturePath, ax: "Axes", *, palette: Palette = LIGHT) -> "Figure":
    """Draw log-loss against temperature, with T = 1 and the best one marked.

    Args:
        path: From ``path_of``.
        ax: Where to draw.
        palette: Colours.

    Returns:
        The figure of ``ax``.
    """
    ax.plot(path.temperatures, path.losses, color=palette.ink, linewidth=1.5, zorder=2)
    ax.set_xscale("log", base=2)
    marks = (
        (1.0, path.loss, "D", palette.bad, f"T = 1: {path.loss:.4f}"),
        (path.best, path.best_loss, "o", palette.good, f"T = {path.best:.3g}: {path.best_loss:.4f}"),
    )
    for row, (x, y, marker, colour, text) in enumerate(marks):
        ax.plot([x], [y], marker, color=colour, markersize=6, zorder=3)
        ax.text(0.97, 0.95 - 0.08 * row, text, transform=ax.transAxes, ha="right", va="top", fontsize=8, color=colour)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return finish(ax, palette, x="temperature T", y="log-loss (nats)")
