"""Multi-label losses for sigmoid logits (N, L), with one term per label: the base class and three losses."""

from abc import ABC, abstractmethod
from typing import TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant._core.check import check_choice, check_number, refuse
from calibrant._core.config import shown
from calibrant.losses._blocks import promoted
from calibrant.losses.cross_entropy import Spread, uniform_part
from calibrant.losses.loss import Reduction, can_be_read, check_loss_weights, check_tensors, reduce_rows
from calibrant.scores import power_of_rest, weighted_nll

MISSING = -1


class BinaryOptions(TypedDict, total=False):
    """The options that all multi-label losses have."""

    pos_weight: Tensor | float | None
    reduction: Reduction


class BinaryLoss(nn.Module, ABC):
    """Base class of multi-label losses, called on logits and labels (N, L). Subclasses return the loss of one outcome.

    The term for a label t in [0, 1] is pos_weight · t · ψ(p) + (1 − t) · ψ(1 − p), where p = σ(logit) and ψ(q) is the loss
    that the subclass assigns to an outcome with probability q. Missing labels (-1) contribute neither to the loss nor to the
    gradient. A batch whose labels are all missing has loss 0 and gradient 0 and so leaves the model unchanged, whereas
    single-label losses are then NaN, as in torch.

    Args:
        pos_weight: Weight (L,) or () of each label's positive term, finite and ≥ 0. As in ``torch.nn.BCEWithLogitsLoss``, it
            does not enter the denominator of the mean. None means 1.
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
        """Return, as text, the arguments that differ from their defaults."""
        return shown(self, defaults=False)

    @property
    def outcome_weights(self) -> tuple[float, float]:
        """The weights of the terms for labels 1 (in addition to ``pos_weight``) and for labels 0."""
        return 1.0, 1.0

    @abstractmethod
    def outcome_loss(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return ψ(p), elementwise, from log p and log(1 − p), where p is the probability of the outcome that occurred."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss.

        Args:
            logits: Floating logits (N, L), or of any shape whose last axis is the label axis.
            labels: Labels of the same shape: 1 or 0 as integers or bool, or floating targets in [0, 1]; -1 if missing.

        Returns:
            A scalar (0 if all labels are missing), or with ``reduction="none"``, a tensor with the shape of the labels.

        Raises:
            InputError: If these are not tensors, the logits are not floating, or the shapes do not match. In eager mode on the
                CPU, also if a label has any other value.
        """
        check_tensors(logits, labels)
        if labels.shape != logits.shape:
            one_class = labels.shape == logits.shape[:-1] and not labels.is_floating_point()
            remedy = "for one class per row, use a loss such as FocalLoss" if one_class else "pass one label per logit"
            raise refuse(f"labels with the logits' shape {tuple(logits.shape)}", f"shape {tuple(labels.shape)}", remedy)
        if can_be_read(labels) and len(wrong := labels[~((labels == MISSING) | ((labels >= 0) & (labels <= 1)))]):
            expected = "labels 1 and 0 or targets in [0, 1], with -1 for missing labels"
            raise refuse(expected, f"{wrong[0].item():g}", "code missing labels as -1")
        known = labels >= 0
        # the logit of a missing label can have any value; 0 keeps the gradient of the term finite, which is masked below
        z = torch.where(known, promoted(logits), 0)
        positive, negative = self.outcome_weights
        weight = z.new_tensor(positive) if self.pos_weight is None else positive * self.pos_weight.to(z.dtype)
        if weight.dim() and len(weight) != z.shape[-1]:
            got = f"shape {tuple(weight.shape)}"
            raise refuse(f"pos_weight of shape ({z.shape[-1]},) or ()", got, "pass one weight per label")
        if labels.is_floating_point():
            t = labels.to(z.dtype)
            # a term whose factor is 0 is replaced with 0, because ψ may be infinite
            one, zero = t > 0, t < 1
            hit = torch.where(one, t * self._outcome(torch.where(one, z, 0)), 0)
            terms = weight * hit + negative * torch.where(zero, (1 - t) * self._outcome(torch.where(zero, -z, 0)), 0)
        else:
            hit = labels > 0
            # 1 − σ(z) = σ(−z), so the probability of either outcome is σ of the signed logit, without a subtraction
            terms = torch.where(hit, weight, negative) * self._outcome(torch.where(hit, z, -z))
        # for a batch without a known label, both the sum and the mean are 0
        count = known.sum().clamp(min=1).to(z.dtype)
        return reduce_rows(torch.where(known, terms, 0), count, self.reduction, labels.shape)

    def _outcome(self, signed: Tensor) -> Tensor:
        """Return ψ for outcomes with the log-odds ``signed``."""
        return self.outcome_loss(F.logsigmoid(signed), F.logsigmoid(-signed))


class BinaryCrossEntropyLoss(BinaryLoss):
    """Binary cross-entropy for each label, like ``torch.nn.BCEWithLogitsLoss`` but with support for missing labels (-1).

    Args:
        pos_weight: Weight (L,) or () of the positive terms, or None.
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
    """Focal loss for each label, (1 − p)^γ · (−log p), where p is the probability of the label's outcome.

    For each label, it equals ``FocalLoss`` with two classes. Lin et al. (2017) trained object detectors with this loss, where
    nearly all labels are negative.

    Args:
        gamma: γ ≥ 0; 0 is binary cross-entropy.
        alpha: The α in [0, 1] of Lin et al.: positive terms have the weight α (times ``pos_weight``), and all others 1 − α.
            None gives both the weight 1.
        detach_weight: Treat (1 − p)^γ as a constant in the gradient.
        pos_weight: Weight (L,) or () of the positive terms, or None.
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
        """The weights α and 1 − α, or 1 and 1 without ``alpha``."""
        return (1.0, 1.0) if self.alpha is None else (self.alpha, 1 - self.alpha)

    def outcome_loss(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ · (−log p)."""
        return weighted_nll(self._focal_weight, log_p, log_not_p, detach_weight=self.detach_weight)

    def _focal_weight(self, _: Tensor, log_not_p: Tensor) -> Tensor:
        return power_of_rest(log_not_p, self.gamma)


class BinaryLabelSmoothingLoss(BinaryLoss):
    """Binary cross-entropy against smoothed targets. For each label, it equals ``LabelSmoothingLoss`` with two classes.

    Args:
        smoothing: α in [0, 1).
        spread: ``"all"`` gives the targets (1 − α) t + α/2; ``"others"`` gives 1 − α for a label of 1 and α for a label of 0.
        pos_weight: Weight (L,) or () of the terms for positive labels, or None.
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
        """Return −(1 − u/2) log p − u/2 · log(1 − p), where u is the weight of the uniform distribution."""
        # with two classes, t = (1 − u) e_y + u/2, so that the other outcome has the weight u/2
        half = uniform_part(self.smoothing, self.spread, 2) / 2
        return -log_p if half == 0 else -(1 - half) * log_p - half * log_not_p
