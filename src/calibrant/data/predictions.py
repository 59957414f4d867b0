"""Predictions of a classifier with their labels, and their reduction to binary pairs.

The kind of input is named by the constructor (``from_logits``, ``from_probs`` …), never guessed, and checked once, here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._core.check import (
    as_tensor,
    check_labels,
    check_logits,
    check_probs,
    check_unit_interval,
    refuse,
    shown,
)
from calibrant._core.constraints import Natural, Text, checked, takes
from calibrant._core.numerics import row_chunks
from calibrant._kernels import cpu, reference
from calibrant.data.collect import outputs_of
from calibrant.data.labels import match_labels
from calibrant.data.leakage import check_not_fitted_on
from calibrant.data.pairs import Pairs, are_events
from calibrant.data.record import Axis, Beside, Ignored, Record, checked_beside, in_rows, need_features
from calibrant.data.tables import Texts

__all__ = ["Predictions"]


class InRows(Beside, total=False):
    """What predictions are made of beside scores and labels, which may have further axes."""

    class_dim: Axis
    ignore_index: Ignored
    class_names: Sequence[Text] | None


class CalibratesRows(Protocol):
    """What ``Predictions.calibrated_by`` needs of a calibrator."""

    top_label: bool
    fit_rows: Tensor

    def __call__(self, logits: Tensor, *beside: Any) -> Tensor:
        """Return calibrated logits (N, K); ``beside`` are the features, for one that declares ``needs_features``."""


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Record):
    """Logits of N samples over K classes, with their labels. Make it by ``from_logits`` or one of its siblings.

    Args:
        logits: (N, K) floating; −inf means p = 0.
        labels: (N,) int64 in [0, K), or None (production, out-of-distribution data).
        groups: (N,) int64 cluster of each row (image, patient, sequence), or None.
        decision: (N,) int64 class decided earlier, where a top-label calibrator must not move it, or None.
        given_probs: (N, K) the probabilities these predictions were made from, or None if they were made from logits.
        class_names: K names of the classes, or None.
        known: Cached properties of other predictions with these logits, by name, which need not be computed again.
        weights: (N,) float64 ≥ 0, not all 0, or None: how much each row counts, up to a factor; one of 0 is left out.
        features: Named columns beside the rows: (N,) numbers as tensors on the CPU, names as arrays of text; or None.

    Examples:
        >>> predictions = Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])
        >>> predictions.confidence
        tensor([0.8808, 0.7311], dtype=torch.float64)
        >>> predictions.correct
        tensor([ True, False])
    """

    logits: Tensor
    _: KW_ONLY
    given_probs: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    known: InitVar[Mapping[str, Any] | None] = None

    axes: ClassVar = {"logits": 2, "given_probs": 2}

    def __post_init__(self, known: Mapping[str, Any] | None) -> None:
        self.check()
        if not isinstance(known, Mapping | None):
            raise refuse("known as a dict of name → value", shown(known), "leave it out")
        vars(self).update(known or {})  # where functools.cached_property looks first

    @classmethod
    @takes(class_dim=1)
    def from_logits(
        cls, logits: Any, labels: Any = None, *, unchecked_kind: bool = False, **options: Unpack[InRows]
    ) -> "Predictions":
        """Make predictions from logits.

        Args:
            logits: (N, K) or, flattened to that, (N, K, d1, …) or any layout whose class axis is ``class_dim``.
            labels: (N,) or (N, d1, …) integers in [0, K), or None.
            class_dim: The class axis of ``logits``.
            ignore_index: Rows whose label is this number are dropped; None keeps all.
            class_names: K names of the classes, which labels that are text go by; or None.
            unchecked_kind: Accept logits that look like probabilities.
            groups: (N,) or as ``labels``: integers or names; one a sample is repeated over the inner axes.
            weights: (N,) or as ``labels``: how much each row counts, ≥ 0, or None; one a sample is repeated over the inner axes.
            features: Name → (N,) or as ``labels``: numbers or names, or None.

        Raises:
            InputError: Naming what was expected, what was got and the remedy.
        """
        matrix, labels, beside = _as_rows(logits, labels, options, name="logits")
        check_logits(matrix, unchecked_kind=unchecked_kind)
        return cls(matrix, **_record_fields(matrix, labels, beside, options.get("class_names")))

    @classmethod
    @takes(class_dim=1)
    def from_probs(cls, probs: Any, labels: Any = None, **options: Unpack[InRows]) -> "Predictions":
        """Make predictions from probabilities whose rows sum to 1; ``confidence`` reads them unchanged.

        Args:
            probs: As ``logits`` of ``from_logits``, in [0, 1].
            labels: As there.
            class_dim: As there.
            ignore_index: As there.
            class_names: As there.
            groups: As there.
            weights: As there.
            features: As there.
        """
        matrix, labels, beside = _as_rows(probs, labels, options, name="probs")
        check_probs(matrix)
        # half precision has too few digits for logarithms whose differences are taken; ``given_probs`` stays as given
        wide = matrix if matrix.dtype == torch.float64 else matrix.float()
        fields = _record_fields(matrix, labels, beside, options.get("class_names"))
        return cls(wide.log(), given_probs=matrix, **fields)

    @classmethod
    def from_pairs(cls, pairs: Pairs, *, halves: bool = False) -> "Predictions":
        """Make two-class predictions of pairs: not the event and the event, or the decision wrong and right.

        Args:
            pairs: Events, or decisions with their confidences.
            halves: Whether confidences of decisions must be ½ or more, since the larger of the two classes is meant.

        Raises:
            InputError: If they must, and one is less.
        """
        if halves and not are_events(pairs) and bool((pairs.p < 0.5).any()):
            remedy = "use another method, such as AutoCalibrator or IsotonicCalibration"
            raise refuse(
                "confidences of 1/2 or more for a method of the top label", f"{float(pairs.p.min()):.3g}", remedy
            )
        # events keep the names of a two-class model's classes free: a calibrator of such a model fits them
        names = None if are_events(pairs) else ("wrong", "right")
        beside = pairs.beside | {"labels": pairs.y.long(), "decision": None, "class_names": names}
        return replace(cls.from_binary_probs(pairs.p), **beside)

    @classmethod
    @checked
    def from_binary_logits(cls, logits: Any, labels: Any = None, **beside: Unpack[Beside]) -> "Predictions":
        """Make two-class predictions from one logit a row (N,) for class 1, the input of a sigmoid."""
        z = as_tensor(logits, name="logits")
        z = z.squeeze(1) if z.dim() == 2 and z.shape[1] == 1 else z
        if not z.is_floating_point() or z.dim() != 1:
            raise refuse("logits of shape (N,) and a floating dtype", f"{z.dtype} {tuple(z.shape)}", "pass one a row")
        # unchecked: beside the column of zeros, logits near 1 would look like probabilities that sum to 1
        return cls.from_logits(torch.stack([torch.zeros_like(z), z], dim=1), labels, unchecked_kind=True, **beside)

    @classmethod
    @checked
    def from_binary_probs(cls, probs: Any, labels: Any = None, **beside: Unpack[Beside]) -> "Predictions":
        """Make two-class predictions from the probability (N,) of class 1."""
        p = as_tensor(probs, name="probs")
        p = check_unit_interval(p.squeeze(1) if p.dim() == 2 and p.shape[1] == 1 else p, name="probs")
        return cls.from_probs(torch.stack([1 - p, p], dim=1), labels, **beside)

    @classmethod
    def collect(cls, model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> "Predictions":
        """Run ``model`` in evaluation mode over (inputs, labels) batches; its training mode is put back.

        Args:
            model: Returns logits (N, K) for a batch of inputs.
            loader: Batches of inputs and labels (N,).
        """
        return cls.from_logits(*outputs_of(model, loader))

    def _about(self) -> list[str]:
        return [f"{self.classes} classes", "unlabelled" if self.labels is None else "labelled"]

    @property
    def scores(self) -> Tensor:
        """(N, K): the logits."""
        return self.logits

    @property
    def classes(self) -> int:
        """K."""
        return int(self.logits.shape[1])

    @cached_property
    def predicted(self) -> Tensor:
        """(N,) int64: the class decided: ``decision`` if there is one, else the first index of the maximum."""
        if self.decision is not None:
            return self.decision
        if self.given_probs is None and self.row_sums is not None:
            return self.row_sums.best
        return (self.logits if self.given_probs is None else self.given_probs).argmax(dim=1)

    @cached_property
    def correct(self) -> Tensor:
        """(N,) bool: whether the decision is the label."""
        labels = self.need_labels()
        counted = self.given_probs is None and self.row_sums is not None
        if self.decision is not None or counted or "predicted" in vars(self):
            return self.predicted == labels
        # The label's score is the maximum: no argmax needed, save where equal scores share the maximum, which only
        # happens at a confidence of one half or less.
        given = self.given_probs
        scores, largest = (self.logits, self.row_max) if given is None else (given, given.amax(dim=1))
        hit = scores.gather(1, labels[:, None])[:, 0] == largest
        unsettled = torch.nonzero(hit & (self.confidence < 0.51))[:, 0]
        for part in row_chunks(unsettled.shape[0], self.classes, itemsize=scores.itemsize, device=scores.device):
            rows = unsettled[part]
            hit[rows] = scores[rows].argmax(dim=1) == labels[rows]
        return hit

    @cached_property
    def row_max(self) -> Tensor:
        """(N,) largest logit of each row, in the logits' dtype."""
        return self.logits.amax(dim=1) if self.row_sums is None else self.row_sums.top

    @cached_property
    def sums(self) -> dict[Any, Any]:
        """Sums over all rows that metrics have taken, by what they are of: the rows are not read again for them."""
        return {}

    @cached_property
    def row_sums(self) -> cpu.RowStatistics | None:
        """Sums over the classes of each row, where the compiled loops serve."""
        return cpu.row_statistics(self.logits, self.labels) if cpu.serves(self.logits) else None

    @cached_property
    def log_sum(self) -> Tensor:
        """(N,) float64: log Σ_k exp(logit_k − row_max), in row chunks.

        Without the maximum: added to one beyond 1e15, the logarithm would be lost, and the answers with it.
        """
        return reference.log_sums(self.logits, self.row_max) if self.row_sums is None else self.row_sums.others.log1p()

    @cached_property
    def confidence(self) -> Tensor:
        """(N,) float64: the probability of the decided class."""
        if self.given_probs is not None:
            chosen = self.given_probs.amax(dim=1) if self.decision is None else _at(self.given_probs, self.decision)
            return chosen.double()
        if self.decision is None:
            return self._exp_sum().reciprocal_()
        return (_at(self.logits, self.decision).double() - self.row_max.double()).exp() / self._exp_sum()

    def _exp_sum(self) -> Tensor:
        """Return Σ_k exp(logit_k − row_max) (N,) float64."""
        return reference.exp_sums(self.logits, self.row_max) if self.row_sums is None else self.row_sums.others + 1

    @property
    def probs(self) -> Tensor:
        """(N, K): the probabilities given to ``from_probs``, unchanged; else the softmax of the logits in float64, made anew."""
        return torch.softmax(self.logits.double(), dim=1) if self.given_probs is None else self.given_probs

    def float64_probs(self, rows: slice = slice(None)) -> Tensor:
        """Return the probabilities (n, K) of ``rows`` in float64, those given as they are; a new tensor unless given in float64."""
        if self.given_probs is not None:
            return self.given_probs[rows].double()
        return self.log_probs_in(rows).exp_()

    @property
    def log_probs(self) -> Tensor:
        """(N, K) float64: log softmax of the logits. Made anew at each call; it is as large as the logits or twice."""
        return self.log_probs_in(slice(None))

    def log_probs_in(self, rows: slice) -> Tensor:
        """Return log softmax (n, K) float64 of the logits of some rows, in memory of its own."""
        return self.logits[rows].double().sub(self.row_max[rows, None]).sub_(self.log_sum[rows, None])

    @cached_property
    def nll(self) -> Tensor:
        """(N,) float64: −log p of the label; +inf where the label's logit is −inf."""
        labels = self.need_labels()[:, None]
        if self.given_probs is not None:
            return -self.given_probs.gather(1, labels)[:, 0].double().log()
        sums = self.row_sums
        if sums is not None and sums.at_label is not None:
            return (sums.top.double() - sums.at_label).add_(
                sums.others.log1p()
            )  # ``double()`` may be the sums themselves
        return (self.row_max.double() - self.logits.gather(1, labels)[:, 0].double()).add_(self.log_sum)

    def top_label(self) -> Pairs:
        """Reduce to pairs (confidence, decision was right)."""
        return Pairs(self.confidence, self.correct.double(), **self.beside | {"decision": self.predicted})

    @checked
    def one_vs_rest(self, class_index: Natural) -> Pairs:
        """Reduce to pairs (probability of class ``class_index``, label is that class)."""
        labels = self.need_labels()
        if class_index >= self.classes:
            raise refuse(f"class_index in [0, {self.classes})", str(class_index), "count classes from 0")
        z, given = self.logits[:, class_index], self.given_probs
        p = (z.double() - self.row_max).sub_(self.log_sum).exp_() if given is None else given[:, class_index].double()
        # the decision was among K classes, and says nothing of this one event
        return Pairs(p, (labels == class_index).double(), **self.beside | {"decision": None})

    @checked
    def calibrated_by(self, calibrator: CalibratesRows, *, allow_fit_rows: bool = False) -> "Predictions":
        """Return these predictions with ``calibrator`` applied to the logits.

        A calibrator that declares ``top_label = True`` changes the confidence of a decision already taken, so the
        decision is carried along, unless it keeps its own on top (``decision_on_top``); any other may decide anew.

        Args:
            calibrator: A fitted calibrator.
            allow_fit_rows: Accept the data it was fitted on, where the figures are better than on new data.

        Raises:
            LeakError: If more than 1 % of the rows are fitting rows, in any order.
        """
        if not isinstance(calibrator, nn.Module) or not hasattr(calibrator, "top_label"):
            remedy = "fit one of calibrant.calibrators, or load it"
            if type(calibrator).__name__ == "MultiLabelCalibrator":  # which is built on these rows
                remedy = "it is for MultiLabel; fit its base on one class a row"
            raise refuse("a fitted calibrator", type(calibrator).__name__, remedy)
        names, own = getattr(calibrator, "class_names", ()), self.class_names or ()
        if names and own and not _classes_agree(names, own):
            expected, got = (", ".join(one[:6]) + ", …" * (len(one) > 6) for one in (names, own))
            how = "order the columns so"
            raise refuse(f"the classes that the calibrator was fitted on, in order: {expected}", got, how)
        if not allow_fit_rows:
            check_not_fitted_on(self.logits, calibrator.fit_rows, self.labels)
        # put off, not dropped: what counts on rows that were not fitted on can still ask
        check = partial(check_not_fitted_on, self.logits, calibrator.fit_rows, self.labels)
        known = {"fit_check": check} if allow_fit_rows else None
        moves = calibrator.top_label and not getattr(calibrator, "decision_on_top", False)
        beside = (need_features(self),) if getattr(calibrator, "needs_features", False) else ()
        decision = self.predicted if moves else self.decision
        return replace(self, logits=calibrator(self.logits, *beside), decision=decision, given_probs=None, known=known)

    @cached_property
    def fit_check(self) -> Callable[[], None] | None:
        """The leakage check that ``allow_fit_rows=True`` put off, or None."""
        return None


def _as_rows(values: Any, labels: Any, options: InRows, *, name: str) -> tuple[Tensor, Any, dict[str, Any]]:
    """Return scores as (N, K), with labels and what lies beside them to match; ``name`` is what messages call them."""
    axes: Any = {"class_dim": options.get("class_dim", 1), "ignore_index": options.get("ignore_index")}
    return in_rows(values, _codes(labels, options.get("class_names")), options, name=name, **axes)


def _codes(labels: Any, names: Sequence[str] | None) -> Any:
    """Return labels that are text as indices of the classes' names, and others as they are."""
    if (
        names is None
        or isinstance(labels, Tensor)
        or labels is None
        or (found := np.asarray(labels)).dtype.kind not in "USO"
    ):
        return labels
    texts = Texts.of(found)
    return match_labels(texts, [names], classes=len(names), column="labels", place="row {}".format)[0]


def _classes_agree(names: Sequence[str], own: Sequence[str]) -> bool:
    """Return whether two lists may name the same classes in the same order: of an event, what it is not may have any name."""
    numbered = [all(one.isdigit() for one in both) for both in (names, own)]
    if len(names) == len(own) == 2 and any(one[0] == f"not {one[1]}" for one in (names, own)):
        return any(numbered) or names[1] == own[1]
    return all(numbered) or tuple(names) == tuple(own)


def _record_fields(
    matrix: Tensor, labels: Any, beside: Mapping[str, Any], names: Sequence[str] | None
) -> dict[str, Any]:
    """Return the record's fields beside scores (N, K)."""
    if names is not None and len(set(names)) != matrix.shape[1]:
        raise refuse(f"{matrix.shape[1]} distinct class_names", shown(names), "name each class once, in order")
    if labels is not None:
        labels = check_labels(
            as_tensor(labels, name="labels").to(matrix.device), rows=len(matrix), classes=matrix.shape[1]
        )
    return {"labels": labels, "class_names": None if names is None else tuple(names)} | checked_beside(matrix, beside)


def _at(values: Tensor, classes: Tensor) -> Tensor:
    return values.gather(1, classes[:, None])[:, 0]
