"""Multi-label predictions: each row has several labels, and each label is a separate event with its own probability.

A row of ``Predictions`` has one class, and its probabilities sum to 1. Here they need not sum to 1: a picture may show
a cat, a dog, both or neither, and there is no top label. A missing label is coded as -1. Metrics and calibrators loop
over the labels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._core.check import LOGITS_NAMED_PROBS, PROBS_NAMED_LOGITS, as_tensor, check_scores, refuse, shown
from calibrant.data.leakage import check_not_fitted_on
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import outputs_of
from calibrant.data.record import ColumnOptions, Record, checked_columns, taken

__all__ = ["MultiLabel"]

MISSING = -1  # the code of a missing label
_ONE_CLASS = "for one class per row, leave out --multilabel (in Python, use Predictions)"
_MAX_PAIRS = 1 << 26  # half a gigabyte of float64
_ONE_SUM = 1e-4  # largest difference of a row's sum from 1 if its scores are probabilities of exclusive classes


class LabelOptions(ColumnOptions, total=False):
    """The keyword arguments of the constructors."""

    names: Sequence[str] | None


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabel(Record):
    """Logits of N samples for L labels that do not exclude each other.

    Create it with ``from_logits`` or ``from_probs``.

    Args:
        logits: (N, L) floating-point, the inputs of sigmoids; −inf means p = 0 and +inf means p = 1.
        labels: (N, L) int64: 1, 0, or -1 if missing; or None.
        names: L distinct label names.
        groups: (N,) int64 cluster of each row, or None. The labels of one row are never treated as independent.
        given_probs: (N, L) the probabilities that these predictions were created from, or None.
        weights: (N,) as in ``Predictions``, or None.
        features: Named columns (N,), as in ``Predictions``, or None.

    Examples:
        >>> data = MultiLabel.from_logits([[2.0, -1.0], [0.5, 3.0]], [[1, 0], [-1, 1]], names=["cat", "dog"])
        >>> data
        MultiLabel(2 rows, 2 labels, labelled, 1 missing)
        >>> data.label("dog").p
        tensor([0.2689, 0.9526], dtype=torch.float64)
    """

    logits: Tensor
    _: KW_ONLY
    names: tuple[str, ...]
    given_probs: Tensor | None = None

    names_alike: ClassVar[str] = "names"

    @classmethod
    def from_logits(
        cls, logits: Any, labels: Any = None, *, unchecked_kind: bool = False, **options: Unpack[LabelOptions]
    ) -> Self:
        """Create predictions from logits, the inputs of sigmoids.

        Args:
            logits: (N, L) floating-point.
            labels: (N, L) integers 1, 0, or -1 if missing; or None.
            names: L label names; None names them "label 0", "label 1" ….
            unchecked_kind: Accept logits that all lie in [0, 1].
            groups: (N,) integers or names, or None.
            weights: (N,) numbers ≥ 0, or None.
            features: A dict from names to columns (N,) of numbers or text, or None.

        Returns:
            The predictions.

        Raises:
            InputError: If shapes or values are invalid, or the logits look like probabilities.
        """
        matrix = _check_matrix(logits, name="logits")
        if not unchecked_kind and bool(((matrix >= 0) & (matrix <= 1)).all()):
            raise refuse("logits", "numbers that all lie in [0, 1], which are probabilities", PROBS_NAMED_LOGITS)
        return cls(matrix, **_fields(matrix, labels, **options))

    @classmethod
    def from_probs(
        cls, probs: Any, labels: Any = None, *, unchecked_kind: bool = False, **options: Unpack[LabelOptions]
    ) -> Self:
        """Create predictions from the probability of each label, which ``probs`` returns unchanged.

        Args:
            probs: (N, L) in [0, 1]; rows need not sum to 1.
            labels: As in ``from_logits``.
            names: As in ``from_logits``.
            unchecked_kind: Accept probabilities whose rows all sum to 1.
            groups: As in ``from_logits``.
            weights: As in ``from_logits``.
            features: As in ``from_logits``.

        Returns:
            The predictions.

        Raises:
            InputError: If shapes or values are invalid, or all rows sum to 1, as the probabilities of exclusive classes
                do.
        """
        matrix = _check_matrix(probs, name="probs")
        if bool(((matrix < 0) | (matrix > 1)).any()):
            low, high = (f"{float(end):.6g}" for end in matrix.aminmax())
            raise refuse("probabilities in [0, 1]", f"{low} to {high}", LOGITS_NAMED_PROBS)
        # a single row may sum to 1 by chance, and a single label does if it is certain, so neither is evidence
        if not unchecked_kind and min(matrix.shape) > 1:
            if bool(((matrix.sum(dim=1, dtype=torch.float64) - 1).abs() <= _ONE_SUM).all()):
                remedy = f"{_ONE_CLASS}, or pass unchecked_kind=True in Python if the labels do not exclude each other"
                raise refuse("a separate probability for each label", "rows that all sum to 1", remedy)
        return cls(torch.logit(matrix.double()), given_probs=matrix, **_fields(matrix, labels, **options))

    @classmethod
    def collect(
        cls, model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]], *, names: Sequence[str] | None = None
    ) -> Self:
        """Run ``model`` in evaluation mode on all batches, and restore its training mode afterwards.

        Args:
            model: A module that returns logits (N, L) for a batch of inputs.
            loader: Batches of inputs and labels (N, L). Labels are integers, or floating-point numbers 0.0, 1.0 and
                -1.0 as for PyTorch's binary losses.
            names: L label names, or None.

        Returns:
            The predictions for all batches, on the CPU.

        Raises:
            InputError: If there are no batches, or shapes or values are invalid.
        """
        logits, labels = outputs_of(model, loader)
        whole = labels.is_floating_point() and torch.equal(labels, labels.round())
        return cls.from_logits(logits, labels.long() if whole else labels, names=names)

    @property
    def scores(self) -> Tensor:
        """The logits (N, L)."""
        return self.logits

    def _about(self) -> list[str]:
        if self.labels is None:
            return [f"{len(self.names)} labels", "unlabelled"]
        missing = int((~self.known).sum())
        return [f"{len(self.names)} labels", "labelled", *([f"{missing} missing"] if missing else [])]

    @cached_property
    def known(self) -> Tensor:
        """Whether each label is known, (N, L) bool; false everywhere without labels."""
        return torch.zeros_like(self.logits, dtype=torch.bool) if self.labels is None else self.labels != MISSING

    @property
    def probs(self) -> Tensor:
        """The probabilities (N, L): those passed to ``from_probs``, unchanged, or the sigmoid of the logits in float64.

        The sigmoid is computed again at each access.
        """
        return torch.sigmoid(self.logits.double()) if self.given_probs is None else self.given_probs

    def label(self, name: str | int) -> Pairs:
        """Return the pairs of one label: the probability that it is 1, and whether it is.

        Rows in which the label is missing are left out. The pairs keep the groups, weights and features of their rows.

        Args:
            name: The name or index of the label.

        Returns:
            One pair for each row in which the label is known.

        Raises:
            InputError: If there is no such label, or it is missing in all rows.
        """
        column = self.names.index(name) if name in self.names else name
        if not isinstance(column, int) or not 0 <= column < len(self.names):
            listed = ", ".join(self.names[:8]) + (" …" if len(self.names) > 8 else "")
            raise refuse(f"a label in [0, {len(self.names)}) or one of {listed}", shown(name), "name one of these")
        rows = torch.nonzero(self.known[:, column])[:, 0]
        if not len(rows):
            got = f"{self.names[column]!r} missing (-1) in all of {len(self)} rows"
            raise refuse("a known label in at least one row", got, "leave the label out, or select other rows")
        return self._pairs(rows, torch.full_like(rows, column))

    def pooled(self) -> Pairs:
        """Return the pairs of all known labels in all rows, row by row.

        The pairs of one row, or of one group of rows, form a group. The feature ``label`` holds the label name of each
        pair.

        Returns:
            One pair for each known label of each row.

        Raises:
            InputError: If no label is known, or there are more than 2²⁶ pairs.
        """
        if not 0 < (pairs := int(self.known.sum())) <= _MAX_PAIRS:
            got = f"{pairs:,} in {len(self):,} rows of {len(self.names)} labels"
            raise refuse(f"at least one known label, and at most {_MAX_PAIRS:,}", got, "select other rows")
        rows, columns = torch.nonzero(self.known, as_tuple=True)
        found = self._pairs(rows, columns)
        features = {**(found.features or {}), "label": np.array(self.names)[columns.cpu().numpy()]}
        return replace(found, groups=rows.cpu() if self.groups is None else found.groups, features=features)

    def _pairs(self, rows: Tensor, columns: Tensor) -> Pairs:
        held = {name: getattr(self, name) for name in ("groups", "weights", "features")}
        kept = {name: taken(values, rows) for name, values in held.items() if values is not None}
        return Pairs(self.probs[rows, columns].double(), self.require_labels()[rows, columns].double(), **kept)

    @property
    def as_classes(self) -> Tensor:
        """The logits with an added column of 0, (N, L + 1), from whose differences a row's hash is computed."""
        return torch.nn.functional.pad(self.logits, (0, 1))

    def calibrated_by(self, calibrator: Any, *, allow_fit_rows: bool = False) -> Self:
        """Return these predictions with ``calibrator`` applied to the logits.

        Args:
            calibrator: A fitted ``MultiLabelCalibrator``.
            allow_fit_rows: Accept rows that the calibrator was fitted on, for which figures are better than on new
                data.

        Returns:
            The calibrated predictions.

        Raises:
            InputError: If the calibrator was fitted on other labels.
            LeakError: If more than 1 % of the rows were used to fit the calibrator.
        """
        if not getattr(calibrator, "multi_label", False):
            remedy = "wrap it, as in MultiLabelCalibrator(PlattScaling()).fit(predictions)"
            raise refuse("a fitted MultiLabelCalibrator", type(calibrator).__name__, remedy)
        if not allow_fit_rows:
            check_not_fitted_on(self.as_classes, calibrator.fit_rows)
        # default names such as "label 0" state no order, so only names given by the user can contradict each other
        if calibrator.names != self.names and label_names(len(self.names)) not in (calibrator.names, self.names):
            expected, got = (", ".join(names) for names in (calibrator.names, self.names))
            raise refuse(f"the labels used for fitting, in order: {expected}", got, "put the columns in that order")
        return replace(self, logits=calibrator(self.logits), given_probs=None)


def _fields(
    matrix: Tensor, labels: Any, *, names: Sequence[str] | None = None, **columns: Unpack[ColumnOptions]
) -> dict[str, Any]:
    """Return the names, the labels and the other fields of a record with scores (N, L)."""
    names = label_names(matrix.shape[1]) if names is None else names
    if isinstance(names, str) or len(set(names)) != matrix.shape[1] or "" in names:
        raise refuse(f"{matrix.shape[1]} distinct names, one per label", shown(names), "pass a list in their order")
    if labels is not None:
        labels = as_tensor(labels, name="labels").to(matrix.device)
        # refused even if all are whole, because among floats NaN may mean a missing label and 0.5 a soft one
        if labels.is_floating_point():
            remedy = "code missing labels (NaN) as -1 and convert to integers"
            raise refuse("labels as integers 0, 1 or -1", f"dtype {labels.dtype}", remedy)
        if labels.shape != matrix.shape:
            got = f"shape {tuple(labels.shape)}"
            raise refuse(f"labels of shape {tuple(matrix.shape)}, one column per label", got, _ONE_CLASS)
        labels = labels.to(torch.int64)
        if len(outside := torch.nonzero((labels < MISSING) | (labels > 1))):
            row, column = outside[0].tolist()
            got = f"{int(labels[row, column])} for {names[column]!r}"
            raise refuse("labels 0, 1, or -1 for a missing label", got, "code the labels this way", row=row)
    return {"names": tuple(names), "labels": labels, **checked_columns(matrix, **columns)}


def _check_matrix(values: Any, *, name: str) -> Tensor:
    """Return scores as a floating tensor (N, L), N ≥ 1 and L ≥ 1, without NaN."""
    remedy = "pass one row per sample, one column per label"
    scores = check_scores(as_tensor(values, name=name), name=name, shape="(N, L)", remedy=remedy)
    if len(bad := torch.nonzero(torch.isnan(scores))):
        row, column = bad[0].tolist()
        raise refuse(f"{name} without NaN", f"NaN in column {column}", "find its cause", row=row)
    return scores


def label_names(count: int) -> tuple[str, ...]:
    """Return the default label names "label 0", "label 1" …."""
    return tuple(f"label {place}" for place in range(count))
