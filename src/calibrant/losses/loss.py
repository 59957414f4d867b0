"""Base classes of all losses, called on (logits, labels) with the options of torch, and their weighted sum.

To write your own, subclass ``RowLoss`` with one method:

    class PolyLoss(RowLoss):  # Leng et al. 2022, Eq. 6 with ε₁ = 1
        def rows(self, logits, labels):
            nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            return nll + 1 - torch.exp(-nll)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, cast, get_args, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant._core import config
from calibrant._core.check import (
    FLOATING,
    PROBABILITY_TOLERANCE,
    check_choice,
    check_floating,
    check_number,
    is_dense,
    refuse,
    refuse_layout,
    shown,
)
from calibrant._core.numerics import row_chunks
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.losses._blocks import SMALL, exact_log_probs, row_nll
from calibrant.scores import log1mexp, weighted_nll

T = TypeVar("T", int, float)
Reduction = Literal["mean", "sum", "none"]

SOFT_LOSSES = "CrossEntropyLoss, LabelSmoothingLoss, BrierLoss, FocalLoss"
_LARGE = 1 << 22  # number of logits on an accelerator from which a pass over them costs more than its launch


class LossOptions(TypedDict, total=False):
    """The options that all losses have: ``def __init__(self, gamma: float, **options: Unpack[LossOptions])``."""

    reduction: Reduction
    weight: Tensor | None
    ignore_index: int


@dataclass(frozen=True)
class LabelBatch:
    """Logits and integer labels, checked and flattened.

    Args:
        logits: (N, K); rows whose label is ignored may have been replaced by 0.
        labels: (N,) int64, 0 where ignored.
        kept: (N,) bool, false where ignored.
        weights: (N,) class weight of each label, 0 where ignored.
        shape: The labels' shape before flattening.
    """

    logits: Tensor
    labels: Tensor
    kept: Tensor
    weights: Tensor
    shape: torch.Size

    def mask(self, terms: Tensor) -> Tensor:
        """Return ``terms`` (N,) with 0 where the label is ignored."""
        return torch.where(self.kept, terms, 0)


class Loss(nn.Module, ABC):
    """Base class of losses called on (logits, labels).

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) weight of each class, finite and ≥ 0, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> from calibrant.losses import CrossEntropyLoss
        >>> isinstance(CrossEntropyLoss(), Loss)
        True
    """

    weight: Tensor | None

    def __init__(
        self, *, reduction: Reduction = "mean", weight: Tensor | None = None, ignore_index: int = -100
    ) -> None:
        super().__init__()
        self.reduction: Reduction = check_choice(reduction, name="reduction", choices=get_args(Reduction))
        self.ignore_index = ignore_index
        # a buffer moves with the module and is saved with it
        self.register_buffer(
            "weight", None if weight is None else check_loss_weights(weight, name="weight", per="class")
        )

    def extra_repr(self) -> str:
        """Show the arguments that are not the defaults."""
        return config.shown(self, defaults=False)

    def batch(self, logits: Tensor, labels: Tensor) -> LabelBatch:
        """Return ``logits`` and integer ``labels``, checked and flattened to (N, K) and (N,)."""
        axis, shape = check_pair(logits, labels)
        if labels.is_floating_point():
            raise no_soft_form(type(self).__name__)
        matrix, flat = logits, labels.long()
        if logits.dim() != 2:
            matrix, flat = logits.movedim(axis, -1).reshape(-1, logits.shape[axis]), flat.reshape(-1)
        whole = check_range(flat, classes=matrix.shape[1], ignore_index=self.ignore_index)
        kept = flat != self.ignore_index
        if not whole:
            flat, matrix = torch.where(kept, flat, 0), without_ignored(matrix, kept)
        weights = kept.to(torch.promote_types(matrix.dtype, torch.float32))
        if self.weight is not None:
            check_weight_fits(self.weight, classes=matrix.shape[1], device=flat.device)
            weights = weights * self.weight.to(weights.dtype)[flat]
        return LabelBatch(matrix, flat, kept, weights, shape)

    @abstractmethod
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss.

        Args:
            logits: (N, K), (N, K, d1, …) or (K,), floating.
            labels: Class indices (N,), (N, d1, …) or (); some losses also take target probabilities of the shape
                of ``logits``.

        Returns:
            A scalar, or with ``reduction="none"`` a tensor of the labels' shape (0 at ignored places).

        Raises:
            InputError: If shapes, dtypes or devices do not fit, or, run eagerly on the CPU, a label is outside [0, K) or
                targets are not probability distributions.
        """


class RowLoss(Loss):
    """A loss that is a mean over samples; subclasses return the term of each sample.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) weight of each class, finite and ≥ 0, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> class SquaredError(RowLoss):
        ...     def rows(self, logits, labels):
        ...         p = torch.softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
        ...         return (1 - p) ** 2
        >>> SquaredError(ignore_index=-1)(torch.zeros(2, 4), torch.tensor([0, -1]))
        tensor(0.5625)
    """

    @abstractmethod
    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the terms (N,) of ``logits`` (N, K) and ``labels`` (N,) in [0, K), without class weights."""

    def soft_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the terms (N,) for target distributions (N, K); losses without such a form raise ``InputError``."""
        raise no_soft_form(type(self).__name__)

    def terms(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what ``reduction="none"`` returns for ``logits`` (N, K) and integer ``labels`` (N,); chunks use it."""
        batch = self.batch(logits, labels)
        return batch.mask(self.rows(batch.logits, batch.labels)) * batch.weights

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        if isinstance(labels, Tensor) and labels.is_floating_point():
            matrix, targets, shape = soft_batch(logits, labels, weight=self.weight)
            terms = self.soft_rows(matrix, targets)
            # a distribution over classes has no single class weight: every row counts 1
            return reduce_rows(terms, torch.ones_like(terms), self.reduction, shape)
        batch = self.batch(logits, labels)
        # torch's weighted mean, Σ w_y l / Σ w_y: a class of weight 0 does not count
        terms = torch.where(batch.kept, self.rows(batch.logits, batch.labels), 0) * batch.weights
        return reduce_rows(terms, batch.weights, self.reduction, batch.shape)


class WeightedNLL(RowLoss):
    """Base class of losses w(p_y) · (−log p_y), such as focal loss; subclasses return the weight, with w(0) = 1.

    Args:
        detach_weight: Treat the weight as a constant in the gradient: the same value, but a different minimiser.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.
    """

    def __init__(self, detach_weight: bool, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.detach_weight = detach_weight

    @abstractmethod
    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return w(p), elementwise, from log p and log(1 − p)."""

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return w(p_y) · (−log p_y) (N,)."""
        pair = true_class_log_probs(logits, labels)
        return weighted_nll(self.sample_weight, *pair, detach_weight=self.detach_weight)

    def from_nll(self, nll: Tensor, log_not_p: Tensor | None = None) -> Tensor:
        """Return the reduced loss from per-row cross-entropies, as a fused linear cross-entropy returns them.

        Class weights and ``ignore_index`` are not applied: pass only the rows to be counted.

        Args:
            nll: (N,) −log p_y ≥ 0, with its gradient.
            log_not_p: (N,) log(1 − p_y), if it is known more precisely than it can be computed from ``nll``.
        """
        for name, values in {"nll": nll, "log_not_p": nll if log_not_p is None else log_not_p}.items():
            if check_floating(values, name=name).dim() != 1 or values.shape != nll.shape:
                raise refuse(f"{name} of shape (N,)", f"shape {tuple(values.shape)}", "pass one number a row")
        # the nll holds p alone: log(1 − p) is that of 1 − exp(−nll), as precise as the dtype keeps an nll near 0
        rest = log1mexp(-nll) if log_not_p is None else log_not_p
        terms = weighted_nll(self.sample_weight, -nll, rest, detach_weight=self.detach_weight)
        return reduce_rows(terms, torch.ones_like(terms), self.reduction, terms.shape)


@runtime_checkable
class Adaptive(Protocol):
    """A loss that is updated from validation predictions once per epoch."""

    def update(self, validation: Predictions) -> None:
        """Update the loss from the validation predictions after an epoch."""


class Weighted(Loss):
    """Σ_i w_i · loss_i(logits, labels).

    Args:
        pairs: (w, loss) pairs with w ≥ 0; all losses share one reduction and one ignored label.

    Examples:
        >>> import torch
        >>> from calibrant.losses import BrierLoss, FocalLoss
        >>> loss = Weighted((1.0, FocalLoss(1.0)), (0.5, BrierLoss()))
        >>> loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1770)
    """

    def __init__(self, *pairs: tuple[float, Loss]) -> None:
        if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise refuse("pairs (w, loss)", shown(pairs), "write Weighted((1.0, FocalLoss(3.0)), (0.5, BrierLoss()))")
        if not all(isinstance(loss, Loss) for _, loss in pairs):
            names = ", ".join(type(loss).__name__ for _, loss in pairs)
            raise refuse("losses of calibrant.losses", names, "pass those")
        first = pairs[0][1]
        if any((loss.reduction, loss.ignore_index) != (first.reduction, first.ignore_index) for _, loss in pairs):
            raise InputError("terms of one reduction and one ignore_index", "several", "give all losses the same")
        super().__init__(reduction=first.reduction, weight=first.weight, ignore_index=first.ignore_index)
        self.scales = tuple(check_number(scale, name="each weight", low=0) for scale, _ in pairs)
        self.terms = nn.ModuleList(loss for _, loss in pairs)

    @property
    def pairs(self) -> tuple[tuple[float, Loss], ...]:
        """Each (w, loss)."""
        return tuple(zip(self.scales, cast(Iterable[Loss], self.terms), strict=True))

    def extra_repr(self) -> str:
        """Show the weights; the losses show themselves."""
        return f"scales={self.scales}"

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        first, *others = (scale * loss(logits, labels) for scale, loss in self.pairs)
        total: Tensor = sum(others, start=first)
        return total


def stages(gammas: Sequence[float], ends: Sequence[T], *, between: str) -> tuple[tuple[float, ...], tuple[T, ...]]:
    """Return γ ≥ 0 of each stage and the ends between stages, if there is one γ more than ends and the ends increase."""
    gammas, ends = tuple(check_number(gamma, name="each of gammas", low=0) for gamma in gammas), tuple(ends)
    if len(gammas) != len(ends) + 1:
        raise refuse(f"one more of gammas than {between}", f"{len(gammas)} and {len(ends)}", "give a γ for each stage")
    if any(later <= earlier for earlier, later in pairwise(ends)):
        raise refuse(f"increasing {between}", str(ends), "sort them")
    return gammas, ends


def true_class_log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each (N,), differentiable.

    Args:
        logits: (N, K). In float32 and below both are functions of the per-row cross-entropy, computed in float32, so the
            gradient is the only further N × K matrix. In float64 log(1 − p_y) is a logsumexp over the other classes.
        labels: (N,) int64 in [0, K).
    """
    if logits.dtype == torch.float64:
        return exact_log_probs(logits, labels)
    few = logits.numel() < SMALL  # then one operation of torch costs less than the blocks do
    log_p = -(F.cross_entropy(logits.float(), labels, reduction="none") if few else row_nll(logits, labels))
    return log_p, log1mexp(log_p)


def reduce_rows(terms: Tensor, weights: Tensor, reduction: Reduction, shape: torch.Size) -> Tensor:
    """Return the terms, their sum, or their sum over the sum of the weights (NaN if that is 0, as in torch)."""
    if reduction == "none":
        return terms.reshape(shape)
    # 0/0 where every row is ignored: NaN, as torch has it
    return terms.sum() if reduction == "sum" else terms.sum() / weights.sum()


def without_ignored(logits: Tensor, kept: Tensor) -> Tensor:
    """Return ``logits`` (N, K) with 0 in the ignored rows, where their values could make a gradient NaN.

    The upstream gradient of an ignored row is 0, but 0 · ∞ is NaN if the row holds −inf, as masked padding does. On the
    CPU only the ignored rows are read, and in a compiled graph the replacement is fused with other operations. On an
    accelerator it costs two passes, so for many logits it is left out: there an ignored row of −inf only still gives
    NaN, as in ``torch.nn.CrossEntropyLoss``.
    """
    if can_be_read(logits) and bool(logits.detach()[~kept].isfinite().all()):
        return logits
    large = logits.device.type not in ("cpu", "meta") and logits.numel() >= _LARGE
    if large and not torch.compiler.is_compiling():
        return logits
    return torch.where(kept[:, None], logits, 0)


def can_be_read(tensor: Tensor) -> bool:
    """Return whether the values of ``tensor`` may be read: eager, on the CPU, neither traced, fake nor batched by vmap."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def check_tensors(inputs: Any, labels: Any, *, name: str = "logits") -> None:
    """Raise unless the ``inputs`` called ``name`` and their ``labels`` are tensors, the labels dense, on one device."""
    if not (isinstance(inputs, Tensor) and isinstance(labels, Tensor)):
        kinds = f"{type(inputs).__name__} and {type(labels).__name__}"
        raise refuse(f"{name} and labels as tensors", kinds, "convert with torch.as_tensor")
    if not is_dense(labels):
        raise refuse_layout(labels, name="labels")
    if labels.device != inputs.device:
        got = f"{name} on {inputs.device} and labels on {labels.device}"
        raise refuse(f"{name} and labels on one device", got, f"move the labels with labels.to({name}.device)")


def check_pair(logits: Any, labels: Any) -> tuple[int, torch.Size]:
    """Return the class axis and the labels' shape, after checking that logits and labels (or target probabilities) match."""
    plain = (
        isinstance(logits, Tensor) and logits.dtype in FLOATING and logits.layout == torch.strided and logits.dim() > 0
    )
    matched = plain and not logits.is_nested and isinstance(labels, Tensor) and not labels.is_nested
    if not matched or labels.device != logits.device:
        check_tensors(logits, labels)
        check_floating(logits, name="logits")
        if logits.dim() == 0:
            raise refuse("logits of shape (N, K)", "a scalar", "pass one row a sample")
    axis = 0 if logits.dim() == 1 else 1
    shape = logits.shape[:axis] + logits.shape[axis + 1 :]
    soft = labels.is_floating_point()
    if logits.shape[axis] < 2 or labels.shape != (logits.shape if soft else shape) or labels.layout != torch.strided:
        raise _misfit(logits, labels, axis, shape)
    if labels.dtype == torch.bool or labels.is_complex() or (soft and labels.dtype not in FLOATING):
        got = f"dtype {labels.dtype}"
        raise refuse("integer labels or target probabilities", got, "convert with labels.long() or .float()")
    return axis, shape


def _misfit(logits: Tensor, labels: Tensor, axis: int, shape: torch.Size) -> InputError:
    if labels.layout != torch.strided:
        return refuse_layout(labels, name="labels")
    if logits.shape[axis] < 2:
        remedy = (
            "give a sigmoid output a second logit of 0, or train it with a Binary… loss, whose targets have its shape"
        )
        return refuse("K ≥ 2 classes", f"K = {logits.shape[axis]}", remedy)
    got = f"shape {tuple(labels.shape)}"
    if labels.is_floating_point():
        remedy = "convert class indices with labels.long()"
        return refuse(f"target probabilities of the logits' shape {tuple(logits.shape)}", got, remedy)
    remedy = "pass one class index a sample, without a class axis"
    if labels.shape == logits.shape:
        remedy = f"{remedy}, or use a Binary… loss for several labels a row"
    return refuse(f"labels of shape {tuple(shape)}", got, remedy)


def check_range(labels: Tensor, *, classes: int, ignore_index: int) -> bool | None:
    """Return whether no label of ``labels`` (N,) int64 is ignored, after checking their range; None where values are not read.

    On CUDA reading them would wait for the device, whose kernels check them; in a compiled graph it would break the graph.
    """
    if not can_be_read(labels):
        return None
    if labels.numel() == 0:
        return True
    low, high = (int(end) for end in labels.aminmax())
    # two reductions answer for a clean batch, without a mask of its size
    if low >= 0 and high < classes and not low <= ignore_index <= high:
        return True
    kept = labels != ignore_index
    outside = kept & ((labels < 0) | (labels >= classes))
    if bool(outside.any()):
        row = int(outside.nonzero()[0, 0])
        raise refuse(
            f"labels in [0, {classes})",
            f"{int(labels[row])} in row {row}",
            f"count classes from 0, and name a label to skip with ignore_index (now {ignore_index})",
        )
    return bool(kept.all())


def soft_batch(logits: Any, targets: Any, *, weight: Tensor | None) -> tuple[Tensor, Tensor, torch.Size]:
    """Return checked logits and target probabilities, both (N, K), and the shape of ``reduction="none"``.

    Raises:
        InputError: If shapes or devices differ, a row of targets is no distribution, or there are class weights.
    """
    axis, shape = check_pair(logits, targets)
    if weight is not None:
        raise InputError("class weights with integer labels only", "target probabilities", "drop one")
    if logits.dim() != 2:
        logits, targets = (x.movedim(axis, -1).reshape(-1, logits.shape[axis]) for x in (logits, targets))
    if can_be_read(targets):
        for rows in row_chunks(*targets.shape, itemsize=targets.element_size()):
            _check_targets(targets.detach()[rows], start=rows.start)
    return logits, targets, shape


def _check_targets(block: Tensor, *, start: int) -> None:
    bits = torch.finfo(block.dtype)
    # 16 bits keep three digits of each probability
    tolerance = max(PROBABILITY_TOLERANCE, bits.eps) if bits.bits == 16 else PROBABILITY_TOLERANCE
    sums = block.sum(dim=1, dtype=torch.float32)
    wrong = ~((block >= 0).all(dim=1) & ((sums - 1).abs() <= tolerance))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        got = f"{sums[row].item():g}, the least {block[row].amin().item():g}, in row {start + row}"
        remedy = (
            "pass probabilities, not logits, or class indices as integers; for outputs that are each a yes or no use a "
            "Binary… loss"
        )
        raise refuse("target probabilities ≥ 0 that sum to 1", got, remedy)


def check_weight_fits(weight: Tensor, *, classes: int, device: torch.device) -> None:
    """Raise unless the class weights match the logits' classes and device."""
    if weight.shape[0] != classes:
        raise InputError(f"weight of shape ({classes},)", f"({weight.shape[0]},)", "pass one a class")
    if weight.device != device:
        got, remedy = f"weight on {weight.device}", f"move the loss or its weight with .to({str(device)!r})"
        raise refuse(f"class weights on the logits' device {device}", got, remedy)


def check_loss_weights(weight: Any, *, name: str, per: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return ``weight`` as a floating tensor of finite numbers ≥ 0, of the ``shape`` or of one axis: one weight per class, for example."""
    tensor = torch.as_tensor(weight)
    tensor = tensor if tensor.is_floating_point() else tensor.float()
    if tensor.dim() != 1 if shape is None else tuple(tensor.shape) != shape:
        expected = f"{name} of shape {'(K,)' if shape is None else shape}, one weight a {per}"
        raise refuse(expected, f"shape {tuple(tensor.shape)}", f"pass one weight a {per}")
    if can_be_read(tensor) and not bool((tensor.isfinite() & (tensor >= 0)).all()):
        raise refuse(f"finite {name} ≥ 0", shown(tensor.tolist()), "choose such weights")
    return tensor


def no_soft_form(name: str) -> InputError:
    """Return the error for target probabilities passed to the loss ``name``, which takes labels only."""
    remedy = f"pass class indices, or use a loss with a soft form ({SOFT_LOSSES})"
    return InputError(f"integer labels for {name}", "target probabilities", remedy)
