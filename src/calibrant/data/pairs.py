"""Pairs of a probability and what happened: what every binned error is computed from.

They are events with their probabilities, or decisions with their confidences, which hold the class decided.
"""

from dataclasses import dataclass, replace
from typing import Any, Self, TypeGuard, Unpack

import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_labels, check_unit_interval
from calibrant.data.record import ColumnOptions, Record, checked_columns


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Record):
    """Probabilities and what happened, each 0 or 1: of events, or of decisions that were wrong or right.

    Decisions hold the class decided; a metric's name says which of the two it means.

    Args:
        p: (N,) float64 in [0, 1].
        y: (N,) float64, 0 or 1.
        labels: (N,) int64 true class, or None.
        decision: (N,) int64 class of which ``p`` is the confidence; None of events.
        groups: (N,) int64 group of each row, or None.
        weights: (N,) as in ``Predictions``, or None.
        features: Named columns (N,), as in ``Predictions``, or None.

    Examples:
        >>> Pairs.from_probs([0.9, 0.6], [1, 0])
        Pairs(2 rows)
        >>> Pairs.from_top_label([0.9, 0.6], [1, 0], [1, 1])
        Pairs(2 rows, decision)
    """

    p: Tensor
    y: Tensor

    @classmethod
    def from_probs(cls, p: Any, y: Any, **columns: Unpack[ColumnOptions]) -> Self:
        """Make pairs from probabilities ``p`` (N,) in [0, 1] and what happened, ``y`` (N,) in {0, 1}."""
        p = check_unit_interval(as_tensor(p, name="p"), name="p")
        y = as_tensor(y, name="y")
        y = check_labels(y.to(torch.int64) if y.dtype == torch.bool else y, rows=p.shape[0], classes=2)
        return cls(p, y.to(torch.float64), **checked_columns(p, **columns))

    @classmethod
    def from_top_label(cls, conf: Any, pred: Any, label: Any, **columns: Unpack[ColumnOptions]) -> Self:
        """Make pairs of decisions from confidences (N,), predicted classes (N,) and true classes (N,)."""
        p = check_unit_interval(as_tensor(conf, name="conf"), name="conf")
        largest = 1 << 31
        predicted = check_labels(as_tensor(pred, name="pred"), rows=p.shape[0], classes=largest)
        labels = check_labels(as_tensor(label, name="label"), rows=p.shape[0], classes=largest)
        y = (predicted == labels).to(torch.float64)
        return cls(p, y, decision=predicted, labels=labels, **checked_columns(p, **columns))

    def top_label(self) -> Self:
        """Return self: these are pairs already."""
        return self

    def calibrated_by(self, calibrator: Any, *, allow_fit_rows: bool = False) -> Self:
        """Return these pairs with the probabilities that ``calibrator`` gives them; decisions and outcomes stay.

        Args:
            calibrator: A calibrator for two classes (no event, event), fitted on pairs or on two-class predictions.
            allow_fit_rows: As in ``Predictions.calibrated_by``.

        Raises:
            InputError: If it was fitted on another number of classes.
            LeakError: If it was fitted on these rows.
        """
        from calibrant.data.predictions import Predictions

        rows = Predictions.from_pairs(self, halves=getattr(calibrator, "top_label", False))
        return replace(self, p=rows.calibrated_by(calibrator, allow_fit_rows=allow_fit_rows).probs[:, 1].double())

    @property
    def scores(self) -> Tensor:
        """(N,): the probabilities."""
        return self.p

    @property
    def confidence(self) -> Tensor:
        """(N,) float64: the same as ``p``."""
        return self.p

    @property
    def correct(self) -> Tensor:
        """(N,) bool: whether the event happened, or the decision was right."""
        return self.y > 0

    @property
    def predicted(self) -> Tensor | None:
        """(N,) int64: the class of which ``p`` is the confidence; None of events."""
        return self.decision

    def _about(self) -> list[str]:
        return []


def are_events(data: object) -> TypeGuard[Pairs]:
    """Return whether ``data`` are pairs of events, not of decisions."""
    return isinstance(data, Pairs) and data.decision is None
