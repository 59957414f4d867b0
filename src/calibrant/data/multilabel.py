"""Predictions of several labels a row: each label is an event of its own, label = 1, with a probability of its own.

A row of ``Predictions`` has one class, and its probabilities sum to 1. Here they do not: a picture may show a cat, a dog, both
or neither. The event of each label is that it is 1; there is no top label. A label that is not known is coded -1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._core.check import ADD_LABELS, check_flag, check_groups, check_row_tensor, refuse, shown
from calibrant.data.collect import outputs_of
from calibrant.data.label_matrix import (
    MISSING,
    check_label_logits,
    check_label_matrix,
    check_label_names,
    check_label_probs,
    check_label_scores,
    matrix_of_outputs,
)
from calibrant.data.leakage import check_not_fitted_on
from calibrant.data.pairs import BinaryPairs, check_selection
from calibrant.data.record import (
    Features,
    WeightKind,
    joined_fields,
    need_positive,
    normalise_beside,
    taken,
    taken_or_none,
    weights_and_features,
)
from calibrant.errors import Remedy

__all__ = ["MISSING", "MultiLabelPredictions"]

_MOST_PAIRS = 1 << 26  # half a gigabyte of float64


class CalibratedLabels(Protocol):
    """What ``MultiLabelPredictions.calibrated_by`` needs of a calibrator."""

    fit_rows: Tensor
    names: tuple[str, ...]

    def __call__(self, logits: Tensor) -> Tensor:
        """Return calibrated logits (N, L)."""


@dataclass(frozen=True, eq=False)
class MultiLabelPredictions:
    """Logits of N samples over L labels that do not exclude each other. Make it by ``from_logits`` or one of its siblings.

    Args:
        logits: (N, L) floating, the inputs of sigmoids; −inf means p = 0 and +inf p = 1.
        labels: (N, L) int64: 1, 0, or -1 for a label that is not known; or None.
        names: L distinct names of the labels.
        groups: (N,) int64 cluster of each row, or None. The labels of one row are never taken for independent.
        given_probs: (N, L) the probabilities these predictions were made from, or None.
        weights: (N,) as in ``Predictions``, or None.
        weight_kind: "frequency" or "sampling", required with weights.
        features: Named columns (N,), as in ``Predictions``, or None.

    Examples:
        >>> data = MultiLabelPredictions.from_logits([[2.0, -1.0], [0.5, 3.0]], [[1, 0], [-1, 1]], names=["cat", "dog"])
        >>> data
        MultiLabelPredictions(2 rows, 2 labels, labelled, 1 missing)
        >>> data.label("dog").p
        tensor([0.2689, 0.9526], dtype=torch.float64)
    """

    logits: Tensor
    labels: Tensor | None = None
    names: tuple[str, ...] = ()
    groups: Tensor | None = None
    given_probs: Tensor | None = None
    weights: Tensor | None = None
    weight_kind: WeightKind | None = None
    features: Features | None = None

    def __post_init__(self) -> None:
        rows, columns = check_row_tensor(self.logits, name="logits", dims=2, floating=True).shape
        unnamed = isinstance(self.names, tuple) and not self.names
        object.__setattr__(self, "names", check_label_names(None if unnamed else self.names, columns=columns))
        for name in ("labels", "given_probs"):
            values = getattr(self, name)
            if values is not None and check_row_tensor(values, name=name, dims=2, rows=rows).shape[1] != columns:
                got = f"shape {tuple(values.shape)}"
                raise refuse(f"{name} of shape ({rows}, {columns})", got, "pass one column a label")
        if self.groups is not None:
            check_row_tensor(self.groups, name="groups", rows=rows)
        normalise_beside(self, rows=rows, device=self.logits.device)

    @classmethod
    def from_logits(
        cls,
        logits: Any,
        labels: Any = None,
        *,
        names: Sequence[str] | None = None,
        groups: Any = None,
        unchecked_kind: bool = False,
        weights: Any = None,
        weight_kind: WeightKind | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> "MultiLabelPredictions":
        """Make predictions from logits, the inputs of sigmoids.

        Args:
            logits: (N, L) floating.
            labels: (N, L) integers 1, 0, or -1 for a missing one; or None.
            names: L names of the labels, or None for "label 0" ….
            groups: (N,) integers or names, or None.
            unchecked_kind: Accept logits that all lie in [0, 1].
            weights: (N,) numbers ≥ 0, or None.
            weight_kind: "frequency" (counts of repeated rows) or "sampling" (inverse probabilities), required with weights.
            features: Name → (N,) numbers or names, or None.

        Raises:
            InputError: Naming what was expected, what was got and the remedy.
        """
        check_flag(unchecked_kind, name="unchecked_kind")
        matrix = check_label_logits(check_label_scores(logits, name="logits"), unchecked_kind=unchecked_kind)
        more = {"names": names, "groups": groups, "weights": weights, "weight_kind": weight_kind, "features": features}
        return cls._of(matrix, labels, None, more)

    @classmethod
    def from_probs(
        cls,
        probs: Any,
        labels: Any = None,
        *,
        names: Sequence[str] | None = None,
        groups: Any = None,
        unchecked_kind: bool = False,
        weights: Any = None,
        weight_kind: WeightKind | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> "MultiLabelPredictions":
        """Make predictions from the probability of each label, which ``probs`` then reads unchanged.

        Args:
            probs: (N, L) in [0, 1]; rows need not sum to anything.
            labels: As in ``from_logits``.
            names: As there.
            groups: As there.
            unchecked_kind: Accept probabilities whose rows all sum to 1.
            weights: As there.
            weight_kind: As there.
            features: As there.

        Raises:
            InputError: Naming what was expected, what was got and the remedy.
        """
        check_flag(unchecked_kind, name="unchecked_kind")
        matrix = check_label_probs(check_label_scores(probs, name="probs"), unchecked_kind=unchecked_kind)
        more = {"names": names, "groups": groups, "weights": weights, "weight_kind": weight_kind, "features": features}
        return cls._of(torch.logit(matrix.double()), labels, matrix, more)

    @classmethod
    def from_outputs(
        cls,
        probs: Any,
        labels: Any = None,
        *,
        names: Sequence[str] | None = None,
        groups: Any = None,
        unchecked_kind: bool = False,
        weights: Any = None,
        weight_kind: WeightKind | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> "MultiLabelPredictions":
        """Make predictions from what scikit-learn's ``predict_proba`` returns for several labels.

        Args:
            probs: A list of L arrays (N, 2) (``MultiOutputClassifier``, trees, neighbours), or one (N, L)
                (``OneVsRestClassifier``).
            labels: As in ``from_logits``.
            names: As there.
            groups: As there.
            unchecked_kind: As in ``from_probs``.
            weights: As there.
            weight_kind: As there.
            features: As there.

        Raises:
            InputError: Naming what was expected, what was got and the remedy.

        Examples:
            >>> outputs = [[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.4, 0.6]]]
            >>> MultiLabelPredictions.from_outputs(outputs, [[0, 1], [1, 1]]).probs[1]
            tensor([0.8000, 0.6000], dtype=torch.float64)
        """
        more: dict[str, Any] = {"names": names, "groups": groups, "unchecked_kind": unchecked_kind}
        more |= {"weights": weights, "weight_kind": weight_kind, "features": features}
        return cls.from_probs(matrix_of_outputs(probs), labels, **more)

    @classmethod
    def _of(cls, logits: Tensor, labels: Any, probs: Tensor | None, more: Mapping[str, Any]) -> "MultiLabelPredictions":
        rows, columns = logits.shape
        names = check_label_names(more["names"], columns=columns)
        if labels is not None:
            labels = check_label_matrix(labels, rows=rows, columns=columns).to(logits.device)
        groups = check_groups(more["groups"], rows=rows)
        beside = {"weights": need_positive(more["weights"]), "weight_kind": more["weight_kind"]}
        return cls(logits, labels, names, groups, probs, features=more["features"], **beside)

    @classmethod
    def collect(
        cls, model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]], *, names: Sequence[str] | None = None
    ) -> "MultiLabelPredictions":
        """Run ``model`` in evaluation mode over (inputs, labels) batches; its training mode is put back.

        Args:
            model: Returns logits (N, L) for a batch of inputs.
            loader: Batches of inputs and labels (N, L), integers or floating 0.0, 1.0 and -1.0.
            names: L names of the labels, or None.
        """
        logits, labels = outputs_of(model, loader)
        if labels.is_floating_point() and bool((labels == labels.round()).all()):
            labels = labels.long()
        return cls.from_logits(logits, labels, names=names)

    @staticmethod
    def cat(parts: "Sequence[MultiLabelPredictions]") -> "MultiLabelPredictions":
        """Return the rows of all ``parts`` in order.

        Raises:
            InputError: If they differ in labels or in what they have.
        """
        listed = (
            list(parts)
            if isinstance(parts, Iterable) and not isinstance(parts, MultiLabelPredictions | Tensor)
            else [parts]
        )
        if wrong := [type(part).__name__ for part in listed if not isinstance(part, MultiLabelPredictions)]:
            raise refuse("a list of MultiLabelPredictions", f"{wrong[0]} in it", "make each with from_logits")
        fields = joined_fields(listed, ("logits", "labels", "groups", "given_probs", "weights"))
        if any(part.names != listed[0].names for part in listed):
            raise refuse("parts with the same labels", "different names", "put the columns in one order")
        return MultiLabelPredictions(names=listed[0].names, **fields)

    def __len__(self) -> int:
        return int(self.logits.shape[0])

    def __repr__(self) -> str:
        extras = ["labelled" if self.labels is not None else "unlabelled"]
        if self.labels is not None and (missing := int((~self.known).sum())):
            extras.append(f"{missing} missing")
        beside: dict[str, Any] = {"groups": self.groups, "probs": self.given_probs}
        beside[f"{self.weight_kind} weights"] = self.weights
        beside["features " + "·".join(self.features or ())] = self.features
        extras += [name for name, values in beside.items() if values is not None]
        return f"MultiLabelPredictions({len(self)} rows, {len(self.names)} labels, {', '.join(extras)})"

    def __getitem__(self, rows: Any) -> "MultiLabelPredictions":
        """Return the selected rows (a slice, a boolean mask or row numbers)."""
        chosen = check_selection(rows, count=len(self))
        beside = {name: taken_or_none(getattr(self, name), chosen) for name in ("labels", "groups", "given_probs")}
        return MultiLabelPredictions(
            self.logits[chosen], names=self.names, **beside, **weights_and_features(self, chosen)
        )

    def need_labels(self) -> Tensor:
        """Return the labels (N, L).

        Raises:
            InputError: If there are none, or all of these rows' are missing.
        """
        remedy = ADD_LABELS
        if self.labels is None:
            raise refuse("labelled predictions", "unlabelled ones", remedy)
        if not bool(self.known.any()):
            raise refuse("at least one known label", "-1 (missing) in all of these rows", "select other rows")
        return self.labels

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

    def select(self, labels: Sequence[int | str]) -> "MultiLabelPredictions":
        """Return the same rows with some of their ``labels``: columns or names, each once, in the order given."""
        if isinstance(labels, str) or not isinstance(labels, Sequence):
            raise refuse("labels as a list of names or columns", shown(labels), 'write ["cat", "dog"]')
        at = [self.place_of(one) for one in labels]
        names = check_label_names([self.names[place] for place in at], columns=max(len(at), 1))
        columns = {
            name: None if (held := getattr(self, name)) is None else held[:, at] for name in ("labels", "given_probs")
        }
        return replace(self, logits=self.logits[:, at], names=names, **columns)

    def label(self, label: int | str) -> BinaryPairs:
        """Return the pairs (p, y) of one label's rows: probability and outcome of the event that the label is 1.

        Rows in which it is missing are left out. Groups, weights and features are those of the rows.

        Args:
            label: Its column or its name.

        Raises:
            InputError: If there is no such label, or it is missing in all rows.
        """
        column, labels = self.place_of(label), self.need_labels()
        kept = torch.nonzero(self.known[:, column])[:, 0]
        if not len(kept):
            got = f"{self.names[column]!r} missing (-1) in all of {len(self)} rows"
            raise refuse("a known label in at least one row", got, "leave the label out, or select other rows")
        p, y = self.probs[kept, column].double(), labels[kept, column].double()
        return BinaryPairs(p, y, groups=taken_or_none(self.groups, kept.cpu()), **weights_and_features(self, kept))

    def pooled(self) -> BinaryPairs:
        """Return the pairs (p, y) of all known labels of all rows, row by row; the rows, or their groups, are the pairs' groups.

        The feature ``label`` names the label of each pair. Rows with counts are repeated, each a group of its own, unless they
        have groups.

        Raises:
            InputError: If there are no labels, or more than 2²⁶ pairs.
        """
        labels = self.need_labels()
        rows, columns = (at.cpu() for at in torch.nonzero(self.known, as_tuple=True))
        groups, weights, kind = self.groups, self.weights, self.weight_kind
        if weights is not None and kind == "frequency" and groups is None:
            return self._repeated().pooled()
        if len(rows) > _MOST_PAIRS:
            got = f"{len(rows):,} in {len(self):,} rows of {len(self.names)} labels"
            raise refuse(f"at most {_MOST_PAIRS:,} pairs at once", got, "pool a random sample of the rows")
        found = torch.arange(len(self)) if groups is None else groups.cpu()
        at = (rows.to(labels.device), columns.to(labels.device))
        features = {name: taken(column, rows) for name, column in (self.features or {}).items() if name != "label"}
        features["label"] = np.array(self.names)[columns.numpy()]
        picked = None if weights is None else weights[at[0]]
        p, y = self.probs[at].double(), labels[at].double()
        return BinaryPairs(p, y, groups=found[rows], weights=picked, weight_kind=kind, features=features)

    def _repeated(self) -> "MultiLabelPredictions":
        """Return rows with counts as so many rows without weights."""
        assert self.weights is not None
        if (count := int(self.weights.sum())) * len(self.names) > _MOST_PAIRS:
            got = f"counts that add up to {count:,} rows of {len(self.names)} labels"
            raise refuse(f"at most {_MOST_PAIRS:,} pairs at once", got, "pool a random sample of the rows")
        places = torch.repeat_interleave(torch.arange(len(self)), self.weights.cpu())
        return replace(self, weights=None, weight_kind=None)[places]

    def calibrated_by(self, calibrator: CalibratedLabels, *, allow_fit_rows: bool = False) -> "MultiLabelPredictions":
        """Return these predictions with ``calibrator`` applied to the logits.

        Args:
            calibrator: A fitted ``MultiLabelCalibrator``.
            allow_fit_rows: Accept the data it was fitted on, where the figures are better than on new data.

        Raises:
            InputError: If the labels' names are not those of the fit.
            LeakError: If 32 or more consecutive rows are fitting rows in fitting order.
        """
        if not isinstance(calibrator, nn.Module) or not getattr(calibrator, "multi_label", False):
            remedy = "wrap it: MultiLabelCalibrator(PlattScaling()).fit(predictions)"
            raise refuse("a fitted MultiLabelCalibrator", type(calibrator).__name__, remedy)
        if not check_flag(allow_fit_rows, name="allow_fit_rows"):
            check_not_fitted_on(self.logits, calibrator.fit_rows)
        unnamed = check_label_names(None, columns=len(self.names))
        if calibrator.names != self.names and unnamed not in (calibrator.names, self.names):
            pairs = zip(calibrator.names, self.names, strict=False)
            differ = next((pair for pair in pairs if pair[0] != pair[1]), None)
            got = f"{len(self.names)} others" if differ is None else f"{differ[1]!r} in place of {differ[0]!r}"
            raise refuse(
                "the labels of the fit in their order",
                got,
                Remedy(
                    "put the columns in that order with select(calibrator.names)",
                    command="put the file's columns in that order",
                ),
            )
        return replace(self, logits=calibrator(self.logits), given_probs=None)
