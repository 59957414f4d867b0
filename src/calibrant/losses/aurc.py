"""Cross-entropy weighted by the rank of a row's confidence: the area under the risk–coverage curve."""

from typing import Unpack

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.binning import EqualWidth
from calibrant.losses._blocks import confidence_of, row_nll
from calibrant.losses.adafocal import Labelled, gathered
from calibrant.losses.loss import LossOptions, RowLoss


class AURCLoss(RowLoss):
    """−log(1 − min(G(c), τ)) · (−log p_y), c the confidence and G the distribution function of all confidences.

    E[−log(1 − G(c)) · loss] is the area under the risk–coverage curve: of the k most confident rows, averaged over k. Its weight
    grows without bound with the confidence; held constant above the quantile τ it ranks the less confident rows only. G is a smoothed
    histogram: O(N · bins).

    Call ``loss.update(validation_predictions)`` once per epoch; until then confidences count as uniform. The authors collect G from
    the training batches of an epoch; from validation rows a term depends on its own row only. A term also falls with its own weight,
    that is with the row's confidence: a head on frozen features hardly trained with it from scratch, while with ``detach_weight``
    its error was the lowest.

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
    def update(self, validation: Labelled) -> None:
        """Set the distribution of confidences.

        Args:
            validation: Labelled predictions of the current network, in evaluation mode. In distributed training each
                process passes its own part, and every process updates from all parts together.
        """
        confidence, correct = gathered(validation.confidence.cpu(), validation.correct.double().cpu())
        count = EqualWidth(self.bins).table(confidence, correct).count.double()
        self.shares.copy_(count / count.sum())
        self.updates += 1

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return −log(1 − min(G(c), τ)) · (−log p_y) (N,)."""
        confidence, _ = confidence_of(logits)
        own = confidence.detach() if self.detach_weight else confidence
        centres = (torch.arange(self.bins, dtype=own.dtype, device=own.device) + 0.5) / self.bins
        # a sum and no product of matrices: autocast would round that to half precision
        below = (torch.sigmoid((own[:, None] - centres) / self.width) * self.shares.to(own)).sum(dim=1)
        # half a bin at least: no row goes without weight
        return -torch.log1p(-below.clamp(0.5 / self.bins, self.quantile)) * row_nll(logits, labels)
