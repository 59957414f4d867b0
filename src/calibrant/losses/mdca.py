"""A penalty on the difference of mean probability and frequency of each class in a batch."""

from typing import Any, Unpack

import torch
from torch import Tensor

from calibrant._core.constraints import NonNegative
from calibrant._core.numerics import row_chunks
from calibrant._objective.statistics import gradient_in_blocks, in_blocks, promoted
from calibrant.losses.penalty import BatchPenalty, PenaltyOptions


class MDCALoss(BatchPenalty):
    """base + λ (1/K) Σ_k |mean p_k − frequency of label k|: each class's mean probability should equal its batch frequency.

    The penalty is noisy where a batch holds few samples per class: prefer batches of several times K.

    Args:
        strength: λ ≥ 0.
        base: The loss to which the penalty is added; None is cross-entropy, the authors report focal loss with γ = 1 to 3.
        reduction: ``"mean"`` or ``"sum"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights of the base, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> MDCALoss(1.0)(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        tensor(1.1452)

    References:
        Hebbalaguppe et al. 2022, A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for Improved Neural
        Network Calibration, Eq. 3.
    """

    def __init__(self, strength: NonNegative = 1.0, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(strength, **options)

    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and (1/K) Σ_k |mean p_k − frequency of label k| ()."""
        count = kept.sum().clamp_min(1)
        totals = kept.new_zeros(logits.shape[1]).index_add(0, labels, kept)
        logits, sums = probability_sums(logits, kept)
        return logits, (sums - totals).abs().mean() / count


def probability_sums(logits: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``logits`` for further use, and Σ_i kept_i p_ik (K,) with p = softmax(logits); ``kept`` (N,) is 0 or 1."""
    if in_blocks(logits):
        pair: tuple[Tensor, Tensor] = _SumsInBlocks.apply(logits, kept)
        return pair
    return logits, _summed_softmax(logits, kept)


def _summed_softmax(logits: Tensor, kept: Tensor) -> Tensor:
    return (torch.softmax(promoted(logits), dim=1) * kept[:, None]).sum(dim=0)


class _SumsInBlocks(torch.autograd.Function):
    """``_summed_softmax`` in blocks of rows: nothing of size N × K is saved for the backward pass, and the gradient is written once."""

    @staticmethod
    def forward(logits: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        sums = kept.new_zeros(logits.shape[1])
        blocks = list(row_chunks(*logits.shape, itemsize=4, device=logits.device))
        work = sums.new_empty((blocks[0].stop, logits.shape[1]))
        for rows in blocks:
            p = torch.softmax(logits[rows].float(), dim=1, out=work[: rows.stop - rows.start])
            sums += p.mul_(kept[rows, None]).sum(dim=0)
        return logits.view_as(logits), sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, through: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, None]:
        logits, kept = ctx.saved_tensors
        if grad is None:
            return through, None
        if torch.is_grad_enabled():  # create_graph=True: repeat the forward pass with differentiable operations
            own = torch.autograd.grad(_summed_softmax(logits, kept), logits, grad, create_graph=True)[0]
            return own if through is None else through + own, None

        def write(rows: slice, out: Tensor) -> None:
            # d Σ_k g_k p_ik / d z_ij = p_ij (g_j − Σ_k g_k p_ik)
            p = torch.softmax(logits[rows].float(), dim=1)
            torch.mul(p, grad, out=out)
            out.sub_(out.sum(dim=1, keepdim=True) * p).mul_(kept[rows, None])

        return gradient_in_blocks(logits, through, write), None
