"""Probabilities of binary events, or of right decisions, with what happened: what every binned error is computed from."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_labels, check_unit_interval, refuse
from calibrant._core.constraints import checked
from calibrant.data.record import Beside, Record, checked_beside


@dataclass(frozen=True, eq=False, repr=False)
class BinaryPairs(Record):
    """Probabilities and what happened, each 0 or 1: what every binned error is computed from.

    They are ``Events``, or ``Decisions`` with their confidences: two types, since an accuracy is one of decisions.

    Args:
        p: (N,) float64 in [0, 1].
        y: (N,) float64, 0 or 1.
        labels: (N,) int64 true class, or None.
        decision: (N,) int64 class of which ``p`` is the confidence, or None.
        groups: (N,) int64 group of each row, or None.
        weights: (N,) as in ``Predictions``, or None.
        features: Named columns (N,), as in ``Predictions``, or None.

    Examples:
        >>> BinaryPairs.from_probs([0.9, 0.6], [1, 0]).p
        tensor([0.9000, 0.6000], dtype=torch.float64)
    """

    p: Tensor
    y: Tensor

    axes: ClassVar = {"p": 1, "y": 1}

    def __post_init__(self) -> None:
        self.check()

    @staticmethod
    @checked
    def from_probs(p: Any, y: Any, **beside: Unpack[Beside]) -> "Events":
        """Make pairs from probabilities ``p`` (N,) in [0, 1] of events, and outcomes ``y`` (N,) in {0, 1}."""
        p = check_unit_interval(as_tensor(p, name="p"), name="p")
        y = as_tensor(y, name="y")
        y = check_labels(y.to(torch.int64) if y.dtype == torch.bool else y, rows=p.shape[0], classes=2)
        return Events(p, y.to(torch.float64), **checked_beside(p, beside))

    @staticmethod
    @checked
    def from_top_label(conf: Any, pred: Any, label: Any, **beside: Unpack[Beside]) -> "Decisions":
        """Make pairs from top-label confidences (N,), predicted classes (N,) and true classes (N,)."""
        p = check_unit_interval(as_tensor(conf, name="conf"), name="conf")
        largest = 1 << 31
        predicted = check_labels(as_tensor(pred, name="pred"), rows=p.shape[0], classes=largest)
        labels = check_labels(as_tensor(label, name="label"), rows=p.shape[0], classes=largest)
        y = (predicted == labels).to(torch.float64)
        return Decisions(p, y, decision=predicted, labels=labels, **checked_beside(p, beside))

    @staticmethod
    @checked
    def from_decisions(conf: Any, correct: Any, **beside: Unpack[Beside]) -> "Decisions":
        """Make pairs from the confidences (N,) of decisions, and whether each was right (N,), where no classes are known."""
        pairs = BinaryPairs.from_probs(conf, correct, **beside)
        return Decisions(pairs.p, pairs.y, **pairs.beside)

    def top_label(self) -> Self:
        """Return self: these are pairs already."""
        return self

    def calibrated_by(self, calibrator: Any, *, allow_fit_rows: bool = False) -> Self:
        """Return these pairs with the probabilities that ``calibrator`` gives them; decisions and outcomes stay.

        Args:
            calibrator: One that was fitted on pairs of this kind; for events also one of two classes, of which they are the second.
            allow_fit_rows: As in ``Predictions.calibrated_by``.

        Raises:
            InputError: If it was fitted on other rows.
            LeakError: As there.
        """
        from calibrant.data.predictions import Predictions

        of_decisions = isinstance(self, Decisions)
        if isinstance(getattr(calibrator, "of_decisions", None), bool) and calibrator.of_decisions != of_decisions:
            got = "probabilities of all classes" if of_decisions else "confidences of decisions"
            raise refuse(
                f"a calibrator fitted on rows like these {type(self).__name__}", f"one of {got}", "fit it on such rows"
            )
        rows = Predictions.from_pairs(self, halves=getattr(calibrator, "top_label", False))
        after = rows.through(calibrator, allow_fit_rows=allow_fit_rows)
        return replace(self, p=after.probs[:, 1].double())

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
        """(N,) int64: the class of which ``p`` is the confidence; None where it is not known, and of events."""
        return self.decision

    def _about(self) -> list[str]:
        return []

    @property
    @abstractmethod
    def outcome(self) -> str:
        """What ``y`` tells, in words."""


@dataclass(frozen=True, eq=False, repr=False)
class Events(BinaryPairs):
    """Probabilities of binary events and whether they happened; made by ``BinaryPairs.from_probs``.

    Args:
        p: As in ``BinaryPairs``.
        y: As there.

    Examples:
        >>> BinaryPairs.from_probs([0.9, 0.6], [1, 0])
        Events(2 rows)
    """

    outcome = "the outcome"


@dataclass(frozen=True, eq=False, repr=False)
class Decisions(BinaryPairs):
    """Confidences of decisions and whether these were right; made by ``BinaryPairs.from_top_label`` or ``top_label()``.

    Args:
        p: As in ``BinaryPairs``.
        y: As there.

    Examples:
        >>> BinaryPairs.from_top_label([0.9, 0.6], [1, 0], [1, 1])
        Decisions(2 rows, decision)
    """

    outcome = "the decision is right"
