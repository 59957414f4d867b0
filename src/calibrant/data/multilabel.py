"""Predictions of several labels a row: each label is an event of its own, label = 1, with a probability of its own.

A row of ``Predictions`` has one class, and its probabilities sum to 1. Here they do not: a picture may show a cat, a dog, both
or neither. The event of each label is that it is 1; there is no top label. A label that is not known is coded -1.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._core.check import (
    LOGITS_NAMED_PROBS,
    PROBABILITY_TOLERANCE,
    PROBS_NAMED_LOGITS,
    as_array,
    as_tensor,
    check_scores,
    refuse,
    shown,
)
from calibrant._core.constraints import checked
from calibrant.data.collect import outputs_of
from calibrant.data.leakage import check_not_fitted_on
from calibrant.data.pairs import Pairs
from calibrant.data.record import Beside, Record, checked_beside, taken

__all__ = ["MultiLabel"]

MISSING = -1  # the one code of a label that is not known

_ONE_CLASS = "for one class per row use Predictions.from_logits or from_probs, without --multilabel"

_MOST_PAIRS = 1 << 26  # half a gigabyte of float64


class Options(Beside, total=False):
    """What every constructor takes by name."""

    names: Sequence[str] | None
    unchecked_kind: bool


class CalibratedLabels(Protocol):
    """What ``MultiLabel.calibrated_by`` needs of a calibrator."""

    fit_rows: Tensor
    names: tuple[str, ...]

    def __call__(self, logits: Tensor) -> Tensor:
        """Return calibrated logits (N, L)."""


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabel(Record):
    """Logits of N samples over L labels that do not exclude each other. Make it by ``from_logits`` or one of its siblings.

    Args:
        logits: (N, L) floating, the inputs of sigmoids; −inf means p = 0 and +inf p = 1.
        labels: (N, L) int64: 1, 0, or -1 for a label that is not known; or None.
        names: L distinct names of the labels.
        groups: (N,) int64 cluster of each row, or None. The labels of one row are never taken for independent.
        given_probs: (N, L) the probabilities these predictions were made from, or None.
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

    axes: ClassVar = {"logits": 2, "labels": 2, "given_probs": 2}
    alike: ClassVar = {**Record.alike, "names": "put the columns in one order"}

    def __post_init__(self) -> None:
        self.check()
        names = check_label_names(self.names, columns=self.logits.shape[1])
        object.__setattr__(self, "names", names)  # as a frozen dataclass sets its own fields

    @classmethod
    @checked
    def from_logits(cls, logits: Any, labels: Any = None, **options: Unpack[Options]) -> "MultiLabel":
        """Make predictions from logits, the inputs of sigmoids.

        Args:
            logits: (N, L) floating.
            labels: (N, L) integers 1, 0, or -1 for a missing one; or None.
            names: L names of the labels, or None for "label 0" ….
            unchecked_kind: Accept logits that all lie in [0, 1].
            groups: (N,) integers or names, or None.
            weights: (N,) numbers ≥ 0, or None.
            features: Name → (N,) numbers or names, or None.

        Raises:
            InputError: Naming what was expected, what was got and the remedy.
        """
        matrix = check_sigmoid_logits(check_label_scores(logits, name="logits"), **_kind(options))
        return cls(matrix, **_names_and_fields(matrix, labels, options))

    @classmethod
    @checked
    def from_probs(cls, probs: Any, labels: Any = None, **options: Unpack[Options]) -> "MultiLabel":
        """Make predictions from the probability of each label, which ``probs`` then reads unchanged.

        Args:
            probs: (N, L) in [0, 1]; rows need not sum to anything.
            labels: As in ``from_logits``.
            names: As there.
            unchecked_kind: Accept probabilities whose rows all sum to 1.
            groups: As there.
            weights: As there.
            features: As there.

        Raises:
            InputError: Naming what was expected, what was got and the remedy.
        """
        matrix = check_label_probs(check_label_scores(probs, name="probs"), **_kind(options))
        return cls(torch.logit(matrix.double()), given_probs=matrix, **_names_and_fields(matrix, labels, options))

    @classmethod
    def collect(
        cls, model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]], *, names: Sequence[str] | None = None
    ) -> "MultiLabel":
        """Run ``model`` in evaluation mode over (inputs, labels) batches; its training mode is put back.

        Args:
            model: Returns logits (N, L) for a batch of inputs.
            loader: Batches of inputs and labels (N, L), integers or floating 0.0, 1.0 and -1.0.
            names: L names of the labels, or None.
        """
        logits, labels = outputs_of(model, loader)
        # PyTorch's binary losses take floating targets, so that loaders carry 0.0 and 1.0
        if labels.is_floating_point() and bool((labels == labels.round()).all()):
            labels = labels.long()
        return cls.from_logits(logits, labels, names=names)

    @property
    def scores(self) -> Tensor:
        """(N, L): the logits."""
        return self.logits

    def _about(self) -> list[str]:
        if self.labels is None:
            return [f"{len(self.names)} labels", "unlabelled"]
        missing = int((~self.known).sum())
        return [f"{len(self.names)} labels", "labelled", *([f"{missing} missing"] if missing else [])]

    def need_known(self) -> Tensor:
        """Return the labels (N, L).

        Raises:
            InputError: If there are none, or all of these rows' are missing.
        """
        labels = self.need_labels()
        if not bool(self.known.any()):
            raise refuse("at least one known label", "-1 (missing) in all of these rows", "select other rows")
        return labels

    @cached_property
    def known(self) -> Tensor:
        """(N, L) bool: whether a label is known; all false without labels."""
        return torch.zeros_like(self.logits, dtype=torch.bool) if self.labels is None else self.labels != MISSING

    @property
    def probs(self) -> Tensor:
        """(N, L): the probabilities given to ``from_probs``, unchanged; else the sigmoid of the logits in float64, made anew."""
        return torch.sigmoid(self.logits.double()) if self.given_probs is None else self.given_probs

    def place_of(self, label: int | str) -> int:
        """Return the column of a label, named or numbered.

        Raises:
            InputError: If there is no such label.
        """
        if isinstance(label, str) and label in self.names:
            return self.names.index(label)
        if isinstance(label, int | np.integer) and not isinstance(label, bool) and 0 <= label < len(self.names):
            return int(label)
        listed = ", ".join(self.names[:8]) + (" …" if len(self.names) > 8 else "")
        raise refuse(f"a label in [0, {len(self.names)}) or one of {listed}", shown(label), "name one of these")

    def select(self, labels: Sequence[int | str]) -> "MultiLabel":
        """Return the same rows with some of their ``labels``: columns or names, each once, in the order given."""
        if isinstance(labels, str) or not isinstance(labels, Sequence):
            raise refuse("labels as a list of names or columns", shown(labels), 'write ["cat", "dog"]')
        at = [self.place_of(one) for one in labels]
        names = tuple(self.names[place] for place in at)
        columns = {name: held[:, at] for name in self.axes if (held := getattr(self, name)) is not None}
        return replace(self, names=names, **columns)

    def label(self, label: int | str) -> Pairs:
        """Return the pairs (p, y) of one label's rows: probability and outcome of the event that the label is 1.

        Rows in which it is missing are left out. Groups, weights and features are those of the rows.

        Args:
            label: Its column or its name.

        Raises:
            InputError: If there is no such label, or it is missing in all rows.
        """
        self.need_known()
        column = self.place_of(label)
        rows = torch.nonzero(self.known[:, column])[:, 0]
        if not len(rows):
            got = f"{self.names[column]!r} missing (-1) in all of {len(self)} rows"
            raise refuse("a known label in at least one row", got, "leave the label out, or select other rows")
        at = (rows, torch.full_like(rows, column))
        return self._pairs(at, self.groups)

    def pooled(self) -> Pairs:
        """Return the pairs (p, y) of all known labels of all rows, row by row; the rows, or their groups, are the pairs' groups.

        The feature ``label`` names the label of each pair.

        Raises:
            InputError: If there are no labels, or more than 2²⁶ pairs.
        """
        self.need_known()
        if (pairs := int(self.known.sum())) > _MOST_PAIRS:
            got = f"{self.count:,} rows of {len(self.names)} labels, {pairs:,} pairs"
            raise refuse(f"at most {_MOST_PAIRS:,} pairs at once", got, "pool a random sample of the rows")
        rows, columns = torch.nonzero(self.known, as_tuple=True)
        found = self._pairs((rows, columns), torch.arange(len(self)) if self.groups is None else self.groups)
        label = {"label": np.array(self.names)[columns.cpu().numpy()]}
        return replace(found, features={**(found.features or {}), **label})

    def _pairs(self, at: tuple[Tensor, Tensor], groups: Tensor | None) -> Pairs:
        """Return the pairs of the known labels in these rows and columns."""
        rows, _ = at
        held = {"groups": groups, "weights": self.weights, "features": self.features}
        beside: dict[str, Any] = {name: taken(values, rows) for name, values in held.items() if values is not None}
        assert self.labels is not None
        return Pairs(self.probs[at].double(), self.labels[at].double(), **beside)

    @property
    def as_classes(self) -> Tensor:
        """(N, L + 1): the logits beside a 0, whose differences a hash of the row goes by."""
        return torch.nn.functional.pad(self.logits, (0, 1))

    @checked
    def calibrated_by(self, calibrator: CalibratedLabels, *, allow_fit_rows: bool = False) -> "MultiLabel":
        """Return these predictions with ``calibrator`` applied to the logits.

        Args:
            calibrator: A fitted ``MultiLabelCalibrator``.
            allow_fit_rows: Accept the data it was fitted on, where the figures are better than on new data.

        Raises:
            InputError: If the labels' names are not those of the fit.
            LeakError: If more than 1 % of the rows are fitting rows.
        """
        if not isinstance(calibrator, nn.Module) or not getattr(calibrator, "multi_label", False):
            remedy = "wrap it: MultiLabelCalibrator(PlattScaling()).fit(predictions)"
            raise refuse("a fitted MultiLabelCalibrator", type(calibrator).__name__, remedy)
        if not allow_fit_rows:
            check_not_fitted_on(self.as_classes, calibrator.fit_rows)
        # "label 0" … on either side states no order: only names that somebody gave can contradict each other
        unnamed = check_label_names(None, columns=len(self.names))
        if calibrator.names != self.names and unnamed not in (calibrator.names, self.names):
            pairs = zip(calibrator.names, self.names, strict=False)
            differ = next((pair for pair in pairs if pair[0] != pair[1]), None)
            got = f"{len(self.names)} others" if differ is None else f"{differ[1]!r} in place of {differ[0]!r}"
            raise refuse(
                "the labels of the fit in their order",
                got,
                "put the columns in that order, as select(calibrator.names) does",
            )
        return replace(self, logits=calibrator(self.logits), given_probs=None)


def _kind(options: Options) -> dict[str, bool]:
    return {"unchecked_kind": options.get("unchecked_kind", False)}


def _names_and_fields(matrix: Tensor, labels: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names and the record's fields beside scores (N, L)."""
    rows, columns = matrix.shape
    if labels is not None:
        labels = check_label_matrix(labels, rows=rows, columns=columns).to(matrix.device)
    return {"names": options.get("names"), "labels": labels} | checked_beside(matrix, options)


def check_label_scores(values: Any, *, name: str) -> Tensor:
    """Return scores as a floating tensor (N, L), N ≥ 1 and L ≥ 1.

    Raises:
        InputError: If they have another shape or dtype.
    """
    remedy = "pass one row a sample, one column a label"
    scores = check_scores(as_tensor(values, name=name), name=name, shape="(N, L)", remedy=remedy)
    if scores.shape[1] < 1:
        raise refuse(f"at least one column of {name}", f"shape {tuple(scores.shape)}", remedy)
    return scores


def check_sigmoid_logits(logits: Tensor, *, unchecked_kind: bool) -> Tensor:
    """Return logits (N, L) of sigmoids; −inf is probability 0 and +inf is 1, NaN is refused.

    Raises:
        InputError: If one is NaN, or all lie in [0, 1] as probabilities do.
    """
    low, high = (float(end) for end in logits.aminmax())  # NaN is its own smallest and largest
    if low != low:
        row, column = (int(at) for at in torch.nonzero(torch.isnan(logits))[0])
        raise refuse("logits that are numbers", f"NaN in row {row}, column {column}", "find and remove what made it")
    if not unchecked_kind and low >= 0 and high <= 1:
        raise refuse("logits", "numbers that all lie in [0, 1], which are probabilities", PROBS_NAMED_LOGITS)
    return logits


def check_label_probs(probs: Tensor, *, unchecked_kind: bool) -> Tensor:
    """Return probabilities (N, L), each of a label of its own.

    Raises:
        InputError: If one lies outside [0, 1], or every row sums to 1, as probabilities of one class a row do.
    """
    inside = (probs >= 0) & (probs <= 1)
    if not bool(inside.all()):
        row, column = (int(at) for at in torch.nonzero(~inside)[0])
        got = f"{probs[row, column].item():.6g} in row {row}, column {column}"
        raise refuse("probabilities in [0, 1]", got, LOGITS_NAMED_PROBS)
    # a single row may sum to 1 by chance, and a single label whenever it is certain: neither accuses anybody
    if not unchecked_kind and probs.shape[0] > 1 and probs.shape[1] > 1:
        off = (probs.sum(dim=1, dtype=torch.float64) - 1).abs() > PROBABILITY_TOLERANCE
        if not bool(off.any()):
            remedy = f"{_ONE_CLASS}, or pass unchecked_kind=True if the labels do not exclude each other"
            raise refuse("a probability of each label by itself", "rows that all sum to 1", remedy)
    return probs


def check_label_matrix(labels: Any, *, rows: int, columns: int) -> Tensor:
    """Return labels (N, L) as int64: 1, 0, or −1 where missing.

    Raises:
        InputError: If they have another shape or other values, or all are missing.
    """
    found = as_tensor(labels, name="labels")
    # whole floats too: among them NaN may stand for a missing label, and .5 for a soft one
    if found.is_floating_point() or found.is_complex():
        got = f"dtype {found.dtype}"
        raise refuse("labels as integers 0, 1 or -1", got, "code missing labels (NaN) as -1 and convert to integers")
    if tuple(found.shape) != (rows, columns):
        one_class = found.shape == (rows,) and columns != 1
        remedy = _ONE_CLASS if one_class else "pass one row a sample, one column a label"
        expected = f"labels of shape ({rows}, {columns}), one 0 or 1 for each label"
        raise refuse(expected, f"shape {tuple(found.shape)}", remedy)
    found = found.to(torch.int64)
    low, high = (int(end) for end in found.aminmax())
    if low < MISSING or high > 1:
        row, column = (int(at) for at in torch.nonzero((found < MISSING) | (found > 1))[0])
        got = f"{int(found[row, column])} in row {row}, column {column}"
        raise refuse("labels 0, 1, or -1 for a missing one", got, "code each label so")
    if high == MISSING:
        raise refuse(
            "at least one known label",
            "-1 (missing) everywhere",
            "leave the labels out, or give rows with known ones, 1 or 0",
        )
    return found


def check_label_names(names: Any, *, columns: int) -> tuple[str, ...]:
    """Return one distinct name for each of the labels; "label 0" … where none are given.

    Raises:
        InputError: If they are no names, not distinct, or not as many as there are columns.
    """
    if names is None:
        return tuple(f"label {place}" for place in range(columns))
    listed = as_array(names, name="names").tolist() if isinstance(names, np.ndarray) else names
    found = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else []
    text = bool(found) and all(isinstance(one, str) and one for one in found)
    twice = [one for one, count in Counter(found).items() if count > 1] if text else []
    if twice or not text:
        got = f"{twice[0]!r} twice" if twice else shown(names)
        raise refuse("names as a list of distinct text, one a label", got, 'pass names=["cat", "dog"]')
    if len(found) != columns:
        raise refuse(f"{columns} names, one a label", f"{len(found)}", "name the columns in their order")
    return tuple(found)
