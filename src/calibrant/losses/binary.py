"""Multi-label losses: (N, L) logits of sigmoids, with one term per label; the base class and three losses."""

from abc import ABC, abstractmethod
from typing import TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant._core.check import check_choice, check_number, refuse
from calibrant._core.config import shown
from calibrant.losses._blocks import promoted
from calibrant.losses.cross_entropy import Spread, uniform_part
from calibrant.losses.loss import Reduction, can_be_read, check_loss_weights, reduce_rows
from calibrant.scores import power_of_rest, weighted_nll

MISSING = -1


class BinaryOptions(TypedDict, total=False):
    """The options that all multi-label losses have."""

    pos_weight: Tensor | float | None
    reduction: Reduction


class BinaryLoss(nn.Module, ABC):
    """Base class of multi-label losses, called on (N, L) logits and labels; subclasses return the loss of one outcome.

    The term of a label t in [0, 1] is pos_weight · t · ψ(p) + (1 − t) · ψ(1 − p), where p = σ(logit) and ψ(q) is the
    subclass's loss of an outcome that had probability q. Missing labels (-1) have the term 0 and no gradient. A batch whose
    labels are all missing has the loss 0 and the gradient 0, so that it leaves the model unchanged; single-label losses are
    NaN there, as in torch.

    Args:
        pos_weight: (L,) or () weight of each label's positive term, finite and ≥ 0, as in ``torch.nn.BCEWithLogitsLoss``:
            it does not enter the denominator of the mean. None is 1.
        reduction: ``"mean"`` over the known labels, ``"sum"`` or ``"none"``.

    Examples:
        >>> class SquaredMiss(BinaryLoss):
        ...     def outcome_loss(self, log_p, log_not_p):
        ...         return log_not_p.exp() ** 2
        >>> SquaredMiss()(torch.zeros(2, 3), torch.tensor([[1, 0, -1], [0, 0, 1]]))
        tensor(0.2500)
    """

    pos_weight: Tensor | None

    def __init__(self, *, pos_weight: Tensor | float | None = None, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction: Reduction = check_choice(reduction, name="reduction", choices=get_args(Reduction))
        if pos_weight is not None:
            pos_weight = check_loss_weights(pos_weight, name="pos_weight", dims=(0, 1))
        self.register_buffer("pos_weight", pos_weight)

    def extra_repr(self) -> str:
        """Show the arguments that are not the defaults."""
        return shown(self, defaults=False)

    @property
    def outcome_weights(self) -> tuple[float, float]:
        """The weights of the terms of labels 1, besides ``pos_weight``, and of labels 0."""
        return 1.0, 1.0

    @abstractmethod
    def outcome_loss(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return ψ(p), elementwise, from log p and log(1 − p) of the outcome that occurred."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss.

        Args:
            logits: (N, L), or any shape whose last axis is that of the labels, floating.
            labels: Of the same shape: 1 or 0 as integers or bool, or floating targets in [0, 1]; -1 where missing.

        Returns:
            A scalar (0 if all labels are missing), or with ``reduction="none"`` a tensor of the labels' shape.

        Raises:
            InputError: If shapes do not fit, or, run eagerly on the CPU, a label has another value.
        """
        if labels.shape != logits.shape:
            one_class = labels.shape == logits.shape[:-1] and not labels.is_floating_point()
            remedy = "use FocalLoss or the like for one class per row" if one_class else "pass one label per logit"
            raise refuse(f"labels of the logits' shape {tuple(logits.shape)}", f"shape {tuple(labels.shape)}", remedy)
        if can_be_read(labels) and len(wrong := labels[~((labels == MISSING) | ((labels >= 0) & (labels <= 1)))]):
            expected = "labels 1 and 0, or targets in [0, 1], and -1 where missing"
            raise refuse(expected, f"{wrong[0].item():g}", "code missing labels as -1")
        known = labels >= 0
        # anything may stand at a missing label; 0 keeps the gradient of the term that is masked below finite
        z = torch.where(known, promoted(logits), 0)
        positive, negative = self.outcome_weights
        weight = z.new_tensor(positive) if self.pos_weight is None else positive * self.pos_weight.to(z.dtype)
        if weight.dim() and len(weight) != z.shape[-1]:
            got = f"shape {tuple(weight.shape)}"
            raise refuse(f"pos_weight of shape ({z.shape[-1]},) or ()", got, "pass one weight per label")
        if labels.is_floating_point():
            t = labels.to(z.dtype)
            # a term whose factor is 0 is replaced by 0, since ψ may be infinite
            one, zero = t > 0, t < 1
            hit = torch.where(one, t * self._outcome(torch.where(one, z, 0)), 0)
            terms = weight * hit + negative * torch.where(zero, (1 - t) * self._outcome(torch.where(zero, -z, 0)), 0)
        else:
            hit = labels > 0
            # 1 − σ(z) = σ(−z): of either outcome the probability is σ of the signed logit, without a difference
            terms = torch.where(hit, weight, negative) * self._outcome(torch.where(hit, z, -z))
        # of a batch without a known label the sum is 0, and so is the mean
        count = known.sum().clamp(min=1).to(z.dtype)
        return reduce_rows(torch.where(known, terms, 0), count, self.reduction, labels.shape)

    def _outcome(self, signed: Tensor) -> Tensor:
        """Return ψ of outcomes with the log-odds ``signed``."""
        return self.outcome_loss(F.logsigmoid(signed), F.logsigmoid(-signed))


class BinaryCrossEntropyLoss(BinaryLoss):
    """Binary cross-entropy of each label: ``torch.nn.BCEWithLogitsLoss`` with support for missing labels (-1).

    Args:
        pos_weight: (L,) or () weight of the positive terms, or None.
        reduction: ``"mean"`` over the known labels, ``"sum"`` or ``"none"``.

    Examples:
        >>> import torch
        >>> BinaryCrossEntropyLoss()(torch.tensor([[2.0, -1.0]]), torch.tensor([[1, -1]]))
        tensor(0.1269)
    """

    def outcome_loss(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return −log p."""
        return -log_p


class BinaryFocalLoss(BinaryLoss):
    """(1 − p)^γ · (−log p) of the probability p of each label's outcome; per label equal to ``FocalLoss`` of two classes.

    Lin et al. (2017) trained object detectors with it, where nearly all labels are negative.

    Args:
        gamma: γ ≥ 0; 0 is binary cross-entropy.
        alpha: α in [0, 1] of Lin et al.: positive terms have the weight α (times ``pos_weight``), all others 1 − α. None gives
            both the weight 1.
        detach_weight: Treat (1 − p)^γ as a constant in the gradient.
        pos_weight: (L,) or () weight of the positive terms, or None.
        reduction: ``"mean"`` over the known labels, ``"sum"`` or ``"none"``.

    Examples:
        >>> import torch
        >>> BinaryFocalLoss(2.0)(torch.tensor([[2.0, -1.0]]), torch.tensor([[1, 1]]))
        tensor(0.3518)

    References:
        Lin et al. 2017, Focal Loss for Dense Object Detection, Eq. 4 and 5.
    """

    def __init__(
        self,
        gamma: float,
        *,
        alpha: float | None = None,
        detach_weight: bool = False,
        **options: Unpack[BinaryOptions],
    ) -> None:
        super().__init__(**options)
        self.gamma = check_number(gamma, name="gamma", low=0)
        self.alpha = None if alpha is None else check_number(alpha, name="alpha", low=0, high=1)
        self.detach_weight = detach_weight

    @property
    def outcome_weights(self) -> tuple[float, float]:
        """α and 1 − α."""
        return (1.0, 1.0) if self.alpha is None else (self.alpha, 1 - self.alpha)

    def outcome_loss(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ · (−log p)."""
        return weighted_nll(self._focal_weight, log_p, log_not_p, detach_weight=self.detach_weight)

    def _focal_weight(self, _: Tensor, log_not_p: Tensor) -> Tensor:
        return power_of_rest(log_not_p, self.gamma)


class BinaryLabelSmoothingLoss(BinaryLoss):
    """Binary cross-entropy against smoothed targets; per label equal to ``LabelSmoothingLoss`` of two classes.

    Args:
        smoothing: α in [0, 1).
        spread: ``"all"`` gives the targets (1 − α) t + α/2; ``"others"`` gives 1 − α for a label of 1 and α for a label of 0.
        pos_weight: (L,) or () weight of the positive labels' terms, or None.
        reduction: ``"mean"`` over the known labels, ``"sum"`` or ``"none"``.

    Examples:
        >>> import torch
        >>> BinaryLabelSmoothingLoss(0.1, spread="others")(torch.tensor([[2.0]]), torch.tensor([[1]]))
        tensor(0.3269)

    References:
        Müller et al. 2019, When Does Label Smoothing Help?
    """

    def __init__(self, smoothing: float, spread: Spread = "all", **options: Unpack[BinaryOptions]) -> None:
        super().__init__(**options)
        self.smoothing = check_number(smoothing, name="smoothing", low=0, high=1, open_high=True)
        self.spread = check_choice(spread, name="spread", choices=get_args(Spread))

    def outcome_loss(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return −(1 − u/2) log p − u/2 · log(1 − p), u being the weight of the uniform distribution."""
        # two classes: t = (1 − u) e_y + u/2, so that the other outcome has the weight u/2
        half = uniform_part(self.smoothing, self.spread, 2) / 2
        return -log_p if half == 0 else -(1 - half) * log_p - half * log_not_p
