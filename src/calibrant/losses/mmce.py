"""Maximum mean calibration error (MMCE) as a penalty, in O(N log N) time and O(N) memory."""

from typing import Literal

import torch
from torch import Tensor

from calibrant._check import check_choice, check_flag, check_number
from calibrant._objective.batch import Reduction
from calibrant._objective.true_class import confidence_beside
from calibrant.losses.loss import Loss
from calibrant.losses.penalty import BatchPenalty

__all__ = ["MMCELoss"]

_SMALLEST = 1e-24  # of MMCE²; rounding of the sums, of size 1e-16 times smaller squares, stays below it


class MMCELoss(BatchPenalty):
    """base + λ MMCE: the distance between confidence and correctness in the space of a Laplacian kernel.

    Wants batches of 100 and more, and a lower learning rate: on small ones it breaks training.

    Args:
        strength: λ ≥ 0.
        kernel_width: w ≥ 0.01 of exp(−|r − r′|/w).
        weighted: MMCE_w: correct and wrong samples weigh the same however few they are; 0 where a batch has only one
            kind.
        normalisation: ``"kumar"`` is the paper's, with the square root. ``"torrvision"`` is that of the reference code
            of Mukhoti et al.: without weights it has no square root, with weights it divides by the pair counts twice.
        base: The loss that is penalised; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``; given to the base instead if there is one, as are the next two.
        weight: (K,) class weights of the base, or None.
        ignore_index: Labels that count nothing.

    Examples:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
        >>> MMCELoss()(logits, torch.tensor([0, 0, 1]))
        tensor(2.7924)

    References:
        Kumar, Sarawagi, Jain 2018, Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings,
        Eq. 4 and §4.2.
    """

    def __init__(
        self,
        strength: float = 2.0,
        kernel_width: float = 0.4,
        weighted: bool = True,
        normalisation: Literal["kumar", "torrvision"] = "kumar",
        *,
        base: Loss | None = None,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__(strength, base, reduction, weight, ignore_index)
        self.kernel_width = check_number(kernel_width, name="kernel_width", low=0.01)
        self.weighted = check_flag(weighted, name="weighted")
        self.normalisation = check_choice(normalisation, name="normalisation", choices=("kumar", "torrvision"))

    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits passed on and MMCE () of the batch."""
        logits, confidence, predicted = confidence_beside(logits)
        correct = (predicted == labels).to(torch.float64)
        return logits, self.of_confidence(confidence.to(torch.float64), correct, kept.to(torch.float64))

    def of_confidence(self, confidence: Tensor, correct: Tensor, kept: Tensor) -> Tensor:
        """Return MMCE () of ``confidence`` (N,) in [0, 1] and ``correct`` (N,), 0 or 1, counting rows by ``kept`` (N,)."""
        reference = self.normalisation == "torrvision"
        if not self.weighted:
            square = self._square(confidence, kept * (correct - confidence) / kept.sum().clamp_min(1))
            return square if reference else _root(square)
        right, wrong = kept * correct, kept * (1 - correct)
        rights, wrongs = right.sum(), wrong.sum()
        power = 2 if reference else 1
        signed = (
            right * (1 - confidence) / rights.clamp_min(1) ** power - wrong * confidence / wrongs.clamp_min(1) ** power
        )
        both = (rights > 0) & (wrongs > 0)
        square = self._square(confidence, torch.where(both, signed, 0))
        return torch.where(both, torch.sqrt(square + 1e-10), 0) if reference else _root(square)

    def _square(self, r: Tensor, a: Tensor) -> Tensor:
        return (a * laplacian_sums(r, a, width=self.kernel_width)).sum()


def laplacian_sums(r: Tensor, a: Tensor, *, width: float) -> Tensor:
    """Return Σ_j a_j exp(−|r_i − r_j|/width) (N,) for ``r`` (N,) in [0, 1] and ``a`` (N,), both float64.

    The kernel is a product of exponentials on either side of r_i, so sums over the sorted sample give all N values.
    Equal points are added apart, with the gradient 0 that |r_i − r_j| has there, so that their order is of no effect.
    """
    ranked, order = torch.sort(r.detach())
    start = torch.searchsorted(ranked, r.detach())
    stop = torch.searchsorted(ranked, r.detach(), right=True)
    scaled = r / width
    zero = a.new_zeros(1)
    below = torch.cat([zero, torch.cumsum((a * torch.exp(scaled))[order], 0)])[start] * torch.exp(-scaled)
    upwards = torch.cumsum((a * torch.exp(-scaled))[order].flip(0), 0).flip(0)
    above = torch.cat([upwards, zero])[stop] * torch.exp(scaled)
    totals = torch.cat([zero, torch.cumsum(a[order], 0)])
    return below + above + totals[stop] - totals[start]


def _root(square: Tensor) -> Tensor:
    """Return √square, 0 with gradient 0 where it is 0 up to rounding (there the slope is infinite, or NaN below 0)."""
    positive = square > _SMALLEST
    return torch.where(positive, torch.sqrt(torch.where(positive, square, 1.0)), 0.0)
