"""The maximum mean calibration error of a batch as a penalty."""

from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from calibrant._core.check import check_choice, check_number
from calibrant.losses._blocks import confidence_of
from calibrant.losses.penalty import BatchPenalty, PenaltyOptions

Normalisation = Literal["kumar", "torrvision"]

_SMALLEST = 1e-24  # a smaller MMCE² counts as 0; rounding errors of the float64 sums stay below this value


class MMCELoss(BatchPenalty):
    """base + λ MMCE, the distance between the kernel mean embeddings of confidence and correctness under a Laplacian kernel.

    Use batches of at least 100 samples and a lower learning rate, because the penalty can make training diverge on small
    batches.

    Args:
        strength: The factor λ ≥ 0 of the penalty.
        kernel_width: The width w ≥ 0.01 of the kernel exp(−|r − r′|/w).
        weighted: Whether to use MMCE_w, where correct and misclassified samples have equal total weight, however few there
            are. It is 0 if a batch has only correct or only misclassified samples.
        normalisation: ``"kumar"`` is the definition in the paper, with a square root. ``"torrvision"`` is the one in the
            reference code of Mukhoti et al., which has no square root if unweighted, and divides by the pair counts twice if
            weighted.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``. If you pass ``base``, set this and the next two arguments there.
        weight: Class weights (K,) for the base, or None.
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
        """Return the MMCE () of the batch."""
        confidence, predicted = confidence_of(logits)
        confidence, correct, kept = (x.to(torch.float64) for x in (confidence, predicted == labels, kept))
        reference = self.normalisation == "torrvision"
        if not self.weighted:
            square = self._square(confidence, kept * (correct - confidence) / kept.sum().clamp_min(1))
            return square if reference else _root(square)
        # Kumar et al. 2018 §4.2: the residuals of correct rows (1 − r) and of wrong rows (−r) are averaged separately
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

    For r_j < r_i, the kernel is the product exp(r_j/width) · exp(−r_i/width), and likewise for r_j > r_i, so cumulative sums over
    the sorted sample give all N values. Ties are added separately, with gradient 0 for |r_i − r_j|, so that the order in which
    they are sorted has no effect.
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
    """Return √square; where it is 0 up to rounding, return 0 with gradient 0 instead of an infinite gradient or NaN."""
    positive = square > _SMALLEST
    return torch.where(positive, torch.sqrt(torch.where(positive, square, 1.0)), 0.0)
