"""Base classes of all losses, called on (logits, labels) with the options of torch, and their weighted sum.

To write your own, subclass ``RowLoss`` with one method:

    class PolyLoss(RowLoss):  # Leng et al. 2022, Eq. 6 with ε₁ = 1
        def rows(self, logits, labels):
            nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            return nll + 1 - torch.exp(-nll)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import ClassVar, Protocol, TypedDict, TypeVar, Unpack, cast, runtime_checkable

import torch
from torch import Tensor, nn

from calibrant._core import config
from calibrant._core.check import check_choice, check_number, refuse, shown
from calibrant._objective.batch import (
    REDUCTIONS,
    Batch,
    Places,
    Reduction,
    check_class_weights,
    check_rows,
    no_soft_form,
    reduce_rows,
    soft_batch,
    true_class_log_probs,
)
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.scores import FocalScore, InverseFocalScore, log_probs_from_nll, weighted_nll

T = TypeVar("T", int, float)


class LossOptions(TypedDict, total=False):
    """The options that all losses have: ``def __init__(self, gamma: float, **options: Unpack[LossOptions])``."""

    reduction: Reduction
    weight: Tensor | None
    ignore_index: int


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
        self.reduction: Reduction = check_choice(reduction, name="reduction", choices=REDUCTIONS)
        self.ignore_index = ignore_index
        # a buffer moves with the module and is saved with it
        self.register_buffer(
            "weight", None if weight is None else check_class_weights(weight, name="weight", per="class")
        )

    def extra_repr(self) -> str:
        """Show the arguments that are not the defaults."""
        return config.shown(self, defaults=False)

    def batch(self, logits: Tensor, labels: Tensor) -> Batch:
        """Return a batch of ``logits`` and integer ``labels``, checked and flattened to (N, K) and (N,)."""
        name = type(self).__name__
        return Batch.from_pair(logits, labels, name=name, weight=self.weight, ignore_index=self.ignore_index)

    def places(self, labels: Tensor, *, classes: int, dtype: torch.dtype) -> Places:
        """Return which of ``labels`` (N,) int64 are not ignored, and their class weights for logits of ``dtype``."""
        return Places.of(labels, classes=classes, dtype=dtype, weight=self.weight, ignore_index=self.ignore_index)

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
        terms = batch.mask(self.rows(batch.logits, batch.labels)) * batch.weights
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
        return self.of(*true_class_log_probs(logits, labels))

    def from_nll(self, nll: Tensor, log_not_p: Tensor | None = None) -> Tensor:
        """Return the reduced loss from per-row cross-entropies, as a fused linear cross-entropy returns them.

        Class weights and ``ignore_index`` are not applied: pass only the rows to be counted.

        Args:
            nll: (N,) −log p_y ≥ 0, with its gradient.
            log_not_p: (N,) log(1 − p_y), if it is known more precisely than it can be computed from ``nll``.
        """
        check_rows(nll, name="nll")
        if log_not_p is not None:
            check_rows(log_not_p, name="log_not_p", like=nll)
        # the nll holds p alone: log(1 − p) is that of 1 − exp(−nll), as precise as the dtype keeps an nll near 0
        log_p, rest = log_probs_from_nll(nll)
        terms = self.of(log_p, rest if log_not_p is None else log_not_p)
        return reduce_rows(terms, torch.ones_like(terms), self.reduction, terms.shape)

    def of(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return w(p) · (−log p), elementwise."""
        return weighted_nll(self.sample_weight, log_p, log_not_p, detach_weight=self.detach_weight)


class ScoreLoss(WeightedNLL):
    """A ``WeightedNLL`` whose weight w is that of a true-class score φ(p) = w(p) · (−log p); a subclass names the score.

    Args:
        gamma: γ ≥ 0 of the score.
        detach_weight: Treat the weight as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.
    """

    score_type: ClassVar[type[FocalScore | InverseFocalScore]]

    def __init__(self, gamma: float, detach_weight: bool = False, **options: Unpack[LossOptions]) -> None:
        super().__init__(detach_weight, **options)
        self.gamma = self.score_type(check_number(gamma, name="gamma", low=0)).gamma

    @property
    def score(self) -> FocalScore | InverseFocalScore:
        """The score of today's γ: assigning ``loss.gamma`` takes effect."""
        return self.score_type(self.gamma)

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return w(p), elementwise."""
        return self.score.weight(log_p, log_not_p)


def stages(gammas: Sequence[float], ends: Sequence[T], *, between: str) -> tuple[tuple[float, ...], tuple[T, ...]]:
    """Return γ of each stage and the ends between stages, if there is one γ more than ends and the ends increase."""
    gammas, ends = tuple(check_number(gamma, name="each of gammas", low=0) for gamma in gammas), tuple(ends)
    if len(gammas) != len(ends) + 1:
        raise refuse(f"one more of gammas than {between}", f"{len(gammas)} and {len(ends)}", "give a γ for each stage")
    if any(later <= earlier for earlier, later in pairwise(ends)):
        raise refuse(f"increasing {between}", str(ends), "sort them")
    return gammas, ends


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
            raise refuse(
                "losses of calibrant.losses", ", ".join(type(loss).__name__ for _, loss in pairs), "pass those"
            )
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
