"""Cross-entropy with a weight of each row: by its distance from the label, the next lower probability, or the rank of its confidence."""

import math
from typing import Annotated, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.constraints import Bins, Level, NonNegative, Number, Positive
from calibrant._core.numerics import row_chunks
from calibrant._objective.batch import true_class_log_probs
from calibrant._objective.reminder import UpdateReminder
from calibrant._objective.statistics import Distance, in_blocks, positive_power, with_bounded_gradient
from calibrant._objective.true_class import argmax, confidence_with_logits, nll_with_logits, row_nll
from calibrant.binning import EqualWidth
from calibrant.losses.adafocal import Labelled, gathered
from calibrant.losses.loss import LossOptions, RowLoss
from calibrant.scores import power_of_rest, weighted_nll


class BSCELoss(RowLoss):
    """‖p − e_y‖_β^γ · (−log p_y), with the weight constant in the gradient: larger errors have a larger weight.

    Args:
        gamma: γ ≥ 0; γ = 2 with ``norm=2`` weights by the Brier score, the authors' choice, which they did not tune.
        norm: β ≥ 1, the order of the norm.
        detach_weight: True is BSCE-GRA; False also differentiates the weight (BSCE).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> import torch
        >>> BSCELoss()(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.0499)

    References:
        Lin et al. 2025, Uncertainty Weighted Gradients for Model Calibration, Eq. 11.
    """

    def __init__(
        self,
        gamma: NonNegative = 2.0,
        norm: Annotated[float, Number(1)] = 2.0,
        detach_weight: bool = True,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.gamma = gamma
        self.norm = norm
        self.detach_weight = detach_weight

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return ‖p − e_y‖_β^γ · (−log p_y) (N,)."""
        if not self.detach_weight:
            logits, distance = Distance(self.norm).with_logits(logits, labels)
            distance = with_bounded_gradient(distance)
        else:
            distance = Distance(self.norm)(logits.detach(), labels)
        # Distance is Σ_k |p_k − [k = y]|^β = ‖p − e_y‖_β^β, so that the norm to the power γ is it to the power γ/β
        return positive_power(distance, self.gamma / self.norm) * row_nll(logits, labels)


class DualFocalLoss(RowLoss):
    """(1 − p_y + p_j)^γ · (−log p_y), p_j the largest probability strictly below p_y, or 0 if there is none.

    Focal loss gives a small weight to every sample with p_y near 1; dual focal loss does so only where p_y also exceeds the
    next lower probability by much, which reduces the under-confidence that focal loss causes.

    Args:
        gamma: γ ≥ 0; the authors use 5 on CIFAR and 2.3 on Tiny-ImageNet.
        detach_weight: Treat the weight as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> DualFocalLoss(5.0)(torch.tensor([[1.0, 0.5, -0.5]]), torch.tensor([0]))
        tensor(0.1800)

    References:
        Tao, Dong, Xu 2023, Dual Focal Loss for Calibration, Eq. 5.
    """

    def __init__(self, gamma: NonNegative = 5.0, detach_weight: bool = False, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.gamma = gamma
        self.detach_weight = detach_weight

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (1 − p_y + p_j)^γ · (−log p_y) (N,)."""
        below, exists = class_below(logits.detach(), labels)
        below = torch.where(exists, below, labels)  # a placeholder with a finite logit: its value is masked below
        logits, nll_below = nll_with_logits(logits, below)

        def weight_of(_: Tensor, log_not_p: Tensor) -> Tensor:
            # log(1 − p_y + p_j) = log(1 − p_y) − log σ(log(1 − p_y) − log p_j), not torch.logaddexp, whose second
            # derivative is not finite where the two terms differ much
            log_ratio = log_not_p + torch.where(exists, nll_below, 0.0)
            log_sum = log_not_p - F.logsigmoid(log_ratio)
            return power_of_rest(torch.where(exists, log_sum, log_not_p), self.gamma)

        return weighted_nll(weight_of, *true_class_log_probs(logits, labels), detach_weight=self.detach_weight)


def class_below(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class (N,) with the largest logit strictly below the label's, and whether there is one (N,)."""
    if not in_blocks(logits):
        return _class_below(logits, labels)
    parts = [_class_below(logits[rows], labels[rows]) for rows in row_chunks(*logits.shape, device=logits.device)]
    return torch.cat([index for index, _ in parts]), torch.cat([exists for _, exists in parts])


def _class_below(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    lower = logits.masked_fill(logits >= logits.gather(1, labels[:, None]), -math.inf)
    index = argmax(lower)
    return index, lower.gather(1, index[:, None])[:, 0] > -math.inf


class AURCLoss(RowLoss):
    """−log(1 − min(G(c), τ)) · (−log p_y), c the confidence and G the distribution function of all confidences.

    E[−log(1 − G(c)) · loss] is the area under the risk–coverage curve: of the k most confident rows, averaged over k. Its weight
    grows without bound with the confidence; held constant above the quantile τ it ranks the less confident rows only. G is a smoothed
    histogram: O(N · bins).

    Call ``loss.update(validation_predictions)`` once per epoch; until then confidences count as uniform. The authors collect G from
    the training batches of an epoch; from validation rows a term depends on its own row only. Unsure rows get small weights: in the
    study ``features-aurc`` it hardly trained from scratch.

    Args:
        quantile: τ, in (0, 1).
        bins: Of equal width.
        width: s > 0 of a bin's step σ((c − its centre) / s) in G.
        detach_weight: Treat the weight as a constant in the gradient. G itself always is.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> AURCLoss()(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.2472)

    References:
        Zhou et al. 2025, Revisiting Reweighted Risk for Calibration: AURC, Focal, and Inverse Focal Loss (arXiv 2505.23463v4).
    """

    shares: Tensor
    updates: Tensor

    def __init__(
        self,
        quantile: Level = 0.5,
        bins: Bins = 64,
        width: Positive = 0.05,
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.quantile = quantile
        self.bins = bins
        self.width = width
        self.detach_weight = detach_weight
        self.register_buffer("shares", torch.full((bins,), 1 / bins, dtype=torch.float64))
        self.register_buffer("updates", torch.tensor(0))
        self._reminder = UpdateReminder(2000)  # as AdaFocalLoss

    @torch.no_grad()
    def update(self, validation: Labelled) -> None:
        """Set the distribution of confidences.

        Args:
            validation: Labelled predictions of the current network, in evaluation mode. In distributed training each
                process passes its own part, and every process updates from all parts together.
        """
        self._reminder.updated()
        confidence, correct = gathered(validation.confidence.cpu(), validation.correct.double().cpu())
        count = EqualWidth(self.bins).table(confidence, correct).count.double()
        self.shares.copy_(count / count.sum())
        self.updates += 1

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −log(1 − min(G(c), τ)) · (−log p_y) (N,)."""
        self._reminder.count(self)
        logits, confidence, _ = confidence_with_logits(logits)
        own = confidence.detach() if self.detach_weight else confidence
        centres = (torch.arange(self.bins, dtype=own.dtype, device=own.device) + 0.5) / self.bins
        # a sum and no product of matrices: autocast would round that to half precision
        below = (torch.sigmoid((own[:, None] - centres) / self.width) * self.shares.to(own)).sum(dim=1)
        # half a bin at least: no row goes without weight
        return -torch.log1p(-below.clamp(0.5 / self.bins, self.quantile)) * row_nll(logits, labels)
