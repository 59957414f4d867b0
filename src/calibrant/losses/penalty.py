"""Losses that add a penalty to another loss: the base classes, and the penalties that are means over rows.

To write your own, subclass ``RowPenalty``, or ``BatchPenalty`` if the penalty depends on the whole batch at once:

    class LogitVariance(RowPenalty):
        def penalty(self, logits, labels):
            return logits.var(dim=1)
"""

import math
from abc import abstractmethod
from typing import ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.check import check_number
from calibrant._core.warn import warn_user
from calibrant.errors import InputError, UsageWarning
from calibrant.losses._blocks import by_rows, entropy
from calibrant.losses.cross_entropy import CrossEntropyLoss
from calibrant.losses.loss import LabelBatch, Loss, LossOptions, Reduction, options_of, reduce_rows, same_options


class PenaltyOptions(LossOptions, total=False):
    """The options that all penalties have in addition to their strength."""

    base: Loss | None


class Penalty(Loss):
    """A base loss plus ``strength`` times a penalty. Class weights apply only to the base.

    Subclass ``RowPenalty`` (a mean over rows) or ``BatchPenalty`` (one number per batch) instead of this class.

    Args:
        strength: The factor λ ≥ 0 of the penalty; a subclass may also allow λ < 0.
        base: The loss to which the penalty is added; None is cross-entropy. Its reduction, class weights and ignored label
            apply, so leave out the next three arguments if you pass a base.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, for the default cross-entropy.
        weight: Class weights (K,), or None, for the default cross-entropy.
        ignore_index: Rows with this label are ignored, for the default cross-entropy.

    Examples:
        >>> from calibrant.losses import EntropyRegularizedLoss
        >>> isinstance(EntropyRegularizedLoss(0.1), Penalty)
        True
    """

    least_strength: ClassVar[float] = 0.0

    def __init__(self, strength: float, *, base: Loss | None = None, **options: Unpack[LossOptions]) -> None:
        if base is not None and not same_options(options, base):
            given = "reduction, weight and ignore_index"
            raise InputError(f"{given} on the base", "others in addition to a base", "pass them to the base")
        base = CrossEntropyLoss(**options) if base is None else base
        # the options of the base apply to the sum, so that both terms are reduced over the same rows
        super().__init__(**options_of(base))
        self.strength = check_number(strength, name="strength", low=self.least_strength)
        self.base = base
        self.has_row_terms = base.has_row_terms


class RowPenalty(Penalty):
    """A base loss plus a penalty that is a mean over samples. Subclasses return the penalty term for each sample.

    Args:
        strength: The factor λ ≥ 0 of the penalty.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; if you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,), or None; the penalty is not weighted.
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
        """Return the penalty terms (N,) for ``logits`` (N, K) and ``labels`` (N,) in [0, K)."""

    def reduced(self, batch: LabelBatch, reduction: Reduction) -> Tensor:
        """Return the base loss plus the reduced penalty; both means are divided by the same sum of class weights."""
        terms = torch.where(batch.kept, self.penalty(batch.logits, batch.labels), 0)
        # the divisor Σ w_y is that of the base loss, so that λ has the same meaning with and without class weights
        penalty = reduce_rows(terms, batch.weights, reduction, batch.shape)
        return self.base.reduced(batch, reduction) + self.strength * penalty


class BatchPenalty(Penalty):
    """A base loss plus a penalty on the whole batch that is not a sum over samples. Subclasses return the penalty.

    With ``reduction="sum"``, the penalty is multiplied by the number of samples, as in the papers' code.

    Args:
        strength: The factor λ ≥ 0 of the penalty.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``. If you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,) for the base, or None.
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

    def __init__(self, strength: float, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(strength, **options)
        self.has_row_terms = False
        if self.reduction == "none":
            remedy = "a penalty on the whole batch has no term per sample"
            raise InputError(f"reduction='mean' or 'sum' for {type(self).__name__}", "'none'", remedy)

    @abstractmethod
    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> Tensor:
        """Return the penalty () for ``logits`` (N, K) and ``labels`` (N,); rows where ``kept`` (N,) is 0 do not count."""

    def reduced(self, batch: LabelBatch, reduction: Reduction) -> Tensor:
        """Return the base loss plus the penalty."""
        value = self.base.reduced(batch, reduction)
        kept = batch.kept.to(value.dtype)
        penalty = self.penalty(batch.logits, batch.labels, kept).to(value.dtype)
        # a sum grows with the batch, but the penalty does not, so it is multiplied by N to keep its share of the loss
        return value + self.strength * (kept.sum() if reduction == "sum" else 1.0) * penalty


class EntropyRegularizedLoss(RowPenalty):
    """base − α H(p) with the entropy H = −Σ_k p_k log p_k, averaged over samples.

    Args:
        strength: The factor α ≥ 0 of the entropy.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; if you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,), or None; the entropy is not weighted.
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

    The norm is computed from the raw logits, so adding a constant to a row changes the loss but not the probabilities.

    Args:
        strength: The factor λ of the norm. Wang et al. choose .05 on CIFAR-10 and .01 elsewhere; with many classes, training
            fails for λ ≥ .05. A negative λ rewards large logits (tried and rejected in their §5.2), and a ``UsageWarning``
            is issued.
        p: Order of the norm, ≥ 1.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; if you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,), or None; the penalty is not weighted.
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
        """Return ‖z‖_p (N,), to which a class that is excluded by −inf adds 0."""
        return by_rows(self._norm, logits, labels, slope=self._write_slope)

    def _norm(self, logits: Tensor, _: Tensor) -> Tensor:
        z = _without_excluded(logits)
        # for p = 1 torch's norm takes six times as long
        return z.abs().sum(dim=1) if self.p == 1 else torch.linalg.vector_norm(z, self.p, dim=1)

    def _write_slope(self, logits: Tensor, labels: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write sign(z_k) (|z_k| / ‖z‖)^(p − 1)."""
        z = _without_excluded(logits)
        torch.sign(z, out=out).mul_(scale)
        if self.p > 1:
            norm = self._norm(logits, labels)[:, None].clamp_min(torch.finfo(z.dtype).tiny)
            out.mul_(z.abs_().div_(norm).pow_(self.p - 1))


def _without_excluded(values: Tensor) -> Tensor:
    """Return ``values`` with 0 for excluded classes (whose logit is −inf, and whose excess is +inf); NaN stays NaN."""
    return torch.nan_to_num(values, nan=torch.nan, posinf=0.0, neginf=0.0)


def _excess(logits: Tensor, top: Tensor, margin: float) -> Tensor:
    """Return max(0, z_top − z_k − m) (n, K); 0 for an excluded class."""
    return F.relu(_without_excluded(top - margin - logits))


def _add_at_largest(out: Tensor, logits: Tensor, top: Tensor, slope: Tensor) -> None:
    """Add ``slope`` (n, 1) to ``out`` (n, K) at the largest logit; if several are equal, they share it."""
    largest = torch.sub(logits, top).sign_().add_(1)  # 1 where the logit is the largest, else 0
    out.addcmul_(largest, slope / largest.sum(dim=1, keepdim=True))


class ACLSLoss(RowPenalty):
    """base + λ (λ₁ max(0, z_top − m)² + λ₂ mean_k max(0, z_top − z_k − m)²), with the mean over the K − 1 other classes.

    This implementation follows the authors' code: z_top is a constant in the gradient of the second term, and the first term
    depends on the absolute size of z_top, so adding a constant to all logits of a row changes the loss.

    Args:
        strength: The factor λ ≥ 0 of the penalty.
        margin: The margin m ≥ 0.
        top: The factor λ₁ ≥ 0 of the first term.
        others: The factor λ₂ ≥ 0 of the second term.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; if you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,), or None; the penalty is not weighted.
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
        self.top, self.others = top, others

    def penalty(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return λ₁ max(0, z_top − m)² + λ₂ mean_k max(0, z_top − z_k − m)² (N,)."""
        return by_rows(self._squares, logits, labels, slope=self._write_slope)

    def _squares(self, logits: Tensor, _: Tensor) -> Tensor:
        top = logits.amax(dim=1, keepdim=True)
        squares = _excess(logits, top.detach(), self.margin).square().sum(dim=1)
        # Eq. 16 averages over the K − 1 other classes; the excess of the largest logit itself is 0
        mean = squares / (logits.shape[1] - 1)
        return self.top * F.relu(top - self.margin)[:, 0].square() + self.others * mean

    def _write_slope(self, logits: Tensor, _: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write −2 λ₂ excess / (K − 1), and add 2 λ₁ max(0, z_top − m) at the largest logit."""
        top = logits.amax(dim=1, keepdim=True)
        torch.mul(_excess(logits, top, self.margin), -2 * self.others / (logits.shape[1] - 1) * scale, out=out)
        _add_at_largest(out, logits, top, 2 * self.top * scale * F.relu(top - self.margin))


class MarginLabelSmoothingLoss(RowPenalty):
    """base + λ · mean_k max(0, max_j z_j − z_k − m), averaged over samples.

    Label smoothing penalises every difference between logits. This loss penalises only differences that exceed the margin, so
    that the classes can stay separated.

    Args:
        strength: The factor λ ≥ 0 of the penalty.
        margin: The margin m ≥ 0, typically 6 to 10.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; if you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,), or None; the penalty is not weighted.
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
        return by_rows(self._mean_excess, logits, labels, slope=self._write_slope)

    def _mean_excess(self, logits: Tensor, _: Tensor) -> Tensor:
        return _excess(logits, logits.amax(dim=1, keepdim=True), self.margin).sum(dim=1) / logits.shape[1]

    def _write_slope(self, logits: Tensor, _: Tensor, scale: Tensor, out: Tensor) -> None:
        """Write −1/K at each class beyond the margin, and minus the sum of these at the largest logit."""
        top, share = logits.amax(dim=1, keepdim=True), scale / logits.shape[1]
        beyond = _excess(logits, top, self.margin).sign_()
        torch.mul(beyond, -share, out=out)
        _add_at_largest(out, logits, top, share * beyond.sum(dim=1, keepdim=True))
