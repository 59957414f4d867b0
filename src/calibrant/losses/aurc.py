"""Cross-entropy weighted by the rank of each row's confidence, which gives the area under the risk–coverage curve."""

from typing import Unpack

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.binning import EqualWidth
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.losses._blocks import confidence_of, row_nll
from calibrant.losses.adafocal import decisions_of_all_processes
from calibrant.losses.loss import LossOptions, RowLoss


class AURCLoss(RowLoss):
    """Rank-weighted cross-entropy −log(1 − min(G(c), τ)) · (−log p_y), where G is the distribution of all confidences c.

    E[−log(1 − G(c)) · loss] is the area under the risk–coverage curve, that is, the loss of the k most confident rows, averaged over
    k. Its weight grows without bound with the confidence. In this loss, the weight is constant above the quantile τ, so that only
    less confident rows are ranked. G is a smoothed histogram, which takes O(N · bins) operations.

    Call ``loss.update(validation_predictions)`` once per epoch; before the first update, confidences are assumed to be uniform. The
    authors collect G from the training batches of an epoch; with validation rows, each term depends only on its own row. A term
    also decreases with its own weight, that is, with the confidence of its row. A linear head on frozen features hardly learned
    anything with this loss from scratch, but reached the lowest error with ``detach_weight``.

    Args:
        quantile: The quantile τ in (0, 1).
        bins: Number of equal-width bins, ≥ 1.
        width: Smoothing width s > 0; each bin contributes a step σ((c − centre) / s) to G.
        detach_weight: Treat the weight as a constant in the gradient. G is always treated as a constant.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> AURCLoss()(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.2472)

    References:
        Zhou et al. 2025, Revisiting Reweighted Risk for Calibration: AURC, Focal, and Inverse Focal Loss (arXiv 2505.23463v4).
    """

    in_float64 = True
    shares: Tensor
    updates: Tensor

    def __init__(
        self,
        quantile: float = 0.5,
        bins: int = 64,
        width: float = 0.05,
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.quantile = check_number(quantile, name="quantile", low=0, high=1, open_low=True, open_high=True)
        self.bins = bins
        self.width = check_number(width, name="width", low=0, open_low=True)
        self.detach_weight = detach_weight
        self.register_buffer("shares", torch.full((bins,), 1 / bins, dtype=torch.float64))
        self.register_buffer("updates", torch.tensor(0))

    @torch.no_grad()
    def update(self, validation: Predictions | Pairs) -> None:
        """Set the distribution of the confidences.

        Args:
            validation: Labelled predictions of the current network, in evaluation mode. In distributed training, each process
                passes its own part, and every process is updated with all parts together.
        """
        confidence, correct = decisions_of_all_processes(validation)
        count = EqualWidth(self.bins).table(confidence, correct).count.double()
        self.shares.copy_(count / count.sum())
        self.updates += 1

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −log(1 − min(G(c), τ)) · (−log p_y) (N,)."""
        confidence, _ = confidence_of(logits)
        own = confidence.detach() if self.detach_weight else confidence
        centres = (torch.arange(self.bins, dtype=own.dtype, device=own.device) + 0.5) / self.bins
        # a sum is used instead of a matrix product, which autocast would compute in half precision
        below = (torch.sigmoid((own[:, None] - centres) / self.width) * self.shares.to(own)).sum(dim=1)
        # G is at least half a bin, so that every row has a positive weight
        return -torch.log1p(-below.clamp(0.5 / self.bins, self.quantile)) * row_nll(logits, labels)
