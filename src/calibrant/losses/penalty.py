"""Losses that add a penalty to another loss: the base classes, and the penalties of single rows.

To write your own, subclass ``RowPenalty``, or ``BatchPenalty`` if the penalty depends on the whole batch at once:

    class LogitVariance(RowPenalty):
        def penalty(self, logits, labels):
            return logits.var(dim=1)
"""

import math
from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_number, refuse
from calibrant._core.warn import warn_user
from calibrant.errors import InputError, UsageWarning
from calibrant.losses._blocks import by_rows, entropy, positive_power
from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.loss import Loss, LossOptions, RowLoss, reduce_rows


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

    has_row_terms: ClassVar[bool] = True
    least_strength: ClassVar[float] = 0.0

    def __init__(self, strength: float, *, base: Loss | None = None, **options: Unpack[LossOptions]) -> None:
        if base is None:
            base = CrossEntropyLoss(**options)
        elif not _same_options(options, base):
            raise InputError(
                "reduction, weight and ignore_index on the base", "others next to it", "give them to the base"
            )
        # the base's options hold for the sum, so that both terms are reduced over the same rows
        super().__init__(reduction=base.reduction, weight=base.weight, ignore_index=base.ignore_index)
        self.strength = check_number(strength, name="strength", low=self.least_strength)
        self.base = base
        if self.reduction == "none" and not self.has_row_terms:
            raise InputError(
                f"reduction='mean' or 'sum' for {type(self).__name__}",
                "'none'",
                "a penalty on the whole batch has no term per sample",
            )


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
        ...         return logits.var(dim=1)
        >>> import torch
        >>> LogitVariance(0.1)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.3269)
    """

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty terms (N,) of ``logits`` (N, K) and ``labels`` (N,) in [0, K)."""

    def terms(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what ``reduction="none"`` returns for ``logits`` (N, K) and integer ``labels`` (N,), if the base has row terms."""
        base = self.base
        if not isinstance(base, RowLoss | RowPenalty):
            raise refuse("a base with a term for each sample", type(base).__name__, "choose one such as FocalLoss")
        batch = self.batch(logits, labels)
        return base.terms(logits, labels) + self.strength * batch.mask(self.penalty(batch.logits, batch.labels))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``. The mean of the penalty divides by the same sum of class weights."""
        batch = self.batch(logits, labels)
        terms = batch.mask(self.penalty(batch.logits, batch.labels))
        # the divisor Σ w_y is the base's own, so that λ means the same with and without class weights
        penalty = reduce_rows(terms, batch.weights, self.reduction, batch.shape)
        value: Tensor = self.base(logits, labels)
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
        ...         return (top * kept).sum() / kept.sum()
        >>> import torch
        >>> MeanConfidence(1.0)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(1.0077)
    """

    has_row_terms = False

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> Tensor:
        """Return the penalty () of ``logits`` (N, K) and ``labels`` (N,); rows where ``kept`` (N,) is 0 do not count."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss: see ``Loss.forward``."""
        batch = self.batch(logits, labels)
        kept = batch.kept.to(batch.weights.dtype)
        penalty = self.penalty(batch.logits, batch.labels, kept).to(batch.weights.dtype)
        # a sum grows with the batch, the penalty does not: times N it keeps its share of the loss
        scale = self.strength * (kept.sum() if self.reduction == "sum" else 1.0)
        value: Tensor = self.base(logits, labels)
        return value + scale * penalty


def _same_options(options: LossOptions, base: Loss) -> bool:
    """Return whether each option is its default or that of ``base``, as it is in a loss rebuilt from its configuration."""
    weight, other = options.get("weight"), base.weight
    if weight is not None and other is not None:
        weight = torch.as_tensor(weight).to(other)
    same = weight is None or (other is not None and torch.equal(weight, other))
    reductions, ignored = ("mean", base.reduction), (-100, base.ignore_index)
    return same and options.get("reduction", "mean") in reductions and options.get("ignore_index", -100) in ignored


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

    def penalty(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −H(p) (N,)."""
        return -entropy(logits)


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

    least_strength = -math.inf

    def __init__(self, strength: float, p: float = 1.0, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(strength, **options)
        self.p = check_number(p, name="p", low=1)
        if self.strength < 0:
            warn_user(
                f"expected strength ≥ 0, got {self.strength:g}: the loss rewards large logits and is unbounded below, so "
                "training may diverge; choose 0 or more",
                UsageWarning,
            )

    def penalty(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return ‖z‖_p (N,); a class excluded by −inf adds 0."""
        return by_rows(partial(_norm_of_rows, p=self.p), logits, labels)


def _norm_of_rows(logits: Tensor, _: Tensor, *, p: float) -> Tensor:
    size = _without_excluded(logits).abs()
    if p == 1:
        return size.sum(dim=1)
    norm: Tensor = _norm(size, p) if torch.compiler.is_compiling() else _Norm.apply(size, p)
    return norm


def _norm(size: Tensor, p: float) -> Tensor:
    """Return (Σ_k s_k^p)^(1/p) (N,) of s ≥ 0 (N, K), with gradient 0 at 0."""
    # relative to the largest, so that neither large numbers nor small ones leave the range of the dtype
    top = size.detach().amax(dim=1).clamp_min(torch.finfo(size.dtype).tiny)
    total = positive_power(size / top[:, None], p).sum(dim=1)
    return positive_power(total, 1 / p) * top


class _Norm(torch.autograd.Function):
    """``_norm`` for p > 1, with its slope (s_k/‖s‖)^(p − 1) written out: by the chain rule it overflows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(size: Tensor, p: float) -> Tensor:
        top = size.amax(dim=1).clamp_min(torch.finfo(size.dtype).tiny)
        return (size / top[:, None]).pow_(p).sum(dim=1).pow_(1 / p) * top

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.p = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (size,) = ctx.saved_tensors
        norm = _Norm.apply(size, ctx.p)[:, None].clamp_min(torch.finfo(size.dtype).tiny)
        return grad[:, None] * positive_power(size / norm, ctx.p - 1), None


def _without_excluded(values: Tensor) -> Tensor:
    """Return ``values`` with 0 where a class is excluded (its logit is −inf, its excess +inf); NaN stays."""
    return torch.nan_to_num(values, nan=torch.nan, posinf=0.0, neginf=0.0)


def _excess(logits: Tensor, _: Tensor, *, margin: float, attached: bool) -> Tensor:
    """Return Σ_k max(0, max_j z_j − z_k − m) (N,), or of its squares with the largest logit as a constant if not ``attached``."""
    top = logits.amax(dim=1, keepdim=True)
    excess = F.relu(_without_excluded((top if attached else top.detach()) - logits - margin))
    return (excess if attached else excess.square()).sum(dim=1)


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

    def penalty(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return λ₁ max(0, z_top − m)² + λ₂ mean_k max(0, z_top − z_k − m)² (N,)."""
        # Eq. 16 averages over the K − 1 other classes; the largest itself exceeds the margin by nothing
        factors = self.top, self.others / (logits.shape[1] - 1)
        return by_rows(partial(_acls, margin=self.margin, factors=factors), logits, labels)


def _acls(logits: Tensor, labels: Tensor, *, margin: float, factors: tuple[float, float]) -> Tensor:
    top, others = factors
    largest = F.relu(logits.amax(dim=1) - margin).square()
    return top * largest + others * _excess(logits, labels, margin=margin, attached=False)


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

    def penalty(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return mean_k max(0, max_j z_j − z_k − m) (N,)."""
        return by_rows(partial(_excess, margin=self.margin, attached=True), logits, labels) / logits.shape[1]
