"""Predictions of a classifier with their labels, and values computed for each row: confidence, decision, log-loss.

The constructor (``from_logits``, ``from_probs`` …) names the kind of input, which is never guessed and is checked only
once, here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from calibrant._core.check import (
    as_array,
    as_tensor,
    check_labels,
    check_logits,
    check_probs,
    check_unit_interval,
    refuse,
    shown,
)
from calibrant._kernel import RowStatistics, row_statistics
from calibrant.data.leakage import check_not_fitted_on
from calibrant.data.pairs import Pairs, are_events
from calibrant.data.record import ColumnOptions, Record, checked_columns, flatten_rows

__all__ = ["Predictions"]


class RowOptions(ColumnOptions, total=False):
    """The options of the constructors for scores and labels, which may have further axes."""

    class_dim: int
    ignore_index: int | None
    class_names: Sequence[str] | None


_OF_LOGITS = ("row_max", "log_sum", "predicted", "confidence")  # cached properties that do not depend on the labels


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Record):
    """Logits of N samples over K classes, with their labels.

    Create it with ``from_logits``, ``from_probs`` or another of its constructors.

    Args:
        logits: (N, K) floating-point; −inf means probability 0.
        labels: (N,) int64 in [0, K), or None (in production, or for out-of-distribution data).
        groups: (N,) int64 cluster of each row (image, patient, sequence), or None.
        decision: (N,) int64 class predicted before a top-label calibrator changed the confidence, or None.
        given_probs: (N, K) the probabilities that these predictions were created from, or None for logits.
        class_names: The K class names, or None.
        fit_check: The leakage check that ``calibrated_by(…, allow_fit_rows=True)`` postponed, or None.
        weights: (N,) float64 ≥ 0, not all 0, or None: how much each row counts, up to a common factor. Rows of weight 0
            are left out.
        features: Named columns (N,): numbers as tensors on the CPU, text as NumPy arrays; or None.

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
    fit_check: Callable[[], None] | None = None

    @classmethod
    def from_logits(
        cls, logits: Any, labels: Any = None, *, unchecked_kind: bool = False, **options: Unpack[RowOptions]
    ) -> Self:
        """Create predictions from logits.

        Args:
            logits: (N, K), or (N, K, d1, …) or any layout with the class axis ``class_dim``; it is flattened to (N, K).
            labels: (N,) or (N, d1, …): integers in [0, K) or names in ``class_names``; or None.
            class_dim: The class axis of ``logits``.
            ignore_index: Rows with this label are dropped; None keeps all rows.
            class_names: K distinct class names, or None.
            unchecked_kind: Accept logits that look like probabilities.
            groups: Integers or names that identify groups of dependent rows, (N,) or of the shape of ``labels``; or
                None.
            weights: Row weights ≥ 0, (N,) or of the shape of ``labels``; or None.
            features: Columns of numbers or text by name, each (N,) or of the shape of ``labels``; or None. Groups,
                weights and features of shape (N,) are repeated over the inner axes.

        Returns:
            The predictions.

        Raises:
            InputError: If shapes or values are invalid, or the logits look like probabilities.
        """
        check = partial(check_logits, unchecked_kind=unchecked_kind)
        matrix, fields = _rows_of(as_tensor(logits, name="logits"), labels, check, **options)
        return cls(matrix, **fields)

    @classmethod
    def from_probs(cls, probs: Any, labels: Any = None, **options: Unpack[RowOptions]) -> Self:
        """Create predictions from probabilities, which ``confidence`` returns unchanged.

        A row whose sum differs from 1 by up to 0.001, because it was rounded, is divided by its sum.

        Args:
            probs: Probabilities in [0, 1] in the layout of ``from_logits``; each row sums to 1.
            labels: As in ``from_logits``.
            class_dim: As in ``from_logits``.
            ignore_index: As in ``from_logits``.
            class_names: As in ``from_logits``.
            groups: As in ``from_logits``.
            weights: As in ``from_logits``.
            features: As in ``from_logits``.

        Returns:
            The predictions.

        Raises:
            InputError: If shapes or labels are invalid, or the scores are not probabilities that sum to 1.
        """
        matrix, fields = _rows_of(as_tensor(probs, name="probs"), labels, check_probs, **options)
        # half precision has too few digits for differences of logarithms; ``given_probs`` stays as given
        wide = matrix if matrix.dtype == torch.float64 else matrix.float()
        return cls(wide.log(), given_probs=matrix, **fields)

    @classmethod
    def from_pairs(cls, pairs: Pairs, *, halves: bool = False) -> Self:
        """Create two-class predictions from pairs: no event and event, or wrong and right decision.

        Args:
            pairs: Events with their probabilities, or decisions with their confidences.
            halves: Whether the confidence of a decision must be at least ½, so that it belongs to the more probable
                class.

        Returns:
            The predictions.

        Raises:
            InputError: If ``halves`` is set and a confidence is below ½.
        """
        events = are_events(pairs)
        if halves and not events and bool((pairs.p < 0.5).any()):
            remedy = "use another method, such as AutoCalibrator or IsotonicCalibration"
            got = f"{float(pairs.p.min()):.3g}"
            raise refuse("confidences of at least 1/2 for a top-label method", got, remedy)
        # events have no names, so that a calibrator of any two-class model can be applied to them
        columns = pairs.columns | {"labels": pairs.y.long(), "decision": None}
        return replace(cls.from_binary_probs(pairs.p), **columns, class_names=None if events else ("wrong", "right"))

    @classmethod
    def from_binary_logits(cls, logits: Any, labels: Any = None, **options: Unpack[RowOptions]) -> Self:
        """Create two-class predictions from the logit of class 1 (the input of a sigmoid) for each row or pixel.

        Args:
            logits: (N,) or (N, 1); for masks, (N, H, W) or (N, 1, H, W) with any number of inner axes.
            labels: Integers 0 and 1 of the same shape, with or without the axis of length 1; or None.
            options: As in ``from_logits``.

        Returns:
            The predictions.

        Raises:
            InputError: If shapes or values are invalid.
        """
        z, y = as_tensor(logits, name="logits"), labels
        if z.dim() > 1 and z.shape[1] == 1:
            z = z.squeeze(1)
        if not z.is_floating_point() or z.dim() in (0, 2):
            expected = "floating-point logits of shape (N,), or (N, 1, H, W) for masks"
            raise refuse(expected, f"{z.dtype} {tuple(z.shape)}", "pass one logit per row or pixel")
        if z.dim() > 1 and y is not None:
            y = as_tensor(y, name="labels")
            y = y.squeeze(1) if y.dim() == z.dim() + 1 and y.shape[1] == 1 else y
        # unchecked, because next to a column of zeros logits near 1 would look like probabilities that sum to 1
        return cls.from_logits(torch.stack([torch.zeros_like(z), z], dim=1), y, unchecked_kind=True, **options)

    @classmethod
    def from_binary_probs(cls, probs: Any, labels: Any = None, **options: Unpack[RowOptions]) -> Self:
        """Create two-class predictions from the probability (N,) of class 1.

        Args:
            probs: (N,) or (N, 1), in [0, 1].
            labels: (N,) integers 0 and 1, or None.
            options: As in ``from_probs``.

        Returns:
            The predictions.

        Raises:
            InputError: If shapes or values are invalid.
        """
        p = as_tensor(probs, name="probs")
        p = check_unit_interval(p.squeeze(1) if p.dim() == 2 and p.shape[1] == 1 else p, name="probs")
        return cls.from_probs(torch.stack([1 - p, p], dim=1), labels, **options)

    @classmethod
    def collect(cls, model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> Self:
        """Run ``model`` in evaluation mode on all batches, and restore its training mode afterwards.

        Args:
            model: A module that returns logits (N, K) for a batch of inputs.
            loader: Batches of inputs and labels (N,).

        Returns:
            The predictions for all batches, on the CPU.

        Raises:
            InputError: If there are no batches, or shapes or values are invalid.
        """
        return cls.from_logits(*outputs_of(model, loader))

    def _about(self) -> list[str]:
        return [f"{self.classes} classes", "unlabelled" if self.labels is None else "labelled"]

    @property
    def scores(self) -> Tensor:
        """The logits (N, K)."""
        return self.logits

    @property
    def classes(self) -> int:
        """The number of classes K."""
        return int(self.logits.shape[1])

    @cached_property
    def statistics(self) -> RowStatistics:
        """The statistics of each row, computed by the kernel in a single pass over the logits."""
        labels = torch.zeros_like(self.logits[:, 0], dtype=torch.int64) if self.labels is None else self.labels
        return row_statistics(self.logits, labels)

    @cached_property
    def sums(self) -> dict[Any, Any]:
        """A cache of sums over all rows, already computed by metrics, so that the rows are not read again."""
        return {}

    @cached_property
    def row_max(self) -> Tensor:
        """The largest logit of each row (N,), in the dtype of the logits."""
        return _at(self.logits, self.statistics.decision)

    @cached_property
    def log_sum(self) -> Tensor:
        """The logarithm log Σ_k exp(logit_k − row_max), (N,) float64.

        The maximum is not added, because next to a maximum above 1e15 the logarithm, and with it the probabilities,
        would be lost to rounding.
        """
        return -self.statistics.confidence.log()

    @cached_property
    def predicted(self) -> Tensor:
        """The predicted class (N,) int64: ``decision`` if there is one, else the first index of the maximum."""
        if self.decision is not None:
            return self.decision
        if self.given_probs is not None:
            return self.given_probs.argmax(dim=1)
        return self.statistics.decision

    @cached_property
    def correct(self) -> Tensor:
        """Whether the predicted class is the label, (N,) bool."""
        return self.predicted == self.require_labels()

    @cached_property
    def confidence(self) -> Tensor:
        """The probability of the predicted class, (N,) float64."""
        if self.given_probs is not None:
            chosen = self.given_probs.amax(dim=1) if self.decision is None else _at(self.given_probs, self.decision)
            return chosen.double()
        if self.decision is None:
            return self.statistics.confidence
        return (_at(self.logits, self.decision).double() - self.row_max.double()).exp() * self.statistics.confidence

    @cached_property
    def nll(self) -> Tensor:
        """The log-loss −log p of the label, (N,) float64; +inf if the label's logit is −inf."""
        labels = self.require_labels()
        if self.given_probs is not None:
            return -_at(self.given_probs, labels).double().log()
        return self.statistics.nll

    @property
    def probs(self) -> Tensor:
        """The probabilities (N, K): those passed to ``from_probs``, unchanged, or the softmax of the logits in float64.

        The softmax is computed again at each access.
        """
        return torch.softmax(self.logits.double(), dim=1) if self.given_probs is None else self.given_probs

    @property
    def log_probs(self) -> Tensor:
        """The log-softmax of the logits, (N, K) float64, computed again at each access."""
        return self.log_probs_in(slice(None))

    def float64_probs(self, rows: slice = slice(None)) -> Tensor:
        """Return the probabilities (n, K) of ``rows`` in float64; those passed to ``from_probs`` are not changed."""
        return self.log_probs_in(rows).exp_() if self.given_probs is None else self.given_probs[rows].double()

    def log_probs_in(self, rows: slice) -> Tensor:
        """Return the log-softmax (n, K) of some rows as a new float64 tensor."""
        return self.logits[rows].double().sub(self.row_max[rows, None]).sub_(self.log_sum[rows, None])

    def top_label(self) -> Pairs:
        """Return the pairs (confidence, whether the decision was right)."""
        return Pairs(self.confidence, self.correct.double(), **self.columns | {"decision": self.predicted})

    def one_vs_rest(self, class_index: int) -> Pairs:
        """Return the pairs (probability of class ``class_index``, whether the label is that class).

        Args:
            class_index: The class, in [0, K).

        Returns:
            Pairs of N events.

        Raises:
            InputError: If there are no labels, or the class does not exist.
        """
        labels, k = self.require_labels(), class_index
        if not 0 <= k < self.classes:
            raise refuse(f"class_index in [0, {self.classes})", str(k), "count classes from 0")
        if self.given_probs is None:
            p = (self.logits[:, k].double() - self.row_max).sub_(self.log_sum).exp_()
        else:
            p = self.given_probs[:, k].double()
        # a decision among K classes is not a decision about this single event
        return Pairs(p, (labels == k).double(), **self.columns | {"decision": None})

    def relabelled(self, labels: Tensor) -> Self:
        """Return these rows with other ``labels`` (N,); cached values that do not depend on labels are reused."""
        other = replace(self, labels=labels)
        vars(other).update({name: vars(self)[name] for name in _OF_LOGITS if name in vars(self)})
        if "statistics" in vars(self):
            nll = self.row_max.double() - _at(self.logits, labels).double() + self.log_sum
            p, q = self.statistics.nll.neg().exp_(), nll.neg().exp_()  # of the former label and of the new one
            brier = (self.statistics.brier + 2 * (p - q)).clamp_min_(0)
            vars(other)["statistics"] = self.statistics._replace(nll=nll, brier=brier)
        return other

    def repeat(self, counts: Any) -> Self:
        """Return each row once per trial, labelled with the outcome of that trial, such as a click or no click.

        Args:
            counts: (N, K) integers ≥ 0: the number of times that each class occurred among a row's trials, such as
                [impressions − clicks, clicks].

        Returns:
            One row per trial.

        Raises:
            InputError: If ``counts`` has another shape, is not made of integers ≥ 0, or is 0 everywhere.

        Examples:
            >>> rates = Predictions.from_binary_probs([0.1, 0.4])
            >>> rates.repeat([[2, 0], [1, 1]]).labels
            tensor([0, 0, 0, 1])
        """
        table = as_tensor(counts, name="counts")
        if table.shape != self.logits.shape or table.is_floating_point() or int(table.min()) < 0 or not table.any():
            expected = f"counts of shape {tuple(self.logits.shape)}, integers ≥ 0 and not all 0"
            raise refuse(expected, f"{table.dtype} {tuple(table.shape)}", "pass one count for each class of each row")
        rows, classes = torch.nonzero(table, as_tuple=True)
        times = table[rows, classes].long()
        labels = classes.repeat_interleave(times).to(self.logits.device)
        return replace(self[rows.repeat_interleave(times)], labels=labels)

    def calibrated_by(self, calibrator: Any, *, allow_fit_rows: bool = False) -> Self:
        """Return these predictions with ``calibrator`` applied to the logits.

        A calibrator with ``top_label = True`` changes only the confidence of the predicted class. The decision is then
        stored in ``decision``, unless the calibrator keeps the predicted class on top (``decision_on_top``). With any
        other calibrator the predicted class may change.

        Args:
            calibrator: A fitted calibrator.
            allow_fit_rows: Accept rows that the calibrator was fitted on, for which figures are better than on new
                data.

        Returns:
            The calibrated predictions.

        Raises:
            InputError: If the calibrator was fitted on other classes.
            LeakError: If more than 1 % of the rows were used to fit the calibrator, in any order.
        """
        if not isinstance(calibrator, nn.Module) or not hasattr(calibrator, "top_label"):
            several = getattr(calibrator, "multi_label", False)
            remedy = "this one is for MultiLabel; fit its base on one class per row" if several else "fit or load one"
            got = f"the class {calibrator.__name__}" if isinstance(calibrator, type) else type(calibrator).__name__
            raise refuse("a fitted calibrator", got, remedy)
        fitted_names = getattr(calibrator, "class_names", ())
        check_class_order(self.class_names, fitted_names, of="that the calibrator was fitted on")
        sketch: Any = calibrator.fit_rows
        check = partial(check_not_fitted_on, self.logits, sketch, self.labels)
        if not allow_fit_rows:
            check()
        keeps = calibrator.top_label and not getattr(calibrator, "decision_on_top", False)
        features = (self.features or {},) if getattr(calibrator, "needs_features", False) else ()
        return replace(
            self,
            logits=calibrator(self.logits, *features),
            decision=self.predicted if keeps else self.decision,
            given_probs=None,
            fit_check=check if allow_fit_rows else None,  # for measures that must not be computed on fitted rows
        )


def _rows_of(
    scores: Tensor,
    labels: Any,
    check: Callable[[Tensor], Tensor],
    *,
    class_dim: int = 1,
    ignore_index: int | None = None,
    class_names: Sequence[str] | None = None,
    **columns: Unpack[ColumnOptions],
) -> tuple[Tensor, dict[str, Any]]:
    """Return the scores (N, K) after ``check``, and the other fields of the record, from a constructor's arguments."""
    if labels is not None:
        labels = as_tensor(labels if class_names is None else _codes(labels, class_names), name="labels")
    flat: Mapping[str, Any] = columns
    if scores.dim() > 2 or class_dim != 1 or ignore_index is not None:
        scores, labels, flat = flatten_rows(scores, labels, columns, class_dim=class_dim, ignore_index=ignore_index)
    matrix = check(scores)
    if class_names is not None and (isinstance(class_names, str) or len(set(class_names)) != matrix.shape[1]):
        raise refuse(f"{matrix.shape[1]} distinct class_names", shown(class_names), "name each class once, in order")
    if labels is not None:
        labels = check_labels(labels.to(matrix.device), rows=len(matrix), classes=matrix.shape[1])
    names = None if class_names is None else tuple(class_names)
    return matrix, {"labels": labels, "class_names": names, **checked_columns(matrix, **flat)}


def _codes(labels: Any, names: Sequence[str]) -> Any:
    """Return text labels as indices into the class names, and other labels unchanged."""
    if isinstance(labels, Tensor) or (texts := as_array(labels, name="labels")).dtype.kind not in "USO":
        return labels
    index = {name: k for k, name in enumerate(names)}
    if strange := [text for text in texts.flat if text not in index]:
        raise refuse(
            f"labels that are in class_names, such as {names[0]!r}", repr(str(strange[0])), "use the same class names"
        )
    return [index[text] for text in texts.flat] if texts.ndim == 1 else texts


def check_class_order(names: Sequence[str] | None, expected: Sequence[str] | None, *, of: str) -> None:
    """Check that ``names`` are the ``expected`` classes in the same order, as far as both are known.

    Raises:
        InputError: If the classes or their order differ; ``of`` says in the message where the expected ones are from.
    """
    if names and expected and not _classes_agree(expected, names):
        wanted, got = (", ".join(one[:6]) + ", …" * (len(one) > 6) for one in (expected, names))
        raise refuse(f"the classes {of}, in order: {wanted}", got, "put the columns in that order")


def _classes_agree(names: Sequence[str], own: Sequence[str]) -> bool:
    """Return whether two lists can name the same classes in the same order; the name for "no event" does not matter."""
    numbered = [all(one.isdigit() for one in both) for both in (names, own)]
    if len(names) == len(own) == 2 and any(one[0] == f"not {one[1]}" for one in (names, own)):
        return any(numbered) or names[1] == own[1]
    return all(numbered) or tuple(names) == tuple(own)


def _at(values: Tensor, classes: Tensor) -> Tensor:
    return values.gather(1, classes[:, None])[:, 0]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode inside the block, and restore the mode of each of its modules afterwards."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def outputs_of(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the outputs of a model in evaluation mode and the labels of all batches, on the CPU.

    Raises:
        InputError: If there are no batches, a batch is not a pair of inputs and labels, or an output is not a tensor.
    """
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    batches = list[tuple[Tensor, Tensor]]()
    with evaluation_mode(model), torch.no_grad():
        for batch in loader:
            if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
                raise refuse(
                    "batches of inputs and a tensor of labels", shown(batch), "let the loader return such pairs"
                )
            inputs, labels = batch
            outputs = model(inputs.to(device))
            if not isinstance(outputs, Tensor):
                remedy = "wrap the model in a module that returns only the logits"
                raise refuse("a model that returns a tensor of logits", shown(outputs), remedy)
            batches.append((outputs.cpu(), labels.cpu()))
    if not batches:
        raise refuse("at least one batch", "an empty loader", "check the data set")
    logits, classes = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return logits, classes
