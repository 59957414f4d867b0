"""The calibration error of each class against the rest, with its 97.5 % limit if calibrated: the numbers and the plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from calibrant._core.constraints import Count, Seed, checked
from calibrant.binning import BinTable, EqualWidth
from calibrant.plot.arguments import PlainClassRows, check_names
from calibrant.plot.diagrams import BINS, LEVEL
from calibrant.plot.style import LIGHT, Palette, finish
from calibrant.statistics import null_outcomes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ClassError", "class_errors", "draw_classes"]


@dataclass(frozen=True)
class ClassError:
    """One class against the rest.

    Args:
        name: Name of the class.
        n: Rows with this label.
        ece: Calibration error of the class's probability.
        limit: The 97.5 % limit if calibrated: a calibrated model's error stays below it in 97.5 % of samples.
        probability: Mean probability of the class.
        frequency: Frequency of the class.
    """

    name: str
    n: int
    ece: float
    limit: float
    probability: float
    frequency: float


@checked
def class_errors(
    predictions: PlainClassRows, *, class_names: Sequence[str] | None = None, draws: Count = 200, seed: Seed = 0
) -> list[ClassError]:
    """Return every class's calibration error in 15 bins of equal width, the largest first.

    Args:
        predictions: Labelled.
        class_names: K names; None is the class indices.
        draws: Label sets for the limits, ≥ 1.
        seed: Same seed, same limits.

    Raises:
        InputError: If class names are not K, or there are no rows.
    """
    classes = predictions.classes
    names = check_names(class_names, classes=classes)
    binning = EqualWidth(BINS)
    found = []
    for k in range(classes):
        pairs = predictions.one_vs_rest(k)
        index = binning.assign(pairs.p)
        table = BinTable.from_pairs(index, pairs.p, pairs.y, bins=BINS)
        drawn = null_outcomes(index, pairs.p, bins=BINS, draws=draws, seed=seed)
        null = BinTable(table.count.cpu(), table.sum_p.cpu(), drawn.cpu(), table.total).errors()
        found.append(
            ClassError(
                name=str(k) if names is None else names[k],
                n=int(pairs.y.sum()),
                ece=table.error(),
                limit=float(torch.quantile(null, (1 + LEVEL) / 2)),
                probability=float(pairs.p.mean()),
                frequency=float(pairs.y.mean()),
            )
        )
    return sorted(found, key=lambda one: -one.ece)


def draw_classes(errors: Sequence[ClassError], ax: "Axes", *, of: int, palette: Palette = LIGHT) -> "Figure":
    """Draw the error of each class as a dot on a bar that ends at its limit if calibrated.

    Args:
        errors: The classes shown, the largest error first.
        ax: Where to draw.
        of: Number of all classes.
        palette: Colours.

    Returns:
        The figure of ``ax``.
    """
    places = list(range(len(errors)))
    ax.barh(places, [one.limit for one in errors], height=0.62, color=palette.band, zorder=2)
    for off, marker, colour in ((False, "o", palette.good), (True, "D", palette.bad)):
        dots = [(one.ece, place) for place, one in enumerate(errors) if (one.ece > one.limit) is off]
        if dots:
            ax.plot(*zip(*dots, strict=True), marker, color=colour, markersize=5, zorder=3)
    ax.set_yticks(places, labels=[one.name for one in errors])
    ax.set_ylim(len(errors) - 0.4, -0.6)
    ax.set_xlim(left=0)
    worst = "" if len(errors) == of else f"the {len(errors)} worst of {of} classes; "
    ax.set_title(f"{worst}grey: up to the 97.5 % limit if calibrated", fontsize=8, color=palette.faint)
    return finish(ax, palette, x="ECE of the class's probability", y="class", in_percent="x")
