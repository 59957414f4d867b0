"""Focal losses (1 ∓ p_y)^γ · (−log p_y) with a fixed, scheduled or sample-dependent γ, finite with their gradients at every margin."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant._core.warn import warn_user
from calibrant.errors import UsageWarning
from calibrant.losses._blocks import soft_pair, squared_distance
from calibrant.losses.loss import LossOptions, RowLoss, WeightedNLL, stages, true_class_log_probs
from calibrant.scores import INVERSE_FOCAL_LIMIT, FocalScore, log1mexp, power_of_rest, weighted_nll


class FocalLoss(WeightedNLL):
    """Focal loss: cross-entropy with a smaller weight on samples whose true class already has a high probability.

    The minimiser of focal loss is less confident than the true probabilities (Mukhoti et al. 2020 §3). Networks trained with
    focal loss are therefore less over-confident than with cross-entropy, and some become under-confident; calibrate them after
    training as well.

    Args:
        gamma: γ ≥ 0; 0 is cross-entropy, and 3 is a good first choice for calibration.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient, as in the code of Wang et al. (2021). The value of the
            loss is the same, but its minimiser is not: with two classes, it is the true log-odds divided by T = γ + 1.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> FocalLoss(gamma=3.0)(torch.tensor([[1.0, 0.5, -0.5]]), torch.tensor([0]))
        tensor(0.0563)

    References:
        Lin et al. 2017, Focal Loss for Dense Object Detection, Eq. 4. Mukhoti et al. 2020, Calibrating Deep Neural
        Networks using Focal Loss, §3.
    """

    def __init__(self, gamma: float, detach_weight: bool = False, **options: Unpack[LossOptions]) -> None:
        super().__init__(detach_weight, **options)
        self.gamma = check_number(gamma, name="gamma", low=0)

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ."""
        return power_of_rest(log_not_p, self.gamma)

    def of_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k q_k (1 − p_k)^γ log p_k (N,) (Mukhoti et al. 2020, Appendix A)."""
        q, log_p = soft_pair(logits, targets)
        terms = weighted_nll(self.sample_weight, log_p, log1mexp(log_p), detach_weight=self.detach_weight)
        return (q * terms).sum(dim=1)


class InverseFocalLoss(WeightedNLL):
    """Inverse focal loss, whose minimiser is more confident than the true probabilities.

    Wang et al. (2021) report that regularisers which improve the calibration of the raw confidences make these less
    informative about how hard a sample is. This loss has the opposite effect, and gives a lower calibration error after
    temperature scaling.

    Args:
        gamma: γ ≥ 0; 0 is cross-entropy, and the paper plots 1, 2 and 3. Above 3.5911, the loss increases with p_y on an
            interval, where its gradient decreases p_y; a ``UsageWarning`` is then issued.
        detach_weight: Treat (1 + p_y)^γ as a constant in the gradient. Only then do samples with a high p_y have a larger
            gradient than under cross-entropy.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> InverseFocalLoss(gamma=1.0)(torch.tensor([[1.0, 0.5, -0.5]]), torch.tensor([0]))
        tensor(0.9343)

    References:
        Wang, Feng, Zhang 2021, Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of Overconfidence, Eq. 4.
    """

    def __init__(self, gamma: float, detach_weight: bool = False, **options: Unpack[LossOptions]) -> None:
        super().__init__(detach_weight, **options)
        self.gamma = check_number(gamma, name="gamma", low=0)
        # φ′(p) = −(1 + p)^(γ − 1) (γ log p + (1 + p)/p) is above 0 on an interval of p once γ exceeds the limit
        if self.gamma > INVERSE_FOCAL_LIMIT and not self.detach_weight:
            warn_user(
                f"expected gamma ≤ {INVERSE_FOCAL_LIMIT:.4f}, got {self.gamma:g}: the loss increases with p_y on an "
                "interval, where its gradient lowers p_y; choose a smaller gamma or detach_weight=True",
                UsageWarning,
            )

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 + p)^γ."""
        return torch.exp(self.gamma * torch.log1p(torch.exp(log_p)))


class ScheduledFocalLoss(WeightedNLL):
    """Focal loss with a γ that changes at given epochs: γ = ``gammas[i]`` from the i-th milestone on.

    Call ``set_epoch`` at the start of each epoch. FLSc-531 in the code of Mukhoti et al. (2020) is
    ``ScheduledFocalLoss((5, 3, 1), (100, 250))``. The epoch is part of ``state_dict``, so training resumes with the γ of that
    epoch.

    Args:
        gammas: The γ ≥ 0 for each stage, one more than milestones. Values that are assigned later apply from the next
            ``set_epoch`` on.
        milestones: Epochs (counted from 0) at which the next stage starts, increasing.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> loss = ScheduledFocalLoss(gammas=(5.0, 3.0, 1.0), milestones=(100, 250))
        >>> loss.set_epoch(100)
        >>> loss.gamma
        tensor(3., dtype=torch.float64)
    """

    in_float64 = True
    gamma: Tensor
    epoch: Tensor

    def __init__(
        self,
        gammas: Sequence[float],
        milestones: Sequence[int],
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(detach_weight, **options)
        self.gammas, self.milestones = stages(gammas, milestones, between="milestones")
        # γ is a tensor, so that a compiled graph uses the γ of the next stage without being compiled again
        self.register_buffer("gamma", torch.tensor(self.gammas[0], dtype=torch.float64))
        self.register_buffer("epoch", torch.tensor(0))

    def set_epoch(self, epoch: int) -> None:
        """Set γ to its value for ``epoch`` (≥ 0)."""
        self.epoch.fill_(epoch)
        # the index of the stage is the number of milestones that have been reached
        self.gamma.fill_(self.gammas[sum(milestone <= epoch for milestone in self.milestones)])

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ with the γ of the current epoch."""
        return power_of_rest(log_not_p, self.gamma.to(log_p.dtype))


class SampleDependentFocalLoss(WeightedNLL):
    """Focal loss with a γ for each sample, which depends on the sample's current p_y.

    The defaults are FLSD-53, with γ = 5 where p_y < 0.2, and 3 elsewhere. FLSD-52 in the authors' code has three intervals:
    ``gammas=(5, 3, 2), thresholds=(0.2, 0.5)``. The authors choose γ so that the gradient equals that of cross-entropy at p₀;
    ``calibrant.theory.gamma_from_threshold`` returns 4.85 for .2 and 3.07 for .25.

    Args:
        gammas: The γ ≥ 0 for each interval of p_y, one more than thresholds, starting with the lowest p_y.
        thresholds: Increasing values in (0, 1); a p_y that equals a threshold belongs to the interval above it.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient. γ itself is always treated as a constant.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> SampleDependentFocalLoss().gamma_of(torch.tensor([0.1, 0.2, 0.9]))
        tensor([5., 3., 3.])

    References:
        Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss, §5 (FLSD).
    """

    def __init__(
        self,
        gammas: Sequence[float] = (5.0, 3.0),
        thresholds: Sequence[float] = (0.2,),
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(detach_weight, **options)
        levels = [check_number(one, name="each of thresholds", low=0, high=1) for one in thresholds]
        self.gammas, self.thresholds = stages(gammas, levels, between="thresholds")

    def gamma_of(self, p: Tensor) -> Tensor:
        """Return the γ for each true-class probability ``p``, elementwise and without gradient."""
        with torch.no_grad():
            gamma = torch.full_like(p, self.gammas[0])
            # thresholds increase, so the last threshold that p reaches decides
            for threshold, above in zip(self.thresholds, self.gammas[1:], strict=True):
                gamma.masked_fill_(p >= threshold, above)
            return gamma

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ(p)."""
        return power_of_rest(log_not_p, self.gamma_of(torch.exp(log_p)))


class FocalCalibrationLoss(RowLoss):
    """Focal loss plus a multiple of the Brier score, (1 − p_y)^γ · (−log p_y) + λ Σ_k (p_k − [k = y])².

    The Brier score is proper, so it moves the minimiser towards the true probabilities.

    Args:
        gamma: γ ≥ 0.
        strength: The factor λ ≥ 0 of the Brier score.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> FocalCalibrationLoss(3.0)(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1496)

    References:
        Liang et al. 2024, Calibrating Deep Neural Network using Euclidean Distance, Eq. 5.
    """

    def __init__(
        self,
        gamma: float = 3.0,
        strength: float = 1.0,
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.gamma, self.detach_weight = FocalScore(gamma).gamma, detach_weight
        self.strength = check_number(strength, name="strength", low=0)

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (1 − p_y)^γ · (−log p_y) + λ Σ_k (p_k − [k = y])² (N,)."""
        pair = true_class_log_probs(logits, labels)
        focal = weighted_nll(FocalScore(self.gamma).weight, *pair, detach_weight=self.detach_weight)
        return focal + self.strength * squared_distance(logits, labels)
