"""Losses that add a penalty to another loss: the base classes, and the penalties of single rows.

To write your own, subclass ``RowPenalty``, or ``BatchPenalty`` if the penalty depends on the whole batch at once:

    class LogitVariance(RowPenalty):
        def penalty(self, logits, labels):
            return logits, logits.var(dim=1)
"""

import math
from abc import abstractmethod
from typing import ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_number, refuse
from calibrant._core.warn import warn_user
from calibrant._objective.batch import Batch, reduce_rows
from calibrant._objective.statistics import Entropy, Largest, Margin, Norm
from calibrant.errors import InputError, UsageWarning
from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.loss import Loss, LossOptions, RowLoss


class PenaltyOptions(LossOptions, total=False):
    """The options that all penalties have beside their strength."""

    base: Loss | None


class Penalty(Loss):
    """A base loss plus ``strength`` times a penalty; class weights apply to the base only.

    Subclass ``RowPenalty`` (a mean over rows) or ``BatchPenalty`` (one number per batch).

    Args:
        strength: λ ≥ 0; a subclass that takes others declares them.
        base: The loss to which the penalty is added; None is cross-entropy. Its reduction, class weights and ignored
            label apply, so leave the next three arguments out if you pass a base.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, for the default cross-entropy.
        weight: (K,) class weights, or None, for the default cross-entropy.
        ignore_index: Rows with this label are ignored, for the default cross-entropy.
    """

    has_row_terms = True
    lowest_strength: ClassVar[float] = 0.0

    def __init__(self, strength: float, *, base: Loss | None = None, **options: Unpack[LossOptions]) -> None:
        own = CrossEntropyLoss(**options)
        if base is None:
            base = own
        elif not _same_options(own, base):
            raise InputError(
                "reduction, weight and ignore_index on the base", "others next to it", "give them to the base"
            )
        # the base's options hold for the sum, so that both terms are reduced over the same rows
        super().__init__(reduction=base.reduction, weight=base.weight, ignore_index=base.ignore_index)
        self.strength = check_number(strength, name="strength", low=self.lowest_strength)
        self.base = base
        if self.reduction == "none" and not self.has_row_terms:
            raise InputError(
                f"reduction='mean' or 'sum' for {type(self).__name__}",
                "'none'",
                "a penalty on the whole batch has no term per sample",
            )

    def of_base(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the base's loss of the flattened ``logits`` (N, K): a scalar, or the batch's shape for reduction "none"."""
        value: Tensor = self.base(logits, batch.given)
        return value.reshape(batch.shape) if self.reduction == "none" else value


class RowPenalty(Penalty):
    """A base loss plus a penalty that is a mean over samples; subclasses return the term of each sample.

    Args:
        strength: λ ≥ 0.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights, or None; the penalty is not weighted.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> class LogitVariance(RowPenalty):
        ...     def penalty(self, logits, labels):
        ...         return logits, logits.var(dim=1)
        >>> import torch
        >>> LogitVariance(0.1)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.3269)
    """

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` (N, K) for the base, and the penalty terms (N,).

        Most penalties return the logits unchanged. One with a hand-written gradient returns a view of them: its backward
        pass then receives the base's gradient and adds its own in place, which saves a second (N, K) matrix.
        """

    def terms(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what ``reduction="none"`` returns for ``logits`` (N, K) and integer ``labels`` (N,), if the base has row terms."""
        batch = self.batch(logits, labels)
        passed, terms = self.penalty(batch.logits, batch.labels)
        base = self.base
        if not isinstance(base, RowLoss | RowPenalty):
            raise refuse("a base with a term for each sample", type(base).__name__, "choose one such as FocalLoss")
        return base.terms(passed, labels) + self.strength * batch.mask(terms)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``. The mean of the penalty divides by the same sum of class weights."""
        batch = self.batch(logits, labels)
        passed, terms = self.penalty(batch.logits, batch.labels)
        value = self.of_base(passed, batch)
        # the divisor Σ w_y is the base's own, so that λ means the same with and without class weights
        penalty = reduce_rows(batch.mask(terms), batch.weights, self.reduction, batch.shape)
        return value + self.strength * penalty


class BatchPenalty(Penalty):
    """A base loss plus a penalty on the whole batch that is not a sum over samples; subclasses return it.

    With ``reduction="sum"`` the penalty is multiplied by the number of samples, as the papers' code does.

    Args:
        strength: λ ≥ 0.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights of the base, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> class MeanConfidence(BatchPenalty):
        ...     def penalty(self, logits, labels, kept):
        ...         top = logits.softmax(dim=1).amax(dim=1)
        ...         return logits, (top * kept).sum() / kept.sum()
        >>> import torch
        >>> MeanConfidence(1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(1.0077)
    """

    has_row_terms = False

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` (N, K) for the base, and the penalty (); rows where ``kept`` (N,) is 0 do not count."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        batch = self.batch(logits, labels)
        kept = batch.kept.to(batch.weights.dtype)
        passed, penalty = self.penalty(batch.logits, batch.labels, kept)
        # a sum grows with the batch, the penalty does not: times N it keeps its share of the loss
        scale = self.strength * (kept.sum() if self.reduction == "sum" else 1.0)
        return self.of_base(passed, batch) + scale * penalty.to(batch.weights.dtype)


def _same_options(own: Loss, base: Loss) -> bool:
    """Return whether each option is its default or that of ``base``, as it is in a loss rebuilt from its configuration."""
    one, other = own.weight, base.weight
    same = one is None or one is other or (other is not None and torch.equal(one.to(other), other))
    return same and own.reduction in ("mean", base.reduction) and own.ignore_index in (-100, base.ignore_index)


class EntropyRegularizedLoss(RowPenalty):
    """base − α H(p), H = −Σ_k p_k log p_k, averaged over samples.

    Args:
        strength: α ≥ 0.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights, or None; the entropy is not weighted.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> EntropyRegularizedLoss(0.1)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.0904)

    References:
        Pereyra et al. 2017, Regularizing Neural Networks by Penalizing Confident Output Distributions, Eq. 2.
    """

    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and −H(p) (N,)."""
        passed, entropy = Entropy().with_logits(logits, labels)
        return passed, -entropy


class LpNormLoss(RowPenalty):
    """base + λ ‖z‖_p, averaged over samples.

    The norm is that of the raw logits: adding a constant to a row changes the loss, but not the probabilities.

    Args:
        strength: λ; Wang et al. choose .05 on CIFAR-10 and .01 elsewhere; with many classes, training fails for λ ≥ .05.
            A negative λ rewards large logits (tried and rejected in their §5.2) and issues a ``UsageWarning``.
        p: Order of the norm, ≥ 1.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights, or None; the penalty is not weighted.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> LpNormLoss(0.1)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.3269)

    References:
        Wang et al. 2021 §3; Joo, Chung 2020, Revisiting Explicit Regularization in Neural Networks for
        Well-Calibrated Predictive Uncertainty.
    """

    lowest_strength = -math.inf

    def __init__(self, strength: float, p: float = 1.0, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(strength, **options)
        self.p = check_number(p, name="p", low=1)
        if self.strength < 0:
            warn_user(
                f"expected strength ≥ 0, got {self.strength:g}: the loss rewards large logits and is unbounded below, so "
                "training may diverge; choose 0 or more",
                UsageWarning,
            )

    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and ‖z‖_p (N,)."""
        return Norm(self.p).with_logits(logits, labels)


class ACLSLoss(RowPenalty):
    """base + λ (λ₁ max(0, z_top − m)² + λ₂ mean_k max(0, z_top − z_k − m)²), the mean over the K − 1 other classes.

    This follows the authors' code: z_top is a constant in the gradient of the second term, and the first term depends on
    the absolute size of z_top, so adding a constant to all logits of a row changes the loss.

    Args:
        strength: λ ≥ 0.
        margin: m ≥ 0.
        top: λ₁ ≥ 0.
        others: λ₂ ≥ 0.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights, or None; the penalty is not weighted.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> ACLSLoss(0.1, margin=1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.2369)

    References:
        Park, Noh, Ham 2023, ACLS: Adaptive and Conditional Label Smoothing for Network Calibration, Eq. 16.
    """

    def __init__(
        self,
        strength: float = 0.1,
        margin: float = 10.0,
        top: float = 1.0,
        others: float = 0.1,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(strength, **options)
        self.margin = check_number(margin, name="margin", low=0)
        self.top = check_number(top, name="top", low=0)
        self.others = check_number(others, name="others", low=0)

    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and λ₁ max(0, z_top − m)² + λ₂ mean_k max(0, z_top − z_k − m)² (N,)."""
        logits, excess = Margin(self.margin, power=2, attached=False).with_logits(logits, labels)
        logits, largest = Largest().with_logits(logits, labels)
        # Eq. 16 averages over the K − 1 other classes; the largest itself exceeds the margin by nothing
        others = excess * (self.others / (logits.shape[1] - 1))
        return logits, self.top * F.relu(largest - self.margin).square() + others


class MarginLabelSmoothingLoss(RowPenalty):
    """base + λ · mean_k max(0, max_j z_j − z_k − m), averaged over samples.

    Label smoothing penalises every difference of logits; this loss penalises only differences beyond the margin, so that
    the classes can stay separated.

    Args:
        strength: λ ≥ 0.
        margin: m ≥ 0, of the order of 6 to 10.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights, or None; the penalty is not weighted.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> MarginLabelSmoothingLoss(0.1, margin=1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1769)

    References:
        Liu et al. 2022, The Devil is in the Margin: Margin-based Label Smoothing for Network Calibration, Eq. 9.
    """

    def __init__(self, strength: float = 0.1, margin: float = 10.0, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(strength, **options)
        self.margin = check_number(margin, name="margin", low=0)

    def penalty(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and mean_k max(0, max_j z_j − z_k − m) (N,)."""
        passed, excess = Margin(self.margin, power=1, attached=True).with_logits(logits, labels)
        return passed, excess / logits.shape[1]
