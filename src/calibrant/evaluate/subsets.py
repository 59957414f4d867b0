"""The panel for parts of the data: groups, true classes, predicted classes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from calibrant._core.check import check_choice
from calibrant.data.checks import need_rows
from calibrant.errors import InputError
from calibrant.evaluate.panel import PanelRow, panel
from calibrant.metrics import Metric

__all__ = ["panel_by"]

from calibrant.data.checks import Data


def panel_by(
    predictions: Data,
    by: Literal["groups", "labels", "predicted"],
    *,
    metrics: Sequence[Metric] | None = None,
    uncertainty: bool = True,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[int, list[PanelRow]]:
    """Return the panel for each group, true class or predicted class.

    Small parts have wide intervals and high limits if calibrated: read those before reading the values. A model calibrated overall
    is not calibrated given the true class (that would need a perfect model), so "labels" is for error and loss, while
    "predicted" is for calibration.

    Args:
        predictions: Labelled predictions, or pairs.
        by: Which column parts the rows.
        metrics: As in ``panel``.
        uncertainty: As there.
        draws: As there.
        seed: As there.
        level: As there.

    Returns:
        Group or class → its rows, in increasing order.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_logits([[2.0, 0.0], [0.0, 2.5], [3.0, 0.0]], [0, 1, 1], groups=[7, 7, 8])
        >>> [rows[0].value for rows in panel_by(data, "groups", uncertainty=False).values()]
        [1.0, 0.0]
    """
    need_rows(predictions, what="the panel")
    check_choice(by, name="by", choices=("groups", "labels", "predicted"))
    column = getattr(predictions, by)
    if column is None:
        raise InputError(f"predictions with {by}", "none", "pass them when making the predictions")
    parts = {}
    for key in torch.unique(column).tolist():
        part = predictions[torch.nonzero(column == key)[:, 0]]
        if by == "groups":  # within its one group the rows are the independent units
            part = replace(part, groups=None)
        parts[int(key)] = panel(part, metrics=metrics, uncertainty=uncertainty, draws=draws, seed=seed, level=level)
    return parts
