"""Maximum mean calibration error of a batch, as a penalty."""

from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from calibrant._core.check import check_choice, check_number
from calibrant.losses._blocks import confidence_of
from calibrant.losses.penalty import BatchPenalty, PenaltyOptions

Normalisation = Literal["kumar", "torrvision"]

_SMALLEST = 1e-24  # MMCE² below this is taken as 0: the rounding error of the float64 sums stays below it


class MMCELoss(BatchPenalty):
    """base + λ MMCE, the kernel mean embedding distance between confidence and correctness under a Laplacian kernel.

    Use batches of at least 100 and a lower learning rate: on small batches the penalty can make training diverge.

    Args:
        strength: λ ≥ 0.
        kernel_width: w ≥ 0.01 of exp(−|r − r′|/w).
        weighted: MMCE_w: correct and misclassified samples have equal total weight, however few they are; 0 for a batch
            of only one kind.
        normalisation: ``"kumar"`` is the paper's, with the square root. ``"torrvision"`` is that of the reference code
            of Mukhoti et al.: unweighted it has no square root, weighted it divides by the pair counts twice.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights of the base, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
        >>> MMCELoss()(logits, torch.tensor([0, 0, 1]))
        tensor(2.7924)

    References:
        Kumar, Sarawagi, Jain 2018, Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings,
        Eq. 4 and §4.2.
    """

    in_float64 = True

    def __init__(
        self,
        strength: float = 2.0,
        kernel_width: float = 0.4,
        weighted: bool = True,
        normalisation: Normalisation = "kumar",
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(strength, **options)
        self.kernel_width = check_number(kernel_width, name="kernel_width", low=0.01)
        self.weighted = weighted
        self.normalisation = check_choice(normalisation, name="normalisation", choices=get_args(Normalisation))

    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> Tensor:
        """Return MMCE () of the batch."""
        confidence, predicted = confidence_of(logits)
        confidence, correct, kept = (x.to(torch.float64) for x in (confidence, predicted == labels, kept))
        reference = self.normalisation == "torrvision"
        if not self.weighted:
            square = self._square(confidence, kept * (correct - confidence) / kept.sum().clamp_min(1))
            return square if reference else _root(square)
        # Kumar et al. 2018 §4.2: residuals of correct rows (1 − r) and of wrong rows (−r), each averaged over its own kind
        is_correct, is_wrong = kept * correct, kept * (1 - correct)
        n_correct, n_wrong = is_correct.sum(), is_wrong.sum()
        power = 2 if reference else 1
        of_correct = is_correct * (1 - confidence) / n_correct.clamp_min(1) ** power
        signed = of_correct - is_wrong * confidence / n_wrong.clamp_min(1) ** power
        both = (n_correct > 0) & (n_wrong > 0)
        square = self._square(confidence, torch.where(both, signed, 0))
        return torch.where(both, torch.sqrt(square + 1e-10), 0) if reference else _root(square)

    def _square(self, r: Tensor, a: Tensor) -> Tensor:
        return (a * laplacian_sums(r, a, width=self.kernel_width)).sum()


def laplacian_sums(r: Tensor, a: Tensor, *, width: float) -> Tensor:
    """Return Σ_j a_j exp(−|r_i − r_j|/width) (N,) for ``r`` (N,) in [0, 1] and ``a`` (N,), both float64.

    For r_j < r_i the kernel factors into exp(r_j/width) · exp(−r_i/width), and likewise for r_j > r_i, so cumulative sums
    over the sorted sample give all N values. Ties are added separately, with gradient 0 for |r_i − r_j|, so that the order
    in which they are sorted has no effect.
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
