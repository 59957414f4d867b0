"""Base classes of all losses, which are called on (logits, labels) with the same options as in torch, and weighted sums of losses.

To write your own loss, subclass ``RowLoss`` and implement one method:

    class PolyLoss(RowLoss):  # Leng et al. 2022, Eq. 6 with ε₁ = 1
        def rows(self, logits, labels):
            nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            return nll + 1 - torch.exp(-nll)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    runtime_checkable,
)

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant._core import config
from calibrant._core.check import PROBABILITY_TOLERANCE, check_choice, check_number, kind_of, refuse, shown
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.losses._blocks import SMALL, SharedLogits, exact_log_probs, in_blocks, row_nll
from calibrant.scores import log1mexp, weighted_nll

T = TypeVar("T", int, float)
Reduction = Literal["mean", "sum", "none"]


class LossOptions(TypedDict, total=False):
    """The options that all losses have: ``def __init__(self, gamma: float, **options: Unpack[LossOptions])``."""

    reduction: Reduction
    weight: Tensor | None
    ignore_index: int


class LabelBatch(NamedTuple):
    """Logits and integer labels, checked and flattened.

    Args:
        logits: Logits (N, K); rows with an ignored label may have been replaced with 0.
        labels: Labels (N,), int64; 0 where ignored.
        kept: Whether a row counts (N,), bool; false where ignored.
        weights: The class weight of each label (N,); 0 where ignored.
        shape: The shape of the labels before flattening.
    """

    logits: Tensor
    labels: Tensor
    kept: Tensor
    weights: Tensor
    shape: torch.Size


class Loss(nn.Module, ABC):
    """Base class of losses that are called on (logits, labels).

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Weight of each class (K,), finite and ≥ 0, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> from calibrant.losses import CrossEntropyLoss
        >>> isinstance(CrossEntropyLoss(), Loss)
        True
    """

    weight: Tensor | None
    has_row_terms: bool  # whether the loss is a sum over samples, which then need not be in memory at the same time
    in_float64: bool = False  # whether the loss computes or stores anything in float64, which mps devices lack

    def __init__(
        self, *, reduction: Reduction = "mean", weight: Tensor | None = None, ignore_index: int = -100
    ) -> None:
        super().__init__()
        self.reduction: Reduction = check_choice(reduction, name="reduction", choices=get_args(Reduction))
        self.ignore_index = ignore_index
        # a buffer moves and is saved with the module
        self.register_buffer("weight", None if weight is None else check_loss_weights(weight, name="weight"))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        if self.in_float64 and fn(torch.empty(0)).device.type == "mps":
            return self
        return cast(Self, super()._apply(fn, recurse))

    def extra_repr(self) -> str:
        """Show the arguments that are not the defaults."""
        return config.shown(self, defaults=False)

    @abstractmethod
    def reduced(self, batch: LabelBatch, reduction: Reduction) -> Tensor:
        """Return the loss for ``batch``: a scalar, or with ``"none"``, a tensor with the shape of the labels."""

    def of_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss terms (N,) for ``logits`` and target distributions, both (N, K), if the loss has a soft form."""
        losses = "CrossEntropyLoss, LabelSmoothingLoss, BrierLoss, FocalLoss"
        remedy = f"pass class indices, or use a loss with a soft form ({losses})"
        raise InputError(f"integer labels for {type(self).__name__}", "target probabilities", remedy)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss.

        Args:
            logits: Floating logits (N, K), (N, K, d1, …) or (K,).
            labels: Class indices (N,), (N, d1, …) or (). Some losses also accept target probabilities with the shape of
                ``logits``.

        Returns:
            A scalar, or with ``reduction="none"``, a tensor with the shape of the labels (0 at ignored positions).

        Raises:
            InputError: If these are not tensors, the logits are not floating, or the shapes do not match. In eager mode on the
                CPU, also if a label lies outside [0, K) or the targets are not probability distributions.
        """
        check_tensors(logits, labels)
        if logits.device.type == "mps" and any(getattr(part, "in_float64", False) for part in self.modules()):
            return self(logits.cpu(), labels.cpu()).to(logits.device)  # type: ignore[no-any-return]
        if not labels.is_floating_point():
            return self.reduced(self.batch(logits, labels), self.reduction)
        matrix, targets, shape = flattened(logits, labels)
        terms = self.of_targets(matrix, check_targets(targets))
        if self.weight is not None:
            raise InputError("class weights only with integer labels", "target probabilities", "leave out one of them")
        # a distribution over classes has no single class weight, so every row has weight 1
        return reduce_rows(terms, torch.ones_like(terms), self.reduction, shape)

    def batch(self, logits: Tensor, labels: Tensor) -> LabelBatch:
        """Return ``logits`` and integer ``labels``, checked and flattened to (N, K) and (N,)."""
        matrix, flat, shape = flattened(logits, labels)
        flat, classes = flat.long(), matrix.shape[1]
        if self.weight is not None and len(self.weight) != classes:
            raise InputError(f"weight of shape ({classes},)", f"({len(self.weight)},)", "pass one per class")
        # Two reductions suffice to check a clean batch. On CUDA, reading them would wait for the device, whose kernels check the
        # labels anyway; in a compiled graph, it would break the graph.
        ends = [int(end) for end in flat.aminmax()] if can_be_read(flat) and flat.numel() else []
        clean = bool(ends) and ends[0] >= 0 and ends[1] < classes and not ends[0] <= self.ignore_index <= ends[1]
        kept = flat != self.ignore_index
        if not clean:
            if ends and len(outside := (kept & ((flat < 0) | (flat >= classes))).nonzero()):
                got = f"{int(flat[outside[0, 0]])} in row {int(outside[0, 0])}"
                remedy = (
                    f"count classes from 0, and set ignore_index (now {self.ignore_index}) to the label of rows to skip"
                )
                raise refuse(f"labels in [0, {classes})", got, remedy)
            flat = torch.where(kept, flat, 0)
            # The upstream gradient of an ignored row is 0, but 0 · ∞ is NaN if the row contains −inf, as masked padding does. On the
            # CPU, only these rows are read, and in a compiled graph, the replacement is fused with other operations. On an
            # accelerator, it would take two passes; such a row gives NaN there, as in ``torch.nn.CrossEntropyLoss``.
            if torch.compiler.is_compiling() or (
                can_be_read(matrix) and not bool(matrix.detach()[~kept].isfinite().all())
            ):
                matrix = torch.where(kept[:, None], matrix, 0)
        weights = kept.to(torch.promote_types(matrix.dtype, torch.float32))
        if self.weight is not None:
            weights = weights * self.weight.to(weights)[flat]
        if matrix.numel() >= SMALL and in_blocks(matrix):
            matrix = SharedLogits.apply(matrix)
        return LabelBatch(matrix, flat, kept, weights, shape)


class RowLoss(Loss):
    """A loss that is a mean over samples. Subclasses return the term for each sample.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Weight of each class (K,), finite and ≥ 0, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> class SquaredError(RowLoss):
        ...     def rows(self, logits, labels):
        ...         p = torch.softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
        ...         return (1 - p) ** 2
        >>> SquaredError(ignore_index=-1)(torch.zeros(2, 4), torch.tensor([0, -1]))
        tensor(0.5625)
    """

    has_row_terms = True

    @abstractmethod
    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss terms (N,) for ``logits`` (N, K) and ``labels`` (N,) in [0, K), without class weights."""

    def reduced(self, batch: LabelBatch, reduction: Reduction) -> Tensor:
        """Return the loss terms, their sum or their mean, with class weights applied."""
        # the weighted mean as in torch, Σ w_y l / Σ w_y: a class with weight 0 does not count
        terms = torch.where(batch.kept, self.rows(batch.logits, batch.labels), 0) * batch.weights
        return reduce_rows(terms, batch.weights, reduction, batch.shape)


class WeightedNLL(RowLoss):
    """Base class of losses w(p_y) · (−log p_y), such as focal loss. Subclasses return the weight w, with w(0) = 1.

    Args:
        detach_weight: Treat the weight as a constant in the gradient. The loss then has the same value but a different minimiser.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> class Linear(WeightedNLL):
        ...     def sample_weight(self, log_p, log_not_p):
        ...         return log_not_p.exp()  # w(p) = 1 − p, focal loss with γ = 1
        >>> Linear(detach_weight=False)(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0]))
        tensor(0.3466)
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

    def from_nll(self, nll: Tensor) -> Tensor:
        """Return the reduced loss, given per-row cross-entropies, such as those from a fused linear cross-entropy.

        Class weights and ``ignore_index`` are not applied, so pass only the rows that count.

        Args:
            nll: The cross-entropies −log p_y ≥ 0 (N,), with their gradient.

        Returns:
            The reduced loss.
        """
        # log(1 − p) is computed from exp(−nll), as precisely as the dtype represents an nll near 0
        terms = weighted_nll(self.sample_weight, -nll, log1mexp(-nll), detach_weight=self.detach_weight)
        return reduce_rows(terms, torch.ones_like(terms), self.reduction, terms.shape)


@runtime_checkable
class Adaptive(Protocol):
    """A loss that is updated with validation predictions once per epoch."""

    def update(self, validation: Predictions) -> None:
        """Update the loss with the validation predictions after an epoch."""


class Weighted(Loss):
    """A weighted sum of losses, Σ_i w_i · loss_i(logits, labels).

    Args:
        pairs: Pairs (w, loss) with w ≥ 0. All losses must have the same reduction, class weights and ignored label.

    Raises:
        InputError: If these are not such pairs, or the losses differ in these options.

    Examples:
        >>> import torch
        >>> from calibrant.losses import BrierLoss, FocalLoss
        >>> loss = Weighted((1.0, FocalLoss(1.0)), (0.5, BrierLoss()))
        >>> loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1770)
    """

    def __init__(self, *pairs: tuple[float, Loss]) -> None:
        if not pairs or not all(isinstance(pair, tuple | list) and isinstance(pair[-1], Loss) for pair in pairs):
            remedy = "write Weighted((1.0, FocalLoss(3.0)), (0.5, BrierLoss()))"
            raise refuse("pairs (w, loss) with losses from calibrant.losses", shown(pairs), remedy)
        first = pairs[0][1]
        super().__init__(**options_of(first))
        if not all(same_options(options_of(loss), first) for _, loss in pairs):
            raise InputError(
                "losses with the same reduction, weight and ignore_index", "different ones", "give all losses the same"
            )
        self.scales = tuple(check_number(scale, name="each weight", low=0) for scale, _ in pairs)
        self.terms = nn.ModuleList(loss for _, loss in pairs)
        self.has_row_terms = all(loss.has_row_terms for _, loss in pairs)

    @property
    def pairs(self) -> tuple[tuple[float, Loss], ...]:
        """The pairs (w, loss)."""
        return tuple(zip(self.scales, cast(Iterable[Loss], self.terms), strict=True))

    def extra_repr(self) -> str:
        """Return the weights as text; the losses are shown as submodules."""
        return f"scales={self.scales}"

    def reduced(self, batch: LabelBatch, reduction: Reduction) -> Tensor:
        """Return the weighted sum of the losses."""
        first, *others = (scale * loss.reduced(batch, reduction) for scale, loss in self.pairs)
        total: Tensor = sum(others, start=first)
        return total

    def of_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted sum of the loss terms (N,)."""
        first, *others = (scale * loss.of_targets(logits, targets) for scale, loss in self.pairs)
        total: Tensor = sum(others, start=first)
        return total


def options_of(loss: Loss) -> LossOptions:
    """Return the options that ``loss`` was created with."""
    return {"reduction": loss.reduction, "weight": loss.weight, "ignore_index": loss.ignore_index}


def same_options(options: LossOptions, loss: Loss) -> bool:
    """Return whether the given ``options`` agree with those of ``loss``."""
    weight, own = options.get("weight", loss.weight), loss.weight
    if weight is None or own is None:
        same = weight is own
    else:
        same = torch.equal(torch.as_tensor(weight).to(own), own)
    others = ("reduction", loss.reduction), ("ignore_index", loss.ignore_index)
    return same and all(options.get(name, value) == value for name, value in others)


def stages(gammas: Sequence[float], ends: Sequence[T], *, between: str) -> tuple[tuple[float, ...], tuple[T, ...]]:
    """Return the γ ≥ 0 of each stage and the ends between stages, after checking that their numbers match and the ends increase."""
    gammas, ends = tuple(check_number(gamma, name="each of gammas", low=0) for gamma in gammas), tuple(ends)
    if len(gammas) != len(ends) + 1:
        raise refuse(
            f"one more of gammas than {between}", f"{len(gammas)} and {len(ends)} of them", "give a γ for each stage"
        )
    if any(later <= earlier for earlier, later in pairwise(ends)):
        raise refuse(f"increasing {between}", str(ends), "sort them")
    return gammas, ends


def true_class_log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each (N,), differentiable.

    In float32 and below, both are functions of the per-row cross-entropy, computed in float32, so the gradient is the only
    further N × K matrix. In float64, log(1 − p_y) is a logsumexp over the other classes.

    Args:
        logits: Logits (N, K).
        labels: Labels (N,), int64 in [0, K).

    Returns:
        Both logarithms.
    """
    if logits.dtype == torch.float64:
        return exact_log_probs(logits, labels)
    few = logits.numel() < SMALL  # one torch operation then takes less time than the blocks
    log_p = -(F.cross_entropy(logits.float(), labels, reduction="none") if few else row_nll(logits, labels))
    return log_p, log1mexp(log_p)


def reduce_rows(terms: Tensor, weights: Tensor, reduction: Reduction, shape: torch.Size) -> Tensor:
    """Return the terms, their sum, or their sum divided by the sum of the weights."""
    if reduction == "none":
        return terms.reshape(shape)
    # 0/0 if every row is ignored, which is NaN as in torch
    return terms.sum() if reduction == "sum" else terms.sum() / weights.sum()


def can_be_read(tensor: Tensor) -> bool:
    """Return whether the entries of ``tensor`` may be read: it is on the CPU, and neither traced, fake nor batched by vmap."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, nn.Parameter)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def check_tensors(logits: Any, labels: Any, *, name: str = "logits") -> None:
    """Check that ``logits``, which ``name`` names in the message, are a floating tensor, and that ``labels`` are a tensor."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise refuse(f"{name} as a floating tensor", kind_of(logits), "convert with torch.as_tensor(…).float()")
    if not isinstance(labels, Tensor):
        raise refuse("labels as a tensor", kind_of(labels), "convert with torch.as_tensor")


def flattened(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Return logits (N, K), labels (N,) or target probabilities (N, K), and the shape of the labels without a class axis.

    Raises:
        InputError: If there is only one class, or the shapes of logits and labels do not match.
    """
    axis = min(logits.dim(), 2) - 1
    shape, soft = logits.shape[:axis] + logits.shape[axis + 1 :], labels.is_floating_point()
    if logits.dim() == 0 or logits.shape[axis] < 2:
        remedy = "for a sigmoid output, add a second logit of 0, or train it with a Binary… loss, whose targets have its shape"
        raise refuse("logits of shape (N, K) with K ≥ 2 classes", f"shape {tuple(logits.shape)}", remedy)
    if logits.dim() == 1 and labels.dim() == 1 and not soft:
        remedy = "pass one row of logits per sample, or a single class index for a single row"
        raise refuse("logits of shape (N, K) for labels of shape (N,)", f"shape {tuple(logits.shape)}", remedy)
    if labels.shape != (logits.shape if soft else shape):
        got = f"shape {tuple(labels.shape)}"
        if soft:
            remedy = "convert class indices with labels.long()"
            raise refuse(f"target probabilities with the logits' shape {tuple(logits.shape)}", got, remedy)
        remedy = (
            "pass one class index per sample, without a class axis, or use a Binary… loss for several labels per row"
        )
        raise refuse(f"labels of shape {tuple(shape)}", got, remedy)
    if logits.dim() == 2:
        return logits, labels, shape
    classes = logits.shape[axis]
    matrix = logits.movedim(axis, -1).reshape(-1, classes)
    return matrix, labels.movedim(axis, -1).reshape(-1, classes) if soft else labels.reshape(-1), shape


def check_targets(targets: Tensor) -> Tensor:
    """Return ``targets`` (N, K) if its rows are probability distributions; entries that must not be read are not checked."""
    if not can_be_read(targets):
        return targets
    tolerance = max(PROBABILITY_TOLERANCE, torch.finfo(targets.dtype).eps)  # bfloat16 keeps two digits
    sums, least = targets.detach().sum(dim=1, dtype=torch.float32), targets.detach().amin(dim=1)
    wrong = ~((least >= 0) & ((sums - 1).abs() <= tolerance))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        remedy = "pass probabilities, not logits, or class indices as integers; if each output is a yes or no, use a Binary… loss"
        got = f"the sum {sums[row].item():g} and the smallest value {least[row].item():g} in row {row}"
        raise refuse("target probabilities ≥ 0 that sum to 1", got, remedy)
    return targets


def check_loss_weights(weight: Any, *, name: str, dims: Sequence[int] = (1,)) -> Tensor:
    """Return ``weight`` as a floating tensor if it has an allowed number of axes (``dims``) and finite entries ≥ 0."""
    tensor = torch.as_tensor(weight)
    tensor = tensor if tensor.is_floating_point() else tensor.float()
    if tensor.dim() not in dims or (can_be_read(tensor) and not bool((tensor.isfinite() & (tensor >= 0)).all())):
        got = shown(tensor.tolist()) if tensor.numel() < 10 else f"shape {tuple(tensor.shape)}"
        raise refuse(
            f"{name} with one finite number ≥ 0 per {'class' if name == 'weight' else 'label'}",
            got,
            "pass such weights",
        )
    return tensor
