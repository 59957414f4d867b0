"""Pairs of a probability and an outcome, from which every binned calibration error is computed.

A pair is an event with its probability, or a decision (a predicted class) with its confidence.
"""

from dataclasses import dataclass, replace
from typing import Any, Self, TypeGuard, Unpack

import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_labels, check_unit_interval
from calibrant.data.record import ColumnOptions, Record, checked_columns


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Record):
    """Probabilities with their outcomes 0 or 1, for events or for decisions that were wrong or right.

    For decisions, ``decision`` holds the predicted classes; for events it is None.

    Args:
        p: (N,) float64 in [0, 1].
        y: (N,) float64, 0 or 1.
        labels: (N,) int64 true class, or None.
        decision: (N,) int64 predicted class, whose confidence is ``p``; None for events.
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
        """Create pairs from the probabilities of events and their outcomes.

        Args:
            p: (N,) probabilities in [0, 1].
            y: (N,) outcomes, 0 or 1, or booleans.
            columns: ``groups``, ``weights`` and ``features``, as in ``Predictions.from_logits``.

        Returns:
            The pairs.

        Raises:
            InputError: If shapes or values are invalid.
        """
        p = check_unit_interval(as_tensor(p, name="p"), name="p")
        y = as_tensor(y, name="y")
        y = check_labels(y.to(torch.int64) if y.dtype == torch.bool else y, rows=p.shape[0], classes=2)
        return cls(p, y.to(torch.float64), **checked_columns(p, **columns))

    @classmethod
    def from_top_label(cls, conf: Any, pred: Any, label: Any, **columns: Unpack[ColumnOptions]) -> Self:
        """Create pairs of decisions from confidences, predicted classes and true classes.

        Args:
            conf: (N,) confidences in [0, 1].
            pred: (N,) predicted classes, integers ≥ 0.
            label: (N,) true classes, integers ≥ 0.
            columns: ``groups``, ``weights`` and ``features``, as in ``Predictions.from_logits``.

        Returns:
            The pairs.

        Raises:
            InputError: If shapes or values are invalid.
        """
        p = check_unit_interval(as_tensor(conf, name="conf"), name="conf")
        largest = 1 << 31
        predicted = check_labels(as_tensor(pred, name="pred"), rows=p.shape[0], classes=largest)
        labels = check_labels(as_tensor(label, name="label"), rows=p.shape[0], classes=largest)
        y = (predicted == labels).to(torch.float64)
        return cls(p, y, decision=predicted, labels=labels, **checked_columns(p, **columns))

    def top_label(self) -> Self:
        """Return the object itself, because these are already pairs."""
        return self

    def calibrated_by(self, calibrator: Any, *, allow_fit_rows: bool = False) -> Self:
        """Return these pairs with calibrated probabilities; decisions and outcomes do not change.

        Args:
            calibrator: A calibrator for two classes (no event, event), fitted on pairs or on two-class predictions.
            allow_fit_rows: As in ``Predictions.calibrated_by``.

        Returns:
            The calibrated pairs.

        Raises:
            InputError: If the calibrator was fitted on another number of classes.
            LeakError: If the calibrator was fitted on these rows.
        """
        from calibrant.data.predictions import Predictions

        rows = Predictions.from_pairs(self, halves=getattr(calibrator, "top_label", False))
        return replace(self, p=rows.calibrated_by(calibrator, allow_fit_rows=allow_fit_rows).probs[:, 1].double())

    @property
    def scores(self) -> Tensor:
        """The probabilities (N,)."""
        return self.p

    @property
    def confidence(self) -> Tensor:
        """The probabilities ``p``, (N,) float64."""
        return self.p

    @property
    def correct(self) -> Tensor:
        """Whether the event happened, or the decision was right, (N,) bool."""
        return self.y > 0

    @property
    def predicted(self) -> Tensor | None:
        """The predicted class, whose confidence is ``p``, (N,) int64; None for events."""
        return self.decision

    def _about(self) -> list[str]:
        return []


def are_events(data: object) -> TypeGuard[Pairs]:
    """Return whether ``data`` are pairs for events rather than decisions."""
    return isinstance(data, Pairs) and data.decision is None
