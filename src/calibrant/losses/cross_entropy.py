"""Losses whose target is a distribution over classes: cross-entropy, label smoothing and the Brier score."""

from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from calibrant._core.check import check_choice, check_number
from calibrant._core.warn import warn_user
from calibrant.errors import UsageWarning
from calibrant.losses._blocks import promoted, row_nll, smoothed_nll, soft_pair, squared_distance
from calibrant.losses.loss import LossOptions, RowLoss

Spread = Literal["all", "others"]


class CrossEntropyLoss(RowLoss):
    """The cross-entropy −log p_y, like ``torch.nn.CrossEntropyLoss`` but with the interface of ``calibrant.losses``.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> CrossEntropyLoss()(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.1269)
    """

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −log p_y (N,)."""
        return row_nll(logits, labels)

    def of_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k q_k log p_k (N,)."""
        # this is KL(q‖p) + H(q), which is minimal at p = q and has the gradient p − q with respect to the logits
        q, log_p = soft_pair(logits, targets)
        return -(q * log_p).sum(dim=1)


class LabelSmoothingLoss(RowLoss):
    """Cross-entropy against a smoothed target, which is minimal where the prediction equals this target.

    Args:
        smoothing: α in (−1, 1). A negative α makes the target sharper than the label (tried and rejected by Wang et al.
            2021 §5.2), and a ``UsageWarning`` is issued.
        spread: ``"all"`` gives the target (1 − α) e_y + α/K, as in torch (Wang et al. 2021 Eq. 1). ``"others"`` gives 1 − α
            for the true class and α/(K − 1) for each other class (Müller et al. 2019 as in Mukhoti et al. 2020).
            ``"others"`` with α equals ``"all"`` with αK/(K − 1).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,) that apply to the true class, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> LabelSmoothingLoss(0.1, spread="others")(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor(0.3269)
    """

    def __init__(self, smoothing: float, spread: Spread = "all", **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.smoothing = check_number(smoothing, name="smoothing", low=-1, high=1, open_low=True, open_high=True)
        if self.smoothing < 0:
            warn_user(
                f"expected smoothing ≥ 0, got {self.smoothing:g}: the loss is unbounded below, so training may diverge; "
                "choose 0 or more",
                UsageWarning,
            )
        self.spread = check_choice(spread, name="spread", choices=get_args(Spread))

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −Σ_k t_k log p_k (N,) for the smoothed target t."""
        return smoothed_nll(logits, labels, uniform_part(self.smoothing, self.spread, logits.shape[1]))

    def of_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k t_k log p_k (N,) for t = (1 − u) q + u/K."""
        uniform = uniform_part(self.smoothing, self.spread, logits.shape[1])
        # smoothing is linear in the target, so it acts on q in the same way as on e_y
        q, log_p = soft_pair(logits, targets.to(promoted(logits).dtype) * (1 - uniform) + uniform / logits.shape[1])
        return -(q * log_p).sum(dim=1)


def uniform_part(smoothing: float, spread: str, classes: int) -> float:
    """Return the weight u of the uniform distribution in the smoothed target: α, or αK/(K − 1) if spread over the others."""
    # each other class has α/(K − 1) = u/K, so u = αK/(K − 1)
    return smoothing if spread == "all" else smoothing * classes / (classes - 1)


class BrierLoss(RowLoss):
    """The Brier score Σ_k (p_k − [k = y])² in [0, 2], which is K times ``torch.nn.MSELoss`` of the probabilities.

    The Brier score is a proper loss. Its gradient is bounded and vanishes for confidently misclassified samples, so training
    needs a larger learning rate than with cross-entropy.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> BrierLoss()(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1400)

    References:
        Brier 1950, Verification of Forecasts Expressed in Terms of Probability. Mukhoti et al. 2020 §4.
    """

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return Σ_k (p_k − [k = y])² (N,)."""
        return squared_distance(logits, labels)

    def of_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return Σ_k (p_k − q_k)² (N,), which differs from the expected Brier score over labels by a constant."""
        p = torch.softmax(promoted(logits), dim=1)
        return (p - targets.to(p.dtype)).square().sum(dim=1)
