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
    check_count,
    check_flag,
    check_groups,
    check_labels,
    check_logits,
    check_matrix,
    check_probs,
    check_row_tensor,
    check_unit_interval,
    flatten,
    refuse,
)
from calibrant._kernels import cpu, reference
from calibrant._leakage import check_not_fitted_on
from calibrant._numerics import row_chunks
from calibrant._pairs import BinaryPairs, check_selection
from calibrant.errors import InputError

__all__ = ["BinaryPairs", "Predictions"]


class Calibrated(Protocol):
    """What ``Predictions.calibrated_by`` needs of a calibrator."""

    top_label: bool
    fit_rows: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        """Return calibrated logits (N, K)."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits of N samples over K classes, with their labels. Make it by ``from_logits`` or one of its siblings.

    Args:
        logits: (N, K) floating; −inf means p = 0.
        labels: (N,) int64 in [0, K), or None (production, out-of-distribution data).
        groups: (N,) int64 cluster of each row (image, patient, sequence), or None.
        decision: (N,) int64 class decided earlier, where a top-label calibrator must not move it, or None.
        given_probs: (N, K) the probabilities these predictions were made from, or None if they were made from logits.

    Examples:
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
    given_probs: Tensor | None = None

    def __post_init__(self) -> None:
        rows = check_row_tensor(self.logits, name="logits", dims=2, floating=True).shape[0]
        for name in ("labels", "groups", "decision"):
            if (values := getattr(self, name)) is not None:
                check_row_tensor(values, name=name, rows=rows)
        if self.given_probs is not None:
            check_row_tensor(self.given_probs, name="given_probs", dims=2, rows=rows, floating=True)

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
        check_flag(unchecked_kind, name="unchecked_kind")
        matrix, labels, groups = flatten(logits, labels, groups, class_dim, ignore_index, name="logits")
        check_matrix(matrix, name="logits")
        sums = cpu.row_statistics(matrix, dtype=torch.float32) if cpu.serves(matrix) else None
        row_max = check_logits(matrix, unchecked_kind=unchecked_kind, row_max=None if sums is None else sums.top)
        made = cls(matrix, *_check_beside(matrix, labels, groups))
        made.__dict__.update(row_max=row_max, float32_sums=sums)  # the check has read them already
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
        return cls(wide.log(), *_check_beside(matrix, labels, groups), given_probs=matrix)

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
        if not isinstance(model, nn.Module):
            raise refuse("a torch.nn.Module", type(model).__name__, "pass logits you have to from_logits")
        if not isinstance(loader, Iterable) or isinstance(loader, str | bytes | Tensor):
            raise refuse("a loader of (inputs, labels) batches", type(loader).__name__, "pass a DataLoader")
        training = model.training
        parameter = next(model.parameters(), None)
        device = parameter.device if parameter is not None else torch.device("cpu")
        model.eval()
        try:
            with torch.no_grad():
                pairs = [_outputs(model, batch, device) for batch in loader]
        finally:
            model.train(training)
        if not pairs:
            raise refuse("at least one batch", "an empty loader", "check the data set")
        return cls.from_logits(torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs]))

    @staticmethod
    def cat(parts: "Sequence[Predictions]") -> "Predictions":
        """Return the rows of all ``parts`` in order."""
        parts = list(parts) if isinstance(parts, Iterable) and not isinstance(parts, Predictions | Tensor) else [parts]
        for part in parts:
            if not isinstance(part, Predictions):
                raise refuse("a list of Predictions", f"{type(part).__name__} in it", "make each with from_logits")
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

        names = ("labels", "groups", "decision", "given_probs")
        return Predictions(torch.cat([p.logits for p in parts]), *map(join, names))

    def __len__(self) -> int:
        return int(self.logits.shape[0])

    def __repr__(self) -> str:
        beside = {"groups": self.groups, "decision": self.decision, "probs": self.given_probs}
        extras = [name for name, values in beside.items() if values is not None]
        labelled = "labelled" if self.labels is not None else "unlabelled"
        return f"Predictions({len(self)} rows, {self.classes} classes, {', '.join([labelled, *extras])})"

    def __getitem__(self, rows: Any) -> "Predictions":
        """Return the selected rows (a slice, a boolean mask or row numbers)."""
        chosen = check_selection(rows, count=len(self))

        def take(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[chosen]

        return Predictions(
            self.logits[chosen], take(self.labels), take(self.groups), take(self.decision), take(self.given_probs)
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
        if self.given_probs is None and self.float32_sums is not None:
            return self.float32_sums.best
        return (self.logits if self.given_probs is None else self.given_probs).argmax(dim=1)

    @cached_property
    def correct(self) -> Tensor:
        """(N,) bool: whether the decision is the label."""
        labels = self.need_labels()
        counted = self.given_probs is None and self.float32_sums is not None
        if self.decision is not None or counted or "predicted" in self.__dict__:
            return self.predicted == labels
        # The label's score is the maximum: no argmax needed, save where equal scores share the maximum, which only
        # happens at a confidence of one half or less.
        scores, largest = (
            (self.logits, self.row_max)
            if self.given_probs is None
            else (self.given_probs, self.given_probs.amax(dim=1))
        )
        hit = scores.gather(1, labels[:, None])[:, 0] == largest
        unsettled = torch.nonzero(hit & (self.confidence < 0.51))[:, 0]
        for part in row_chunks(unsettled.shape[0], self.classes, itemsize=scores.itemsize, device=scores.device):
            rows = unsettled[part]
            hit[rows] = scores[rows].argmax(dim=1) == labels[rows]
        return hit

    @cached_property
    def row_max(self) -> Tensor:
        """(N,) largest logit of each row, in the logits' dtype."""
        return self.logits.amax(dim=1) if self.float32_sums is None else self.float32_sums.top

    @cached_property
    def float32_sums(self) -> cpu.RowStatistics | None:
        """Sums of rows with exponentials in float32 (in float64 for float64 logits), where the compiled loops serve."""
        return cpu.row_statistics(self.logits, dtype=torch.float32) if cpu.serves(self.logits) else None

    @cached_property
    def float64_sums(self) -> cpu.RowStatistics | None:
        """Sums of rows with exponentials in float64, with squares and the label's logit, where the compiled loops serve."""
        if not cpu.serves(self.logits):
            return None
        return cpu.row_statistics(self.logits, self.labels, dtype=torch.float64, squares=True)

    @cached_property
    def log_norm(self) -> Tensor:
        """(N,) float64: log Σ_k exp(logit_k), in row chunks."""
        if self.float64_sums is not None:
            return self.float64_sums.others.log1p().add_(self.row_max)
        return reference.log_norms(self.logits, self.row_max)

    @cached_property
    def confidence(self) -> Tensor:
        """(N,) float64: the probability of the decided class; relative error ≤ 2e-7 for logits of float32 and below."""
        if self.given_probs is not None:
            chosen = self.given_probs.amax(dim=1) if self.decision is None else _at(self.given_probs, self.decision)
            return chosen.double()
        if self.decision is None:
            return self._exp_sum().reciprocal_()
        return (_at(self.logits, self.decision).double() - self.row_max.double()).exp() / self._exp_sum()

    def _exp_sum(self) -> Tensor:
        """Return Σ_k exp(logit_k − row_max) (N,) float64."""
        if self.float32_sums is not None:
            return self.float32_sums.others + 1
        return reference.exp_sums(self.logits, self.row_max)

    @property
    def probs(self) -> Tensor:
        """(N, K): the probabilities given to ``from_probs``, unchanged; else the softmax of the logits in float64, made anew."""
        return torch.softmax(self.logits.double(), dim=1) if self.given_probs is None else self.given_probs

    @property
    def log_probs(self) -> Tensor:
        """(N, K) float64: log softmax of the logits. Made anew at each call; it is as large as the logits or twice."""
        return self.logits.double() - self.log_norm[:, None]

    @cached_property
    def nll(self) -> Tensor:
        """(N,) float64: −log p of the label; +inf where the label's logit is −inf."""
        labels = self.need_labels()[:, None]
        if self.given_probs is not None:
            return -self.given_probs.gather(1, labels)[:, 0].double().log()
        sums = self.float64_sums
        if sums is not None and sums.at_label is not None:
            return (sums.top.double() - sums.at_label).add_(sums.others.log1p())
        return self.log_norm - self.logits.gather(1, labels)[:, 0].double()

    def top_label(self) -> BinaryPairs:
        """Reduce to pairs (confidence, decision was right)."""
        return BinaryPairs(self.confidence, self.correct.double(), self.predicted, self.labels, self.groups)

    def one_vs_rest(self, class_index: int) -> BinaryPairs:
        """Reduce to pairs (probability of class ``class_index``, label is that class)."""
        labels = self.need_labels()
        if check_count(class_index, name="class_index", low=0) >= self.classes:
            raise refuse(f"class_index in [0, {self.classes})", str(class_index), "count classes from 0")
        if self.given_probs is not None:
            p = self.given_probs[:, class_index].double()
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
            LeakError: If 32 or more consecutive rows are fitting rows in fitting order. Single rows that coincide warn,
                unless as many coincide within the fitting rows.
        """
        if not isinstance(calibrator, nn.Module) or not hasattr(calibrator, "top_label"):
            raise refuse(
                "a fitted calibrator", type(calibrator).__name__, "fit one of calibrant.calibrators or load a saved one"
            )
        if not check_flag(allow_fit_rows, name="allow_fit_rows"):
            check_not_fitted_on(self.logits, calibrator.fit_rows, self.labels)
        decision = self.predicted if calibrator.top_label else self.decision
        return replace(self, logits=calibrator(self.logits), decision=decision, given_probs=None)


def _outputs(model: nn.Module, batch: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return logits and labels of one batch, on the CPU."""
    if not isinstance(batch, list | tuple) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise refuse("batches of two tensors (inputs, labels)", type(batch).__name__, "pass a DataLoader of pairs")
    try:
        logits = model(batch[0].to(device))
    except RuntimeError as error:  # PyTorch's word for shapes that do not fit
        got = f"{type(model).__name__} on inputs {tuple(batch[0].shape)}: {error}"
        raise refuse("a model that accepts the loader's inputs", got, "pass the loader it was made for") from error
    if not isinstance(logits, Tensor):
        raise refuse("a model that returns logits", type(logits).__name__, "wrap it so that it returns its logits")
    return logits.cpu(), batch[1].cpu()


def _at(values: Tensor, classes: Tensor) -> Tensor:
    return values.gather(1, classes[:, None])[:, 0]


def _check_beside(matrix: Tensor, labels: Any, groups: Any) -> tuple[Tensor | None, Tensor | None]:
    rows, classes = matrix.shape
    if labels is not None:
        labels = check_labels(as_tensor(labels, name="labels").to(matrix.device), rows=rows, classes=classes)
    return labels, check_groups(groups, rows=rows)
