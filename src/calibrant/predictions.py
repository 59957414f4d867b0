"""Predictions of a classifier with the labels they are judged by, and their reduction to binary pairs.

The kind of input is named by the constructor (``from_logits``, ``from_probs`` …), never guessed, and checked once, here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from calibrant._check import (
    as_tensor,
    check_groups,
    check_labels,
    check_logits,
    check_probs,
    check_unit_interval,
    flatten,
    refuse,
)
from calibrant._fence import check_not_fitted_on
from calibrant._numerics import row_chunks
from calibrant.errors import InputError

__all__ = ["BinaryPairs", "Predictions"]


class Calibrated(Protocol):
    """What ``Predictions.calibrated_by`` needs of a calibrator."""

    top_label: bool
    fit_rows: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        """Return calibrated logits (N, K)."""


@dataclass(frozen=True, eq=False)
class BinaryPairs:
    """Probabilities of binary events and whether they happened: what every binned error is computed from.

    Args:
        p: (N,) float64 in [0, 1].
        y: (N,) float64, 0 or 1.
        predicted: (N,) int64 class of which ``p`` is the confidence, or None.
        labels: (N,) int64 true class, or None.
        groups: (N,) int64 group of each row, or None.

    Example:
        >>> BinaryPairs.from_probs([0.9, 0.6], [1, 0]).p
        tensor([0.9000, 0.6000], dtype=torch.float64)
    """

    p: Tensor
    y: Tensor
    predicted: Tensor | None = None
    labels: Tensor | None = None
    groups: Tensor | None = None

    @classmethod
    def from_probs(cls, p: Any, y: Any, *, groups: Any = None) -> "BinaryPairs":
        """Make pairs from probabilities ``p`` (N,) in [0, 1] and outcomes ``y`` (N,) in {0, 1}."""
        p = check_unit_interval(as_tensor(p, name="p"), name="p")
        y = as_tensor(y, name="y")
        y = y.to(torch.int64) if y.dtype == torch.bool else y
        y = check_labels(y, rows=p.shape[0], classes=2)
        return cls(p, y.to(torch.float64), groups=check_groups(groups, rows=p.shape[0]))

    @classmethod
    def from_top_label(cls, conf: Any, pred: Any, label: Any, *, groups: Any = None) -> "BinaryPairs":
        """Make pairs from top-label confidences (N,), predicted classes (N,) and true classes (N,)."""
        p = check_unit_interval(as_tensor(conf, name="conf"), name="conf")
        largest = 1 << 31
        predicted = check_labels(as_tensor(pred, name="pred"), rows=p.shape[0], classes=largest)
        labels = check_labels(as_tensor(label, name="label"), rows=p.shape[0], classes=largest)
        y = (predicted == labels).to(torch.float64)
        return cls(p, y, predicted, labels, check_groups(groups, rows=p.shape[0]))

    def top_label(self) -> "BinaryPairs":
        """Return self: these are pairs already."""
        return self

    @property
    def confidence(self) -> Tensor:
        """(N,) float64: the same as ``p``."""
        return self.p

    @property
    def correct(self) -> Tensor:
        """(N,) bool: whether the event happened."""
        return self.y > 0

    def __len__(self) -> int:
        return int(self.p.shape[0])

    def __getitem__(self, rows: Any) -> "BinaryPairs":
        def take(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows]

        return BinaryPairs(self.p[rows], self.y[rows], take(self.predicted), take(self.labels), take(self.groups))


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits of N samples over K classes, with their labels. Make it by ``from_logits`` or one of its siblings.

    Args:
        logits: (N, K) floating; −inf means p = 0.
        labels: (N,) int64 in [0, K), or None (production, out-of-distribution data).
        groups: (N,) int64 cluster of each row (image, patient, sequence), or None.
        decision: (N,) int64 class decided earlier, where a top-label calibrator must not move it, or None.
        probs: (N, K) the probabilities these predictions were made from, or None.

    Example:
        >>> predictions = Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])
        >>> predictions.confidence
        tensor([0.8808, 0.7311], dtype=torch.float64)
        >>> predictions.correct
        tensor([ True, False])
    """

    logits: Tensor
    labels: Tensor | None = None
    groups: Tensor | None = None
    decision: Tensor | None = None
    probs: Tensor | None = None

    @classmethod
    def from_logits(
        cls,
        logits: Any,
        labels: Any = None,
        *,
        class_dim: int = 1,
        ignore_index: int | None = None,
        groups: Any = None,
        unchecked_kind: bool = False,
    ) -> "Predictions":
        """Make predictions from logits.

        Args:
            logits: (N, K) or, flattened to that, (N, K, d1, …) or any layout whose class axis is ``class_dim``.
            labels: (N,) or (N, d1, …) integers in [0, K), or None.
            class_dim: The class axis of ``logits``.
            ignore_index: Rows whose label is this number are dropped; None keeps all.
            groups: (N,) or as ``labels``: integers or names; one a sample is repeated over the inner axes.
            unchecked_kind: Accept logits that look like probabilities.

        Raises:
            InputError: Naming what was expected, what was got and the remedy.
        """
        matrix, labels, groups = flatten(logits, labels, groups, class_dim, ignore_index, name="logits")
        row_max = check_logits(matrix, unchecked_kind=unchecked_kind)
        made = cls(matrix, *_check_beside(matrix, labels, groups))
        made.__dict__["row_max"] = row_max  # the check has read it already
        return made

    @classmethod
    def from_probs(
        cls,
        probs: Any,
        labels: Any = None,
        *,
        class_dim: int = 1,
        ignore_index: int | None = None,
        groups: Any = None,
    ) -> "Predictions":
        """Make predictions from probabilities whose rows sum to 1; ``confidence`` reads them unchanged.

        Args:
            probs: As ``logits`` of ``from_logits``, in [0, 1].
            labels: As there.
            class_dim: As there.
            ignore_index: As there.
            groups: As there.
        """
        matrix, labels, groups = flatten(probs, labels, groups, class_dim, ignore_index, name="probs")
        check_probs(matrix)
        wide = matrix if matrix.dtype == torch.float64 else matrix.float()
        return cls(wide.log(), *_check_beside(matrix, labels, groups), probs=matrix)

    @classmethod
    def from_binary_logits(cls, logits: Any, labels: Any = None, *, groups: Any = None) -> "Predictions":
        """Make two-class predictions from one logit a row (N,) for class 1, the input of a sigmoid."""
        z = as_tensor(logits, name="logits")
        z = z.squeeze(1) if z.dim() == 2 and z.shape[1] == 1 else z
        if not z.is_floating_point() or z.dim() != 1:
            raise refuse("logits of shape (N,) and a floating dtype", f"{z.dtype} {tuple(z.shape)}", "pass one a row")
        return cls.from_logits(torch.stack([torch.zeros_like(z), z], dim=1), labels, groups=groups, unchecked_kind=True)

    @classmethod
    def from_binary_probs(cls, probs: Any, labels: Any = None, *, groups: Any = None) -> "Predictions":
        """Make two-class predictions from the probability (N,) of class 1."""
        p = as_tensor(probs, name="probs")
        p = p.squeeze(1) if p.dim() == 2 and p.shape[1] == 1 else p
        p = check_unit_interval(p, name="probs")
        return cls.from_probs(torch.stack([1 - p, p], dim=1), labels, groups=groups)

    @classmethod
    def collect(cls, model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> "Predictions":
        """Run ``model`` in evaluation mode over (inputs, labels) batches; its training mode is put back.

        Args:
            model: Returns logits (N, K) for a batch of inputs.
            loader: Batches of inputs and labels (N,).
        """
        training = model.training
        parameter = next(model.parameters(), None)
        device = parameter.device if parameter is not None else torch.device("cpu")
        model.eval()
        try:
            with torch.no_grad():
                pairs = [(model(inputs.to(device)).cpu(), labels.cpu()) for inputs, labels in loader]
        finally:
            model.train(training)
        if not pairs:
            raise refuse("at least one batch", "an empty loader", "check the data set")
        return cls.from_logits(torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs]))

    @staticmethod
    def cat(parts: "Sequence[Predictions]") -> "Predictions":
        """Return the rows of all ``parts`` in order."""
        if not parts:
            raise refuse("at least one part", "none", "pass the parts as a list")
        if len({part.logits.shape[1] for part in parts}) > 1:
            raise refuse("parts with equally many classes", "different ones", "concatenate predictions of one model")

        def join(name: str) -> Tensor | None:
            columns = [getattr(part, name) for part in parts]
            if all(column is None for column in columns):
                return None
            if any(column is None for column in columns):
                raise refuse(f"{name} in all parts or in none", "both", f"drop or add {name}")
            return torch.cat(columns)

        return Predictions(torch.cat([p.logits for p in parts]), *map(join, ("labels", "groups", "decision", "probs")))

    def __len__(self) -> int:
        return int(self.logits.shape[0])

    def __repr__(self) -> str:
        extras = [name for name in ("groups", "decision", "probs") if getattr(self, name) is not None]
        labelled = "labelled" if self.labels is not None else "unlabelled"
        return f"Predictions({len(self)} rows, {self.classes} classes, {', '.join([labelled, *extras])})"

    def __getitem__(self, rows: Any) -> "Predictions":
        """Return the selected rows (a slice, a boolean mask or an index tensor)."""

        def take(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows]

        return Predictions(
            self.logits[rows], take(self.labels), take(self.groups), take(self.decision), take(self.probs)
        )

    @property
    def classes(self) -> int:
        """K."""
        return int(self.logits.shape[1])

    def need_labels(self) -> Tensor:
        """Return the labels (N,).

        Raises:
            InputError: If there are none.
        """
        if self.labels is None:
            raise InputError(
                "expected labelled predictions, got unlabelled ones; pass labels (in a file: add the array labels)"
            )
        return self.labels

    @cached_property
    def predicted(self) -> Tensor:
        """(N,) int64: the class decided: ``decision`` if there is one, else the first index of the maximum."""
        if self.decision is not None:
            return self.decision
        return (self.logits if self.probs is None else self.probs).argmax(dim=1)

    @cached_property
    def correct(self) -> Tensor:
        """(N,) bool: whether the decision is the label."""
        labels = self.need_labels()
        if self.decision is not None or "predicted" in self.__dict__:
            return self.predicted == labels
        # The label's score is the maximum: no argmax needed, save where equal scores share the maximum, which only
        # happens at a confidence of one half or less.
        scores, largest = (self.logits, self.row_max) if self.probs is None else (self.probs, self.probs.amax(dim=1))
        hit = scores.gather(1, labels[:, None])[:, 0] == largest
        unsettled = torch.nonzero(hit & (self.confidence < 0.51))[:, 0]
        for part in row_chunks(unsettled.shape[0], self.classes, itemsize=scores.itemsize, device=scores.device):
            rows = unsettled[part]
            hit[rows] = scores[rows].argmax(dim=1) == labels[rows]
        return hit

    @cached_property
    def row_max(self) -> Tensor:
        """(N,) largest logit of each row, in the logits' dtype."""
        return self.logits.amax(dim=1)

    def _exp_sum(self) -> Tensor:
        """Return Σ_k exp(logit_k − row_max) (N,) float64, in row chunks; exponentials are float32 unless the logits are float64."""
        rows, classes = self.logits.shape
        dtype = torch.float64 if self.logits.dtype == torch.float64 else torch.float32
        sums = torch.empty(rows, dtype=torch.float64, device=self.logits.device)
        for chunk in row_chunks(rows, classes, itemsize=3 * dtype.itemsize, device=self.logits.device):
            exponentials = self.logits[chunk].to(dtype).sub(self.row_max[chunk, None].to(dtype)).exp_()
            torch.sum(exponentials, dim=1, dtype=torch.float64, out=sums[chunk])
        return sums

    @cached_property
    def log_norm(self) -> Tensor:
        """(N,) float64: log Σ_k exp(logit_k), in row chunks."""
        rows, classes = self.logits.shape
        sums = torch.empty(rows, dtype=torch.float64, device=self.logits.device)
        # To subtract the maximum of each row costs more than the exponentials: it is done where float64 needs it.
        shift = torch.where((self.row_max > -500) & (self.row_max < 650), 0.0, self.row_max.double())
        ones = sums.new_ones(classes)
        for chunk in row_chunks(rows, classes, itemsize=16, device=self.logits.device):
            block, by = self.logits[chunk].double(), shift[chunk]
            if bool(by.any()):
                block = block - by[:, None]
            torch.mv(torch.exp(block), ones, out=sums[chunk])
        return sums.log_().add_(shift)

    @cached_property
    def confidence(self) -> Tensor:
        """(N,) float64: the probability of the decided class; relative error ≤ 2e-7 for logits of float32 and below."""
        if self.probs is not None:
            chosen = self.probs.amax(dim=1) if self.decision is None else _at(self.probs, self.decision)
            return chosen.double()
        if self.decision is None:
            return self._exp_sum().reciprocal_()
        return (_at(self.logits, self.decision).double() - self.row_max.double()).exp() / self._exp_sum()

    @property
    def log_probs(self) -> Tensor:
        """(N, K) float64: log softmax of the logits. Made anew at each call; it is as large as the logits or twice."""
        return self.logits.double() - self.log_norm[:, None]

    @cached_property
    def nll(self) -> Tensor:
        """(N,) float64: −log p of the label; +inf where the label's logit is −inf."""
        labels = self.need_labels()[:, None]
        if self.probs is not None:
            return -self.probs.gather(1, labels)[:, 0].double().log()
        return self.log_norm - self.logits.gather(1, labels)[:, 0].double()

    def top_label(self) -> BinaryPairs:
        """Reduce to pairs (confidence, decision was right)."""
        return BinaryPairs(self.confidence, self.correct.double(), self.predicted, self.labels, self.groups)

    def one_vs_rest(self, class_index: int) -> BinaryPairs:
        """Reduce to pairs (probability of class ``class_index``, label is that class)."""
        labels = self.need_labels()
        if self.probs is not None:
            p = self.probs[:, class_index].double()
        else:
            p = (self.logits[:, class_index].double() - self.log_norm).exp()
        return BinaryPairs(p, (labels == class_index).double(), None, labels, self.groups)

    def calibrated_by(self, calibrator: Calibrated, *, allow_fit_rows: bool = False) -> "Predictions":
        """Return these predictions with ``calibrator`` applied to the logits.

        A calibrator that declares ``top_label = True`` changes the confidence of a decision already taken, so the
        decision is carried along; any other may decide anew.

        Args:
            calibrator: A fitted calibrator.
            allow_fit_rows: Accept the data it was fitted on, where the figures are better than on new data.

        Raises:
            LeakError: If 32 or more rows on end are fitting rows in fitting order. Single rows that coincide warn.
        """
        if not allow_fit_rows:
            check_not_fitted_on(self.logits, calibrator.fit_rows)
        decision = self.predicted if calibrator.top_label else self.decision
        return replace(self, logits=calibrator(self.logits), decision=decision, probs=None)


def _at(values: Tensor, classes: Tensor) -> Tensor:
    return values.gather(1, classes[:, None])[:, 0]


def _check_beside(matrix: Tensor, labels: Any, groups: Any) -> tuple[Tensor | None, Tensor | None]:
    rows, classes = matrix.shape
    if labels is not None:
        labels = check_labels(as_tensor(labels, name="labels").to(matrix.device), rows=rows, classes=classes)
    return labels, check_groups(groups, rows=rows)
